//! An event as a CloudEvent document: structured mode, which keeps types and spaces that headers lose.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use redrive::Event;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::data::is_json;

/// The type of an event that was published without one.
const TYPE: &str = "redrive.event";

/// The document. An event that was not published as a CloudEvent becomes one, of its queue.
pub(crate) fn document(event: &Event) -> Vec<u8> {
    let mut members = match super::attributes(event) {
        Some(Value::Object(attributes)) => attributes,
        _ => made(event),
    };
    let content_type = event.meta.as_ref().and_then(|meta| meta.content_type.as_deref());
    let data = match std::str::from_utf8(&event.payload) {
        Ok("") if content_type.is_none() => None,
        // Data without a type would be read as JSON.
        Ok(text) if content_type.is_some_and(is_json) => {
            serde_json::from_str::<&RawValue>(text).ok().map(|json| json.get().to_owned())
        }
        Ok(text) if content_type.is_some() => Some(Value::from(text).to_string()),
        _ => None,
    };
    if data.is_none() && !event.payload.is_empty() {
        members.insert("data_base64".to_owned(), STANDARD.encode(&event.payload).into());
    }
    let mut text = Value::from(members).to_string();
    if let (Some(data), Some('}')) = (data, text.pop()) {
        // As it was written: numbers of any length, members in their order.
        text.extend([",\"data\":", &data]);
    }
    text.push('}');
    text.into_bytes()
}

fn made(event: &Event) -> Map<String, Value> {
    let meta = event.meta.as_ref();
    let kind = meta.and_then(|meta| meta.headers.iter().find(|(name, _)| name == "ce-type"));
    let kind = kind.map_or(TYPE, |(_, kind)| kind);
    let mut members = Map::new();
    let mut put = |name: &str, text: &str| members.insert(name.to_owned(), text.into());
    put("specversion", "1.0");
    put("id", &event.id);
    put("source", &format!("/v1/queues/{}", event.queue));
    put("type", kind);
    if let Some(key) = &event.key {
        put("partitionkey", key);
    }
    if let Some(content_type) = meta.and_then(|meta| meta.content_type.as_deref()) {
        put("datacontenttype", content_type);
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(event: &Event) -> Value {
        let document = document(event);
        serde_json::from_slice(&document)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&document)))
    }

    #[test]
    fn data_is_written_as_its_type_says() {
        let with = |content_type: Option<&str>, payload: &[u8]| {
            let mut event = Event::new("orders", "1").payload(payload.to_vec());
            event.meta_mut().content_type = content_type.map(str::to_owned);
            read(&event)
        };
        let json = with(Some("application/json"), b"{\"a\": 1.50}");
        assert_eq!((&json["data"]["a"], &json["source"]), (&Value::from(1.5), &"/v1/queues/orders".into()));
        assert_eq!(with(Some("text/plain"), "a \"ü\"".as_bytes())["data"], "a \"ü\"");
        assert_eq!(with(Some("application/json"), b"{oh")["data_base64"], "e29o");
        assert_eq!(with(Some("text/plain"), b"\xff")["data_base64"], "/w==");
        assert_eq!(with(None, b"x")["data_base64"], "eA==");
        let none = with(None, b"");
        assert!(none.get("data").is_none() && none.get("data_base64").is_none(), "{none}");
    }
}
