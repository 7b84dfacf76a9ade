//! The notifications of the ledger's observer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use redrive::api::{LedgerObserver, RequestDifference, RequestOutcome, RequestScope};
use redrive::testing;

use crate::shop::{Calls, keyed, memory, serve};
use crate::spy::Gate;
use crate::wire::post;

#[derive(Debug, Default)]
struct Counts(Mutex<BTreeMap<String, usize>>);

impl Counts {
    fn add(&self, what: String) {
        *self.0.lock().unwrap().entry(what).or_default() += 1;
    }

    fn take(&self) -> Vec<(String, usize)> {
        std::mem::take(&mut *self.0.lock().unwrap()).into_iter().collect()
    }
}

impl LedgerObserver for Counts {
    fn became(&self, operation: &str, became: RequestOutcome) {
        self.add(format!("{operation} {}", became.as_str()));
    }

    fn rekeyed(&self, operation: &str) {
        self.add(format!("{operation} rekeyed"));
    }
}

/// What an observer hears of keys.
#[derive(Debug, Default)]
struct Keys(Mutex<Vec<String>>);

impl LedgerObserver for Keys {
    fn became(&self, _: &str, _: RequestOutcome) {}

    fn keyed(&self, scope: &RequestScope, became: RequestOutcome, differs: Option<RequestDifference>) {
        let differs = differs.map(|differs| differs.to_string()).unwrap_or_default();
        self.0.lock().unwrap().push(format!("{} {} {differs}", scope.client_key(), became.as_str()));
    }
}

#[tokio::test]
async fn an_operator_hears_the_key_of_a_mismatch_and_what_differed() {
    let who =
        |parts: &axum::http::request::Parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned());
    let (redrive, _) = memory();
    let keys = Arc::new(Keys::default());
    let endpoint = keyed().credentials(who).observer(keys.clone());
    let server = serve(&redrive, endpoint, || async { "done" }).await;
    let by = |user: &str, body: &str| post(body).key("k").header("x-user", user);
    server.ask(&by("ann", "1")).await;
    server.ask(&by("ann", "2")).await;
    server.ask(&by("bob", "1")).await;
    server.ask(&by("ann", "1").line("POST /bookings?x")).await;
    let heard = std::mem::take(&mut *keys.0.lock().unwrap());
    assert_eq!(heard, ["k fresh ", "k mismatch body", "k mismatch caller", "k mismatch header"]);
}

#[tokio::test]
async fn what_becomes_of_requests_is_told_by_endpoint() {
    let (redrive, _) = memory();
    let counts = Arc::new(Counts::default());
    let (gate, calls) = (Gate::default(), Calls::default());
    let (at, counted) = (gate.clone(), calls.clone());
    let handler = move |body: String| async move {
        match body.as_str() {
            "stuck" if counted.add() == 1 => at.pass().await,
            "later" => return (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "9")]),
            _ => {}
        }
        (StatusCode::OK, [("x", "")])
    };
    let server = Arc::new(serve(&redrive, keyed().required().observer(counts.clone()), handler).await);
    let told =
        |results: &[&str]| results.iter().map(|it| (format!("POST /bookings {it}"), 1)).collect::<Vec<_>>();
    server.ask(&post("1").key("a")).await;
    assert_eq!(counts.take(), told(&["fresh"]));
    server.ask(&post("1").key("a")).await;
    assert_eq!(counts.take(), told(&["replayed"]));
    server.ask(&post("2").key("a")).await;
    assert_eq!(counts.take(), told(&["mismatch"]));
    server.ask(&post("1").key("b")).await;
    assert_eq!(counts.take(), told(&["fresh", "rekeyed"]), "the same under another key");
    server.ask(&post("3")).await;
    assert_eq!(counts.take(), told(&["refused"]));
    let old = "Thu, 01 Jan 2026 00:00:00 GMT";
    server.ask(&post("4").key("old").header("repeatability-first-sent", old)).await;
    assert_eq!(counts.take(), told(&["too_old"]));
    server.ask(&post("later").key("later")).await;
    server.ask(&post("later").key("later")).await;
    assert_eq!(counts.take(), told(&["backing_off", "fresh"]));
    let _stuck = server.later(post("stuck").key("stuck"));
    gate.reached.wait().await;
    server.ask(&post("stuck").key("stuck")).await;
    assert_eq!(counts.take(), told(&["fresh", "in_flight"]));
    testing::pass(&redrive, Duration::from_secs(30));
    server.ask(&post("stuck").key("stuck")).await;
    assert_eq!(counts.take(), told(&["taken_over"]));
    testing::pass(&redrive, Duration::from_secs(86_400));
    server.ask(&post("1").key("a")).await;
    assert_eq!(counts.take(), told(&["gone"]));
}
