//! Redacted parts occur nowhere in the stored form, and a seal opens only where it belongs.

use proptest::prelude::*;

use super::*;

fn scope() -> RequestScope {
    RequestScope { tenant: "acme".into(), operation: "POST /cards".into(), key: "k-1".into() }
}

fn reply(headers: &[(&str, &str)], body: Option<&str>) -> StoredReply {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()));
    StoredReply { status: 201, headers: headers.collect(), body: body.map(|body| body.as_bytes().to_vec()) }
}

fn without(headers: &[&str], pointers: &[&str]) -> ReplyProtection {
    ReplyProtection::new().without_headers(headers).expect("headers").without(pointers).expect("pointers")
}

fn unopened() -> UnsealError {
    UnsealError { status: 201, location: None }
}

fn stored(keep: &ReplyProtection, reply: StoredReply) -> StoredReply {
    keep.store(&scope(), reply, [7; 24]).expect("stored")
}

#[test]
fn everything_is_kept_byte_for_byte_unless_it_is_said_otherwise() {
    let whole = StoredReply {
        status: 200,
        headers: vec![
            ("x-a".into(), vec![0xff, 0x00]),
            ("x-b".into(), b"1".to_vec()),
            ("x-a".into(), b"2".to_vec()),
        ],
        body: Some(vec![0, 159, 146, 150]),
    };
    assert_eq!(stored(&ReplyProtection::new(), whole.clone()), whole);
    assert_eq!(ReplyProtection::new().replay(&scope(), whole.clone()), Ok(whole));
}

#[test]
fn headers_are_left_out_whatever_their_case_and_number() {
    let keep = without(&["X-Token", "x-absent"], &[]);
    let kept = stored(&keep, reply(&[("X-TOKEN", "a"), ("x-b", "1"), ("x-token", "b")], Some("x")));
    let wanted = reply(&[("x-b", "1"), ("idempotency-redacted", "\"x-token\"")], Some("x"));
    assert_eq!(kept, wanted);
}

#[test]
fn parts_of_a_body_are_left_out_and_what_told_of_it_goes_too() {
    let keep = without(&[], &["/card/number", "/absent", "/größe"]);
    let sent =
        [("content-length", "48"), ("Repr-Digest", "sha-256=:x:"), ("content-type", "application/json")];
    let kept = stored(&keep, reply(&sent, Some(r#"{"card":{"number":"4111","n":1.0},"größe":1}"#)));
    let told = ("idempotency-redacted", r#""/card/number", "/gr%C3%B6%C3%9Fe""#);
    let wanted = reply(&[sent[2], told], Some(r#"{"card":{"number":null,"n":1.0},"größe":null}"#));
    assert_eq!(kept, wanted);
}

#[test]
fn an_answer_in_which_nothing_is_found_stays_as_it_was() {
    let keep = without(&["x-token"], &["/card"]);
    for body in [None, Some(""), Some(r#"{ "b": 1 }"#)] {
        let sent = reply(&[("content-length", "10"), ("digest", "x")], body);
        assert_eq!(stored(&keep, sent.clone()), sent);
    }
}

#[test]
fn a_body_that_cannot_be_looked_into_is_not_kept() {
    let keep = without(&[], &["/card"]);
    for body in ["card=4111", "{\"card\":4111", "{\"card\":4111} ", "\u{1f}\u{8b}4111"] {
        let kept = stored(&keep, reply(&[("content-length", "9"), ("location", "/1")], Some(body)));
        let whole = body.ends_with("} ");
        assert_eq!(kept.body.is_some(), whole, "{body}");
        assert!(kept.headers.contains(&("location".into(), b"/1".to_vec())));
        assert!(!kept.headers.iter().any(|(name, _)| name == "content-length"));
    }
}

#[test]
fn names_and_pointers_are_checked_where_they_are_given() {
    let header = |name: &str| ReplyProtection::new().without_headers([name]).map(drop);
    assert_eq!(header("a b"), Err(ProtectionError::Header("a b".into())));
    assert_eq!(header(&"a".repeat(257)), Err(ProtectionError::TooMany));
    for wrong in ["", "card", "/~2"] {
        let error = ReplyProtection::new().without([wrong]).map(drop);
        assert_eq!(error, Err(ProtectionError::Pointer(wrong.into())));
    }
    let many: Vec<String> = (0..65).map(|n| format!("/{n}")).collect();
    assert_eq!(ReplyProtection::new().without(&many).map(drop), Err(ProtectionError::TooMany));
    assert!(ReplyProtection::new().without(&many[1..]).is_ok());
}

#[test]
fn nobody_but_the_store_says_that_something_is_sealed() {
    let forged = reply(&[("Redrive-Sealed", "x"), ("x-b", "1")], Some("body"));
    assert_eq!(stored(&ReplyProtection::new(), forged), reply(&[("x-b", "1")], Some("body")));
    let sealed = reply(&[("redrive-sealed", "x")], Some("body"));
    assert_eq!(ReplyProtection::new().replay(&scope(), sealed), Err(unopened()));
}

fn text() -> impl Strategy<Value = String> {
    "[a-z/~*\"\\\\ü]{0,6}"
}

prop_compose! {
    fn any_reply()(
        status in 200_u16..600,
        headers in proptest::collection::vec(("[a-z-]{1,8}|[Ll]ocation", any::<Vec<u8>>()), 0..6),
        body in any::<Option<Vec<u8>>>(),
    ) -> StoredReply {
        StoredReply { status, headers, body }
    }
}

proptest! {
    /// For any object: the secret under the redacted name is not in the stored form, and its neighbours are
    /// unchanged.
    #[test]
    fn what_is_left_out_is_nowhere_in_what_is_stored(
        name in text(), other in text(), neighbour in "[a-z0-9]{1,9}", deep in 0_usize..4, listed: bool,
    ) {
        prop_assume!(name != other);
        let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let secret = format!(r#"{{"pan":["SECRET",{{{}:"SECRET"}}]}}"#, quoted(&name));
        let mut body = format!("{{ {}:{secret} ,{}:\"{neighbour}\"}}", quoted(&name), quoted(&other));
        let mut pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        for _ in 0..deep {
            body = if listed { format!("[0, {body}]") } else { format!(r#"{{"in": {body}}}"#) };
            pointer = format!("{}{pointer}", if listed { "/*" } else { "/in" });
        }
        let kept = stored(&without(&[], &[&pointer]), reply(&[], Some(&body)));
        let told = String::from_utf8(kept.body.expect("a body")).expect("text");
        prop_assert_eq!(&told, &body.replace(&secret, "null"));
        prop_assert!(!told.contains("SECRET"));
        prop_assert_eq!(kept.headers.len(), 1);
    }

    #[test]
    fn nothing_given_as_a_body_breaks_the_walk(body: Vec<u8>, pointer in "(/[a-c0-2*]){1,3}") {
        let keep = without(&[], &[&pointer]);
        let _ = stored(&keep, StoredReply { status: 200, headers: Vec::new(), body: Some(body) });
    }
}

#[cfg(feature = "seal")]
mod seals {
    use super::*;
    use crate::seal::{KeyRing, SealKey};

    fn sealing(keys: &[u8]) -> ReplyProtection {
        ReplyProtection::new()
            .sealed(KeyRing::new(keys.iter().map(|n| SealKey::new(&[*n; 32]))).expect("a ring"))
    }

    #[test]
    fn a_sealed_answer_shows_its_status_and_location_alone() {
        let sent = reply(&[("x-secret", "HEADER"), ("Location", "/cards/1")], Some("BODY"));
        let kept = stored(&sealing(&[1]), sent.clone());
        assert!(is_sealed(&kept));
        assert_eq!((kept.status, kept.location().as_deref()), (201, Some("/cards/1")));
        let all: Vec<u8> =
            kept.headers.iter().flat_map(|(name, value)| [name.as_bytes(), value].concat()).collect();
        for secret in ["HEADER", "x-secret", "BODY"] {
            let secret = secret.as_bytes();
            assert!(!all.windows(secret.len()).any(|bytes| bytes == secret));
            assert!(!kept.body.as_ref().expect("a body").windows(secret.len()).any(|bytes| bytes == secret));
        }
        assert_eq!(sealing(&[1]).replay(&scope(), kept), Ok(sent));
    }

    #[test]
    fn a_new_key_is_put_first_and_the_old_one_still_opens() {
        let sent = reply(&[("x-a", "1")], Some("body"));
        let old = stored(&sealing(&[1]), sent.clone());
        let turned = sealing(&[2, 1]);
        assert_eq!(turned.replay(&scope(), old.clone()), Ok(sent.clone()));
        let new = stored(&turned, sent.clone());
        assert_eq!(sealing(&[2]).replay(&scope(), new.clone()), Ok(sent));
        assert_eq!(sealing(&[1]).replay(&scope(), new), Err(unopened()));
        assert_eq!(sealing(&[2]).replay(&scope(), old.clone()), Err(unopened()));
        assert_eq!(ReplyProtection::new().replay(&scope(), old), Err(unopened()));
        let placed = stored(&turned, reply(&[("location", "/cards/1")], Some("body")));
        let told = UnsealError { status: 201, location: Some("/cards/1".to_owned()) };
        assert_eq!(sealing(&[3]).replay(&scope(), placed), Err(told));
    }

    #[test]
    fn no_two_answers_are_sealed_alike() {
        let keep = sealing(&[1]);
        let sent = reply(&[], Some("body"));
        let (one, two) = (keep.kept(&scope(), sent.clone()), keep.kept(&scope(), sent.clone()));
        assert_ne!(one.body, two.body);
        assert_eq!((keep.replay(&scope(), one), keep.replay(&scope(), two)), (Ok(sent.clone()), Ok(sent)));
    }

    #[test]
    fn what_was_stored_in_clear_is_replayed_after_sealing_began() {
        let sent = reply(&[("x-a", "1")], Some("body"));
        let clear = stored(&ReplyProtection::new(), sent.clone());
        assert_eq!(sealing(&[1]).replay(&scope(), clear), Ok(sent));
    }

    #[test]
    fn what_is_left_out_is_left_out_before_it_is_sealed() {
        let keep = sealing(&[1]).without_headers(["x-token"]).and_then(|keep| keep.without(["/pan"]));
        let keep = keep.expect("a keep");
        let kept = stored(&keep, reply(&[("x-token", "t")], Some(r#"{"pan":1,"n":2}"#)));
        let told = reply(&[("idempotency-redacted", "\"x-token\", \"/pan\"")], Some(r#"{"pan":null,"n":2}"#));
        assert_eq!(keep.replay(&scope(), kept), Ok(told));
    }

    #[test]
    fn what_cannot_be_sealed_has_nothing_in_clear_that_was_to_be_left_out() {
        let sent = reply(&[("Location", "/reset/TOKEN"), ("x-a", "1")], Some("body"));
        let gone = |headers: &[(&str, &str)]| reply(headers, None);
        let all = sealing(&[1]);
        assert_eq!(all.kept_by(&scope(), sent.clone(), None), gone(&[("location", "/reset/TOKEN")]));
        let keep = sealing(&[1]).without_headers(["location"]).expect("a keep");
        assert_eq!(keep.kept_by(&scope(), sent, None), gone(&[]));
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_as_it_was(sent in any_reply(), nonce: [u8; 24]) {
            let keep = sealing(&[1]);
            let kept = keep.store(&scope(), sent.clone(), nonce).expect("sealed");
            prop_assert_eq!(kept.body.is_some(), sent.body.is_some());
            prop_assert_eq!(kept.location(), sent.location());
            prop_assert_eq!(keep.replay(&scope(), kept), Ok(sent));
        }

        #[test]
        fn nothing_sealed_opens_elsewhere(
            sent in any_reply(), tenant in "[ab]{0,3}", operation in "[ab]{0,3}", key in "[ab]{0,3}",
            others in ("[ab]{0,3}", "[ab]{0,3}", "[ab]{0,3}"),
        ) {
            let keep = sealing(&[1]);
            let here = RequestScope { tenant, operation, key };
            let there = RequestScope { tenant: others.0, operation: others.1, key: others.2 };
            let kept = keep.store(&here, sent, [7; 24]).expect("sealed");
            prop_assert_eq!(keep.replay(&there, kept).is_ok(), here == there);
        }

        #[test]
        fn nothing_sealed_opens_after_a_change(sent in any_reply(), at: proptest::sample::Index, bit in 0_u8..8) {
            let keep = sealing(&[1]);
            let mut kept = keep.store(&scope(), sent, [7; 24]).expect("sealed");
            let other = StoredReply { status: kept.status ^ 1, ..kept.clone() };
            prop_assert!(keep.replay(&scope(), other).is_err());
            let mut bytes: Vec<&mut u8> = kept.headers.iter_mut().flat_map(|(_, value)| value).collect();
            bytes.extend(kept.body.iter_mut().flatten());
            let at = at.index(bytes.len());
            *bytes[at] ^= 1 << bit;
            prop_assert!(keep.replay(&scope(), kept).is_err());
        }

        #[test]
        fn nothing_cut_short_breaks_the_opening(mark: Vec<u8>, body in any::<Option<Vec<u8>>>()) {
            let kept = StoredReply { status: 200, headers: vec![(SEALED.to_owned(), mark)], body };
            prop_assert!(sealing(&[1]).replay(&scope(), kept).is_err());
        }
    }
}
