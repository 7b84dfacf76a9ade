//! A future that contains its own panics, including one while it is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Returns the future's output, or `None` if it panics.
pub(in crate::idempotent) struct CatchPanic<F>(Option<Pin<Box<F>>>);

impl<F: Future> CatchPanic<F> {
    pub(in crate::idempotent) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }

    fn end(&mut self) {
        let future = self.0.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
    }
}

impl<F: Future> Future for CatchPanic<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.0 else { return Poll::Ready(None) };
        let output = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Some(output),
            Err(_) => None,
        };
        self.end();
        Poll::Ready(output)
    }
}

impl<F> Drop for CatchPanic<F> {
    fn drop(&mut self) {
        let future = self.0.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
    }
}
