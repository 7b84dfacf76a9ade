//! Catches effects where they would be repeated: inside the body of a transaction.
//!
//! A body may run several times until it commits, and may never commit. While it is polled or called, a thread-local
//! says so, as [`scope`](crate::scope) does for attempts. Redrive's HTTP client and a plain `publish` look at it and
//! refuse, and name the outbox: an event that is published *in* the transaction exists if that commits.
//!
//! **What escapes:** a task that the body spawns, another thread, a channel to either, any client that is not
//! Redrive's, and files. The guard is a net for mistakes, not a wall.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller runs inside the body of a transaction, where an effect outside the database is refused.
#[must_use]
pub fn are_refused() -> bool {
    INSIDE.get()
}

/// Calls the body of a transaction on this thread.
pub fn refused_in<R>(body: impl FnOnce() -> R) -> R {
    let _inside = Inside::enter();
    body()
}

/// The body of a transaction as a future.
pub fn refused_during<F: Future>(body: F) -> EffectsRefused<F> {
    EffectsRefused { body }
}

/// Restores what was before, also when the body panics.
struct Inside(bool);

impl Inside {
    fn enter() -> Self {
        Self(INSIDE.replace(true))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

pin_project! {
    /// A future inside which effects are refused; made by [`refused_during`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct EffectsRefused<F> {
        #[pin]
        body: F,
    }
}

impl<F: Future> Future for EffectsRefused<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _inside = Inside::enter();
        self.project().body.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn effects_are_refused_inside_and_nowhere_else() {
        assert!(!are_refused());
        let body = async {
            assert!(are_refused());
            tokio::task::yield_now().await;
            assert!(are_refused(), "after a pause as well");
            tokio::spawn(async { assert!(!are_refused(), "a task of its own escapes") }).await.unwrap();
        };
        tokio::join!(refused_during(body), async {
            assert!(!are_refused(), "what runs beside it is not inside");
            tokio::task::yield_now().await;
            assert!(!are_refused());
        });
        assert!(refused_in(are_refused));
        assert!(std::panic::catch_unwind(|| refused_in(|| panic!("a body"))).is_err());
        assert!(!are_refused());
    }
}
