//! Planted bugs: a check on the tests.
//!
//! Each rule that keeps messages has a weaker form here, and some test must find it. At most one is planted at a time,
//! for the thread that runs the test. Without the feature `planted` the check costs nothing.

/// The planted bugs, each named after what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BrokerBug {
    /// A second commit is sent while the outcome of the first is unknown.
    PipelinedIds,
    /// Items of an aborted commit are forgotten.
    AbortForgotten,
    /// A plain commit is sent beside a transaction that is under way.
    PlainBesideTransaction,
    /// The low mark moves one offset at a time, and waits at a gap.
    MarkCountsByOne,
    /// Messages are delivered before the done-set is loaded.
    DispatchBeforeLoad,
    /// The done-set names what is decided, not what is committed.
    DoneSetRunsAhead,
    /// The part of the done-set beyond the position is lost at the next commit.
    ForgetsDoneAhead,
    /// Damaged metadata is read as far as it goes.
    DamagedIsTrusted,
    /// Messages without a key share one lane.
    NullKeysShareLane,
    /// A key runs beside its own attempt of an earlier assignment.
    BouncedKeyRunsTwice,
    /// A retry is delivered a little early.
    RetryEarly,
    /// A settle of an earlier delivery counts.
    StaleReceiptSettles,
    /// A settle whose answer is lost counts as not done, and the copy is made again.
    UnknownMakesTwo,
    /// Headers are appended.
    HeadersAppended,
    /// A dead letter that has no place is dropped.
    DeadWithoutPlaceDropped,
    /// The identity is made anew at every delivery.
    IdentityRenewed,
    /// A paused partition is delivered again after reassignment.
    PauseForgotten,
    /// A redelivery is charged as an attempt.
    RedeliveryCharged,
    /// The message that trips the dead-letter ratio is settled.
    RatioSettlesTripper,
}

impl BrokerBug {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::PipelinedIds,
        Self::AbortForgotten,
        Self::PlainBesideTransaction,
        Self::MarkCountsByOne,
        Self::DispatchBeforeLoad,
        Self::DoneSetRunsAhead,
        Self::ForgetsDoneAhead,
        Self::DamagedIsTrusted,
        Self::NullKeysShareLane,
        Self::BouncedKeyRunsTwice,
        Self::RetryEarly,
        Self::StaleReceiptSettles,
        Self::UnknownMakesTwo,
        Self::HeadersAppended,
        Self::DeadWithoutPlaceDropped,
        Self::IdentityRenewed,
        Self::PauseForgotten,
        Self::RedeliveryCharged,
        Self::RatioSettlesTripper,
    ];
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<BrokerBug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in this thread, or removes it.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<BrokerBug>) {
    PLANTED.set(bug);
}

/// Whether this bug is planted.
#[cfg(feature = "planted")]
#[must_use]
pub fn has(bug: BrokerBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this bug is planted: never, in a release.
#[cfg(not(feature = "planted"))]
#[must_use]
#[inline(always)]
pub const fn has(_: BrokerBug) -> bool {
    false
}
