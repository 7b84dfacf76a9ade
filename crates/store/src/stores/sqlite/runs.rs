//! Events next to each other that are done after they had failed: one look for all of them, and one delete.
//!
//! Such come by the thousand when dead letters were put back. What each leaves behind is written one by one.

use redrive_core::entry::{Change, Settle};
use rusqlite::params;

use super::desk::Desk;
use super::ends::Ends;
use super::faults::Step;
use super::held::PutBack;
use super::ledger::Outcome;
use super::numbers::{column, from_moment, stream_of};
use super::receipt::ending_of;

/// Whether two settles are of events next to each other, both of which had failed and are done.
pub(super) fn is_continued(settle: &Settle, next: &Settle) -> bool {
    settle.seq.0.checked_add(1) == Some(next.seq.0)
        && settle.grant == next.grant
        && is_late_success(settle)
        && is_late_success(next)
}

/// Whether an event is done that was changed before.
pub(super) const fn is_late_success(settle: &Settle) -> bool {
    settle.rev > 0 && matches!(settle.change, Change::Done | Change::DoneWith { .. })
}

impl Desk {
    /// Takes away events that are done and next to each other. `false`, and nothing is done, where one of them is not
    /// there any more, is as of another change, or wants more than to be taken away.
    pub(super) fn end_run(&mut self, run: &[Settle]) -> Step<bool> {
        let ([first, .., last], Some(at)) = (run, run.iter().map(|settle| settle.at).max()) else {
            return Ok(false);
        };
        self.see(at);
        if !self.is_current(first.grant)? || self.names.of(&self.conn, stream_of(first.seq))?.is_none() {
            return Ok(false);
        }
        let span = [column(first.seq.0), column(last.seq.0)];
        let mut put_back = Vec::with_capacity(run.len());
        {
            let mut select = self.conn.prepare_cached(
                "SELECT rev, redrive FROM redrive_held WHERE seq BETWEEN ?1 AND ?2 AND key IS NULL AND calm >= ?3 \
                 AND state = 0 ORDER BY seq",
            )?;
            let mut rows = select.query(params![span[0], span[1], from_moment(at)])?;
            while let Some(row) = rows.next()? {
                // As many as there are seqs, or it is not this run: so each has its own settle.
                if run.get(put_back.len()).map(|settle| settle.rev) != Some(row.get(0)?) {
                    return Ok(false);
                }
                put_back.push(row.get::<_, Option<i64>>(1)?.map(PutBack::from_column));
            }
        }
        if put_back.len() != run.len() {
            return Ok(false);
        }
        for by in put_back {
            self.charge(by, Outcome::Done)?;
        }
        let mut ends = Ends::writing(&self.conn)?;
        for settle in run {
            if let Some(Some(end)) = ending_of(&settle.change, settle.at) {
                ends.write(&end, settle.seq)?;
            }
        }
        self.conn.prepare_cached("DELETE FROM redrive_held WHERE seq BETWEEN ?1 AND ?2")?.execute(span)?;
        Ok(true)
    }
}
