//! What a request under a key is answered, and whether it runs.

use std::time::Duration;

use super::record::{Effects, OnUnknown, Phase, Print, Record, Retention};
use super::settle::age;
use crate::moment::Moment;

/// How many older versions of fingerprints a request is compared by, at most: each is one more hash of every request.
pub const OLDER_MAX: usize = 4;

/// A request, as the ledger is asked about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// What it asks, by the rules that are in use.
    pub print: Print,
    /// The same by the rules of older versions, of each that can still be computed: a record is compared by the rules
    /// that it was made by. At most [`OLDER_MAX`] count.
    pub older: Vec<Print>,
    /// What the endpoint says of its effects.
    pub effects: Effects,
    /// How long a run has the record before it has to renew.
    pub lease: Duration,
    /// How long its answer is kept.
    pub retention: Retention,
    /// When the client first sent it, where it says so.
    pub first_sent: Option<Moment>,
    /// How far the client's clock may be off.
    pub skew: Duration,
}

impl Ask {
    /// Whether it asks what a record with this fingerprint was asked: by the version of the record. What is of a version
    /// that nobody could compute is not known to be the same, and so is not.
    #[must_use]
    pub fn is_same_as(&self, recorded: &Print) -> bool {
        let mut prints = std::iter::once(&self.print).chain(self.older.iter().take(OLDER_MAX));
        prints.find(|print| print.version == recorded.version) == Some(recorded)
    }
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Claim {
    /// Keep this record, and run it.
    Run(Record),
    /// Keep this record, and ask whether the run before it happened.
    Probe(Record),
    /// Keep this record, and answer that nobody knows.
    Hold(Record),
    /// Answer so; nothing changes.
    Say(Answer),
}

/// What to answer without running.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The key was used for something else. Nothing is told of the first.
    Reused,
    /// It runs just now.
    InFlight {
        /// How long its lease is good for.
        left: Duration,
    },
    /// It may have happened, and nobody may run it.
    Unknown {
        /// Since when.
        since: Moment,
    },
    /// It may run again, but not yet.
    BackingOff {
        /// When.
        until: Moment,
    },
    /// The first answer, again.
    Replay(Box<Record>),
    /// There was an answer, and it is gone, or was too large to keep.
    Gone(Box<Record>),
    /// It was first sent so long ago that it may have been forgotten: it is not run.
    TooOld,
}

/// Decides what becomes of a request under a key with this record.
///
/// Whether it asks the same comes before everything else: somebody with a stranger's key learns nothing.
#[must_use]
pub fn claim(record: Option<&Record>, ask: &Ask, now: Moment) -> Claim {
    let Some(record) = record.cloned().and_then(|record| age(record, now)) else {
        return absent(ask, now);
    };
    if !ask.is_same_as(&record.print) {
        return Claim::Say(Answer::Reused);
    }
    match record.phase {
        Phase::InFlight { until, .. } if until > now => {
            Claim::Say(Answer::InFlight { left: until.since(now) })
        }
        Phase::InFlight { until, .. } => lapsed(record, until, ask, now),
        // Its run ended without knowing, and the endpoint can look.
        Phase::Unknown { since } if matches!(ask.effects, Effects::Opaque(OnUnknown::Probe { .. })) => {
            lapsed(record, since, ask, now)
        }
        // An endpoint that may run again does not hold what one that may not left behind: what is unknown was made so
        // by a person or by its own run, and both know better.
        Phase::Unknown { since } => Claim::Say(Answer::Unknown { since }),
        Phase::Retriable { not_before: Some(until), .. } if until > now => {
            Claim::Say(Answer::BackingOff { until })
        }
        Phase::Retriable { .. } => Claim::Run(again(record, ask, now)),
        Phase::Completed { ref reply, .. } if reply.body.is_some() => {
            Claim::Say(Answer::Replay(Box::new(record)))
        }
        Phase::Completed { .. } | Phase::Tombstone { .. } => Claim::Say(Answer::Gone(Box::new(record))),
    }
}

fn absent(ask: &Ask, now: Moment) -> Claim {
    // A record that ended could be forgotten by now, and this be its echo.
    let remembered = ask.retention.record();
    if ask.first_sent.is_some_and(|sent| now.since(sent) + ask.skew >= remembered) {
        return Claim::Say(Answer::TooOld);
    }
    let phase = Phase::InFlight { began: now, until: now + ask.lease };
    let Ask { print, retention, .. } = *ask;
    // From the time, so that no run of a record that was forgotten since has the number of a later one.
    let epoch = now.as_nanos();
    Claim::Run(Record { print, first: now, epoch, attempt: 1, phase, retention, resource: None })
}

/// Its lease is over, and nobody said how it ended.
fn lapsed(record: Record, until: Moment, ask: &Ask, now: Moment) -> Claim {
    match ask.effects {
        // Without a new epoch, so that the late end of its own run still resolves it.
        Effects::Opaque(OnUnknown::Hold) => {
            Claim::Hold(Record { phase: Phase::Unknown { since: until }, ..record })
        }
        Effects::Opaque(OnUnknown::Probe { settling }) if until + settling > now => {
            Claim::Say(Answer::InFlight { left: (until + settling).since(now) })
        }
        Effects::Opaque(OnUnknown::Probe { .. }) => Claim::Probe(again(record, ask, now)),
        Effects::Transactional | Effects::Keyed | Effects::Opaque(OnUnknown::Rerun) => {
            Claim::Run(again(record, ask, now))
        }
    }
}

/// The same request, begun once more by somebody who fences off whoever had it before.
fn again(record: Record, ask: &Ask, now: Moment) -> Record {
    Record {
        epoch: record.epoch + 1,
        attempt: record.attempt.saturating_add(1),
        phase: Phase::InFlight { began: now, until: now + ask.lease },
        ..record
    }
}
