//! The desk's pages: what failed, why, and what to do about it, in a browser.
//!
//! A page has no rules of its own. It sends the API's own requests, in process and in the visitor's name (`api`), so a page,
//! a command and a request see and change the same, under the same rights. Pages are rendered here, from templates that
//! are checked when the program is built; every action is a plain form, and the script only adds comfort.
//!
//! | file | what |
//! |---|---|
//! | `visitor`, `session`, `sign_in` | who looks, and whether a form is theirs |
//! | `policy` | the headers of every answer |
//! | `escape`, `text`, `link`, `payload`, `printing` | how values are printed; the last also on a terminal |
//! | `filter`, `command` | which events a page is about, and the command that gives the same |
//! | `page` | the frame around every page |
//! | `pages` | the pages |

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRef;
use axum::middleware::{from_fn, map_response};
use axum::routing::get;
use tokio::sync::Semaphore;

use crate::app::App;

mod api;
mod assets;
mod charts;
mod command;
mod escape;
mod filter;
mod link;
mod page;
mod pages;
mod payload;
mod policy;
pub(crate) mod printing;
mod session;
mod sign_in;
mod text;
mod visitor;

use session::Sessions;

pub(crate) use api::Problem;

/// Streams of jobs at a time. A browser opens six connections to a host over all of its tabs, so a stream is short of
/// that; beyond this number a page polls.
const STREAMS_MAX: usize = 64;

/// What the pages share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    app: Arc<App>,
    /// The operators' API, called in process.
    api: Router,
    sessions: Arc<Sessions>,
    streams: Arc<Semaphore>,
}

impl FromRef<Shared> for Arc<App> {
    fn from_ref(shared: &Shared) -> Self {
        shared.app.clone()
    }
}

/// The routes of all pages. Without random bytes there are none: then no session can be kept apart from another.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let Ok(sessions) = Sessions::new() else {
        tracing::warn!("the system has no random bytes, so there are no pages");
        return Router::new();
    };
    let shared = Shared {
        app: app.clone(),
        api: crate::api::operators(app.clone()),
        sessions: Arc::new(sessions),
        streams: Arc::new(Semaphore::new(STREAMS_MAX)),
    };
    Router::new()
        .merge(sign_in::routes())
        .merge(pages::routes())
        .route("/desk/assets/{name}", get(assets::serve))
        .layer(map_response(policy::headers))
        .layer(from_fn(crate::observe::access_log::noted))
        .with_state(shared)
}
