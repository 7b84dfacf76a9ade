//! The record of a request.

use std::time::Duration;

use crate::moment::Moment;

/// How many times longer than its reply a record is kept.
pub(super) const TOMBSTONE: u32 = 4;

/// Identifies a request: unique in a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestScope {
    /// The tenant.
    pub tenant: String,
    /// The operation: usually a method and a route.
    pub operation: String,
    /// The client's key, or for a caller with a stable name, the key and that name. See
    /// [`of_principal`](Self::of_principal).
    pub key: String,
}

/// Separates a key from a principal. Neither may contain it.
const PRINCIPAL: char = '\u{1f}';

impl RequestScope {
    /// The scope of one principal's key: other principals may use the same key for requests of their own.
    /// Control characters in the name are replaced, so that no name can imitate another scope.
    ///
    /// ```
    /// use redrive_core::ledger::RequestScope;
    ///
    /// let scope = RequestScope { tenant: "acme".into(), operation: "POST /pay".into(), key: "k".into() };
    /// let ann = scope.clone().of_principal("ann");
    /// assert_eq!((ann.client_key(), ann.principal()), ("k", Some("ann")));
    /// assert_eq!((scope.client_key(), scope.principal()), ("k", None));
    /// ```
    #[must_use]
    pub fn of_principal(mut self, principal: &str) -> Self {
        self.key.push(PRINCIPAL);
        self.key
            .extend(principal.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }));
        self
    }

    /// The key as the client sent it.
    #[must_use]
    pub fn client_key(&self) -> &str {
        self.key.split(PRINCIPAL).next().unwrap_or_default()
    }

    /// The principal that the key belongs to, if the scope has one.
    #[must_use]
    pub fn principal(&self) -> Option<&str> {
        self.key.split_once(PRINCIPAL).map(|(_, principal)| principal)
    }
}

/// The fingerprint of a request, and the version of the rules that computed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestFingerprint {
    /// The version of the rules.
    pub version: u8,
    /// The hash.
    pub hash: [u8; 32],
}

/// The effects that an endpoint declares, which decide what may follow when the outcome of a run is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effects {
    /// All effects commit in one transaction with the record: a rollback undoes them.
    Transactional,
    /// Downstream calls carry idempotency keys of their own: a rerun is safe.
    Keyed,
    /// Neither.
    Opaque(OnUnknown),
}

impl Effects {
    /// Whether the request may run again when its outcome is unknown.
    #[must_use]
    pub const fn may_rerun(self) -> bool {
        matches!(self, Self::Transactional | Self::Keyed | Self::Opaque(OnUnknown::Rerun))
    }
}

/// What follows an unknown outcome when effects are opaque.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnknown {
    /// The record is held until an operator, or the run's own late report, resolves it.
    Hold,
    /// The request runs again: the endpoint accepts that its effect may happen twice.
    Rerun,
    /// The endpoint is probed whether the effect happened. "It did not" counts only this long after the
    /// lease: until then a delayed request may still arrive.
    Probe {
        /// How long after the lease.
        settling: Duration,
    },
}

/// How long a record and its reply are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// How long the reply is kept after the run ended.
    pub answer: Duration,
}

impl Retention {
    /// How long the record is kept, also after the reply has expired.
    #[must_use]
    pub fn record(self) -> Duration {
        self.answer.saturating_mul(TOMBSTONE)
    }
}

/// The record of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerRecord {
    /// The fingerprint of the request. It never changes.
    pub print: RequestFingerprint,
    /// When the request first arrived.
    pub first: Moment,
    /// The epoch, which grows with every new run and fences off the previous one.
    pub epoch: u64,
    /// How often it was started.
    pub attempt: u32,
    /// Its phase.
    pub phase: RecordPhase,
    /// How long its reply is kept once there is one.
    pub retention: Retention,
    /// The resource that the request created, so that an operator can find the request by it.
    pub resource: Option<String>,
}

impl LedgerRecord {
    /// When its reply expires, and when the whole record expires. A record in flight or unknown does not
    /// expire.
    #[must_use]
    pub fn ends(&self) -> Option<(Moment, Moment)> {
        let (answer, remembered) = (self.retention.answer, self.retention.record());
        match &self.phase {
            RecordPhase::InFlight { .. } | RecordPhase::Unknown { .. } => None,
            RecordPhase::Retriable { since: ended, .. } | RecordPhase::Completed { at: ended, .. } => {
                Some((*ended + answer, *ended + remembered))
            }
            RecordPhase::Tombstone { until, .. } => {
                let since = until.since(Moment::default()).saturating_sub(remembered.saturating_sub(answer));
                Some((Moment::default() + since, *until))
            }
        }
    }
}

/// The phase of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordPhase {
    /// A run is in progress.
    InFlight {
        /// When the run began.
        began: Moment,
        /// When its lease lapses, unless the run renews it.
        until: Moment,
    },
    /// The request may run again.
    Retriable {
        /// Not before this moment.
        not_before: Option<Moment>,
        /// Since when.
        since: Moment,
    },
    /// The effect may have happened.
    Unknown {
        /// Since when the outcome is unknown.
        since: Moment,
    },
    /// The run ended with a reply.
    Completed {
        /// The reply.
        reply: StoredReply,
        /// When it ended.
        at: Moment,
    },
    /// The run ended, and the reply has expired.
    Tombstone {
        /// The status of the reply; `None` if there was no reply.
        status: Option<u16>,
        /// The location of the created resource, if the reply named it.
        location: Option<String>,
        /// When the tombstone expires.
        until: Moment,
    },
}

impl RecordPhase {
    /// The words of all phases.
    pub const WORDS: [&'static str; 5] = ["in_flight", "retriable", "unknown", "completed", "tombstone"];

    /// The phase's word.
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

/// A reply, as it is replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReply {
    /// The status.
    pub status: u16,
    /// The headers in order, with duplicates. Values are bytes, because not all are text.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body; `None` if it was too large or must not be kept.
    pub body: Option<Vec<u8>>,
}

impl StoredReply {
    /// A reply with this status, no headers and an empty body.
    ///
    /// ```
    /// use redrive_core::ledger::StoredReply;
    ///
    /// let reply = StoredReply::new(201).header("location", "/bookings/7").body("booked");
    /// assert_eq!(reply.location().as_deref(), Some("/bookings/7"));
    /// ```
    #[must_use]
    pub const fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Some(Vec::new()) }
    }

    /// Adds a header, also if one of that name exists.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// The value of the `Location` header.
    #[must_use]
    pub fn location(&self) -> Option<String> {
        let location = self.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("location"));
        location.and_then(|(_, value)| String::from_utf8(value.clone()).ok())
    }
}
