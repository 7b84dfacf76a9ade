//! The attributes of a CloudEvent, and the event that they make.

use std::collections::BTreeMap;

use redrive::event::bounds::ID_BYTES_MAX;
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::super::publish::EventDraft;
use super::{PREFIX, percent};

/// Attributes of the specification, all of which are strings.
const SPECIFIED: [&str; 8] =
    ["specversion", "id", "source", "type", "subject", "time", "dataschema", "partitionkey"];

/// Bytes of an attribute's name. The specification asks for no more than twenty and lets more be.
const NAME_BYTES_MAX: usize = 64;

/// Attributes by name, without the type of the data; and the types of those that are no strings.
#[derive(Debug, Default)]
pub(super) struct Attributes(BTreeMap<String, String>, Vec<String>);

/// The type of an attribute in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Boolean,
    Integer,
}

impl Attributes {
    /// Takes one, if it can be one.
    pub(super) fn put(&mut self, name: &str, text: String) -> Result<(), String> {
        let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !plain {
            return Err(format!(
                "`{}` is not a valid attribute name; use at most {NAME_BYTES_MAX} lower-case letters and digits",
                name.escape_debug()
            ));
        }
        if ["data", "datacontenttype"].contains(&name) {
            return Err(format!("`{name}` must not be sent as a header; use the body, or `content-type`"));
        }
        if text.chars().any(char::is_control) {
            return Err(format!("the attribute `{name}` contains a control character"));
        }
        let empty = ["id", "source", "type", "subject", "dataschema", "partitionkey"];
        if text.is_empty() && empty.contains(&name) {
            return Err(format!("the attribute `{name}` is empty"));
        }
        match name {
            "specversion" if text != "1.0" => {
                return Err(format!("this server supports `specversion` 1.0, not `{text}`"));
            }
            "time" if !is_time(&text) => {
                return Err(format!(
                    "`time` must be written as 2026-01-31T12:00:00Z (RFC 3339), not `{text}`"
                ));
            }
            "source" | "dataschema" if text.chars().any(char::is_whitespace) => {
                return Err(format!("`{name}` must be a URI without spaces, not `{text}`"));
            }
            _ => {}
        }
        self.0.insert(name.to_owned(), text);
        Ok(())
    }

    /// Notes the type of an attribute, unless it is that of all others. Those of the specification are strings.
    pub(super) fn note(&mut self, name: &str, kind: Kind) {
        let word = match kind {
            Kind::Text => return,
            _ if SPECIFIED.contains(&name) => return,
            Kind::Boolean => "boolean",
            Kind::Integer => "integer",
        };
        self.1.push(format!("{name}={word}"));
    }

    /// Writes identity, key and headers; the rest is as it was.
    pub(super) fn write(self, written: &mut EventDraft) -> Result<(), String> {
        let required =
            |name: &str| self.0.get(name).ok_or_else(|| format!("a CloudEvent needs the attribute `{name}`"));
        required("specversion")?;
        required("type")?;
        written.id = Some(identity(required("source")?, required("id")?));
        if let Some(key) = self.0.get("partitionkey") {
            written.key = Some(key.clone());
        }
        written.ce_types = (!self.1.is_empty()).then(|| self.1.join(" "));
        let headers = self.0.into_iter();
        written
            .headers
            .extend(headers.map(|(name, text)| (format!("{PREFIX}{name}"), percent::encode(&text))));
        Ok(())
    }
}

/// `source` and `id` joined by a blank, which no source contains. If that is too long, a hash of both with their
/// lengths; it contains no blank, so the two forms never collide.
fn identity(source: &str, id: &str) -> String {
    let plain = format!("{source} {id}");
    if plain.len() <= ID_BYTES_MAX {
        return plain;
    }
    let mut hasher = Sha256::new();
    for part in [source, id] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let digits: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// The text of an attribute in JSON, and its type; none for a null, which is as if it were not there.
pub(super) fn typed(name: &str, value: &RawValue) -> Result<Option<(String, Kind)>, String> {
    let value: Value = serde_json::from_str(value.get()).map_err(|error| format!("`{name}`: {error}"))?;
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some((text, Kind::Text))),
        Value::Bool(truth) => Ok(Some((truth.to_string(), Kind::Boolean))),
        Value::Number(number) if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => {
            Ok(Some((number.to_string(), Kind::Integer)))
        }
        _ => Err(format!("the attribute `{name}` must be a string, a boolean, or a 32-bit integer")),
    }
}

/// An attribute in JSON again, by the types that were noted.
pub(super) fn value(name: &str, text: String, types: &str) -> Value {
    let kind = types.split(' ').find_map(|noted| noted.strip_prefix(name)?.strip_prefix('='));
    let typed = match kind {
        Some("boolean") => text.parse::<bool>().ok().map(Value::from),
        Some("integer") => text.parse::<i32>().ok().map(Value::from),
        _ => None,
    };
    typed.unwrap_or_else(|| text.into())
}

/// Whether it is a time in the form of RFC 3339, with any offset.
fn is_time(text: &str) -> bool {
    // The forms differ in their end alone: a fraction, and an offset in place of the `Z`.
    let Some((start, end)) = text.split_at_checked(19) else { return false };
    let end = match end.strip_prefix('.') {
        Some(fraction) => {
            let rest = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if rest.len() == fraction.len() {
                return false;
            }
            rest
        }
        None => end,
    };
    let is_offset = |end: &str| {
        let (hours, minutes) = end.get(1..).and_then(|end| end.split_once(':')).unwrap_or_default();
        let within = |text: &str, most: u32| {
            text.len() == 2
                && text.bytes().all(|byte| byte.is_ascii_digit())
                && text.parse().is_ok_and(|n: u32| n <= most)
        };
        end.starts_with(['+', '-']) && within(hours, 23) && within(minutes, 59)
    };
    let has_end = end.eq_ignore_ascii_case("z") || is_offset(end);
    has_end && humantime::parse_rfc3339(&format!("{}Z", start.to_ascii_uppercase())).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_sources_and_ids_make_the_same_identity() {
        assert_eq!(identity("/shop", "17"), "/shop 17");
        let long = "x".repeat(300);
        let ids = [
            identity("/a", "b c"),
            identity("/a b", "c"), // no source has a blank; then it is the first one's
            identity("/a", &long),
            identity(&long, "/a"),
            identity(&format!("/{long}"), "a"),
        ];
        assert_eq!(ids[0], ids[1]);
        let mut attributes = Attributes::default();
        assert!(attributes.put("source", "/a b".to_owned()).is_err(), "so this is why it has none");
        for (n, id) in ids.iter().enumerate().skip(1) {
            assert!(id.len() <= ID_BYTES_MAX && !ids[n + 1..].contains(id), "{ids:?}");
        }
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        for good in [
            "2026-01-31T12:00:00Z",
            "2026-01-31t12:00:00z",
            "2026-01-31T12:00:00.123456789Z",
            "2026-01-31T12:00:00+02:00",
            "2026-01-31T12:00:00.5-11:30",
        ] {
            assert!(is_time(good), "{good}");
        }
        for bad in [
            "",
            "now",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "2026-13-31T12:00:00Z",
            "2026-01-31T12:00:00.Z",
            "2026-01-31T12:00:00+24:00",
            "2026-01-31T12:00:00+2:00",
            "2026-01-31T12:00:00+02:00x",
            "2026-01-31T12:00:0é",
        ] {
            assert!(!is_time(bad), "{bad}");
        }
    }
}
