//! Taking shards, and handing them back.
//!
//! A process is a row with a lease, which only its heartbeat renews; a shard names the process that owns it. To take a
//! shard from another process, that process's row is locked first, so that a heartbeat on its way comes before or
//! after: the shard is taken only if the lease has run out by the database's clock. That raises its epoch, and late
//! settles of the previous owner change nothing.
//!
//! Attempts that an owner noted under the crash guard become suspect in the same commit if it dies. A note survives
//! the death of the process, and not that of the database's machine: the commit does not wait for the disk.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::queue_entry::{FencingToken, QueueEntry, Seq, StreamId};
use sqlx::Row;

use crate::error::StoreError;
use crate::store::TakenShard;
use crate::stores::postgres::database::Database;
use crate::stores::postgres::events::tracked::{RowState, TrackedEvent, read_tracked, tracked_columns};
use crate::stores::postgres::faults::{Step, broken};
use crate::stores::postgres::keys::{is_head, seq_at};
use crate::stores::postgres::tx::{OwnTx, maybe, rows, run};
use crate::stores::shared::numbers::{bits, column, signed, stream_of};
use crate::stores::shared::tracked::states;

/// How many seqs fit: far more than one process runs at a time.
const NOTED_MAX: usize = 100_000;

impl Database {
    /// The error: another process owns a shard.
    pub(in crate::stores::postgres) fn not_owner(&self, shard: u32) -> StoreError {
        StoreError::NotOwner { path: format!("shard {shard} of {}", self.place).into(), pid: None }
    }
}

impl OwnTx {
    /// Takes a shard.
    pub(in crate::stores::postgres) async fn take(&mut self, shard: u32, now: Moment) -> Step<TakenShard> {
        if shard >= self.db.shards {
            let what = format!("there is no shard {shard}: there are {}", self.db.shards);
            return Err(broken(what).into());
        }
        self.advance_clock(now);
        let (node, id) = (self.db.node, i64::from(shard));
        loop {
            let owner = maybe!(self, "SELECT owner FROM redrive.shard WHERE id = $1", id)?;
            let owner: Option<i64> = owner.map(|row| row.try_get(0)).transpose()?.flatten();
            if let Some(other) = owner.filter(|owner| *owner != node) {
                let over = maybe!(
                    self,
                    "SELECT until < clock_timestamp() FROM redrive.node WHERE id = $1 FOR UPDATE",
                    other
                )?;
                if let Some(row) = over
                    && !row.try_get::<bool, _>(0)?
                {
                    return Err(self.db.not_owner(shard).into());
                }
            }
            let taken = maybe!(
                self,
                "UPDATE redrive.shard SET epoch = epoch + 1, owner = $2 WHERE id = $1 \
                 AND owner IS NOT DISTINCT FROM $3 RETURNING epoch, incarnation",
                id,
                node,
                owner
            )?;
            // Another process was quicker.
            let Some(row) = taken else { continue };
            let (epoch, incarnation) = (bits(row.try_get(0)?), bits(row.try_get(1)?));
            let token = FencingToken { shard, epoch, incarnation };
            if owner.is_some() {
                for seq in self.noted(shard, epoch - 1).await? {
                    self.suspect(seq).await?;
                }
            }
            let suspects = self.suspects(shard).await?;
            let streams = self.streams_in_use(shard).await?;
            return Ok(TakenShard { token, unclean: owner.is_some(), suspects, streams });
        }
    }

    /// Hands a shard back.
    pub(in crate::stores::postgres) async fn release(&mut self, token: FencingToken) -> Step<()> {
        let released = run!(
            self,
            "UPDATE redrive.shard SET owner = NULL WHERE id = $1 AND epoch = $2 AND incarnation = $3 \
             AND owner IS NOT NULL",
            i64::from(token.shard),
            signed(token.epoch),
            signed(token.incarnation)
        )?;
        if released == 1 { Ok(()) } else { Err(self.db.not_owner(token.shard).into()) }
    }

    /// Notes all running attempts of a shard.
    pub(in crate::stores::postgres) async fn note(
        &mut self,
        token: FencingToken,
        under_way: &[Seq],
    ) -> Step<()> {
        if under_way.len() > NOTED_MAX {
            let what = format!("more than {NOTED_MAX} events are running, too many to note");
            return Err(broken(what).into());
        }
        let seqs: Vec<i64> = under_way.iter().map(|seq| column(seq.0)).collect();
        run!(self, "SET LOCAL synchronous_commit = off")?;
        let noted = run!(
            self,
            "INSERT INTO redrive.note (shard, epoch, seqs) SELECT id, epoch, $4 FROM redrive.shard \
             WHERE id = $1 AND epoch = $2 AND incarnation = $3 AND owner IS NOT NULL \
             ON CONFLICT (shard) DO UPDATE SET epoch = EXCLUDED.epoch, seqs = EXCLUDED.seqs",
            i64::from(token.shard),
            signed(token.epoch),
            signed(token.incarnation),
            seqs
        )?;
        if noted == 0 {
            return Err(self.db.not_owner(token.shard).into());
        }
        self.tokens.insert(token.shard, token);
        Ok(())
    }

    /// The last note of the owner with this epoch.
    async fn noted(&mut self, shard: u32, epoch: u64) -> sqlx::Result<Vec<Seq>> {
        let select = "SELECT seqs FROM redrive.note WHERE shard = $1 AND epoch = $2";
        let found = maybe!(self, select, i64::from(shard), signed(epoch))?;
        let seqs: Vec<i64> = found.map(|row| row.try_get(0)).transpose()?.unwrap_or_default();
        Ok(seqs.into_iter().map(|seq| Seq(bits(seq))).collect())
    }

    async fn suspect(&mut self, seq: Seq) -> Step<()> {
        let Some(stream) = self.stream(stream_of(seq)).await? else { return Ok(()) };
        let (mut tracked, was_fresh) = match self.fresh(seq, &stream).await? {
            Some(Ok(row)) => (TrackedEvent::fresh(row, RowState::Waiting), true),
            Some(Err(_)) => return Ok(()),
            None => match self.tracked(seq, &stream).await? {
                Some(Ok(tracked)) if tracked.state.is_alive() => (tracked, false),
                _ => return Ok(()),
            },
        };
        tracked.progress.suspect = true;
        tracked.rev += 1;
        self.keep(&tracked, was_fresh).await?;
        Ok(())
    }

    async fn suspects(&mut self, shard: u32) -> Step<Vec<QueueEntry>> {
        let found = rows!(
            self,
            concat!(
                "SELECT ",
                tracked_columns!(),
                " FROM redrive.tracked event WHERE suspect = 1 AND state = ",
                states!(Waiting),
                " AND shard = $1 AND ",
                is_head!("event"),
                " ORDER BY seq"
            ),
            i64::from(shard)
        )?;
        let mut suspects = Vec::new();
        for row in found {
            let Some(stream) = self.stream(stream_of(seq_at(&row, 0))).await? else { continue };
            // The load that finds a damaged row reports it.
            let Ok(tracked) = read_tracked(&row, &stream) else { continue };
            let is_withheld = match tracked.row.key() {
                Some(key) => self.is_withheld(&stream, key).await?,
                None => false,
            };
            if !is_withheld {
                suspects.push(tracked.entry());
            }
        }
        Ok(suspects)
    }

    async fn streams_in_use(&mut self, shard: u32) -> Step<Vec<(StreamId, String, String)>> {
        let used = rows!(self, "SELECT * FROM redrive.streams_in_use($1)", i64::from(shard))?;
        let mut streams = Vec::with_capacity(used.len());
        for row in used {
            let id = StreamId(u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default());
            streams.extend(self.stream(id).await?.map(|stream: Arc<_>| stream.named()));
        }
        Ok(streams)
    }
}
