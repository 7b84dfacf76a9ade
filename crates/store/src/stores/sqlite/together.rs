//! Publishing what waits together, whoever called.
//!
//! Most events may run at once and keep no order. Those of one stream that wait for the same commit are kept with one
//! statement for many receipts and one for many events, because to fetch, begin and end a statement costs a good part of
//! what it does.
//!
//! Receipts are written in the order of their identities. Where these ascend, as those of a clock do, callers that
//! overtake each other would otherwise have every receipt in the middle of the last pages, which split and are left
//! half empty; in order they are appended.
//!
//! Numbers are given in the order of coming, before it is known who is new. One that was there before leaves its
//! number unused.

use std::sync::Arc;

use redrive_core::entry::Seq;
use redrive_core::event::{EventError, When};
use tokio::sync::oneshot;

use super::desk::{Desk, Target};
use super::faults::{Fault, Step, rolled_back};
use super::numbers::{COUNT_MAX, seq};
use super::receipt::Receipt;
use super::rows::{EventRow, ROWS};
use super::writer::{Fate, Member};
use crate::error::{PublishError, StoreError};
use crate::store::{New, Published};
use crate::stores::shared::receipt::times;

/// From how many events on it is worth a look whether they can be kept together.
const RUN_LEAST: usize = 3;

pub(super) type Answer = Result<Published, PublishError>;

/// A call that publishes.
pub(super) struct Publishing {
    events: Vec<New>,
    /// Those that are not to be kept, in their order.
    refused: Vec<(usize, EventError)>,
    answers: Vec<Answer>,
    got: Option<Result<(), StoreError>>,
    tell: oneshot::Sender<Result<Vec<Answer>, StoreError>>,
}

impl Publishing {
    /// Checks the events on the caller's thread, because there is only one writer. The room for the answers is from
    /// there, too: for what one thread allocates and another one frees, both wait at the allocator.
    pub(super) fn new(events: Vec<New>, tell: oneshot::Sender<Result<Vec<Answer>, StoreError>>) -> Self {
        let check = |(at, new): (usize, &New)| Some((at, new.event.check().err()?));
        let refused = events.iter().enumerate().filter_map(check).collect();
        let answers = Vec::with_capacity(events.len());
        Self { events, refused, answers, got: None, tell }
    }
}

impl Member for Publishing {
    fn events(&self) -> usize {
        self.events.len()
    }

    fn run(&mut self, desk: &mut Desk, _: bool) -> Step<()> {
        self.got = Some(match desk.publish_all(&self.events, &self.refused, &mut self.answers) {
            Ok(()) => Ok(()),
            Err(Fault::Refused(error)) => Err(error),
            Err(fault) => return Err(fault),
        });
        Ok(())
    }

    fn publishing(&mut self) -> Option<&mut Publishing> {
        Some(self)
    }

    fn answer(self: Box<Self>, fate: Fate) {
        let Self { answers, got, tell, .. } = *self;
        let answer = match fate {
            Fate::Committed => got.unwrap_or(Err(StoreError::Closed)).map(|()| answers),
            Fate::Forbidden(error) => Err(rolled_back(error)),
            Fate::Failed(error) => Err(error),
        };
        let _ = tell.send(answer);
    }
}

/// Whether an event goes to this target, may run at once and keeps no order.
fn is_plain(target: &Target, new: &New) -> bool {
    let event = &new.event;
    event.key.is_none() && event.when == When::Now && target.stream.is(&event.queue, &event.tenant)
}

impl Desk {
    /// Keeps the events of the first of these calls, as many calls as have plain ones for one stream. Says how many
    /// that were; none where it is not worth it, or where there is something to say to each of them.
    pub(super) fn publish_together(&mut self, calls: &mut [Box<dyn Member>]) -> Step<usize> {
        let first = calls.first_mut().and_then(|call| call.publishing()?.events.first());
        let Some(target) = self.plain_target(first)? else { return Ok(0) };
        if self.disk.check().is_err() {
            return Ok(0);
        }
        let is_whole = |call: &&mut Publishing| {
            call.refused.is_empty() && call.events.iter().all(|new| is_plain(&target, new))
        };
        let mut together: Vec<_> =
            calls.iter_mut().map_while(|call| call.publishing().filter(is_whole)).collect();
        let events: Vec<&New> = together.iter().flat_map(|call| &call.events).collect();
        let Some(answers) = self.keep_plain(&target, &events)? else { return Ok(0) };
        let mut answers = answers.into_iter();
        for call in &mut together {
            call.answers.clear();
            call.answers.extend(answers.by_ref().take(call.events.len()));
            call.got = Some(Ok(()));
        }
        Ok(together.len())
    }

    /// Keeps the first of these events, as many as can be kept together. Nothing where there are too few.
    pub(super) fn publish_run(&mut self, events: &[New], answers: &mut Vec<Answer>) -> Step<()> {
        let first = events.first().filter(|_| events.len() >= RUN_LEAST);
        let Some(target) = self.plain_target(first)? else { return Ok(()) };
        let run: Vec<&New> = events.iter().take_while(|new| is_plain(&target, new)).collect();
        answers.extend(self.keep_plain(&target, &run)?.into_iter().flatten());
        Ok(())
    }

    /// Where a plain event is published to. Where that cannot be, it is told so when its turn comes.
    fn plain_target(&mut self, new: Option<&New>) -> Step<Option<Target>> {
        let Some(new) = new.filter(|new| new.event.key.is_none() && new.event.when == When::Now) else {
            return Ok(None);
        };
        match self.target(&new.event.queue, &new.event.tenant) {
            Ok(target) => Ok(target),
            Err(Fault::Refused(_)) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Keeps plain events of one target, and answers each. None where they are too few for that.
    fn keep_plain(&mut self, target: &Target, events: &[&New]) -> Step<Option<Vec<Answer>>> {
        let count = events.len() as u64;
        if events.len() < RUN_LEAST || COUNT_MAX - target.next < count {
            return Ok(None);
        }
        let is_new = self.keep_receipts(target, events)?;
        self.keep_rows(target, events, &is_new)?;
        if let Some(latest) = events.iter().map(|new| new.at).max() {
            self.see(latest);
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

    /// Writes receipts in the order of their identities, and says who is new. Of two with the same one, the first is.
    fn keep_receipts(&self, target: &Target, events: &[&New]) -> rusqlite::Result<Vec<bool>> {
        let stream = target.stream.id;
        let mut sorted: Vec<(&str, usize)> =
            events.iter().enumerate().map(|(at, new)| (new.event.id.as_str(), at)).collect();
        sorted.sort_unstable();
        let mut is_new = vec![false; events.len()];
        let (many, rest) = sorted.as_chunks::<ROWS>();
        if !many.is_empty() {
            let mut insert = Receipt::inserting_many(&self.conn)?;
            for chunk in many {
                for (row, (id, at)) in chunk.iter().enumerate() {
                    let new = events[*at];
                    let times = (new.at, times(&target.spec, new).1);
                    Receipt::bind(
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
                    // Whose receipt names another place was known before.
                    is_new[*at] = all || Receipt::seq(&self.conn, stream, id)? == Some(place(target, *at));
                }
            }
        }
        if !rest.is_empty() {
            let mut insert = Receipt::inserting(&self.conn)?;
            for (id, at) in rest {
                let new = events[*at];
                let times = (new.at, times(&target.spec, new).1);
                is_new[*at] =
                    Receipt::insert(&mut insert, (stream, id), new.fingerprint, place(target, *at), times)?;
            }
        }
        Ok(is_new)
    }

    /// Writes those that are new, in the order of coming.
    fn keep_rows(&mut self, target: &Target, events: &[&New], is_new: &[bool]) -> rusqlite::Result<()> {
        let fresh: Vec<usize> = (0..events.len()).filter(|at| is_new[*at]).collect();
        let row = |at: usize| {
            let new = events[at];
            let (event, calm) = (Arc::clone(&new.event), times(&target.spec, new).0);
            EventRow { seq: place(target, at), event, ordered: false, published: new.at, calm, shard: 0 }
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

/// The seq of one of those that are published together.
fn place(target: &Target, at: usize) -> Seq {
    seq(target.stream.id, target.next + at as u64)
}
