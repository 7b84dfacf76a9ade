//! Taking shards, and giving them back.
//!
//! A process is a row with a lease, renewed by its heartbeat and by nothing else; a shard names the process that owns it.
//! To take a shard from another, that one's row is locked first, so that a heartbeat on its way comes before or after:
//! only where the lease is over by the database's clock is the shard taken. That raises its epoch, and whatever the
//! owner before still settles changes nothing.
//!
//! What a careful owner had noted when it died becomes suspect in the same commit. A note survives the death of the
//! process, and not that of the database's machine: it is not waited for until it is on the disk.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Entry, Grant, Seq, StreamId};
use sqlx::Row;

use super::desk::{Desk, maybe, rows, run};
use super::faults::{Step, broken};
use super::held::{Held, Stand, held_columns, read_held};
use super::keys::{is_head, seq_at};
use super::office::Office;
use crate::error::StoreError;
use crate::store::Taken;
use crate::stores::shared::numbers::{bits, column, signed, stream_of};

/// How many can be noted: far more than anybody runs at once.
const NOTED_MAX: usize = 100_000;

impl Office {
    /// That somebody else owns a shard.
    pub(super) fn not_owner(&self, shard: u32) -> StoreError {
        StoreError::NotOwner { path: format!("shard {shard} of {}", self.place).into(), pid: None }
    }
}

impl Desk {
    /// Takes a shard.
    pub(super) async fn take(&mut self, shard: u32, now: Moment) -> Step<Taken> {
        if shard >= self.office.shards {
            let what = format!("there is no shard {shard}: there are {}", self.office.shards);
            return Err(broken(what).into());
        }
        self.see(now);
        let (node, id) = (self.office.node, i64::from(shard));
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
                    return Err(self.office.not_owner(shard).into());
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
            // Somebody else was quicker.
            let Some(row) = taken else { continue };
            let (epoch, incarnation) = (bits(row.try_get(0)?), bits(row.try_get(1)?));
            let grant = Grant { shard, epoch, incarnation };
            if owner.is_some() {
                for seq in self.noted(shard, epoch - 1).await? {
                    self.suspect(seq).await?;
                }
            }
            let suspects = self.suspects(shard).await?;
            let streams = self.streams_in_use(shard).await?;
            return Ok(Taken { grant, unclean: owner.is_some(), suspects, streams });
        }
    }

    /// Gives a shard back.
    pub(super) async fn release(&mut self, grant: Grant) -> Step<()> {
        let released = run!(
            self,
            "UPDATE redrive.shard SET owner = NULL WHERE id = $1 AND epoch = $2 AND incarnation = $3 \
             AND owner IS NOT NULL",
            i64::from(grant.shard),
            signed(grant.epoch),
            signed(grant.incarnation)
        )?;
        if released == 1 { Ok(()) } else { Err(self.office.not_owner(grant.shard).into()) }
    }

    /// Notes all that is under way in a shard.
    pub(super) async fn note(&mut self, grant: Grant, under_way: &[Seq]) -> Step<()> {
        if under_way.len() > NOTED_MAX {
            let what = format!("more than {NOTED_MAX} events are under way, too many to note");
            return Err(broken(what).into());
        }
        let seqs: Vec<i64> = under_way.iter().map(|seq| column(seq.0)).collect();
        run!(self, "SET LOCAL synchronous_commit = off")?;
        let noted = run!(
            self,
            "INSERT INTO redrive.note (shard, epoch, seqs) SELECT id, epoch, $4 FROM redrive.shard \
             WHERE id = $1 AND epoch = $2 AND incarnation = $3 AND owner IS NOT NULL \
             ON CONFLICT (shard) DO UPDATE SET epoch = EXCLUDED.epoch, seqs = EXCLUDED.seqs",
            i64::from(grant.shard),
            signed(grant.epoch),
            signed(grant.incarnation),
            seqs
        )?;
        if noted == 0 {
            return Err(self.office.not_owner(grant.shard).into());
        }
        self.grants.insert(grant.shard, grant);
        Ok(())
    }

    /// What the owner with this epoch noted last.
    async fn noted(&mut self, shard: u32, epoch: u64) -> sqlx::Result<Vec<Seq>> {
        let select = "SELECT seqs FROM redrive.note WHERE shard = $1 AND epoch = $2";
        let found = maybe!(self, select, i64::from(shard), signed(epoch))?;
        let seqs: Vec<i64> = found.map(|row| row.try_get(0)).transpose()?.unwrap_or_default();
        Ok(seqs.into_iter().map(|seq| Seq(bits(seq))).collect())
    }

    async fn suspect(&mut self, seq: Seq) -> Step<()> {
        let Some(stream) = self.stream(stream_of(seq)).await? else { return Ok(()) };
        let (mut held, was_live) = match self.live(seq, &stream).await? {
            Some(Ok(row)) => (Held::fresh(row, Stand::Waits), true),
            Some(Err(_)) => return Ok(()),
            None => match self.held(seq, &stream).await? {
                Some(Ok(held)) if held.stand.is_alive() => (held, false),
                _ => return Ok(()),
            },
        };
        held.progress.suspect = true;
        held.rev += 1;
        self.keep(&held, was_live).await?;
        Ok(())
    }

    async fn suspects(&mut self, shard: u32) -> Step<Vec<Entry>> {
        let found = rows!(
            self,
            concat!(
                "SELECT ",
                held_columns!(),
                " FROM redrive.held event WHERE suspect = 1 AND state = 0 AND shard = $1 AND ",
                is_head!("event"),
                " ORDER BY seq"
            ),
            i64::from(shard)
        )?;
        let mut suspects = Vec::new();
        for row in found {
            let Some(stream) = self.stream(stream_of(seq_at(&row, 0))).await? else { continue };
            // A damaged one is named by the load that finds it.
            let Ok(held) = read_held(&row, &stream) else { continue };
            let is_withheld = match held.row.key() {
                Some(key) => self.is_withheld(&stream, key).await?,
                None => false,
            };
            if !is_withheld {
                suspects.push(held.entry());
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
