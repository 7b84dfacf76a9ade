//! The fingerprint of a request in 32 bytes: equal for two spellings of the same request, different for any other.
//!
//! Version 1: BLAKE3 keyed by the tenant, so that equal requests of two tenants have unrelated fingerprints. Every
//! field is preceded by its name and length, so that fields cannot run together. JSON and forms are normalised; any
//! other body counts byte by byte.
//!
//! Caller, head (path, query, headers, media type) and body are hashed apart, and then together. Twenty bytes of the
//! fingerprint are of the whole; the other twelve are the beginnings of the three, and say what differs between two
//! requests under one key. Equality counts all of them.

use std::borrow::Cow;

use redrive_core::ledger::{OLDER_MAX, RequestFingerprint};

use crate::json::{Json, JsonError, NumberFormat};

/// The version in use.
pub const VERSION: u8 = 1;

/// The functions of older versions, whose records may still exist; there are none yet. When the rules change, the old
/// function stays here until all its records have expired.
const OLDER: [Rules; 0] = [];

type Rules = fn(&FingerprintInput<'_>, &FingerprintParts) -> Result<RequestFingerprint, JsonError>;

const _: () = assert!(OLDER.len() <= OLDER_MAX, "a ledger compares by no more");

/// The context for deriving the tenant's key.
const CONTEXT: &str = "redrive 2026 idempotency fingerprint v1";

/// Where the beginnings of the parts' hashes are within a fingerprint, and how long they are.
const CALLER_AT: usize = 20;
const HEAD_AT: usize = CALLER_AT + PART;
const BODY_AT: usize = HEAD_AT + PART;
const PART: usize = 4;

const _: () = assert!(BODY_AT + PART == 32, "they end the fingerprint");

/// Room for what most requests have beside their body.
const FIELDS: usize = 512;

/// A request, as its fingerprint sees it.
#[derive(Debug, Clone, Copy, Default)]
pub struct FingerprintInput<'a> {
    /// The tenant.
    pub tenant: &'a str,
    /// The principal: a stable subject, never a token or a session, which change between attempts.
    pub principal: &'a str,
    /// The path, as it came.
    pub path: &'a str,
    /// The query, as it came.
    pub query: &'a str,
    /// The headers that count, by name and value.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// The media type of the body.
    pub media_type: &'a str,
    /// The body.
    pub body: &'a [u8],
}

/// Which parts of a JSON body count. All of them by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FingerprintParts {
    /// Only the values at these pointers; the whole body if there are none.
    pub only: Vec<String>,
    /// All but these.
    pub without: Vec<String>,
}

/// The fingerprint of a request.
///
/// # Errors
/// If a JSON body is ambiguous: a name occurs twice in one object. A body that is not JSON counts as bytes; the
/// handler judges it.
pub fn fingerprint(
    asked: &FingerprintInput<'_>,
    parts: &FingerprintParts,
) -> Result<RequestFingerprint, JsonError> {
    let media_type = asked.media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let (kind, body) = body(&media_type, asked.body, parts)?;
    let key = blake3::derive_key(CONTEXT, asked.tenant.as_bytes());
    // The fields of a part in one piece: hashing a few bytes at a time is slow.
    let mut fields = Vec::with_capacity(FIELDS);
    field(&mut fields, "principal", asked.principal.as_bytes());
    let caller = blake3::keyed_hash(&key, &fields);
    fields.clear();
    field(&mut fields, "path", asked.path.as_bytes());
    field(&mut fields, "query", asked.query.as_bytes());
    for (name, value) in asked.headers {
        field(&mut fields, "header", name.to_ascii_lowercase().as_bytes());
        field(&mut fields, "value", value);
    }
    field(&mut fields, "type", media_type.as_bytes());
    let head = blake3::keyed_hash(&key, &fields);
    fields.clear();
    lead(&mut fields, kind, &body);
    let body = *blake3::Hasher::new_keyed(&key).update(&fields).update(&body).finalize().as_bytes();
    Ok(RequestFingerprint { version: VERSION, hash: joined(&key, caller.as_bytes(), head.as_bytes(), &body) })
}

/// The hash of all three parts, and the beginning of each.
fn joined(key: &[u8; 32], caller: &[u8; 32], head: &[u8; 32], body: &[u8; 32]) -> [u8; 32] {
    let mut hash =
        *blake3::Hasher::new_keyed(key).update(caller).update(head).update(body).finalize().as_bytes();
    for (at, part) in [(CALLER_AT, caller), (HEAD_AT, head), (BODY_AT, body)] {
        hash[at..at + PART].copy_from_slice(&part[..PART]);
    }
    hash
}

/// What differs between two requests. Two different parts look alike once in four thousand million times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestDifference {
    /// The principal, or the credentials.
    pub caller: bool,
    /// The path, the query, the media type or a header that counts.
    pub head: bool,
    /// The body.
    pub body: bool,
}

impl RequestDifference {
    /// What differs between fingerprints of the same version; `None` if the versions differ.
    #[must_use]
    pub fn between(one: &RequestFingerprint, other: &RequestFingerprint) -> Option<Self> {
        let differs = |at: usize| one.hash[at..at + PART] != other.hash[at..at + PART];
        (one.version == VERSION && other.version == VERSION).then(|| Self {
            caller: differs(CALLER_AT),
            head: differs(HEAD_AT),
            body: differs(BODY_AT),
        })
    }
}

impl std::fmt::Display for RequestDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [(self.caller, "caller"), (self.head, "header"), (self.body, "body")];
        let parts: Vec<_> = parts.into_iter().filter_map(|(differs, part)| differs.then_some(part)).collect();
        f.write_str(&parts.join(", "))
    }
}

/// A name and a value, each after its length.
fn field(fields: &mut Vec<u8>, name: &str, value: &[u8]) {
    lead(fields, name, value);
    fields.extend_from_slice(value);
}

/// Writes the name and length before a value.
fn lead(fields: &mut Vec<u8>, name: &str, value: &[u8]) {
    let length = |bytes: &[u8]| u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes();
    fields.extend_from_slice(&length(name.as_bytes()));
    fields.extend_from_slice(name.as_bytes());
    fields.extend_from_slice(&length(value));
}

/// The fingerprints of a request by older rules, so that a record that was made by them is compared by them.
///
/// # Errors
/// As [`fingerprint`].
pub fn older(
    asked: &FingerprintInput<'_>,
    parts: &FingerprintParts,
) -> Result<Vec<RequestFingerprint>, JsonError> {
    OLDER.iter().map(|print| print(asked, parts)).collect()
}

/// A normalised body, and its kind.
fn body<'a>(
    media_type: &str,
    body: &'a [u8],
    parts: &FingerprintParts,
) -> Result<(&'static str, Cow<'a, [u8]>), JsonError> {
    if media_type == "application/json" || media_type.ends_with("+json") {
        return match Json::parse(body) {
            Ok(json) => Ok(("json", canonical(json, parts)?.into_bytes().into())),
            Err(error @ JsonError::Twice { .. }) => Err(error),
            Err(_) => Ok(("bytes", body.into())),
        };
    }
    if media_type == "application/x-www-form-urlencoded" {
        return Ok(("form", form(body).into()));
    }
    Ok(("bytes", body.into()))
}

fn canonical(mut json: Json, parts: &FingerprintParts) -> Result<String, JsonError> {
    parts.without.iter().for_each(|pointer| json.remove(pointer));
    if parts.only.is_empty() {
        return json.canonical(NumberFormat::Exact);
    }
    let picked = parts.only.iter().map(|pointer| match json.at(pointer) {
        // A missing value differs from null.
        None => Json::Object(Vec::new()),
        Some(found) => Json::List(vec![found.clone()]),
    });
    Json::List(picked.collect()).canonical(NumberFormat::Exact)
}

/// Pairs sorted by name, those of one name in their original order; decoded, each part with its length.
fn form(body: &[u8]) -> Vec<u8> {
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for pair in body.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        pairs.push((decoded(&pair[..at]), decoded(pair.get(at + 1..).unwrap_or_default())));
    }
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut whole = Vec::with_capacity(body.len() + 16 * pairs.len());
    for part in pairs.into_iter().flat_map(|(name, value)| [name, value]) {
        whole.extend(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        whole.extend(part);
    }
    whole
}

fn decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut plain = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'+' => plain.push(b' '),
            b'%' => match (digit(text.get(at)), digit(text.get(at + 1))) {
                (Some(high), Some(low)) => {
                    plain.push(u8::try_from(high * 16 + low).unwrap_or_default());
                    at += 2;
                }
                _ => plain.push(b'%'),
            },
            byte => plain.push(*byte),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(body: &str) -> RequestFingerprint {
        let asked = FingerprintInput {
            media_type: "application/json",
            body: body.as_bytes(),
            ..FingerprintInput::default()
        };
        fingerprint(&asked, &FingerprintParts::default()).expect("it means one thing")
    }

    #[test]
    fn two_spellings_of_the_same_have_one_fingerprint() {
        assert_eq!(json(r#"{"a":1,"b":[true,"\u0041"]}"#), json("{ \"b\" : [ true, \"A\" ],\n\"a\": 1.0 }"));
    }

    #[test]
    fn any_changed_value_has_another() {
        let all = [
            r#"{"a":1}"#,
            r#"{"a":2}"#,
            r#"{"a":"1"}"#,
            r#"{"b":1}"#,
            r#"{"a":1,"b":null}"#,
            r#"{"a":[1]}"#,
            "[1]",
            "[1,1]",
            r#"{"a":9007199254740993}"#,
            r#"{"a":9007199254740992}"#,
            r#"{"a":1"#,
            "",
            "null",
            r#"{"a":-1}"#,
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| json(one) != json(other)), "{one}");
        }
    }

    fn print(asked: &FingerprintInput<'_>) -> RequestFingerprint {
        fingerprint(asked, &FingerprintParts::default()).expect("it means one thing")
    }

    #[test]
    fn every_part_of_a_request_counts() {
        let asked = FingerprintInput {
            tenant: "t",
            principal: "p",
            path: "/x",
            query: "q",
            headers: &[("a", b"1"), ("b", b"2")],
            media_type: "text/plain",
            body: b"y",
        };
        let all = [
            asked,
            FingerprintInput { tenant: "u", ..asked },
            FingerprintInput { principal: "o", ..asked },
            FingerprintInput { path: "/y", ..asked },
            FingerprintInput { query: "r", ..asked },
            FingerprintInput { headers: &[("a", b"1"), ("b", b"3")], ..asked },
            FingerprintInput { headers: &[("a", b"1"), ("c", b"2")], ..asked },
            FingerprintInput { headers: &[("a", b"1")], ..asked },
            FingerprintInput { media_type: "text/html", ..asked },
            FingerprintInput { body: b"z", ..asked },
        ];
        let prints = all.map(|asked| print(&asked));
        for (at, one) in prints.iter().enumerate() {
            assert!(!prints[at + 1..].contains(one), "{at}");
        }
    }

    /// Records outlive programs: what version 1 is may never change.
    #[test]
    fn version_1_is_these_bytes_under_the_tenants_key() {
        let asked = FingerprintInput {
            tenant: "acme",
            principal: "guest-7",
            path: "/bookings",
            query: "dry=1",
            headers: &[("X-Currency", b"EUR")],
            media_type: "Application/JSON; charset=utf-8",
            body: br#"{"b": [1.50, "x"], "a": null}"#,
        };
        let caller: &[&[u8]] = &[b"principal", b"guest-7"];
        let head: &[&[u8]] = &[
            b"path",
            b"/bookings",
            b"query",
            b"dry=1",
            b"header",
            b"x-currency",
            b"value",
            b"EUR",
            b"type",
            b"application/json",
        ];
        let body: &[&[u8]] = &[b"json", br#"{"a":null,"b":[1.5,"x"]}"#];
        let key = blake3::derive_key("redrive 2026 idempotency fingerprint v1", b"acme");
        let [caller, head, body] = [caller, head, body].map(|parts| {
            let mut hasher = blake3::Hasher::new_keyed(&key);
            for part in parts {
                hasher.update(&[0; 7]).update(&[u8::try_from(part.len()).unwrap()]).update(part);
            }
            *hasher.finalize().as_bytes()
        });
        let whole = *blake3::keyed_hash(&key, &[caller, head, body].concat()).as_bytes();
        let hash = [&whole[..20], &caller[..4], &head[..4], &body[..4]].concat();
        assert_eq!(print(&asked), RequestFingerprint { version: 1, hash: hash.try_into().unwrap() });
    }

    #[test]
    fn a_difference_is_named_by_its_part() {
        let first = FingerprintInput {
            principal: "ann",
            path: "/x",
            headers: &[("a", b"1")],
            media_type: "text/plain",
            body: b"y",
            ..FingerprintInput::default()
        };
        let cases: &[(FingerprintInput<'_>, &str)] = &[
            (first, ""),
            (FingerprintInput { principal: "bob", ..first }, "caller"),
            (FingerprintInput { path: "/y", ..first }, "header"),
            (FingerprintInput { query: "q", ..first }, "header"),
            (FingerprintInput { headers: &[("a", b"2")], ..first }, "header"),
            (FingerprintInput { media_type: "text/html", ..first }, "header"),
            (FingerprintInput { body: b"z", ..first }, "body"),
            (FingerprintInput { path: "/y", body: b"z", ..first }, "header, body"),
            (FingerprintInput { principal: "bob", path: "/y", body: b"z", ..first }, "caller, header, body"),
        ];
        for (other, expected) in cases {
            let difference = RequestDifference::between(&print(&first), &print(other)).unwrap();
            assert_eq!(difference.to_string(), *expected, "{other:?}");
        }
        let newer = RequestFingerprint { version: 2, ..print(&first) };
        assert_eq!(RequestDifference::between(&print(&first), &newer), None);
    }

    /// Without lengths, each of these pairs would give the same bytes.
    #[test]
    fn no_part_of_a_request_runs_into_the_next() {
        let plain = |name: &str| name.to_owned();
        let led =
            |name: &str| format!("\0\0\0\0\0\0\0{}{name}", char::from(u8::try_from(name.len()).unwrap()));
        for joint in [&plain as &dyn Fn(&str) -> String, &led] {
            let name = |one: &str| one.to_owned();
            let (path, query, header, value) =
                (joint("path"), joint("query"), joint("header"), joint("value"));
            let (media_type, bytes) = (joint("type"), joint("bytes"));
            let join = |parts: &[&str]| parts.concat();
            // One value contains the prefix of the next: without a length it could end at either.
            let pair = |lead: &str| (join(&["1", lead, "2"]), name("3"), name("1"), join(&["2", lead, "3"]));
            let asked = FingerprintInput::default();

            let (a, b, c, d) = pair(&path);
            let one = print(&FingerprintInput { principal: &a, path: &b, ..asked });
            assert_ne!(one, print(&FingerprintInput { principal: &c, path: &d, ..asked }));

            let (a, b, c, d) = pair(&query);
            let one = print(&FingerprintInput { path: &a, query: &b, ..asked });
            assert_ne!(one, print(&FingerprintInput { path: &c, query: &d, ..asked }));

            let (a, b, c, d) = pair(&value);
            let one = print(&FingerprintInput { headers: &[(&a, b.as_bytes())], ..asked });
            assert_ne!(one, print(&FingerprintInput { headers: &[(&c, d.as_bytes())], ..asked }));

            let both = join(&["1", &header, "b", &value, "2"]);
            let one = print(&FingerprintInput { headers: &[("a", b"1"), ("b", b"2")], ..asked });
            assert_ne!(one, print(&FingerprintInput { headers: &[("a", both.as_bytes())], ..asked }));

            let both = join(&["1", &header, "a", &value, "2"]);
            let one = print(&FingerprintInput { query: "1", headers: &[("a", b"2")], ..asked });
            assert_ne!(one, print(&FingerprintInput { query: &both, ..asked }));

            let (a, b, c, d) = pair(&media_type);
            let one = print(&FingerprintInput { headers: &[("a", a.as_bytes())], media_type: &b, ..asked });
            assert_ne!(
                one,
                print(&FingerprintInput { headers: &[("a", c.as_bytes())], media_type: &d, ..asked })
            );

            let (a, b, c, d) = pair(&bytes);
            let one = print(&FingerprintInput { media_type: &a, body: b.as_bytes(), ..asked });
            assert_ne!(one, print(&FingerprintInput { media_type: &c, body: d.as_bytes(), ..asked }));
        }
    }

    #[test]
    fn forms_are_sorted_and_decoded() {
        let form = |body: &str| {
            let media_type = "application/x-www-form-urlencoded; charset=utf-8";
            let asked = FingerprintInput { media_type, body: body.as_bytes(), ..FingerprintInput::default() };
            fingerprint(&asked, &FingerprintParts::default()).expect("fine")
        };
        assert_eq!(form("a=1&b=x+y"), form("b=x%20y&a=1&"));
        assert_ne!(form("a=1&a=2"), form("a=2&a=1"));
        assert_ne!(form("a=1&b=2"), form("a=1b&=2"));
        for run_together in ["a=1b2", "a1=b2", "a1b2=", "a1b=2"] {
            assert_ne!(form("a=1&b=2"), form(run_together), "{run_together}");
        }
    }

    #[test]
    fn chosen_parts_alone_count() {
        let print = |body: &str, parts: &FingerprintParts| {
            let asked = FingerprintInput {
                media_type: "application/json",
                body: body.as_bytes(),
                ..FingerprintInput::default()
            };
            fingerprint(&asked, parts).expect("fine")
        };
        let without =
            FingerprintParts { without: vec!["/sent_at".to_owned()], ..FingerprintParts::default() };
        assert_eq!(print(r#"{"a":1,"sent_at":1}"#, &without), print(r#"{"a":1,"sent_at":2}"#, &without));
        let only = FingerprintParts { only: vec!["/a".to_owned()], ..FingerprintParts::default() };
        assert_eq!(print(r#"{"a":1,"b":1}"#, &only), print(r#"{"a":1}"#, &only));
        assert_ne!(print(r#"{"a":null}"#, &only), print("{}", &only));
    }
}
