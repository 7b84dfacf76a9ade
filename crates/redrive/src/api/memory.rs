//! A cache of the answers that this process replayed lately.
//!
//! A retry storm asks for the same few answers again and again, and each lookup would queue at the store's writer. A
//! completed request never changes, whichever process completed it: only time changes its record, and the layer
//! computes that as the store does. A hit therefore needs no lookup in the store. Answers that are sealed in the store
//! are sealed here as well.
//!
//! Bounded in bytes, in two generations: when the young one is full, answers of the old one that were not asked for
//! are evicted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::ledger::RequestScope;
use redrive_http::idempotent::CachedReply;

/// Bytes kept: some thousand JSON answers.
const BYTES_MAX: usize = 8 << 20;

/// An answer that takes more than this part of the cache is not kept: it would evict too many others.
const PART: usize = 8;

#[derive(Debug, Clone, Default)]
pub(super) struct Answers(Arc<Mutex<Halves>>);

#[derive(Debug, Default)]
struct Halves {
    young: HashMap<RequestScope, Arc<CachedReply>>,
    old: HashMap<RequestScope, Arc<CachedReply>>,
    /// Bytes of the young generation.
    bytes: usize,
}

impl Answers {
    /// Caches an answer from the store.
    pub(super) fn remember(&self, scope: &RequestScope, ended: CachedReply) {
        let size = size(scope, &ended);
        if size > BYTES_MAX / PART {
            return;
        }
        self.halves(|halves| halves.put(scope.clone(), Arc::new(ended), size));
    }

    pub(super) fn find(&self, scope: &RequestScope) -> Option<Arc<CachedReply>> {
        self.halves(|halves| {
            if let Some(ended) = halves.young.get(scope) {
                return Some(Arc::clone(ended));
            }
            let (scope, ended) = halves.old.remove_entry(scope)?;
            let size = size(&scope, &ended);
            halves.put(scope, Arc::clone(&ended), size);
            Some(ended)
        })
    }

    fn halves<T>(&self, work: impl FnOnce(&mut Halves) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Halves {
    fn put(&mut self, scope: RequestScope, ended: Arc<CachedReply>, size: usize) {
        if self.bytes + size > BYTES_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        if self.young.insert(scope, ended).is_none() {
            self.bytes += size;
        }
    }
}

fn size(scope: &RequestScope, ended: &CachedReply) -> usize {
    scope.tenant.len() + scope.operation.len() + scope.key.len() + ended.size()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redrive_core::Moment;
    use redrive_core::ledger::{LedgerRecord, RecordPhase, RequestFingerprint, Retention, StoredReply};

    use super::*;

    fn scope(key: usize) -> RequestScope {
        RequestScope { tenant: "acme".into(), operation: "POST /bookings".into(), key: key.to_string() }
    }

    fn completed(body: usize) -> CachedReply {
        let reply = StoredReply { status: 201, headers: vec![], body: Some(vec![7; body]) };
        let at = Moment::from_nanos(1_000_000_000);
        let record = LedgerRecord {
            print: RequestFingerprint { version: 1, hash: [1; 32] },
            first: at,
            epoch: 1,
            attempt: 1,
            phase: RecordPhase::Completed { reply, at },
            retention: Retention { answer: Duration::from_secs(60) },
            resource: None,
        };
        CachedReply::new(&record).expect("it is over")
    }

    #[test]
    fn it_is_bounded_in_bytes_and_keeps_what_is_asked_for() {
        let answers = Answers::default();
        for key in 0..2000 {
            answers.remember(&scope(key), completed(10_000));
            assert!(answers.find(&scope(0)).is_some(), "asked for all the time, and forgotten at {key}");
        }
        let (kept, bytes) = answers.halves(|halves| (halves.young.len() + halves.old.len(), halves.bytes));
        assert!(kept * 10_000 <= BYTES_MAX, "{kept} are kept");
        assert!(kept > 400 && bytes <= BYTES_MAX / 2, "{kept} are kept, {bytes} bytes");
        assert!(answers.find(&scope(1)).is_none(), "the oldest are forgotten");
        answers.remember(&scope(1), completed(BYTES_MAX / 4));
        assert!(answers.find(&scope(1)).is_none(), "one answer does not put out all others");
    }
}
