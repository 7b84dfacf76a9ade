//! The engine over a store in memory, on paused time.
#![cfg(feature = "engine")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod endings;
mod kinds;
mod lines;
mod order;
mod shared;
mod shares;
mod stopping;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::prelude::*;
use redrive::{Delivery, Policy};

const SECOND: Duration = Duration::from_secs(1);

/// What handlers saw, in order.
#[derive(Clone)]
struct Seen<T>(Arc<Mutex<Vec<T>>>);

impl<T: Clone> Seen<T> {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn note(&self, what: T) {
        self.0.lock().unwrap().push(what);
    }

    fn all(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }
}

impl Seen<String> {
    /// A handler that notes the id, and fails transiently for the given ones.
    fn handler(
        &self,
        fails: impl Fn(&Delivery) -> Option<Fault> + Send + Sync + 'static,
    ) -> impl Fn(Delivery) -> std::future::Ready<Disposition> + Send + Sync + 'static {
        let seen = self.clone();
        move |delivery| {
            seen.note(delivery.id().to_owned());
            std::future::ready(fails(&delivery).map_or(Disposition::Ok, Disposition::from))
        }
    }
}

/// Five attempts, a second apart, no budget.
fn patient() -> Policy {
    Policy::builder().attempts(5).backoff(Backoff::constant(SECOND)).no_budget().build().unwrap()
}
