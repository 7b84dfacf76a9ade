//! Adjacent events that are done after they had failed: one read for all of them, and one delete.
//!
//! They come by the thousand when dead letters were redriven. Their ends are written one by one.

use redrive_core::queue_entry::{EventChange, SettleRequest};
use rusqlite::params;

use crate::stores::shared::group::RedriveOutcome;
use crate::stores::shared::numbers::{column, from_moment, stream_of};
use crate::stores::shared::tracked::states;
use crate::stores::sqlite::events::dedupe::ending_of;
use crate::stores::sqlite::events::endings::Ends;
use crate::stores::sqlite::events::tracked::RedrivenBy;
use crate::stores::sqlite::faults::Step;
use crate::stores::sqlite::writer::tx::WriterTx;

/// Whether two settles are of adjacent events, both of which had failed and are done.
pub(in crate::stores::sqlite) fn is_continued(settle: &SettleRequest, next: &SettleRequest) -> bool {
    settle.seq.0.checked_add(1) == Some(next.seq.0)
        && settle.token == next.token
        && is_late_success(settle)
        && is_late_success(next)
}

/// Whether an event is done that was changed before.
pub(in crate::stores::sqlite) const fn is_late_success(settle: &SettleRequest) -> bool {
    settle.rev > 0 && matches!(settle.change, EventChange::Done | EventChange::DoneWith { .. })
}

impl WriterTx {
    /// Deletes adjacent events that are done. `false`, and nothing is done, if one of them is gone, has another rev,
    /// or needs more than its deletion.
    pub(in crate::stores::sqlite) fn end_run(&mut self, run: &[SettleRequest]) -> Step<bool> {
        let ([first, .., last], Some(at)) = (run, run.iter().map(|settle| settle.at).max()) else {
            return Ok(false);
        };
        self.advance_clock(at);
        if !self.is_current(first.token)? || self.names.of(&self.conn, stream_of(first.seq))?.is_none() {
            return Ok(false);
        }
        let span = [column(first.seq.0), column(last.seq.0)];
        let mut redriven_by = Vec::with_capacity(run.len());
        {
            let mut select = self.conn.prepare_cached(
                concat!("SELECT rev, redrive FROM redrive_tracked WHERE seq BETWEEN ?1 AND ?2 AND key IS NULL AND dedupe_ok_until >= ?3 \
                 AND state = ", states!(Waiting), " ORDER BY seq"),
            )?;
            let mut rows = select.query(params![span[0], span[1], from_moment(at)])?;
            while let Some(row) = rows.next()? {
                // As many rows as there are seqs, or it is not this run: so each has its own settle.
                if run.get(redriven_by.len()).map(|settle| settle.rev) != Some(row.get(0)?) {
                    return Ok(false);
                }
                redriven_by.push(row.get::<_, Option<i64>>(1)?.map(RedrivenBy::from_column));
            }
        }
        if redriven_by.len() != run.len() {
            return Ok(false);
        }
        for by in redriven_by {
            self.charge(by, RedriveOutcome::Done)?;
        }
        let mut ends = Ends::writing(&self.conn)?;
        for settle in run {
            if let Some(Some(end)) = ending_of(&settle.change, settle.at) {
                ends.write(&end, settle.seq)?;
            }
        }
        self.conn.prepare_cached("DELETE FROM redrive_tracked WHERE seq BETWEEN ?1 AND ?2")?.execute(span)?;
        Ok(true)
    }
}
