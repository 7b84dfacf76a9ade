//! The answers that were replayed lately, in this process' memory.
//!
//! A retry storm asks for the same few answers again and again, and each time the store's writer would have to be asked,
//! which others wait for. A request that is completed never changes any more: whatever process did it, time alone makes
//! something else of its record, and that is worked out by the layer as the store does it. So what is found here needs
//! nobody else, and what is not is asked of the store. What is sealed in the store is sealed here.
//!
//! Bounded in bytes, in two halves: what is not asked for while one half fills up is forgotten with the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::ledger::Scope;
use redrive_http::idempotent::Remembered;

/// How much is kept: some thousand answers of an API that speaks JSON.
const BYTES_MAX: usize = 8 << 20;

/// An answer that takes more than this part of the memory is not kept: it would put out too many others.
const PART: usize = 8;

#[derive(Debug, Clone, Default)]
pub(super) struct Answers(Arc<Mutex<Halves>>);

#[derive(Debug, Default)]
struct Halves {
    young: HashMap<Scope, Arc<Remembered>>,
    old: HashMap<Scope, Arc<Remembered>>,
    /// What the young ones take.
    bytes: usize,
}

impl Answers {
    /// Remembers an answer that the store gave.
    pub(super) fn remember(&self, scope: &Scope, ended: Remembered) {
        let size = size(scope, &ended);
        if size > BYTES_MAX / PART {
            return;
        }
        self.halves(|halves| halves.put(scope.clone(), Arc::new(ended), size));
    }

    pub(super) fn find(&self, scope: &Scope) -> Option<Arc<Remembered>> {
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
    fn put(&mut self, scope: Scope, ended: Arc<Remembered>, size: usize) {
        if self.bytes + size > BYTES_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        if self.young.insert(scope, ended).is_none() {
            self.bytes += size;
        }
    }
}

fn size(scope: &Scope, ended: &Remembered) -> usize {
    scope.tenant.len() + scope.operation.len() + scope.key.len() + ended.size()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redrive_core::Moment;
    use redrive_core::ledger::{Phase, Print, Record, Reply, Retention};

    use super::*;

    fn scope(key: usize) -> Scope {
        Scope { tenant: "acme".into(), operation: "POST /bookings".into(), key: key.to_string() }
    }

    fn completed(body: usize) -> Remembered {
        let reply = Reply { status: 201, headers: vec![], body: Some(vec![7; body]) };
        let at = Moment::from_nanos(1_000_000_000);
        let record = Record {
            print: Print { version: 1, hash: [1; 32] },
            first: at,
            epoch: 1,
            attempt: 1,
            phase: Phase::Completed { reply, at },
            retention: Retention { answer: Duration::from_secs(60) },
            resource: None,
        };
        Remembered::new(&record).expect("it is over")
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
