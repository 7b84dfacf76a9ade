//! Taking the file, and giving it back.
//!
//! To take it raises its epoch, so that whatever an earlier owner in this process still settles changes
//! nothing. What a careful owner had noted when it died becomes suspect in the same commit; only after it a
//! new list begins. A crash in between finds the list of an epoch that is over, which is none.

use redrive_core::Moment;
use redrive_core::entry::{Entry, Grant, Seq, StreamId};
use rusqlite::{OptionalExtension, params};

use super::desk::Desk;
use super::faults::{Step, broken};
use super::held::{Held, Stand, held_columns};
use super::numbers::{bits, column, span, stream_of};
use super::rows::{EventRow, event_columns};
use crate::error::StoreError;
use crate::store::Taken;

impl Desk {
    pub(super) fn take(&mut self, shard: u32, now: Moment) -> Step<Taken> {
        if shard != 0 {
            return Err(
                broken(format!("there is no shard {shard}: a SQLite file has one, and it is 0")).into()
            );
        }
        self.ownership.take()?;
        self.see(now);
        let (epoch, incarnation, clean): (i64, i64, bool) =
            self.conn.query_row("SELECT epoch, incarnation, clean FROM redrive_meta", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?;
        let (epoch, incarnation) = (bits(epoch), bits(incarnation));
        self.conn.execute("UPDATE redrive_meta SET epoch = ?1, clean = 0", [column(epoch + 1)])?;
        self.forget_fence();
        if !clean {
            for seq in self.notes.read(epoch, incarnation) {
                self.suspect(seq)?;
            }
        }
        let grant = Grant { shard, epoch: epoch + 1, incarnation };
        Ok(Taken { grant, unclean: !clean, suspects: self.suspects()?, streams: self.streams_in_use()? })
    }

    /// Begins the list of what is under way, after the commit that took the file.
    pub(super) fn taken(&mut self, taken: &Taken) {
        super::crash::point("take-after-epoch");
        // What another owner left since this was opened.
        self.to_recover = taken.unclean;
        self.notes.begin(taken.grant);
    }

    pub(super) fn release(&mut self, grant: Grant) -> Step<()> {
        if !self.is_current(grant)? {
            return Err(StoreError::NotOwner { path: self.path.clone(), pid: None }.into());
        }
        self.conn.execute("UPDATE redrive_meta SET clean = 1", [])?;
        self.forget_fence();
        Ok(())
    }

    fn suspect(&mut self, seq: Seq) -> Step<()> {
        let Some(stream) = self.names.of(&self.conn, stream_of(seq))? else { return Ok(()) };
        let live = self
            .conn
            .prepare_cached(concat!("SELECT ", event_columns!(), " FROM redrive_live WHERE seq = ?1"))?
            .query_row(params![column(seq.0)], |row| Ok(EventRow::read(row, &stream)))
            .optional()?;
        let (mut held, was_live) = match live {
            Some(Ok(row)) => (Held::fresh(row, Stand::Waits), true),
            Some(Err(_)) => return Ok(()),
            None => match Held::find(&self.conn, seq, &stream)? {
                Some(Ok(held)) if held.stand.is_alive() => (held, false),
                _ => return Ok(()),
            },
        };
        held.progress.suspect = true;
        held.rev += 1;
        self.keep(&held, was_live)?;
        Ok(())
    }

    fn suspects(&mut self) -> Step<Vec<Entry>> {
        let mut select = self.conn.prepare_cached(concat!(
            "SELECT ",
            held_columns!(),
            " FROM redrive_held WHERE suspect = 1 AND state = 0 ORDER BY seq"
        ))?;
        let mut rows = select.query([])?;
        let mut suspects = Vec::new();
        while let Some(row) = rows.next()? {
            let seq = Seq(bits(row.get(0)?));
            let Some(stream) = self.names.of(&self.conn, stream_of(seq))? else { continue };
            // A damaged one is named by the load that finds it.
            suspects.extend(Held::read(row, &stream).ok().map(Held::entry));
        }
        Ok(suspects)
    }

    pub(super) fn streams_in_use(&self) -> rusqlite::Result<Vec<(StreamId, String, String)>> {
        let mut select =
            self.conn.prepare_cached("SELECT id, queue, tenant FROM redrive_stream ORDER BY id")?;
        let all = select.query_map([], |row| Ok((StreamId(row.get(0)?), row.get(1)?, row.get(2)?)))?;
        let mut used = Vec::new();
        for stream in all {
            let stream: (StreamId, String, String) = stream?;
            let (first, last) = span(stream.0);
            let is_used: bool = self
                .conn
                .prepare_cached(
                    "SELECT EXISTS (SELECT 1 FROM redrive_live WHERE seq BETWEEN ?1 AND ?2) \
                     OR EXISTS (SELECT 1 FROM redrive_held WHERE seq BETWEEN ?1 AND ?2)",
                )?
                .query_row([first, last], |row| row.get(0))?;
            if is_used {
                used.push(stream);
            }
        }
        Ok(used)
    }
}
