//! How a run ends, and what time makes of a record.
//!
//! Everything that a run says is fenced by its epoch: whoever was taken over changes nothing.

use std::time::Duration;

use super::record::{Phase, Record, Reply};
use crate::moment::Moment;

/// Somebody else has it, or it ended: nothing may change. The record is as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Fenced(pub Box<Record>);

/// What became of a renewal.
#[derive(Debug, Clone, PartialEq)]
pub enum Renewed {
    /// The lease goes on.
    On(Record),
    /// It has run for as long as it may: the run is to be ended.
    TooLong,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// With an answer that is replayed from now on.
    Completed {
        /// The answer.
        reply: Reply,
        /// What it made, for whoever looks for the request by it.
        resource: Option<String>,
    },
    /// It may be run again, not before then.
    Retriable(Option<Moment>),
    /// Nobody knows.
    Unknown,
    /// It is proven that nothing happened.
    Nothing,
}

/// How a person says that an unknown outcome was.
#[derive(Debug, Clone, PartialEq)]
pub enum Resolution {
    /// It happened, and this is its answer.
    Completed(Reply),
    /// It did not happen: the next request runs.
    Retriable,
}

/// Whether this epoch still has the record. What was held as unknown is still its own run's to end.
fn own(record: Record, epoch: u64) -> Result<Record, Fenced> {
    let runs = matches!(record.phase, Phase::InFlight { .. } | Phase::Unknown { .. });
    if record.epoch == epoch && runs { Ok(record) } else { Err(Fenced(Box::new(record))) }
}

/// The run goes on.
///
/// # Errors
/// [`Fenced`] where it was taken over.
pub fn renew(
    record: Record,
    epoch: u64,
    lease: Duration,
    run_max: Duration,
    now: Moment,
) -> Result<Renewed, Fenced> {
    let record = own(record, epoch)?;
    let Phase::InFlight { began, .. } = record.phase else { return Err(Fenced(Box::new(record))) };
    let end = began + run_max;
    if now >= end {
        return Ok(Renewed::TooLong);
    }
    let until = (now + lease).min(end);
    Ok(Renewed::On(Record { phase: Phase::InFlight { began, until }, ..record }))
}

/// The run ended with an answer that is to be replayed.
///
/// # Errors
/// [`Fenced`] where it was taken over.
pub fn complete(
    record: Record,
    epoch: u64,
    reply: Reply,
    resource: Option<String>,
    now: Moment,
) -> Result<Record, Fenced> {
    let record = own(record, epoch)?;
    let resource = resource.or(record.resource);
    Ok(Record { phase: Phase::Completed { reply, at: now }, resource, ..record })
}

/// The run ended without effect, or may be repeated: the next request runs it again.
///
/// # Errors
/// [`Fenced`] where it was taken over.
pub fn fail(record: Record, epoch: u64, not_before: Option<Moment>, now: Moment) -> Result<Record, Fenced> {
    let record = own(record, epoch)?;
    Ok(Record { phase: Phase::Retriable { not_before, since: now }, ..record })
}

/// Nobody knows how the run ended. The epoch stays, so that its own late word still counts.
///
/// # Errors
/// [`Fenced`] where it was taken over.
pub fn hold(record: Record, epoch: u64, now: Moment) -> Result<Record, Fenced> {
    let record = own(record, epoch)?;
    Ok(Record { phase: Phase::Unknown { since: now }, ..record })
}

/// It is proven that nothing happened: as if the request had never come. What is `None` is to be taken away. A record
/// that was begun before stays as one that may be run again, because of an earlier run nothing is proven.
///
/// # Errors
/// [`Fenced`] where it was taken over.
pub fn release(record: Record, epoch: u64, now: Moment) -> Result<Option<Record>, Fenced> {
    let record = own(record, epoch)?;
    if record.attempt <= 1 {
        return Ok(None);
    }
    Ok(Some(Record { phase: Phase::Retriable { not_before: None, since: now }, ..record }))
}

/// A person resolves what is unknown. The epoch grows: a word of the run that comes later counts no more.
///
/// # Errors
/// [`Fenced`] where it is not unknown.
pub fn resolve(record: Record, resolution: Resolution, now: Moment) -> Result<Record, Fenced> {
    if !matches!(record.phase, Phase::Unknown { .. }) {
        return Err(Fenced(Box::new(record)));
    }
    let phase = match resolution {
        Resolution::Completed(reply) => Phase::Completed { reply, at: now },
        Resolution::Retriable => Phase::Retriable { not_before: None, since: now },
    };
    Ok(Record { phase, epoch: record.epoch + 1, ..record })
}

/// What time has made of a record; `None` where it is forgotten. What is in flight or unknown never ages.
#[must_use]
pub fn age(record: Record, now: Moment) -> Option<Record> {
    let (answer, remembered) = (record.retention.answer, record.retention.record());
    let (status, location, ended) = match &record.phase {
        Phase::InFlight { .. } | Phase::Unknown { .. } => return Some(record),
        Phase::Completed { reply, at } if *at + answer <= now => (Some(reply.status), reply.location(), *at),
        Phase::Retriable { since, .. } if *since + answer <= now => (None, None, *since),
        Phase::Completed { .. } | Phase::Retriable { .. } => return Some(record),
        Phase::Tombstone { until, .. } => return (*until > now).then_some(record),
    };
    let until = ended + remembered;
    let phase = Phase::Tombstone { status, location, until };
    (until > now).then_some(Record { phase, ..record })
}
