//! Owning a shard: taking it, handing it back, and the note of its running attempts.

use std::collections::BTreeSet;

use redrive_core::queue_entry::{FencingToken, QueueEntry, Seq, StreamId};

use super::state::State;
use crate::error::StoreError;
use crate::store::TakenShard;

/// The incarnation of this store. Memory cannot be restored, so there is only one.
const INCARNATION: u64 = 1;

impl State {
    /// Whether the shard still has the same owner.
    pub(super) fn is_current(&self, token: FencingToken) -> bool {
        let shard = self.shards.get(&token.shard);
        token.incarnation == INCARNATION
            && shard.is_some_and(|shard| shard.owned && shard.epoch == token.epoch)
    }

    pub(super) fn take(&mut self, shard: u32) -> Result<TakenShard, StoreError> {
        if shard >= self.shards_max {
            let what = format!("there is no shard {shard}: there are {}", self.shards_max);
            return Err(StoreError::Broken { what, source: None });
        }
        let mut owner = self.shards.get(&shard).cloned().unwrap_or_default();
        let unclean = owner.owned;
        owner.owned = true;
        owner.epoch += 1;
        let token = FencingToken { shard, epoch: owner.epoch, incarnation: INCARNATION };
        let noted = std::mem::take(&mut owner.noted);
        self.shards.put(shard, owner);
        for seq in noted {
            self.suspect(seq);
        }
        Ok(TakenShard { token, unclean, suspects: self.suspects(shard), streams: self.streams(shard) })
    }

    pub(super) fn release(&mut self, token: FencingToken) -> Result<(), StoreError> {
        self.own(token)?;
        if let Some(owner) = self.shards.alter(&token.shard) {
            owner.owned = false;
            owner.noted.clear();
        }
        Ok(())
    }

    pub(super) fn note(&mut self, token: FencingToken, under_way: Vec<Seq>) -> Result<(), StoreError> {
        self.own(token)?;
        if let Some(owner) = self.shards.alter(&token.shard) {
            owner.noted = under_way;
        }
        Ok(())
    }

    /// Fails if the shard has another owner.
    pub(super) fn own(&self, token: FencingToken) -> Result<(), StoreError> {
        if self.is_current(token) {
            return Ok(());
        }
        Err(StoreError::NotOwner { path: format!("shard {} in memory", token.shard).into(), pid: None })
    }

    fn suspect(&mut self, seq: Seq) {
        let Some(mut row) = self.rows.get(&seq).filter(|row| row.lives()).cloned() else { return };
        row.entry.progress.suspect = true;
        row.entry.rev += 1;
        self.write(seq, Some(row));
    }

    fn suspects(&self, shard: u32) -> Vec<QueueEntry> {
        let living = self.rows.iter().map(|(_, row)| row).filter(|row| self.is_runnable(row));
        let suspects = living.filter(|row| row.entry.shard == shard && row.entry.progress.suspect);
        suspects.map(|row| row.entry.clone()).collect()
    }

    fn streams(&self, shard: u32) -> Vec<(StreamId, String, String)> {
        let rows = self.rows.iter().map(|(_, row)| &row.entry).filter(|entry| entry.shard == shard);
        let used: BTreeSet<_> = rows.map(|entry| entry.stream).collect();
        let named = used.iter().filter_map(|id| Some((*id, self.streams.get(id)?)));
        named.map(|(id, stream)| (id, stream.queue.clone(), stream.tenant.clone())).collect()
    }
}
