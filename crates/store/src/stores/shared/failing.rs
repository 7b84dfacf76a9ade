//! Rows of retrying events: events that failed and wait for their next attempt.

use redrive_core::queue_entry::Seq;

use super::cells::{Cells, Damage};
use super::columns::Columns;
use super::dead_letter_filter::LETTER_CHANGES;
use super::history::read_history;
use super::numbers::{bits, to_moment};
use super::rows::Stream;
use super::tracked::RowState;
use crate::operate::{Failed, Failings};

// Their positions among the changing columns.
const STATE: usize = 1;
const ATTEMPTS: usize = 3;

/// The columns of a row of [`letter_columns`](super::dead_letter_filter::letter_columns), if it is of a retrying event.
pub(in crate::stores) fn retrying(row: &impl Cells) -> Result<Option<Columns>, Damage> {
    let number = |at: usize| row.number(LETTER_CHANGES + at);
    if number(STATE)? != RowState::Waiting as i64 || number(ATTEMPTS)? == 0 {
        return Ok(None);
    }
    Columns::read(row, LETTER_CHANGES, Seq(bits(row.number(0)?))).map(Some)
}

/// Counts a row of [`letter_columns`](super::dead_letter_filter::letter_columns). A damaged one is left out.
pub(in crate::stores) fn look(failings: &mut Failings<'_>, row: &impl Cells, stream: &Stream) {
    let Ok(Some(columns)) = retrying(row) else { return };
    let Ok(history) = read_history(columns.history.as_deref()) else { return };
    failings.add(&Failed {
        queue: &stream.queue,
        is_ordered: row.word(2).is_ok_and(|key| key.is_some()),
        history: history.as_deref(),
        started: to_moment(columns.started.unwrap_or(columns.due)),
        due: to_moment(columns.due),
        attempts: u32::try_from(columns.attempts).unwrap_or(u32::MAX),
    });
}
