//! The gate: every request through its route, or past all of them.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use http::{Request, Response};
use tower::Service;

use super::proxy::{Passing, Proxy};
use super::route::Route;
use super::table::Table;

/// Has requests go through their routes.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    table: Arc<Table<Route>>,
    proxy: Proxy,
}

impl Gate {
    pub(super) fn new(table: Table<Route>, proxy: Proxy) -> Self {
        Self { table: Arc::new(table), proxy }
    }
}

impl Service<Request<Body>> for Gate {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Passing;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Passing {
        match self.table.find(request.method(), request.uri().path()) {
            None => self.proxy.call(request),
            Some(route) => {
                let answering = route.service.clone().call(request);
                Box::pin(async move { Ok(answering.await?.map(Body::new)) })
            }
        }
    }
}
