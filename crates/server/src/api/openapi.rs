//! The API's own description, as an OpenAPI document.
//!
//! Written by hand, a file for each part of the API, and put together here. A test compares it with the routes and
//! with `docs/openapi.json`, and `cargo xtask schemathesis` with what the server really answers.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use crate::app::App;

/// What all parts share, and then the parts.
const PARTS: &[&str] = &[
    include_str!("openapi/base.json"),
    include_str!("openapi/health.json"),
    include_str!("openapi/publish.json"),
    include_str!("openapi/pull.json"),
    include_str!("openapi/operate/look.json"),
    include_str!("openapi/operate/order.json"),
    include_str!("openapi/operate/order_one.json"),
    include_str!("openapi/operate/jobs.json"),
    include_str!("openapi/operate/flow.json"),
    include_str!("openapi/operate/keys.json"),
    include_str!("openapi/operate/ledger.json"),
    include_str!("openapi/operate/nodes.json"),
    include_str!("openapi/operate/exchange.json"),
    include_str!("openapi/house.json"),
    include_str!("openapi/secrets.json"),
];

static TEXT: LazyLock<String> = LazyLock::new(text);

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/openapi.json", get(document))
}

/// Told to everybody: it says nothing about anybody's events.
async fn document() -> Response {
    ([(CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}

/// The whole document, as it is served and checked in.
#[must_use]
pub fn text() -> String {
    let mut whole = Value::Object(serde_json::Map::new());
    for part in PARTS {
        // A test reads them all; one that is no JSON would be left out.
        if let Ok(part) = serde_json::from_str(part) {
            merge(&mut whole, part);
        }
    }
    format!("{whole:#}\n")
}

/// Lays one document over another: objects are merged, anything else is replaced.
fn merge(into: &mut Value, part: Value) {
    match (into, part) {
        (Value::Object(into), Value::Object(part)) => {
            for (name, value) in part {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, part) => *into = part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_json() {
        for part in PARTS {
            let read: Result<Value, _> = serde_json::from_str(part);
            assert!(read.is_ok(), "{read:?} in {}", &part[..part.len().min(200)]);
        }
    }
}
