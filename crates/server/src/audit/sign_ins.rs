//! Failed sign-ins, in the audit log.
//!
//! They are counted for each address, and written together every few seconds: an attacker who guesses must not fill the
//! disk, nor make the server wait for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive::{Redrive, StoreError};

/// How often counts are written.
const EVERY: Duration = Duration::from_secs(5);
/// Addresses that are counted by themselves between two writes; further ones are counted together.
const ADDRESSES_MAX: usize = 50;
/// What further addresses are called.
const OTHERS: &str = "other addresses";
/// Who fails to sign in.
const UNKNOWN: &str = "unknown";

/// Failed sign-ins that are not written yet.
#[derive(Debug, Default)]
pub(crate) struct FailedSignIns(Mutex<BTreeMap<Arc<str>, u64>>);

impl FailedSignIns {
    /// Counts one, from this address.
    pub(crate) fn count(&self, from: &Arc<str>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = counts.len() >= ADDRESSES_MAX && !counts.contains_key(from);
        let from = if is_full { OTHERS.into() } else { from.clone() };
        *counts.entry(from).or_default() += 1;
    }

    fn take(&self) -> BTreeMap<Arc<str>, u64> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes them, again and again.
    pub(crate) async fn write(&self, redrive: &Redrive) {
        let mut tick = tokio::time::interval(EVERY);
        loop {
            tick.tick().await;
            for (from, count) in self.take() {
                let desk = redrive.desk(UNKNOWN, &*from);
                match desk.note("sign-in-failed", "token", count, "").await {
                    Ok(_) => {}
                    Err(StoreError::Closed) => return,
                    Err(error) => {
                        tracing::warn!(%error, %from, count, "cannot write failed sign-ins to the audit log");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_beyond_the_bound_are_counted_together() {
        let failed = FailedSignIns::default();
        for address in 0..ADDRESSES_MAX + 10 {
            failed.count(&address.to_string().into());
            failed.count(&"0".into());
        }
        let counts = failed.take();
        assert_eq!(counts.len(), ADDRESSES_MAX + 1);
        assert_eq!((counts["0"], counts[OTHERS]), (ADDRESSES_MAX as u64 + 11, 10));
        assert!(failed.take().is_empty());
    }
}
