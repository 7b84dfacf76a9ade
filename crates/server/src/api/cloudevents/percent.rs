//! Attributes in headers, as the HTTP binding has them: quotes first, then percent-encoded UTF-8.
//!
//! Reading is lenient, because SDKs send attributes as they are: raw UTF-8 or Latin-1, and a `%` that begins no code.

use std::fmt::Write as _;

/// The text of a header value.
pub(super) fn decode(value: &[u8]) -> String {
    // UTF-8, or what HTTP's headers were before it: Node.js writes a character of Latin-1 as its one byte.
    let text = match std::str::from_utf8(value) {
        Ok(text) => text.to_owned(),
        Err(_) => value.iter().map(|byte| char::from(*byte)).collect(),
    };
    let text = unquoted(&text).unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let code = after.first_chunk::<2>().filter(|_| *byte == b'%').and_then(|pair| code(*pair));
        bytes.push(code.unwrap_or(*byte));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    // Codes that make no UTF-8 were meant as they stand.
    String::from_utf8(bytes).unwrap_or(text)
}

fn code(digits: [u8; 2]) -> Option<u8> {
    let [high, low] =
        digits.map(|digit| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok()));
    Some(high? << 4 | low?)
}

/// A quoted string without its quotes and backslashes; `None` if it is none.
fn unquoted(text: &str) -> Option<String> {
    let mut rest = text.strip_prefix('"')?.chars();
    let mut bare = String::with_capacity(text.len());
    loop {
        match rest.next()? {
            '"' => return rest.next().is_none().then_some(bare),
            '\\' => bare.push(rest.next()?),
            other => bare.push(other),
        }
    }
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
            assert_eq!((encode(text).as_str(), decode(value.as_bytes()).as_str()), (value, text));
        }
    }

    #[test]
    fn what_sdks_send_as_it_is_is_read_as_it_is() {
        for (value, text) in [
            (&b"\"in quotes\""[..], "in quotes"),
            (br#""a \"b\" \\ c%20d""#, r#"a "b" \ c d"#),
            (br#""open"#, r#""open"#),
            (br#""a" b"#, r#""a" b"#),
            ("Zürich".as_bytes(), "Zürich"),
            (b"Z\xfcrich", "Zürich"),
            (b"100% sure", "100% sure"),
            (b"%", "%"),
            (b"%4", "%4"),
            (b"%zz%41", "%zzA"),
            (b"caf%E9", "caf%E9"),
        ] {
            assert_eq!(decode(value), text, "{value:?}");
        }
    }
}
