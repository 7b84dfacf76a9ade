//! Fingerprints and the one spelling of JSON, over made-up documents: two spellings of the same have one fingerprint,
//! any changed value another, and what is written is what another writer of RFC 8785 writes.
#![allow(clippy::unwrap_used, reason = "a panic is a test's way to fail")]

mod write;

use proptest::prelude::*;
use redrive_http::fingerprint::{FingerprintInput, FingerprintParts, fingerprint};
use redrive_http::json::{Json, NumberFormat};

use write::{RandomSource, spelt};

/// Members in any order, names without repetition, numbers as one would write them.
fn document() -> impl Strategy<Value = Json> {
    let number = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        (any::<i32>(), 0..12_u32).prop_map(|(digits, places)| format!("{digits}e-{places}")),
        any::<f64>()
            .prop_filter("JSON has no others", |number| number.is_finite())
            .prop_map(|it| format!("{it:e}")),
    ];
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        number.prop_map(Json::Number),
        text().prop_map(Json::Text),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Json::List),
            proptest::collection::btree_map(text(), inner, 0..5)
                .prop_map(|members| Json::Object(members.into_iter().collect())),
        ]
    })
}

/// Letters of one, two, three and four bytes, and those that have to be escaped.
fn text() -> impl Strategy<Value = String> {
    let letter = prop_oneof![
        4 => proptest::char::range('a', 'f'),
        1 => proptest::char::range('\0', '\u{1f}'),
        1 => any::<char>(),
        1 => proptest::sample::select(vec!['"', '\\', '/', '\u{80}', 'ö', '€', '\u{fb33}', '😀', '\u{7f}']),
    ];
    proptest::collection::vec(letter, 0..6).prop_map(|letters| letters.into_iter().collect())
}

fn print(body: &str) -> [u8; 32] {
    let asked = FingerprintInput {
        media_type: "application/json",
        body: body.as_bytes(),
        ..FingerprintInput::default()
    };
    fingerprint(&asked, &FingerprintParts::default()).unwrap().hash
}

/// Every document that differs from this one in one place.
fn changed(json: &Json) -> Vec<Json> {
    let mut all = vec![match json {
        Json::Null => Json::Bool(false),
        Json::Bool(truth) => Json::Bool(!truth),
        // Another number whatever it was: one more digit, before its exponent.
        Json::Number(number) => Json::Number(match number.split_once('e') {
            Some((digits, exponent)) if digits.contains('.') => format!("{digits}7e{exponent}"),
            Some((digits, exponent)) => format!("{digits}.7e{exponent}"),
            None => format!("{number}.7"),
        }),
        Json::Text(text) => Json::Text(format!("{text}x")),
        Json::List(items) => Json::List([&items[..], &[Json::Null]].concat()),
        Json::Object(members) => {
            let longest = members.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
            Json::Object([&members[..], &[("x".repeat(longest + 1), Json::Null)]].concat())
        }
    }];
    match json {
        Json::List(items) => {
            for (at, item) in items.iter().enumerate() {
                let with = |item| [&items[..at], &[item], &items[at + 1..]].concat();
                all.extend(changed(item).into_iter().map(|item| Json::List(with(item))));
                all.push(Json::List([&items[..at], &items[at + 1..]].concat()));
            }
        }
        Json::Object(members) => {
            for (at, (name, value)) in members.iter().enumerate() {
                let with = |value| [&members[..at], &[(name.clone(), value)], &members[at + 1..]].concat();
                all.extend(changed(value).into_iter().map(|value| Json::Object(with(value))));
                all.push(Json::Object([&members[..at], &members[at + 1..]].concat()));
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) => {}
    }
    all
}

proptest! {
    #[test]
    fn two_spellings_of_the_same_have_one_fingerprint(json in document(), one in any::<u64>(), other in any::<u64>()) {
        let (one, other) = (spelt(&json, &mut RandomSource(one)), spelt(&json, &mut RandomSource(other)));
        prop_assert_eq!(print(&one), print(&other), "{} and {}", one, other);
    }

    #[test]
    fn any_changed_value_has_another(json in document(), seed in any::<u64>()) {
        let own = print(&spelt(&json, &mut RandomSource(seed)));
        for other in changed(&json) {
            let other = spelt(&other, &mut RandomSource(seed));
            prop_assert_ne!(own, print(&other), "{}", other);
        }
    }

    #[test]
    fn two_writers_of_the_rfc_agree(json in document(), seed in any::<u64>()) {
        let text = spelt(&json, &mut RandomSource(seed));
        let ours = Json::parse(text.as_bytes()).unwrap().canonical(NumberFormat::Doubles).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(ours, serde_json_canonicalizer::to_string(&value).unwrap());
    }

    #[test]
    fn they_agree_on_every_double(bits in any::<u64>()) {
        let double = f64::from_bits(bits);
        prop_assume!(double.is_finite());
        let theirs = serde_json_canonicalizer::to_string(&double).unwrap();
        for text in [format!("{double}"), format!("{double:e}"), format!("{double:E}")] {
            let json = Json::parse(text.as_bytes()).unwrap();
            prop_assert_eq!(&json.canonical(NumberFormat::Doubles).unwrap(), &theirs, "{}", text);
            // What a double says exactly is not spelt otherwise where numbers are exact.
            let shortest = Json::parse(theirs.as_bytes()).unwrap();
            prop_assert_eq!(&shortest.canonical(NumberFormat::Exact).unwrap(), &theirs, "{}", text);
        }
    }
}

#[test]
fn what_is_no_number_has_no_spelling() {
    for text in ["NaN", "Infinity", "-Infinity", "1e", "0x1", "1_000", "١"] {
        assert!(Json::parse(text.as_bytes()).is_err(), "{text}");
    }
}
