//! Attributes in headers: percent-encoded UTF-8 where needed.

use std::fmt::Write as _;

/// Decodes a header value; `None` if the encoding is invalid.
pub(super) fn decode(value: &[u8]) -> Option<String> {
    // Some put it in quotes, and the binding says to take them away.
    let value = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.iter().copied();
    while let Some(byte) = rest.next() {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        bytes.push(match byte {
            b'%' => digit(rest.next()?)? << 4 | digit(rest.next()?)?,
            b' '..=b'~' => byte,
            _ => return None,
        });
    }
    String::from_utf8(bytes).ok()
}

/// A text as the value of a header.
pub(super) fn encode(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' | b'%' => push(&mut value, byte),
            b'!'..=b'~' => value.push(char::from(byte)),
            _ => push(&mut value, byte),
        }
    }
    value
}

fn push(value: &mut String, byte: u8) {
    // A string takes whatever is written.
    let _ = write!(value, "%{byte:02X}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for (text, value) in [
            ("/shop", "/shop"),
            ("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ("100 %\"", "100%20%25%22"),
        ] {
            assert_eq!((encode(text).as_str(), decode(value.as_bytes()).as_deref()), (value, Some(text)));
        }
        assert_eq!(decode(b"\"in quotes\"").as_deref(), Some("in quotes"));
        for bad in [&b"%"[..], b"%4", b"%zz", b"%ff", b"\xe2\x82\xac", b"a\tb"] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
    }
}
