//! The dashboard and the alert rules name nothing that a server does not show.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::routing::post;
use http::Request;
use http_body_util::BodyExt as _;
use redrive::api::{Effects, Endpoint, Idempotent, OnUnknown, Tenant};
use redrive::breaker::{Breaker, BreakerSettings};
use redrive::{Backoff, Budget, Event, Failure, Policy, Redrive};
use redrive_server::api;
use redrive_server::app::{App, AppServices};
use redrive_server::config::Config;
use redrive_server::observe::metrics;
use redrive_server::reload::Reloading;
use serde_json::Value;
use tower::ServiceExt as _;

const DASHBOARD: &str = include_str!("../../../../docs/operate/deploy/dashboard.json");
const NAMES: &str = include_str!("../../../../docs/reference/names.md");
const RULES: &str = include_str!("../../../../docs/operate/deploy/alerts.yml");
const OBJECTIVES: &str = include_str!("../../../../docs/operate/deploy/slo.yml");

/// The names that are shown, each with its labels.
type EventDetails = BTreeMap<String, BTreeSet<String>>;

/// A queue whose events succeed, succeed later, die, and die of unknown outcome.
async fn at_work(redrive: &Redrive) {
    let policy = Policy::builder()
        .name("shop")
        .attempts(2)
        .backoff(Backoff::constant(Duration::from_millis(1)))
        .budget(Budget::share_of(0.5).expect("a budget"))
        .breaker(Breaker::new(BreakerSettings::default()).expect("a breaker"))
        .build()
        .expect("a policy");
    let queue = redrive.queue("orders").policy(policy);
    let handling = queue.handle(|order| async move {
        match (order.id(), order.attempt()) {
            ("later", 1) | ("never", _) => Err(Failure::transient_text("busy")),
            ("dead", _) => Err(Failure::permanent_text("refused")),
            _ => Ok(()),
        }
    });
    handling.await.expect("a queue");
    let hour =
        Policy::builder().backoff(Backoff::constant(Duration::from_secs(3600))).build().expect("a policy");
    let waiting = redrive.queue("waiting").policy(hour);
    let waiting = waiting.handle(|_| async { Err::<(), _>(Failure::transient_text("busy")) });
    waiting.await.expect("a queue");
    redrive.start().await.expect("a start");
    redrive.publish(Event::new("waiting", "1")).await.expect("published");
    for id in ["first", "first", "later", "never", "dead"] {
        redrive.publish(Event::new("orders", id)).await.expect("published");
    }
    for id in ["later", "never"] {
        while !redrive
            .event("", "orders", id)
            .await
            .expect("a look")
            .is_some_and(|found| found.state.is_ended() || found.state == redrive::event::State::Dead)
        {
            tokio::task::yield_now().await;
        }
    }
    redrive.idle().await;
}

/// An API whose requests fail with unknown outcomes; and the same under another key.
async fn asked(redrive: &Redrive) {
    let effects = Effects::Opaque(OnUnknown::Hold);
    let endpoint = Endpoint::new("POST /bookings").tenant(Tenant::fixed("acme")).effects(effects);
    let layer = Idempotent::new(Arc::new(redrive.ledger()), endpoint).expect("an endpoint");
    let fails = post(async || http::StatusCode::INTERNAL_SERVER_ERROR).layer(layer);
    let router: axum::Router = axum::Router::new().route("/bookings", fails);
    for (key, status) in [("a", 500), ("a", 409), ("b", 500)] {
        let request = Request::post("/bookings").header("idempotency-key", key).body(Body::empty());
        let answer = router.clone().oneshot(request.expect("a request")).await.expect("an answer");
        assert_eq!(answer.status(), status);
    }
}

async fn scrape() -> String {
    metrics::install();
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("sqlite:{}", folder.path().join("redrive.db").display());
    let redrive = Redrive::open(&address).await.expect("a store");
    at_work(&redrive).await;
    asked(&redrive).await;
    redrive.queue("elsewhere").declare().await.expect("a queue");
    redrive.publish(Event::new("elsewhere", "1")).await.expect("published");
    let outside = AppServices::new(&Config::default(), Reloading::never()).expect("nothing outside");
    let router = api::router(App::new(redrive.clone(), Config::default(), outside));
    let mut text = String::new();
    // The second one shows the first.
    for _ in 0..2 {
        let request = Request::get("/metrics").header("host", "localhost").body(Body::empty());
        let answer = router.clone().oneshot(request.expect("a request")).await.expect("an answer");
        assert_eq!(answer.status(), 200);
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        text = String::from_utf8(body.to_vec()).expect("text");
    }
    redrive.shutdown(Duration::from_secs(5)).await.expect("a clean stop");
    text
}

fn shown_in(text: &str) -> EventDetails {
    let mut shown = EventDetails::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let name: String = line.chars().take_while(|c| is_of_name(*c)).collect();
        shown.entry(name.clone()).or_default().extend(labels_after(&line[name.len()..]));
    }
    shown
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The labels in the braces that a text begins with, if it does.
fn labels_after(text: &str) -> Vec<String> {
    let Some(inside) = text.strip_prefix('{') else { return Vec::new() };
    let (mut labels, mut name, mut quoted) = (Vec::new(), String::new(), false);
    for c in inside.chars() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '}' => break,
            '=' => labels.push(std::mem::take(&mut name)),
            c if is_of_name(c) => name.push(c),
            _ => name.clear(),
        }
    }
    labels.retain(|label| !label.is_empty());
    labels
}

/// What an expression names: metrics, and labels of whichever of them.
fn named(expression: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut metrics, mut labels) = (BTreeSet::new(), BTreeSet::new());
    let mut rest = expression;
    while let Some(at) = rest.find("redrive_") {
        let name: String = rest[at..].chars().take_while(|c| is_of_name(*c)).collect();
        rest = &rest[at + name.len()..];
        labels.extend(labels_after(rest));
        metrics.insert(name);
    }
    for list in expression.split("by (").skip(1).filter_map(|text| text.split(')').next()) {
        labels.extend(list.split(',').map(|label| label.trim().to_owned()));
    }
    if let Some(list) = expression.strip_prefix("label_values(").and_then(|text| text.split(')').next()) {
        labels.extend(list.split(',').skip(1).map(|label| label.trim().to_owned()));
    }
    (metrics, labels)
}

/// Expressions, each with the labels that its words use.
fn expressions() -> Vec<(String, Vec<String>)> {
    let between = |text: &str, begin: &str, end: &str| -> Vec<String> {
        let parts = text.split(begin).skip(1).filter_map(|text| text.split(end).next());
        parts.map(|label| label.trim().to_owned()).collect()
    };
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let mut all = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("targets") {
            let text = |name: &str| target[name].as_str().expect("text").to_owned();
            all.push((text("expr"), between(&text("legendFormat"), "{{", "}}")));
        }
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let queries = variables.iter().filter(|variable| variable["type"] == "query");
    all.extend(queries.map(|query| (query["query"].as_str().expect("a query").to_owned(), Vec::new())));
    for rule in RULES.split("- alert:").skip(1) {
        all.push((expression_of(rule).to_owned(), between(rule, "$labels.", " }}")));
        assert!(rule.contains("objective:"), "{rule}");
    }
    let (records, _) = OBJECTIVES.split_once("redrive-slo-alerts").expect("records before alerts");
    all.extend(records.split("- record:").skip(1).map(|rule| (expression_of(rule).to_owned(), Vec::new())));
    all
}

/// The expression of a rule, without what follows it.
fn expression_of(rule: &str) -> &str {
    let expression = rule.split("expr:").nth(1).expect("an expression");
    let ends = ["\n        for:", "\n        labels:"].iter().filter_map(|end| expression.find(end));
    &expression[..ends.min().unwrap_or(expression.len())]
}

/// The recorded series in a text: each begins with `redrive:`.
fn recorded_in(text: &str) -> BTreeSet<String> {
    let is_of_series = |c: char| is_of_name(c) || c == ':';
    text.match_indices("redrive:")
        .map(|(at, _)| text[at..].chars().take_while(|c| is_of_series(*c)).collect())
        .collect()
}

#[test]
fn burn_rate_alerts_read_only_recorded_series_and_every_record_is_read() {
    let (records, alerts) = OBJECTIVES.split_once("redrive-slo-alerts").expect("records before alerts");
    let recorded: BTreeSet<_> = records.split("- record:").skip(1).flat_map(recorded_in).collect();
    let read: BTreeSet<_> =
        alerts.split("- alert:").skip(1).map(expression_of).flat_map(recorded_in).collect();
    assert_eq!(recorded, read);
    assert_eq!(recorded.len(), 10, "{recorded:?}");
    assert!(alerts.split("- alert:").skip(1).all(|rule| rule.contains("objective:")), "{alerts}");
}

/// What the names' page says to alert on has a rule.
#[test]
fn there_is_a_rule_for_all_that_is_worth_one() {
    let advice = NAMES.split("Alert on:").nth(1).and_then(|text| text.split("\n\n").next()).expect("advice");
    let words: Vec<&str> = advice.split('`').skip(1).step_by(2).collect();
    assert!(words.len() > 5, "{words:?}");
    let missing: Vec<_> = words.iter().filter(|word| !RULES.contains(**word)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dashboard_and_rules_name_what_is_there() {
    let text = scrape().await;
    // The objective of 60 seconds reads this bucket.
    assert!(
        text.lines()
            .any(|line| line.starts_with("redrive_lateness_seconds_bucket") && line.contains("le=\"60\"")),
        "{text}"
    );
    let shown = shown_in(&text);
    let expressions = expressions();
    assert!(expressions.len() > 25, "{}", expressions.len());
    for (expression, words) in expressions {
        let (metrics, mut labels) = named(&expression);
        labels.extend(words);
        assert!(!metrics.is_empty(), "{expression}");
        let mut known = BTreeSet::new();
        for metric in metrics {
            let of_it = shown.get(&metric).unwrap_or_else(|| panic!("{metric} is not there: {expression}"));
            known.extend(of_it.iter().cloned());
        }
        let unknown: Vec<_> = labels.difference(&known).collect();
        assert!(unknown.is_empty(), "{unknown:?} of {expression}, which has {known:?}");
    }
}
