//! What holds of every input, however odd. Called by the tests here and by `cargo fuzz` (`fuzz/`), which is why nothing
//! but the crate itself and its oracles is used.

use redrive_http::fingerprint::{FingerprintInput, FingerprintParts, fingerprint};
use redrive_http::idempotency_key::{KeyError, parse, quoted};
use redrive_http::json::{Json, JsonError, NumberFormat};

/// Keys: what is read can be written and is read again; a quoted one is what RFC 9651 says.
pub(crate) fn key(value: &[u8]) {
    let read = parse(value);
    let trimmed = value.trim_ascii();
    if let Ok(key) = &read {
        assert!((1..=255).contains(&key.len()) && key.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
        let written = quoted(key).expect("what was read can be written");
        assert_eq!(parse(written.as_bytes()).as_ref(), Ok(key), "written and read again");
    }
    if !trimmed.starts_with(b"\"") {
        let plain = trimmed.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b','));
        assert_eq!(read.is_ok(), plain && (1..=255).contains(&trimmed.len()));
        assert!(read.is_err() || read.as_ref().is_ok_and(|key| key.as_bytes() == trimmed));
        return;
    }
    match (structured(trimmed), read) {
        (Some(text), Ok(key)) => assert_eq!(text, key),
        (Some(text), Err(KeyError::Empty)) => assert_eq!(text, ""),
        (Some(text), Err(KeyError::TooLong)) => assert!(text.len() > 255),
        (None, Err(_)) => {}
        (text, read) => panic!("{read:?}, and RFC 9651 says {text:?}"),
    }
}

/// The string that another reader of structured fields finds. One with parameters is no key.
fn structured(value: &[u8]) -> Option<String> {
    let item = sfv::Parser::new(value).parse::<sfv::Item>().ok()?;
    match item.bare_item {
        sfv::BareItem::String(text) if item.params.is_empty() => Some(text.to_string()),
        _ => None,
    }
}

/// JSON: the one spelling is JSON, is its own spelling, and is what another writer of RFC 8785 makes of it.
pub(crate) fn json(text: &[u8]) {
    let read = Json::parse(text);
    let other: Result<serde_json::Value, _> = serde_json::from_slice(text);
    let json = match (read, other.as_ref()) {
        (Ok(json), _) => json,
        // What another reader takes is refused for two reasons alone.
        (Err(JsonError::Twice { .. }), Ok(_)) | (Err(_), Err(_)) => return,
        (Err(error), Ok(_)) => {
            assert!(error.to_string().contains("nested too deep"), "{error}");
            return;
        }
    };
    let exact = json.canonical(NumberFormat::Exact).expect("every number has digits");
    let again = Json::parse(exact.as_bytes()).expect("the one spelling is JSON");
    assert_eq!(again.canonical(NumberFormat::Exact).as_ref(), Ok(&exact), "it is its own spelling");
    let Ok(doubles) = json.canonical(NumberFormat::Doubles) else {
        assert!(other.is_err(), "no parser accepts a number without a double");
        return;
    };
    match other {
        Ok(value) => {
            let theirs = serde_json_canonicalizer::to_string(&value).expect("it has a spelling");
            assert_eq!(doubles, theirs, "two writers of RFC 8785 agree");
        }
        // The other reader counts the last value's depth too.
        Err(error) => assert!(error.to_string().contains("recursion limit"), "{error}"),
    }
}

/// Fingerprints of bodies: the first byte says of which type. Never a panic; the same for the one spelling.
pub(crate) fn print(input: &[u8]) {
    let [kind, body @ ..] = input else { return };
    let media_type = match kind % 4 {
        0 => "application/json",
        1 => "application/merge-patch+json; charset=utf-8",
        2 => "application/x-www-form-urlencoded",
        _ => "text/plain",
    };
    let print = |body: &[u8]| {
        let asked = FingerprintInput {
            tenant: "acme",
            path: "/bookings",
            media_type,
            body,
            ..FingerprintInput::default()
        };
        fingerprint(&asked, &FingerprintParts::default())
    };
    let first = print(body);
    assert_eq!(first, print(body), "asked twice");
    if kind % 4 >= 2 {
        assert!(first.is_ok(), "only JSON can mean two things");
        return;
    }
    let Ok(json) = Json::parse(body) else { return };
    let exact = json.canonical(NumberFormat::Exact).expect("every number has digits");
    assert_eq!(first, print(exact.as_bytes()), "another spelling of the same");
    assert_eq!(first, print(format!(" {exact}\n").as_bytes()), "white space around it");
    assert_ne!(first, print(format!("[{exact}]").as_bytes()), "another value");
}
