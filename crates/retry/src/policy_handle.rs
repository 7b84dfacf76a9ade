//! A policy that a call holds on to, without counting references each time.
//!
//! A session and a tower service outlive the borrow they were started with, so each call needs its own handle.
//! Incrementing and decrementing the reference count takes two locked instructions, more than the rest of a first-try
//! success. So the handle of an ended call stays with its thread, and the next call under the same policy reuses it.
//!
//! Cost: a thread keeps the last policy it used until it uses another one or ends. A policy with observers is not
//! kept, because other code may wait for what an observer owns (the sending half of a channel) to be dropped.

use std::borrow::Borrow;
use std::cell::Cell;

use redrive_core::Policy;

thread_local! {
    static SPARE: Cell<Option<Policy>> = const { Cell::new(None) };
}

/// A handle on a policy, as cheap as a borrow. See the [module](self).
#[derive(Debug)]
pub struct PolicyHandle(Option<Policy>);

impl PolicyHandle {
    /// A handle on this policy: the spare one of the thread, or a new one.
    #[must_use]
    #[inline]
    pub fn of(policy: &Policy) -> Self {
        match SPARE.try_with(Cell::take) {
            Ok(Some(spare)) if spare.is(policy) => Self(Some(spare)),
            Ok(Some(other)) => another(policy, other),
            Ok(None) | Err(_) => Self(Some(policy.clone())),
        }
    }

    /// This handle.
    #[must_use]
    #[inline]
    pub const fn new(policy: Policy) -> Self {
        Self(Some(policy))
    }
}

/// A new handle; the spare one of another policy stays.
#[inline(never)]
fn another(policy: &Policy, spare: Policy) -> PolicyHandle {
    let _ = SPARE.try_with(|slot| slot.set(Some(spare)));
    PolicyHandle::new(policy.clone())
}

/// Out of line, because it is rare.
#[inline(never)]
fn let_go(other: Policy) {
    drop(other);
}

impl Borrow<Policy> for PolicyHandle {
    #[inline(always)]
    fn borrow(&self) -> &Policy {
        match &self.0 {
            Some(policy) => policy,
            None => unreachable!("it is taken out on drop only"),
        }
    }
}

impl Drop for PolicyHandle {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(policy) = self.0.take()
            && !policy.is_observed()
        {
            // A thread that is about to end keeps nothing.
            let _ = SPARE.try_with(|slot| {
                if let Some(other) = slot.replace(Some(policy)) {
                    let_go(other);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::Observer;

    fn spare_is(policy: &Policy) -> bool {
        let spare = SPARE.take();
        let is = spare.as_ref().is_some_and(|spare| spare.is(policy));
        SPARE.set(spare);
        is
    }

    #[test]
    fn a_thread_keeps_the_handle_of_its_last_call_and_hands_it_to_the_next() {
        let (first, second) = (Policy::default(), Policy::default());
        drop(PolicyHandle::of(&first));
        assert!(spare_is(&first));
        let taken = PolicyHandle::of(&first);
        assert!(SPARE.take().is_none(), "it is with the call");
        drop(taken);
        let other = PolicyHandle::of(&second);
        assert!(spare_is(&first), "another policy does not take it away");
        let borrowed: &Policy = other.borrow();
        assert!(borrowed.is(&second));
        drop(other);
        assert!(spare_is(&second), "one at most");
    }

    #[test]
    fn an_observed_policy_is_let_go() {
        struct Silent;
        impl Observer for Silent {}
        let policy = Policy::builder().observer(Silent).build().unwrap();
        drop(PolicyHandle::of(&policy));
        assert!(!spare_is(&policy));
    }
}
