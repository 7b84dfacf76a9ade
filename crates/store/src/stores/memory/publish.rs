//! Publishing: dedupe record and event together.

use std::sync::Arc;

use redrive_core::event::{Fingerprint, identity};
use redrive_core::queue_entry::{EventProgress, QueueEntry, Seq, StreamId};
use redrive_core::{Event, Moment};

use super::row::{DedupeRecord, Identity, Row};
use super::state::{NUMBER_BITS, State, Stream};
use crate::error::{PublishError, StoreError};
use crate::store::{NewEvent, Published, QueueSpec};

impl State {
    /// Stores an event, or returns the status of the first one with its identity.
    pub(super) fn publish(&mut self, new: &NewEvent) -> Result<Published, PublishError> {
        new.event.check()?;
        let Some(queue) = self.queues.get(&new.event.queue).cloned() else {
            let known = self.queues.iter().map(|(name, _)| name.clone()).collect();
            return Err(PublishError::NoQueue { queue: new.event.queue.clone(), known });
        };
        self.see(new.at);
        let identity = Identity::of(&new.event);
        if self.is_remembered(&identity, new.at) {
            return self.answer_again(&identity, new);
        }
        let mut row = self.row(&new.event, new.at, &queue)?;
        row.entry.shard = new.shard(self.shards_max);
        let QueueEntry { seq, .. } = row.entry;
        let horizon = new.horizon.unwrap_or_default().max(queue.horizon);
        let until = row.entry.progress.due.max(new.at) + horizon + queue.window;
        self.keep_receipt(seq, identity, new.fingerprint, new.at, until);
        let chain = row.chain.clone();
        self.write(seq, Some(row));
        if let Some(chain) = chain {
            self.relieve(&chain);
        }
        Ok(Published::Accepted(seq))
    }

    /// Whether the identity is remembered. An expired one is deleted, with its discarded event.
    pub(super) fn is_remembered(&mut self, identity: &Identity, at: Moment) -> bool {
        let Some(dedupe_record) = self.dedupe_records.get(identity) else { return false };
        let kept = self.row_of(dedupe_record).is_some_and(|row| !row.discarded);
        if kept || dedupe_record.until >= at {
            return true;
        }
        self.forget_receipt(identity);
        false
    }

    fn answer_again(&self, identity: &Identity, new: &NewEvent) -> Result<Published, PublishError> {
        let same = self
            .dedupe_records
            .get(identity)
            .is_some_and(|dedupe_record| dedupe_record.fingerprint == new.fingerprint);
        if !same {
            let (queue, id) = (new.event.queue.clone(), new.event.id.clone());
            return Err(PublishError::IdReused { queue, id });
        }
        let found = self.find(identity).ok_or_else(|| broken("a dedupe record is gone while it is read"))?;
        Ok(Published::Duplicate(Box::new(found)))
    }

    /// A new event at the end of its stream.
    pub(super) fn row(
        &mut self,
        event: &Arc<Event>,
        at: Moment,
        queue: &QueueSpec,
    ) -> Result<Row, StoreError> {
        let event = Arc::clone(event);
        let (stream, seq) = match self.drawn.take() {
            Some(seq) => (StreamId(u32::try_from(seq.0 >> NUMBER_BITS).unwrap_or(0)), seq),
            None => self.next_seq(&event.queue, &event.tenant)?,
        };
        let chain = event.key.as_deref().filter(|_| queue.ordered).map(|key| (stream, Arc::from(key)));
        let entry = QueueEntry {
            seq,
            rev: 1,
            stream,
            shard: identity::shard(&event, self.shards_max),
            published: at,
            expires: event.expires.map(|expiry| expiry.moment(at)),
            progress: EventProgress::fresh(event.when.moment(at)),
            event,
        };
        Ok(Row {
            entry,
            chain,
            death: None,
            discarded: false,
            lease: None,
            cause: None,
            put_back: None,
            redriven: 0,
        })
    }

    pub(super) fn next_seq(&mut self, queue: &str, tenant: &str) -> Result<(StreamId, Seq), StoreError> {
        let named = (queue.to_owned(), tenant.to_owned());
        let id = match self.stream_ids.get(&named) {
            Some(id) => *id,
            None => {
                let last = self.streams.iter().next_back().map_or(0, |(id, _)| id.0);
                let (id, (queue, tenant)) = (StreamId(last + 1), named.clone());
                self.stream_ids.put(named, id);
                self.streams.put(id, Stream { queue, tenant, last: 0 });
                id
            }
        };
        let stream = self.streams.alter(&id).ok_or_else(|| broken("a stream has a name and no row"))?;
        stream.last += 1;
        Ok((id, Seq(u64::from(id.0) << NUMBER_BITS | stream.last)))
    }

    pub(super) fn keep_receipt(
        &mut self,
        seq: Seq,
        identity: Identity,
        fingerprint: Fingerprint,
        published: Moment,
        until: Moment,
    ) {
        let dedupe_record =
            DedupeRecord { identity: identity.clone(), seq, fingerprint, published, until, end: None };
        self.dedupe_records.put(identity, dedupe_record);
    }
}

fn broken(what: &str) -> StoreError {
    StoreError::Broken { what: what.to_owned(), source: None }
}
