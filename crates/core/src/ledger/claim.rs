//! Decides whether a request under a key runs, and how it is answered if not.

use std::time::Duration;

use super::record::{Effects, LedgerRecord, OnUnknown, RecordPhase, RequestFingerprint, Retention};
use super::settle::age;
use crate::moment::Moment;

/// The most older fingerprint versions that a request is compared by: each costs one more hash of every
/// request.
pub const OLDER_MAX: usize = 4;

/// A request that claims a key.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimRequest {
    /// The request's fingerprint, by the current rules.
    pub print: RequestFingerprint,
    /// Its fingerprints by the rules of older versions that can still be computed: a record is compared by
    /// the rules that made it. At most [`OLDER_MAX`] count.
    pub older: Vec<RequestFingerprint>,
    /// The effects that the endpoint declares.
    pub effects: Effects,
    /// How long a run holds the record before it has to renew its lease.
    pub lease: Duration,
    /// How long its reply is kept.
    pub retention: Retention,
    /// When the client first sent it, if the client states it.
    pub first_sent: Option<Moment>,
    /// How far the client's clock may be off.
    pub skew: Duration,
}

impl ClaimRequest {
    /// Whether it has the fingerprint of this record, compared by the record's version. A version that this
    /// request cannot be computed by counts as different.
    #[must_use]
    pub fn is_same_as(&self, recorded: &RequestFingerprint) -> bool {
        let mut prints = std::iter::once(&self.print).chain(self.older.iter().take(OLDER_MAX));
        prints.find(|print| print.version == recorded.version) == Some(recorded)
    }
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq)]
pub enum LedgerClaim {
    /// Keep this record and run the request.
    Run(LedgerRecord),
    /// Keep this record and probe whether the previous run took effect.
    Probe(LedgerRecord),
    /// Keep this record and answer that the outcome is unknown.
    Hold(LedgerRecord),
    /// Give this answer; the record stays unchanged.
    Say(LedgerAnswer),
}

/// The answer to a request that does not run.
#[derive(Debug, Clone, PartialEq)]
pub enum LedgerAnswer {
    /// The key was used for a different request. The answer reveals nothing about the first one.
    Reused,
    /// The same request is running now.
    InFlight {
        /// How long its lease still lasts.
        left: Duration,
    },
    /// The outcome is unknown, and the request must not run again.
    Unknown {
        /// Since when.
        since: Moment,
    },
    /// The request may run again, but not yet.
    BackingOff {
        /// When it may run.
        until: Moment,
    },
    /// The stored reply is replayed.
    Replay(Box<LedgerRecord>),
    /// The request completed, but its reply has expired or was too large to keep.
    Gone(Box<LedgerRecord>),
    /// The client first sent it so long ago that its record may have expired: it does not run.
    TooOld,
}

/// Decides what happens to a request under a key with this record.
///
/// The fingerprint is compared before everything else, so that a client that guesses another client's key
/// learns nothing.
#[must_use]
pub fn claim(record: Option<&LedgerRecord>, ask: &ClaimRequest, now: Moment) -> LedgerClaim {
    let Some(record) = record.cloned().and_then(|record| age(record, now)) else {
        return absent(ask, now);
    };
    if !ask.is_same_as(&record.print) {
        return LedgerClaim::Say(LedgerAnswer::Reused);
    }
    match record.phase {
        RecordPhase::InFlight { until, .. } if until > now => {
            LedgerClaim::Say(LedgerAnswer::InFlight { left: until.since(now) })
        }
        RecordPhase::InFlight { until, .. } => lapsed(record, until, ask, now),
        // The run ended with an unknown outcome, and the endpoint can probe.
        RecordPhase::Unknown { since } if matches!(ask.effects, Effects::Opaque(OnUnknown::Probe { .. })) => {
            lapsed(record, since, ask, now)
        }
        // An endpoint that may rerun does not override an unknown outcome of an earlier setting: an operator
        // or the run itself reported it as unknown, and both know better.
        RecordPhase::Unknown { since } => LedgerClaim::Say(LedgerAnswer::Unknown { since }),
        RecordPhase::Retriable { not_before: Some(until), .. } if until > now => {
            LedgerClaim::Say(LedgerAnswer::BackingOff { until })
        }
        RecordPhase::Retriable { .. } => LedgerClaim::Run(again(record, ask, now)),
        RecordPhase::Completed { ref reply, .. } if reply.body.is_some() => {
            LedgerClaim::Say(LedgerAnswer::Replay(Box::new(record)))
        }
        RecordPhase::Completed { .. } | RecordPhase::Tombstone { .. } => {
            LedgerClaim::Say(LedgerAnswer::Gone(Box::new(record)))
        }
    }
}

fn absent(ask: &ClaimRequest, now: Moment) -> LedgerClaim {
    // A record that ended may have expired by now, and this may be a late copy of its request.
    let remembered = ask.retention.record();
    if ask.first_sent.is_some_and(|sent| now.since(sent) + ask.skew >= remembered) {
        return LedgerClaim::Say(LedgerAnswer::TooOld);
    }
    let phase = RecordPhase::InFlight { began: now, until: now + ask.lease };
    let ClaimRequest { print, retention, .. } = *ask;
    // Taken from the time, so that a run of an expired record never has the epoch of a later run.
    let epoch = now.as_nanos();
    LedgerClaim::Run(LedgerRecord { print, first: now, epoch, attempt: 1, phase, retention, resource: None })
}

/// The lease lapsed and the run reported no outcome.
fn lapsed(record: LedgerRecord, until: Moment, ask: &ClaimRequest, now: Moment) -> LedgerClaim {
    match ask.effects {
        // The epoch stays, so that a late report of the run still resolves the record.
        Effects::Opaque(OnUnknown::Hold) => {
            LedgerClaim::Hold(LedgerRecord { phase: RecordPhase::Unknown { since: until }, ..record })
        }
        Effects::Opaque(OnUnknown::Probe { settling }) if until + settling > now => {
            LedgerClaim::Say(LedgerAnswer::InFlight { left: (until + settling).since(now) })
        }
        Effects::Opaque(OnUnknown::Probe { .. }) => LedgerClaim::Probe(again(record, ask, now)),
        Effects::Transactional | Effects::Keyed | Effects::Opaque(OnUnknown::Rerun) => {
            LedgerClaim::Run(again(record, ask, now))
        }
    }
}

/// Starts the same request again under a new epoch, which fences off the previous run.
fn again(record: LedgerRecord, ask: &ClaimRequest, now: Moment) -> LedgerRecord {
    LedgerRecord {
        epoch: record.epoch + 1,
        attempt: record.attempt.saturating_add(1),
        phase: RecordPhase::InFlight { began: now, until: now + ask.lease },
        ..record
    }
}
