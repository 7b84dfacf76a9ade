//! The start page, for browsers.

use std::sync::Arc;

use axum::Router;
use axum::response::Html;
use axum::routing::get;

use crate::app::App;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/", get(index))
}

/// No figures: it is shown to everybody.
async fn index() -> Html<&'static str> {
    Html(concat!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Redrive</title>",
        "<meta name=viewport content=\"width=device-width\">",
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:3rem auto;padding:0 1rem}",
        "code{background:#8882;padding:.1em .3em;border-radius:3px}</style>",
        "<h1>Redrive ",
        env!("CARGO_PKG_VERSION"),
        "</h1><p>Do it again, and have it take effect once.</p><ul>",
        "<li><a href=/v1/queues>/v1/queues</a>: the queues and what is in them",
        "<li><a href=/v1/dead/groups>/v1/dead/groups</a>: dead letters grouped by cause",
        "<li><a href=/v1/jobs>/v1/jobs</a>: redrives under way",
        "<li><a href=/v1/audit>/v1/audit</a>: who did what",
        "<li><a href=/metrics>/metrics</a>, <a href=/readyz>/readyz</a>, <a href=/openapi.json>/openapi.json</a>",
        "</ul><p>Operators have the same as commands: <code>redrive dead groups</code>, <code>redrive --help</code>.",
    ))
}
