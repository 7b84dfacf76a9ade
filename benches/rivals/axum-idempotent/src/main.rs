//! axum-idempotent under the load of the ledger's benchmark: the same handler behind its layer, which keeps answers
//! in a session in memory. Prints its address, and serves until the pipe closes.
//!
//! It can do a part of the work: no fingerprint in this mode, no lease, nothing on a disk, and two requests at once both
//! run. Its answers live in a session, so a client has to have one.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderName, StatusCode, header};
use axum::routing::{get, post};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use redrive_benches::server_process::{say, until_alone};
use ruts::store::Ttl;
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, Session, SessionLayer};
use tower_cookies::CookieManagerLayer;

const ANSWER: &str = r#"{"id":"0000000017","cabin":"A-117","state":"confirmed","price":{"amount":1284.50,"currency":"EUR"}}"#;

async fn book(body: Bytes) -> (StatusCode, [(HeaderName, &'static str); 3], &'static str) {
    std::hint::black_box(body);
    let rival = HeaderName::from_static("x-rival");
    let headers =
        [(header::CONTENT_TYPE, "application/json"), (header::LOCATION, "/bookings/0000000017"), (rival, "1")];
    (StatusCode::CREATED, headers, ANSWER)
}

/// It never makes a session itself.
async fn session(session: Session<MokaStore>) -> &'static str {
    let hour = Ttl::new(3600).expect("an hour");
    session.set("guest", &"ada".to_owned(), hour, None).await.expect("it is in memory");
    "made"
}

#[tokio::main]
async fn main() {
    let store = Arc::new(MokaStore::builder().build());
    let options = IdempotentOptions::default()
        .use_idempotency_key_header(Some("idempotency-key"), true)
        .expire_after(3600);
    let cookies = CookieOptions::build().name("session").max_age(3600).path("/");
    let booked = post(book).layer(IdempotentLayer::<MokaStore>::new(options));
    let app = Router::new()
        .route("/bookings", booked)
        .route("/session", get(session))
        .layer(SessionLayer::new(store).with_cookie_options(cookies))
        .layer(CookieManagerLayer::new());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    say(listener.local_addr().expect("an address"));
    tokio::select! {
        served = async { axum::serve(listener, app).await } => served.expect("it serves"),
        _ = tokio::task::spawn_blocking(until_alone) => {}
    }
}
