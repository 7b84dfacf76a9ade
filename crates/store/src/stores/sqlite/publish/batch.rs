//! Publishing the events of all calls that wait for the same commit.
//!
//! Most events may run at once and keep no order. Those of one stream that wait for the same commit are stored with
//! one statement for many dedupe records and one for many events, because fetching, beginning and ending a statement
//! is a good part of its cost.
//!
//! Dedupe records are written in the order of their identities. If these ascend, as clock-based ids do, callers that
//! overtake each other would otherwise insert every dedupe record in the middle of the last pages, which split and are
//! left half empty; in order they are appended.
//!
//! Numbers are drawn in the order of arrival, before it is known which events are new. A duplicate leaves its number
//! unused.

use std::sync::Arc;

use redrive_core::event::{EventError, When};
use redrive_core::queue_entry::Seq;
use tokio::sync::oneshot;

use crate::error::{PublishError, StoreError};
use crate::store::{NewEvent, Published};
use crate::stores::shared::dedupe::times;
use crate::stores::shared::numbers::{COUNT_MAX, seq};
use crate::stores::sqlite::events::dedupe::DedupeRecord;
use crate::stores::sqlite::events::fresh::{EventRow, ROWS};
use crate::stores::sqlite::faults::{Fault, Step, rolled_back};
use crate::stores::sqlite::writer::tx::{Target, WriterTx};
use crate::stores::sqlite::writer::{CommitOutcome, GroupMember};

/// From how many events on storing them together is worth a check.
const RUN_LEAST: usize = 3;

pub(in crate::stores::sqlite) type Answer = Result<Published, PublishError>;

/// A call that publishes.
pub(in crate::stores::sqlite) struct PublishCall {
    events: Vec<NewEvent>,
    /// Refused events, in order.
    refused: Vec<(usize, EventError)>,
    answers: Vec<Answer>,
    got: Option<Result<(), StoreError>>,
    tell: oneshot::Sender<Result<Vec<Answer>, StoreError>>,
}

impl PublishCall {
    /// Checks the events on the caller's thread, because there is only one writer. It also allocates the answers
    /// there: if one thread allocates and another one frees, both wait at the allocator.
    pub(in crate::stores::sqlite) fn new(
        events: Vec<NewEvent>,
        tell: oneshot::Sender<Result<Vec<Answer>, StoreError>>,
    ) -> Self {
        let check = |(at, new): (usize, &NewEvent)| Some((at, new.event.check().err()?));
        let refused = events.iter().enumerate().filter_map(check).collect();
        let answers = Vec::with_capacity(events.len());
        Self { events, refused, answers, got: None, tell }
    }
}

impl GroupMember for PublishCall {
    fn events(&self) -> usize {
        self.events.len()
    }

    fn run(&mut self, tx: &mut WriterTx, _: bool) -> Step<()> {
        self.got = Some(match tx.publish_all(&self.events, &self.refused, &mut self.answers) {
            Ok(()) => Ok(()),
            Err(Fault::Refused(error)) => Err(error),
            Err(fault) => return Err(fault),
        });
        Ok(())
    }

    fn publishing(&mut self) -> Option<&mut PublishCall> {
        Some(self)
    }

    fn answer(self: Box<Self>, fate: CommitOutcome) {
        let Self { answers, got, tell, .. } = *self;
        let answer = match fate {
            CommitOutcome::Committed => got.unwrap_or(Err(StoreError::Closed)).map(|()| answers),
            CommitOutcome::Forbidden(error) => Err(rolled_back(error)),
            CommitOutcome::Failed(error) => Err(error),
        };
        let _ = tell.send(answer);
    }
}

/// Whether an event goes to this target, may run at once and keeps no order.
fn is_plain(target: &Target, new: &NewEvent) -> bool {
    let event = &new.event;
    event.key.is_none() && event.when == When::Now && target.stream.is(&event.queue, &event.tenant)
}

impl WriterTx {
    /// Stores the events of the first of these calls, as long as they have plain ones for one stream. Returns how many
    /// calls that were; 0 if it is not worth it, or if each of them needs an answer of its own.
    pub(in crate::stores::sqlite) fn publish_together(
        &mut self,
        calls: &mut [Box<dyn GroupMember>],
    ) -> Step<usize> {
        let first = calls.first_mut().and_then(|call| call.publishing()?.events.first());
        let Some(target) = self.plain_target(first)? else { return Ok(0) };
        if self.disk.check().is_err() {
            return Ok(0);
        }
        let is_whole = |call: &&mut PublishCall| {
            call.refused.is_empty() && call.events.iter().all(|new| is_plain(&target, new))
        };
        let mut together: Vec<_> =
            calls.iter_mut().map_while(|call| call.publishing().filter(is_whole)).collect();
        let events: Vec<&NewEvent> = together.iter().flat_map(|call| &call.events).collect();
        let Some(answers) = self.keep_plain(&target, &events)? else { return Ok(0) };
        let mut answers = answers.into_iter();
        for call in &mut together {
            call.answers.clear();
            call.answers.extend(answers.by_ref().take(call.events.len()));
            call.got = Some(Ok(()));
        }
        Ok(together.len())
    }

    /// Stores the first of these events, as many as can be stored together. Nothing if there are too few.
    pub(in crate::stores::sqlite) fn publish_run(
        &mut self,
        events: &[NewEvent],
        answers: &mut Vec<Answer>,
    ) -> Step<()> {
        let first = events.first().filter(|_| events.len() >= RUN_LEAST);
        let Some(target) = self.plain_target(first)? else { return Ok(()) };
        let run: Vec<&NewEvent> = events.iter().take_while(|new| is_plain(&target, new)).collect();
        answers.extend(self.keep_plain(&target, &run)?.into_iter().flatten());
        Ok(())
    }

    /// The target of a plain event. If there is none, the event is refused when its turn comes.
    fn plain_target(&mut self, new: Option<&NewEvent>) -> Step<Option<Target>> {
        let Some(new) = new.filter(|new| new.event.key.is_none() && new.event.when == When::Now) else {
            return Ok(None);
        };
        match self.target(&new.event.queue, &new.event.tenant) {
            Ok(target) => Ok(target),
            Err(Fault::Refused(_)) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Stores plain events of one target, and answers each. `None` if they are too few for that.
    fn keep_plain(&mut self, target: &Target, events: &[&NewEvent]) -> Step<Option<Vec<Answer>>> {
        let count = events.len() as u64;
        if events.len() < RUN_LEAST || COUNT_MAX - target.next < count {
            return Ok(None);
        }
        let is_new = self.keep_dedupe_records(target, events)?;
        self.keep_rows(target, events, &is_new)?;
        if let Some(latest) = events.iter().map(|new| new.at).max() {
            self.advance_clock(latest);
        }
        self.used(target, count);
        let mut answers = Vec::with_capacity(events.len());
        for (at, (new, is_new)) in events.iter().zip(is_new).enumerate() {
            let place = place(target, at);
            answers.push(if is_new {
                Ok(Published::Accepted(place))
            } else {
                self.keep_known(target, new, place)?
            });
        }
        Ok(Some(answers))
    }

    /// Writes dedupe records in the order of their identities, and returns which events are new. Of two with the same
    /// identity, the first is.
    fn keep_dedupe_records(&self, target: &Target, events: &[&NewEvent]) -> rusqlite::Result<Vec<bool>> {
        let stream = target.stream.id;
        let mut sorted: Vec<(&str, usize)> =
            events.iter().enumerate().map(|(at, new)| (new.event.id.as_str(), at)).collect();
        sorted.sort_unstable();
        let mut is_new = vec![false; events.len()];
        let (many, rest) = sorted.as_chunks::<ROWS>();
        if !many.is_empty() {
            let mut insert = DedupeRecord::inserting_many(&self.conn)?;
            for chunk in many {
                for (row, (id, at)) in chunk.iter().enumerate() {
                    let new = events[*at];
                    let times = (new.at, times(&target.spec, new).1);
                    DedupeRecord::bind(
                        &mut insert,
                        row,
                        (stream, id),
                        new.fingerprint,
                        place(target, *at),
                        times,
                    )?;
                }
                let all = insert.raw_execute()? == ROWS;
                for (id, at) in chunk {
                    // If its dedupe record names another seq, it was known before.
                    is_new[*at] =
                        all || DedupeRecord::seq(&self.conn, stream, id)? == Some(place(target, *at));
                }
            }
        }
        if !rest.is_empty() {
            let mut insert = DedupeRecord::inserting(&self.conn)?;
            for (id, at) in rest {
                let new = events[*at];
                let times = (new.at, times(&target.spec, new).1);
                is_new[*at] = DedupeRecord::insert(
                    &mut insert,
                    (stream, id),
                    new.fingerprint,
                    place(target, *at),
                    times,
                )?;
            }
        }
        Ok(is_new)
    }

    /// Writes the new ones, in the order of arrival.
    fn keep_rows(&mut self, target: &Target, events: &[&NewEvent], is_new: &[bool]) -> rusqlite::Result<()> {
        let fresh: Vec<usize> = (0..events.len()).filter(|at| is_new[*at]).collect();
        let row = |at: usize| {
            let new = events[at];
            let (event, dedupe_ok_until) = (Arc::clone(&new.event), times(&target.spec, new).0);
            EventRow {
                seq: place(target, at),
                event,
                ordered: false,
                published: new.at,
                dedupe_ok_until,
                shard: 0,
            }
        };
        let (many, rest) = fresh.as_chunks::<ROWS>();
        let Self { conn, arrived, .. } = self;
        let mut arrive = |row: EventRow| {
            if !target.spec.pull {
                arrived.push(row.entry(target.stream.id));
            }
        };
        if !many.is_empty() {
            let mut insert = EventRow::inserting_many(conn)?;
            for chunk in many {
                for (number, at) in chunk.iter().enumerate() {
                    let row = row(*at);
                    row.bind_as(number, &mut insert)?;
                    arrive(row);
                }
                insert.raw_execute()?;
            }
        }
        if !rest.is_empty() {
            let mut insert = EventRow::inserting(conn)?;
            for at in rest {
                let row = row(*at);
                row.insert(&mut insert)?;
                arrive(row);
            }
        }
        Ok(())
    }
}

/// The seq of one of the events that are published together.
fn place(target: &Target, at: usize) -> Seq {
    seq(target.stream.id, target.next + at as u64)
}
