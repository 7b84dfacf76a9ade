//! Dead letters by filter, row by row, parsing only what the filter needs.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::triage::{CauseId, Filter};

use super::cells::{Cells, Damage};
use super::history::{is_unsure, read_history};
use super::numbers::signed;
use super::rows::Stream;
use super::tracked::RowState;
use crate::event_status::FilterMatches;

/// How many rows are read for one page, or one step of a job: some ten milliseconds.
pub(in crate::stores) const LOOKED_MAX: usize = 10_000;
/// How many keys are listed.
const KEYS_MAX: usize = 20;

/// The columns of a dead letter: the small ones that never change, and all changing ones.
macro_rules! letter_columns {
    () => {
        concat!(
            "seq, id, key, tag, CAST(CASE WHEN extra IS NULL THEN 0 ELSE 1 END AS BIGINT), ",
            $crate::stores::shared::columns::change_columns!()
        )
    };
}
pub(in crate::stores) use letter_columns;

/// The position of the first changing column.
pub(in crate::stores) const LETTER_CHANGES: usize = 5;

// Their positions among those.
const STATE: usize = 1;
const ATTEMPTS: usize = 3;
const STORY: usize = 9;
const REASON: usize = 10;
const DIED: usize = 11;
const CAUSE: usize = 16;
const REDRIVEN: usize = 19;

/// Whether a filter matches a row whose changing columns begin at `from`; it died, or was published, at `at`. The
/// columns before are seq, id, key and tag.
pub(in crate::stores) fn is_meant(
    filter: &Filter,
    row: &impl Cells,
    from: usize,
    at: i64,
    stream: &Stream,
) -> Result<bool, Damage> {
    let text = |n: usize| row.word(n);
    let number = |n: usize| row.number(from + n);
    let is = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
    let key = text(2)?.or(text(3)?);
    let id = text(1)?.ok_or(Damage)?;
    let at = u64::try_from(at).unwrap_or_default();
    let is_coarse = is(&filter.queue, &stream.queue)
        && is(&filter.tenant, &stream.tenant)
        && is(&filter.id, id)
        && filter.key.as_deref().is_none_or(|wanted| key == Some(wanted))
        && filter.since_ns.is_none_or(|since| at >= since)
        && filter.before_ns.is_none_or(|before| at < before);
    if !is_coarse {
        return Ok(false);
    }
    if let Some(CauseId(cause)) = filter.cause
        && row.maybe_number(from + CAUSE)? != Some(signed(cause))
    {
        return Ok(false);
    }
    if let Some(word) = filter.reason.as_deref()
        && (!is_letter(row, from)? || text(from + REASON)? != Some(word))
    {
        return Ok(false);
    }
    let attempts = number(ATTEMPTS)?;
    if filter.attempts_min.is_some_and(|min| attempts < i64::from(min))
        || filter.attempts_max.is_some_and(|max| attempts > i64::from(max))
    {
        return Ok(false);
    }
    filter.text.as_deref().map_or(Ok(true), |wanted| has_text(wanted, id, key, text(from + STORY)?))
}

const fn is_dead(state: i64) -> bool {
    state == RowState::DeadHolding as i64 || state == RowState::DeadPassed as i64
}

/// Whether a row is a dead letter's.
pub(in crate::stores) fn is_letter(row: &impl Cells, from: usize) -> Result<bool, Damage> {
    row.number(from + STATE).map(is_dead)
}

/// When the event of such a row died.
pub(in crate::stores) fn died(row: &impl Cells, from: usize) -> Result<i64, Damage> {
    row.maybe_number(from + DIED).map(Option::unwrap_or_default)
}

fn has_text(wanted: &str, id: &str, key: Option<&str>, history: Option<&str>) -> Result<bool, Damage> {
    let wanted = wanted.to_lowercase();
    let has = |place: &str| place.to_lowercase().contains(&wanted);
    if has(id) || key.is_some_and(has) {
        return Ok(true);
    }
    let Some(history) = history else { return Ok(false) };
    // Plain text appears verbatim in the JSON of the attempt history; only then it is worth parsing.
    let is_plain = wanted.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\');
    if is_plain && !has(history) {
        return Ok(false);
    }
    let history = read_history(Some(history))?;
    let cause = history
        .as_deref()
        .and_then(|history| history.records().rev().find_map(|record| record.cause.as_ref()));
    Ok(cause.is_some_and(|cause| {
        has(&cause.kind) || has(&cause.message) || cause.code.as_deref().is_some_and(has)
    }))
}

/// The dead letters that a filter matches, so far.
#[derive(Default)]
pub(in crate::stores) struct Matched {
    matching: FilterMatches,
    queues: BTreeMap<String, u64>,
    keys: BTreeSet<String>,
}

impl Matched {
    /// Adds a dead letter, if the filter matches. An unreadable one is not counted: no command will change it.
    pub(in crate::stores) fn look(
        &mut self,
        filter: &Filter,
        row: &impl Cells,
        stream: &Stream,
    ) -> Result<(), Damage> {
        let from = LETTER_CHANGES;
        let is_meant = died(row, from).and_then(|died| is_meant(filter, row, from, died, stream));
        if !is_meant.unwrap_or(false) {
            return Ok(());
        }
        let holds = row.number(from + STATE)? == RowState::DeadHolding as i64;
        let is_ordered = row.word(2)?.is_some();
        let history = row.word(from + STORY).unwrap_or_default();
        let matching = &mut self.matching;
        matching.letters += 1;
        matching.keys_blocked += u64::from(holds);
        matching.out_of_order += u64::from(is_ordered && !holds);
        matching.redriven_before += u64::from(row.number(from + REDRIVEN)? > 0);
        matching.unsure += u64::from(history.is_some_and(is_unsure));
        match self.queues.get_mut(&stream.queue) {
            Some(letters) => *letters += 1,
            None => drop(self.queues.insert(stream.queue.clone(), 1)),
        }
        if self.keys.len() < KEYS_MAX {
            let key = row.word(2)?.or(row.word(3)?);
            self.keys.extend(key.map(str::to_owned));
        }
        Ok(())
    }

    /// The result.
    pub(in crate::stores) fn end(self) -> FilterMatches {
        let (queues, keys) = (self.queues.into_iter().collect(), self.keys.into_iter().collect());
        FilterMatches { queues, keys, ..self.matching }
    }
}
