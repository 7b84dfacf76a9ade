//! Replay matrix: the headers by which real APIs identify callers, changed one at a time, are never replayed; headers
//! that change from attempt to attempt always are.

use crate::stage::{Client, Gateway, post};
use crate::upstream::{Upstream, answer};

/// How APIs identify callers: tokens, and the accounts, projects and tenants beside them.
const IDENTIFYING: [&str; 26] = [
    "Authorization",
    "Cookie",
    "Stripe-Account",
    "Stripe-Context",
    "X-Api-Key",
    "PayPal-Auth-Assertion",
    "X-Shopify-Access-Token",
    "Plaid-Client-Id",
    "Plaid-Secret",
    "Xero-Tenant-Id",
    "X-Goog-User-Project",
    "X-Goog-Api-Key",
    "X-Amz-Security-Token",
    "Ocp-Apim-Subscription-Key",
    "OpenAI-Organization",
    "OpenAI-Project",
    "DD-Api-Key",
    "DD-Application-Key",
    "X-Vault-Token",
    "X-Vault-Namespace",
    "X-Auth-Email",
    "X-Consumer-Id",
    "X-Hasura-User-Id",
    "X-Grafana-Org-Id",
    "X-Forwarded-User",
    "X-Tenant-Id",
];

/// What clients and their libraries change with each attempt.
const PER_ATTEMPT: [&str; 22] = [
    "Traceparent",
    "Tracestate",
    "Baggage",
    "B3",
    "X-B3-TraceId",
    "X-Request-Id",
    "X-Correlation-Id",
    "X-Cloud-Trace-Context",
    "X-Amzn-Trace-Id",
    "X-Datadog-Trace-Id",
    "Sentry-Trace",
    "Amz-Sdk-Request",
    "Amz-Sdk-Invocation-Id",
    "X-Stainless-Retry-Count",
    "X-Attempt-Number",
    "Redrive-Attempt",
    "Grpc-Timeout",
    "Date",
    "User-Agent",
    "X-Forwarded-For",
    "Cf-Ray",
    "If-Modified-Since",
];

/// A request with all of these; `other` has another value, and `without` is not there.
fn request(key: &str, names: &[&str], other: Option<&str>, without: Option<&str>) -> String {
    let names = names.iter().filter(|name| Some(**name) != without);
    let lines = names.map(|name| format!("{name}: {}\r\n", if Some(*name) == other { "two" } else { "one" }));
    post("/orders", key, &lines.collect::<String>(), "{}")
}

/// The headers whose change was replayed.
async fn replayed(gateway: &Gateway, names: &[&'static str]) -> Vec<&'static str> {
    let mut client = Client::of(gateway.address);
    let key = format!("k-{}", names.len());
    assert_eq!(client.ask(&request(&key, names, None, None)).await.status, 201);
    let mut found = Vec::new();
    for name in names {
        for (other, without) in [(Some(*name), None), (None, Some(*name))] {
            let reply = client.ask(&request(&key, names, other, without)).await;
            if reply.header("idempotent-replayed") == Some("true") {
                found.push(*name);
            } else {
                assert_eq!(reply.status, 422, "{name}: {}", reply.body);
            }
        }
    }
    found
}

async fn api() -> Upstream {
    Upstream::answering(|_| answer("201 Created", "", "made")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_caller_is_never_given_a_reply_and_another_attempt_always_is() {
    let upstream = api().await;
    let gateway = Gateway::before(upstream.address, "").await;
    assert_eq!(replayed(&gateway, &IDENTIFYING).await, Vec::<&str>::new());
    let twice: Vec<&str> = PER_ATTEMPT.iter().flat_map(|name| [*name, *name]).collect();
    assert_eq!(replayed(&gateway, &PER_ATTEMPT).await, twice);
}

/// The control: where the token alone is said to identify a caller, accounts beside it are not told apart.
#[tokio::test(flavor = "multi_thread")]
async fn control_where_only_the_token_counts_accounts_are_given_each_others_replies() {
    let upstream = api().await;
    let gateway = Gateway::before(upstream.address, "gateway.credentials = [\"authorization\"]\n").await;
    let found = replayed(&gateway, &IDENTIFYING).await;
    assert_eq!(found.len(), 2 * (IDENTIFYING.len() - 1));
}
