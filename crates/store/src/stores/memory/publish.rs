//! Publishing: receipt and event together.

use std::sync::Arc;

use redrive_core::entry::{Entry, Progress, Seq, StreamId};
use redrive_core::event::identity;

use super::state::{Identity, NUMBER_BITS, Receipt, Row, State, Stream};
use crate::error::{PublishError, StoreError};
use crate::store::{New, Published, QueueSpec};

impl State {
    /// Keeps an event, or says what became of it before.
    pub(super) fn publish(&mut self, new: &New) -> Result<Published, PublishError> {
        new.event.check()?;
        let Some(queue) = self.queues.get(&new.event.queue).cloned() else {
            let known = self.queues.iter().map(|(name, _)| name.clone()).collect();
            return Err(PublishError::NoQueue { queue: new.event.queue.clone(), known });
        };
        self.see(new.at);
        let identity = Identity::of(&new.event);
        if let Some(seq) = self.remembered(&identity, new) {
            return self.answer_again(seq, new);
        }
        let row = self.row(new, &queue)?;
        let Entry { seq, .. } = row.entry;
        self.keep_receipt(seq, identity, new, &queue, row.entry.progress.due);
        let chain = row.chain.clone();
        self.write(seq, Some(row));
        if let Some(chain) = chain {
            self.relieve(&chain);
        }
        Ok(Published::Accepted(seq))
    }

    /// The event that has this identity, unless its time is over.
    fn remembered(&mut self, identity: &Identity, new: &New) -> Option<Seq> {
        let seq = *self.identities.get(identity)?;
        let over = self.receipts.get(&seq).is_none_or(|receipt| receipt.until < new.at);
        if over && !self.rows.contains(&seq) {
            self.forget_receipt(seq);
            return None;
        }
        Some(seq)
    }

    fn answer_again(&self, seq: Seq, new: &New) -> Result<Published, PublishError> {
        let same = self.receipts.get(&seq).is_some_and(|receipt| receipt.fingerprint == new.fingerprint);
        if !same {
            let (queue, id) = (new.event.queue.clone(), new.event.id.clone());
            return Err(PublishError::IdReused { queue, id });
        }
        let found = self.found(seq).ok_or_else(|| broken("a receipt is gone while it is read"))?;
        Ok(Published::Duplicate(Box::new(found)))
    }

    fn row(&mut self, new: &New, queue: &QueueSpec) -> Result<Row, PublishError> {
        let event = Arc::clone(&new.event);
        let (stream, seq) = self.next_seq(&event.queue, &event.tenant)?;
        let chain = event.key.as_deref().filter(|_| queue.ordered).map(|key| (stream, Arc::from(key)));
        let entry = Entry {
            seq,
            rev: 1,
            stream,
            shard: identity::shard(&event, self.shards_max),
            published: new.at,
            expires: event.expires.map(|expiry| expiry.moment(new.at)),
            progress: Progress::fresh(event.when.moment(new.at)),
            event,
        };
        Ok(Row { entry, chain, death: None })
    }

    fn next_seq(&mut self, queue: &str, tenant: &str) -> Result<(StreamId, Seq), StoreError> {
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

    fn keep_receipt(
        &mut self,
        seq: Seq,
        identity: Identity,
        new: &New,
        queue: &QueueSpec,
        due: redrive_core::Moment,
    ) {
        let until = due.max(new.at) + new.horizon.unwrap_or_default().max(queue.horizon) + queue.window;
        self.identities.put(identity.clone(), seq);
        let (fingerprint, published) = (new.fingerprint, new.at);
        self.receipts.put(seq, Receipt { identity, fingerprint, published, until, end: None });
    }
}

fn broken(what: &str) -> StoreError {
    StoreError::Broken { what: what.to_owned(), source: None }
}
