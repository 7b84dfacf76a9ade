//! Which requests are looked up, and which are refused before: rows 1 to 4, and 8.

use crate::shop::{counting, keyed};
use crate::wire::post;

#[tokio::test]
async fn row_1_safe_methods_and_others_pass_and_their_key_is_ignored() {
    let shop = counting(keyed().required()).await;
    for line in ["GET /bookings", "OPTIONS /bookings", "DELETE /bookings"] {
        for _ in 0..2 {
            let answer = shop.server.ask(&post("{}").line(line).key("k, not a key")).await;
            assert_eq!(answer.status, 200, "{line}");
            assert_eq!(answer.header("idempotency-status"), None);
        }
    }
    assert_eq!(shop.calls.count(), 6);
}

#[tokio::test]
async fn row_2_without_a_key_an_optional_route_passes() {
    let shop = counting(keyed()).await;
    for _ in 0..2 {
        let answer = shop.server.ask(&post("{}")).await;
        assert_eq!((answer.status, answer.header("idempotency-status").as_deref()), (200, Some("none")));
    }
    assert_eq!(shop.calls.count(), 2);
}

#[tokio::test]
async fn row_3_without_a_key_a_required_route_refuses() {
    let shop = counting(keyed().required()).await;
    let answer = shop.server.ask(&post("{}")).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "key-missing"));
    assert!(answer.header("link").unwrap().ends_with("#key-missing>; rel=\"describedby\""));
    assert_eq!(shop.calls.count(), 0);
}

#[tokio::test]
async fn row_4_a_malformed_key_is_refused_and_the_store_is_untouched() {
    let shop = counting(keyed()).await;
    let long = "k".repeat(256);
    let bad: [&[u8]; 6] = [b"", b"a,b", b"\"open", b"a\xffb", b"a b", long.as_bytes()];
    for key in bad {
        let answer = shop.server.ask(&post("{}").header("idempotency-key", key)).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "key-invalid"), "{key:?}");
        assert!(answer.header("link").is_some());
    }
    let answer = shop.server.ask(&post("{}").key("a").key("b")).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "key-invalid"), "two keys");
    assert_eq!(shop.calls.count(), 0);
    assert_eq!(shop.records().await, 0);
}

#[tokio::test]
async fn row_8_a_key_used_for_something_else_is_refused_and_nothing_is_told() {
    let shop = counting(keyed()).await;
    assert_eq!(shop.server.ask(&post(r#"{"cabin":7}"#).key("k")).await.status, 200);
    for other in [post(r#"{"cabin":8}"#).key("k"), post(r#"{"cabin":7}"#).line("POST /bookings?x").key("k")] {
        let answer = shop.server.ask(&other).await;
        assert_eq!((answer.status, answer.code().as_str()), (422, "key-reused"));
        assert!(!answer.text().contains("call"), "{}", answer.text());
        assert_eq!(answer.header("idempotency-first-received"), None);
    }
    assert_eq!(shop.calls.count(), 1);
}
