//! The stored part of answers: redacted parts, and the rest sealed.

use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use redrive::api::{
    CommitError, Effects, Endpoint, LedgerObserver, ReplyProtection, RequestOutcome, StoredReply, Tenant,
};
use redrive::desk::{RecordPhase, RequestScope};
use redrive::http::idempotent::Ledger as _;
use redrive::http::seal::{KeyRing, SealKey};
use redrive::{CommittedReply, Operation, Redrive, testing};

use crate::shop::{BOOK, Calls, keyed, serve};
use crate::wire::{Server, post};

const CARD: &str = r#"{"id": 7, "card": {"number": "4111-SECRET", "brand": "V"}}"#;

fn ring(keys: &[u8]) -> KeyRing {
    KeyRing::new(keys.iter().map(|n| SealKey::new(&[*n; 32]))).unwrap()
}

async fn cards(redrive: &Redrive, endpoint: Endpoint<Tenant, Effects>, calls: &Calls) -> Server {
    let calls = calls.clone();
    let handler = move || async move {
        calls.add();
        let headers = [("x-token", "SECRET"), ("location", "/cards/7"), ("content-type", "application/json")];
        (StatusCode::CREATED, headers, CARD)
    };
    serve(redrive, endpoint, handler).await
}

/// The stored answer of the request, as text.
async fn stored(redrive: &Redrive) -> StoredReply {
    let scope = RequestScope { tenant: "acme".into(), operation: BOOK.into(), key: "k".into() };
    match redrive.ledger().record(scope).await.unwrap().unwrap().phase {
        RecordPhase::Completed { reply, .. } => reply,
        other => panic!("{other:?}"),
    }
}

fn holds(reply: &StoredReply, text: &str) -> bool {
    let parts = reply.headers.iter().map(|(_, value)| value.as_slice()).chain(reply.body.as_deref());
    parts.into_iter().any(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
}

#[tokio::test]
async fn what_is_left_out_is_sent_once_and_never_stored() {
    let (redrive, calls) = (testing::memory(), Calls::default());
    let protection =
        ReplyProtection::new().without_headers(["x-token"]).unwrap().without(["/card/number"]).unwrap();
    let server = cards(&redrive, keyed().protect(protection), &calls).await;
    let first = server.ask(&post("{}").key("k")).await;
    assert_eq!((first.status, first.text().as_str()), (201, CARD));
    assert_eq!(first.header("x-token").as_deref(), Some("SECRET"));
    assert_eq!(first.header("idempotency-redacted"), None);
    assert!(!holds(&stored(&redrive).await, "SECRET"));
    let again = server.ask(&post("{}").key("k")).await;
    let left = r#"{"id": 7, "card": {"number": null, "brand": "V"}}"#;
    assert_eq!((again.status, again.text().as_str()), (201, left));
    assert_eq!(again.header("x-token"), None);
    assert_eq!(again.header("location").as_deref(), Some("/cards/7"));
    assert_eq!(again.header("idempotency-redacted").as_deref(), Some(r#""x-token", "/card/number""#));
    assert_eq!(again.header("content-length"), Some(left.len().to_string()));
    assert_eq!(calls.count(), 1);
}

#[derive(Debug, Default)]
struct Heard(Mutex<Vec<RequestOutcome>>);

impl LedgerObserver for Heard {
    fn became(&self, _: &str, became: RequestOutcome) {
        self.0.lock().unwrap().push(became);
    }
}

#[tokio::test]
async fn row_18_what_is_sealed_is_replayed_until_its_key_is_gone_and_never_run_again() {
    let (redrive, calls) = (testing::memory(), Calls::default());
    let heard = Arc::new(Heard::default());
    let with = async |keys: &[u8]| {
        let endpoint = keyed().observer(heard.clone()).protect(ReplyProtection::new().sealed(ring(keys)));
        cards(&redrive, endpoint, &calls).await
    };
    let first = with(&[1]).await.ask(&post("{}").key("k")).await;
    assert_eq!(first.text(), CARD);
    let kept = stored(&redrive).await;
    assert!(!holds(&kept, "SECRET") && !holds(&kept, "brand"));
    // A new key seals from now on, and the old one still opens.
    let again = with(&[2, 1]).await.ask(&post("{}").key("k")).await;
    assert_eq!((again.status, again.text().as_str()), (201, CARD));
    assert_eq!(again.header("x-token").as_deref(), Some("SECRET"));
    assert_eq!(again.header("redrive-sealed"), None);
    let gone = with(&[2]).await.ask(&post("{}").key("k")).await;
    assert_eq!((gone.status, gone.code().as_str()), (410, "response-expired"));
    assert_eq!(gone.header("location").as_deref(), Some("/cards/7"));
    assert_eq!(gone.json()["original_status"], 201);
    assert_eq!(gone.json()["retryable"], false);
    assert!(!gone.text().contains("SECRET"));
    assert_eq!(calls.count(), 1);
    assert_eq!(
        *heard.0.lock().unwrap(),
        [RequestOutcome::Fresh, RequestOutcome::Replayed, RequestOutcome::Unopened]
    );
}

#[tokio::test]
async fn what_a_handler_commits_itself_is_left_out_and_sealed_as_well() {
    let redrive = testing::memory();
    let endpoint = || Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(Effects::Transactional);
    let protection = || ReplyProtection::new().sealed(ring(&[1])).without(["/card/number"]).unwrap();
    async fn book(op: Operation) -> Result<CommittedReply, CommitError> {
        op.commit(|_| Ok::<_, std::io::Error>(StoredReply::new(201).body(CARD))).await
    }
    let server = serve(&redrive, endpoint().protect(protection()), book).await;
    assert_eq!(server.ask(&post("{}").key("k")).await.text(), CARD);
    let kept = stored(&redrive).await;
    assert!(!holds(&kept, "SECRET") && !holds(&kept, "brand"));
    let again = server.ask(&post("{}").key("k")).await;
    assert_eq!(again.json()["card"]["number"], serde_json::Value::Null);
    assert_eq!(again.json()["card"]["brand"], "V");
}
