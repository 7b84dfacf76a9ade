//! Taking the file, and handing it back.
//!
//! Taking it raises its epoch, so that late settles of an earlier owner in this process change nothing. Attempts that
//! an owner noted under the crash guard become suspect in the same commit if it died; only after it a new list begins.
//! A crash in between finds the list of an old epoch, which is ignored.

use redrive_core::Moment;
use redrive_core::queue_entry::{FencingToken, QueueEntry, Seq, StreamId};
use rusqlite::{OptionalExtension, params};

use crate::error::StoreError;
use crate::store::TakenShard;
use crate::stores::shared::numbers::{bits, column, span, stream_of};
use crate::stores::shared::tracked::states;
use crate::stores::sqlite::events::fresh::{EventRow, event_columns};
use crate::stores::sqlite::events::tracked::{RowState, TrackedEvent, tracked_columns};
use crate::stores::sqlite::faults::{Step, broken};
use crate::stores::sqlite::writer::tx::WriterTx;

impl WriterTx {
    pub(in crate::stores::sqlite) fn take(&mut self, shard: u32, now: Moment) -> Step<TakenShard> {
        if shard != 0 {
            return Err(
                broken(format!("there is no shard {shard}: a SQLite file has one, and it is 0")).into()
            );
        }
        self.ownership.take()?;
        self.advance_clock(now);
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
        let token = FencingToken { shard, epoch: epoch + 1, incarnation };
        Ok(TakenShard { token, unclean: !clean, suspects: self.suspects()?, streams: self.streams_in_use()? })
    }

    /// Begins the list of running attempts, after the commit that took the file.
    pub(in crate::stores::sqlite) fn taken(&mut self, taken: &TakenShard) {
        crate::stores::sqlite::writer::crash::point("take-after-epoch");
        // The remains of another owner since this was opened.
        self.to_recover = taken.unclean;
        self.notes.begin(taken.token);
    }

    pub(in crate::stores::sqlite) fn release(&mut self, token: FencingToken) -> Step<()> {
        if !self.is_current(token)? {
            return Err(StoreError::NotOwner { path: self.path.clone(), pid: None }.into());
        }
        self.conn.execute("UPDATE redrive_meta SET clean = 1", [])?;
        self.mark_clock_now()?;
        self.forget_fence();
        Ok(())
    }

    fn suspect(&mut self, seq: Seq) -> Step<()> {
        let Some(stream) = self.names.of(&self.conn, stream_of(seq))? else { return Ok(()) };
        let fresh = self
            .conn
            .prepare_cached(concat!("SELECT ", event_columns!(), " FROM redrive_fresh WHERE seq = ?1"))?
            .query_row(params![column(seq.0)], |row| Ok(EventRow::read(row, &stream)))
            .optional()?;
        let (mut tracked, was_fresh) = match fresh {
            Some(Ok(row)) => (TrackedEvent::fresh(row, RowState::Waiting), true),
            Some(Err(_)) => return Ok(()),
            None => match TrackedEvent::find(&self.conn, seq, &stream)? {
                Some(Ok(tracked)) if tracked.state.is_alive() => (tracked, false),
                _ => return Ok(()),
            },
        };
        tracked.progress.suspect = true;
        tracked.rev += 1;
        self.keep(&tracked, was_fresh)?;
        Ok(())
    }

    fn suspects(&mut self) -> Step<Vec<QueueEntry>> {
        let mut select = self.conn.prepare_cached(concat!(
            "SELECT ",
            tracked_columns!(),
            " FROM redrive_tracked WHERE suspect = 1 AND state = ",
            states!(Waiting),
            " ORDER BY seq"
        ))?;
        let mut rows = select.query([])?;
        let mut suspects = Vec::new();
        while let Some(row) = rows.next()? {
            let seq = Seq(bits(row.get(0)?));
            let Some(stream) = self.names.of(&self.conn, stream_of(seq))? else { continue };
            // The load that finds a damaged row reports it.
            suspects.extend(TrackedEvent::read(row, &stream).ok().map(TrackedEvent::entry));
        }
        Ok(suspects)
    }

    pub(in crate::stores::sqlite) fn streams_in_use(
        &self,
    ) -> rusqlite::Result<Vec<(StreamId, String, String)>> {
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
                    "SELECT EXISTS (SELECT 1 FROM redrive_fresh WHERE seq BETWEEN ?1 AND ?2) \
                     OR EXISTS (SELECT 1 FROM redrive_tracked WHERE seq BETWEEN ?1 AND ?2)",
                )?
                .query_row([first, last], |row| row.get(0))?;
            if is_used {
                used.push(stream);
            }
        }
        Ok(used)
    }
}
