//! Recently replayed answers come from memory, and equal the store's.

use std::time::Duration;

use axum::Router;
use axum::routing::post as post_to;
use redrive::store::Store as _;
use redrive::testing;

use crate::shop::{Calls, keyed, layer, memory};
use crate::wire::{Server, post};

const HOUR: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_replay_asks_the_store_once_and_then_nobody() {
    let (redrive, store) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move { format!("call {}", counted.add()) };
    let layer = layer(&redrive, keyed().retention(HOUR));
    let server = Server::start(Router::new().route("/bookings", post_to(handler).layer(layer))).await;
    let first = server.ask(&post("{}").key("k")).await;
    let replayed = server.ask(&post("{}").key("k")).await;
    store.close().await.unwrap();

    let again = server.ask(&post("{}").key("k")).await;
    assert_eq!((again.status, again.text()), (200, first.text()));
    assert_eq!(again.headers, replayed.headers, "as the store's own");
    assert_eq!(server.ask(&post("{}").key("other")).await.code(), "ledger-down");
    assert_eq!(server.ask(&post("[]").key("k")).await.code(), "key-reused");

    // It expires as in the store.
    testing::pass(&redrive, HOUR + SECOND);
    assert_eq!(server.ask(&post("{}").key("k")).await.code(), "response-expired");
    testing::pass(&redrive, HOUR * 3);
    assert_eq!(server.ask(&post("{}").key("k")).await.code(), "ledger-down", "forgotten: the store is asked");
    assert_eq!(calls.count(), 1);
}
