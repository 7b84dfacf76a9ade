//! The API's own description, as an OpenAPI document.
//!
//! Written by hand, one file per part of the API, merged here and rewritten (`plain`) for generators of clients. A test
//! compares it with the routes and with `docs/reference/openapi.json`; `cargo xtask schemathesis` compares it with real
//! responses, `cargo xtask clients` has clients generated from it.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use crate::app::App;

mod plain;

/// The common part, then the others.
const PARTS: &[&str] = &[
    include_str!("openapi/base.json"),
    include_str!("openapi/health.json"),
    include_str!("openapi/publish.json"),
    include_str!("openapi/pull.json"),
    include_str!("openapi/operate/inspect.json"),
    include_str!("openapi/operate/event_actions.json"),
    include_str!("openapi/operate/single_event_actions.json"),
    include_str!("openapi/operate/jobs.json"),
    include_str!("openapi/operate/flow_control.json"),
    include_str!("openapi/operate/ordering_keys.json"),
    include_str!("openapi/operate/ledger.json"),
    include_str!("openapi/operate/nodes.json"),
    include_str!("openapi/operate/import_export.json"),
    include_str!("openapi/server.json"),
    include_str!("openapi/secrets.json"),
];

static TEXT: LazyLock<String> = LazyLock::new(text);

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/openapi.json", get(document))
}

/// Public: it contains no data.
async fn document() -> Response {
    ([(CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}

/// The whole document, as served and checked in.
#[must_use]
pub fn text() -> String {
    let mut whole = Value::Object(serde_json::Map::new());
    for part in PARTS {
        // A test parses them all; invalid JSON would be left out.
        if let Ok(part) = serde_json::from_str(part) {
            merge(&mut whole, part);
        }
    }
    format!("{:#}\n", plain::plain(&whole))
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
