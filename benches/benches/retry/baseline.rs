//! The call itself, without anything around it: what each side is compared with.

use std::future::{Ready, ready};
use std::hint::black_box;
use std::task::{Context, Poll};

use redrive_benches::measure::Side;
use redrive_benches::poll;
use tower::Service;

/// The error that no call of this bench gives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Down;

pub(crate) const ASYNC: &str = "bare async";
pub(crate) const BLOCKING: &str = "bare blocking";
pub(crate) const TOWER: &str = "bare tower";

/// The call: what goes in and what comes out are hidden from the optimiser.
pub(crate) async fn fetch(id: u64) -> Result<u64, Down> {
    Ok(black_box(id))
}

pub(crate) fn read(id: u64) -> Result<u64, Down> {
    Ok(black_box(id))
}

/// The call as a service that is always ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fetch;

impl Service<u64> for Fetch {
    type Response = u64;
    type Error = Down;
    type Future = Ready<Result<u64, Down>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Down>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, id: u64) -> Self::Future {
        ready(Ok(black_box(id)))
    }
}

/// What goes in.
pub(crate) fn id() -> u64 {
    black_box(7)
}

/// Calls a service as its callers do: when it is ready.
pub(crate) fn call<S: Service<u64>>(service: &mut S) -> Option<S::Response> {
    let service = black_box(service);
    poll::now(async move {
        std::future::poll_fn(|cx| service.poll_ready(cx)).await.ok()?;
        service.call(id()).await.ok()
    })
}

pub(crate) fn sides() -> Vec<Side<'static>> {
    let mut service = Fetch;
    vec![
        Side::new(ASYNC, ASYNC, || poll::now(async { fetch(id()).await.ok() })),
        Side::new(BLOCKING, BLOCKING, || read(id()).ok()),
        Side::new(TOWER, TOWER, move || call(&mut service)),
    ]
}
