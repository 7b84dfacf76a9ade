//! What is remembered of a request.

use std::time::Duration;

use crate::moment::Moment;

/// How many times longer than its answer a record is remembered at all.
pub(super) const TOMBSTONE: u32 = 4;

/// Which request: unique in a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// Whose.
    pub tenant: String,
    /// Which operation: a method and a route, usually.
    pub operation: String,
    /// The client's key.
    pub key: String,
}

/// What was asked under the key: the fingerprint of the request, and the version of the rules that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Print {
    /// The rules.
    pub version: u8,
    /// The hash.
    pub hash: [u8; 32],
}

/// What an endpoint says of its effects, and so what may follow when nobody knows how a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effects {
    /// They all happen in one transaction with the record: what was rolled back did not happen.
    Transactional,
    /// Downstream calls carry keys of their own: running again is safe.
    Keyed,
    /// Neither.
    Opaque(OnUnknown),
}

impl Effects {
    /// Whether it may run again where nobody knows how it ended.
    #[must_use]
    pub const fn may_rerun(self) -> bool {
        matches!(self, Self::Transactional | Self::Keyed | Self::Opaque(OnUnknown::Rerun))
    }
}

/// What follows an unknown outcome where effects are opaque.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnknown {
    /// It is held until a person, or the run's own late end, resolves it.
    Hold,
    /// It runs again: the endpoint accepts that its effect may happen twice.
    Rerun,
    /// It is asked whether it happened. "It did not" counts only so long after the lease: a request that is still
    /// on its way may arrive until then.
    Probe {
        /// How long after.
        settling: Duration,
    },
}

/// How long things are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// An answer, after the run ended.
    pub answer: Duration,
}

impl Retention {
    /// How long it is remembered that there was one, also after the answer is gone.
    #[must_use]
    pub fn record(self) -> Duration {
        self.answer.saturating_mul(TOMBSTONE)
    }
}

/// What is remembered of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// What was asked. Never changes.
    pub print: Print,
    /// When it first came.
    pub first: Moment,
    /// Grows whenever somebody else begins to run it: the fence.
    pub epoch: u64,
    /// How often it was begun.
    pub attempt: u32,
    /// Where it is.
    pub phase: Phase,
    /// How long its answer is kept once there is one.
    pub retention: Retention,
    /// What it made, for whoever looks for the request by it.
    pub resource: Option<String>,
}

impl Record {
    /// When its answer is gone, and when all of it is forgotten. What is in flight or unknown never ends.
    #[must_use]
    pub fn ends(&self) -> Option<(Moment, Moment)> {
        let (answer, remembered) = (self.retention.answer, self.retention.record());
        match &self.phase {
            Phase::InFlight { .. } | Phase::Unknown { .. } => None,
            Phase::Retriable { since: ended, .. } | Phase::Completed { at: ended, .. } => {
                Some((*ended + answer, *ended + remembered))
            }
            Phase::Tombstone { until, .. } => {
                let since = until.since(Moment::default()).saturating_sub(remembered.saturating_sub(answer));
                Some((Moment::default() + since, *until))
            }
        }
    }
}

/// Where a record is.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// Somebody runs it.
    InFlight {
        /// When they began.
        began: Moment,
        /// Until when they have it, unless they renew.
        until: Moment,
    },
    /// It may be run again.
    Retriable {
        /// Not before that.
        not_before: Option<Moment>,
        /// Since when.
        since: Moment,
    },
    /// It may have happened.
    Unknown {
        /// Since when nobody knows.
        since: Moment,
    },
    /// It ended.
    Completed {
        /// With which answer.
        reply: Reply,
        /// When.
        at: Moment,
    },
    /// It ended, and the answer is gone.
    Tombstone {
        /// The status of the answer; none where there was none.
        status: Option<u16>,
        /// Where what it made is, if the answer said so.
        location: Option<String>,
        /// Until when that is remembered.
        until: Moment,
    },
}

impl Phase {
    /// The words of all of them.
    pub const WORDS: [&'static str; 5] = ["in_flight", "retriable", "unknown", "completed", "tombstone"];

    /// Its word.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::InFlight { .. } => "in_flight",
            Self::Retriable { .. } => "retriable",
            Self::Unknown { .. } => "unknown",
            Self::Completed { .. } => "completed",
            Self::Tombstone { .. } => "tombstone",
        }
    }
}

/// An answer, as it is replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers in their order, repeated ones too. Values are bytes: not all are text.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body; none where it was too large or is not to be kept.
    pub body: Option<Vec<u8>>,
}

impl Reply {
    /// An answer with this status, without headers, and with an empty body.
    ///
    /// ```
    /// use redrive_core::ledger::Reply;
    ///
    /// let reply = Reply::new(201).header("location", "/bookings/7").body("booked");
    /// assert_eq!(reply.location().as_deref(), Some("/bookings/7"));
    /// ```
    #[must_use]
    pub const fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Some(Vec::new()) }
    }

    /// With one more header, also where it has one of that name.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// With this body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Where what was made is.
    #[must_use]
    pub fn location(&self) -> Option<String> {
        let location = self.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("location"));
        location.and_then(|(_, value)| String::from_utf8(value.clone()).ok())
    }
}
