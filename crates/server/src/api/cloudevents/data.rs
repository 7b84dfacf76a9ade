//! The data of a CloudEvent in the JSON format.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

/// The payload and its type. Data without a type is JSON; data of another type than JSON is the text that it is.
pub(super) fn read(
    data: Option<&RawValue>,
    base64: Option<&RawValue>,
    content_type: Option<String>,
) -> Result<(Option<Vec<u8>>, Option<String>), String> {
    let there = |value: &&RawValue| value.get() != "null";
    match (data, base64.filter(there)) {
        (Some(_), Some(_)) => Err("a CloudEvent has `data` or `data_base64`, not both".to_owned()),
        (None, None) => Ok((None, content_type)),
        (Some(data), None) if content_type.as_deref().is_none_or(is_json) => {
            let content_type = content_type.unwrap_or_else(|| "application/json".to_owned());
            Ok((Some(data.get().as_bytes().to_vec()), Some(content_type)))
        }
        (Some(data), None) => {
            let text: Result<String, _> = serde_json::from_str(data.get());
            let text = text.map_err(|_| {
                let content_type = content_type.as_deref().unwrap_or_default();
                format!("`data` of type `{content_type}` must be a string; use `data_base64` for bytes")
            })?;
            Ok((Some(text.into_bytes()), content_type))
        }
        (None, Some(base64)) => {
            let text: String = serde_json::from_str(base64.get())
                .map_err(|_| "`data_base64` must be a string".to_owned())?;
            let bytes =
                STANDARD.decode(text.as_bytes()).map_err(|error| format!("`data_base64`: {error}"))?;
            Ok((Some(bytes), content_type))
        }
    }
}

/// Whether a media type is JSON: `text/json`, `application/problem+json; charset=utf-8`.
pub(super) fn is_json(media_type: &str) -> bool {
    let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let subtype = media_type.split_once('/').map_or("", |(_, subtype)| subtype);
    subtype == "json" || subtype.ends_with("+json")
}
