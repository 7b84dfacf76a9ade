//! Dead letters by filter, in the order of their seqs, over an index of dead letters, or of those of one cause. The
//! filter's stream and cause bound the walk; the rest is checked row by row, a page at a time.

use redrive_core::queue_entry::Seq;
use redrive_core::triage::{CauseId, Filter};
use sqlx::postgres::PgRow;

use crate::event_status::FilterMatches;
use crate::stores::postgres::faults::Step;
use crate::stores::postgres::tx::{OwnTx, maybe, one, rows};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::dead_letter_filter::{
    LETTER_CHANGES, LOOKED_MAX, Matched, died, is_meant, letter_columns,
};
use crate::stores::shared::numbers::{bits, column, signed, span, stream_of};
use crate::stores::shared::tracked::states;

/// How many rows are fetched at once.
const FETCHED: usize = 1000;

/// The position of a walk through dead letters.
pub(in crate::stores::postgres) struct Walk {
    spans: Vec<(i64, i64)>,
    after: i64,
}

impl Walk {
    /// Whether it reached the end.
    pub(in crate::stores::postgres) const fn is_over(&self) -> bool {
        self.spans.is_empty()
    }
}

impl OwnTx {
    /// Begins a walk after a position.
    pub(in crate::stores::postgres) async fn walk(
        &mut self,
        filter: &Filter,
        after: Option<Seq>,
    ) -> Step<Walk> {
        let after = after.map_or(-1, |seq| column(seq.0));
        let mut spans = self.spans(filter).await?;
        spans.retain(|(_, last)| *last > after);
        Ok(Walk { spans, after })
    }

    /// The next dead letters of a walk, at most `most`; none at the end.
    pub(in crate::stores::postgres) async fn next_letters(
        &mut self,
        filter: &Filter,
        walk: &mut Walk,
        most: usize,
    ) -> Step<Vec<PgRow>> {
        while let Some((first, last)) = walk.spans.first().copied() {
            let (from, limit) = (walk.after.max(first - 1), column(most as u64));
            let found = match filter.cause {
                None => rows!(
                    self,
                    concat!(
                        "SELECT ",
                        letter_columns!(),
                        " FROM redrive.tracked WHERE state IN (",
                        states!(DeadHolding, DeadPassed),
                        ") AND seq > $1 AND seq <= $2 \
                         ORDER BY seq LIMIT $3"
                    ),
                    from,
                    last,
                    limit
                )?,
                Some(CauseId(cause)) => rows!(
                    self,
                    concat!(
                        "SELECT ",
                        letter_columns!(),
                        " FROM redrive.tracked WHERE state IN (",
                        states!(DeadHolding, DeadPassed),
                        ") AND cause = $4 AND seq > $1 AND seq <= $2 \
                         ORDER BY seq LIMIT $3"
                    ),
                    from,
                    last,
                    limit,
                    signed(cause)
                )?,
            };
            match found.last() {
                Some(row) => {
                    walk.after = row.number(0).unwrap_or(last);
                    if found.len() < most {
                        walk.spans.remove(0);
                    }
                    return Ok(found);
                }
                None => drop(walk.spans.remove(0)),
            }
        }
        Ok(Vec::new())
    }

    /// The next tracked events of a walk, at most `most`; none at the end. Retrying events have no index in the order
    /// of their seqs.
    pub(in crate::stores::postgres) async fn next_tracked(
        &mut self,
        walk: &mut Walk,
        most: usize,
    ) -> Step<Vec<PgRow>> {
        while let Some((first, last)) = walk.spans.first().copied() {
            let found = rows!(
                self,
                concat!(
                    "SELECT ",
                    letter_columns!(),
                    " FROM redrive.tracked WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3"
                ),
                walk.after.max(first - 1),
                last,
                column(most as u64)
            )?;
            if found.len() < most {
                walk.spans.remove(0);
            }
            if let Some(row) = found.last() {
                walk.after = row.number(0).unwrap_or(last);
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    /// The first and the last seqs of the streams that a filter matches; if it names an id, the seq of that event in
    /// each.
    pub(in crate::stores::postgres) async fn spans(&mut self, filter: &Filter) -> Step<Vec<(i64, i64)>> {
        if filter.queue.is_none() && filter.tenant.is_none() && filter.id.is_none() {
            return Ok(vec![(0, i64::MAX)]);
        }
        let mut spans = Vec::new();
        for stream in self.streams(filter.queue.as_deref(), filter.tenant.as_deref()).await? {
            let Some(id) = &filter.id else {
                spans.push(span(stream.id));
                continue;
            };
            let select = "SELECT seq FROM redrive.dedupe WHERE stream = $1 AND id = $2";
            let seq = maybe!(self, select, i64::from(stream.id.0), id)?;
            spans.extend(seq.and_then(|row| row.number(0).ok()).map(|seq| (seq, seq)));
        }
        Ok(spans)
    }

    /// The dead letters that a filter matches.
    pub(in crate::stores::postgres) async fn matching(&mut self, filter: &Filter) -> Step<FilterMatches> {
        let mut matched = Matched::default();
        let mut walk = self.walk(filter, None).await?;
        while !walk.is_over() {
            for row in self.next_letters(filter, &mut walk, FETCHED).await? {
                let Some(stream) =
                    self.stream(stream_of(crate::stores::postgres::keys::seq_at(&row, 0))).await?
                else {
                    continue;
                };
                let _ = matched.look(filter, &row, &stream);
            }
        }
        Ok(matched.end())
    }

    /// How many dead letters a filter matches: from the counts, if it has only queue, tenant and cause; otherwise from
    /// a bounded number of rows, because shards are locked meanwhile.
    pub(in crate::stores::postgres) async fn how_many(&mut self, filter: &Filter) -> Step<u64> {
        if filter.is_coarse() {
            let letters: i64 = one!(
                self,
                "SELECT coalesce(sum(letters), 0)::bigint FROM redrive.tally JOIN redrive.stream ON id = stream \
                 WHERE ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR tenant = $2) \
                 AND ($3::bigint IS NULL OR cause = $3)",
                &filter.queue,
                &filter.tenant,
                filter.cause.map(|CauseId(cause)| signed(cause))
            )?;
            return Ok(bits(letters));
        }
        let mut walk = self.walk(filter, None).await?;
        let (mut looked, mut meant) = (0, 0);
        while !walk.is_over() && looked < LOOKED_MAX {
            for row in self.next_letters(filter, &mut walk, FETCHED).await? {
                looked += 1;
                let Some(stream) =
                    self.stream(stream_of(crate::stores::postgres::keys::seq_at(&row, 0))).await?
                else {
                    continue;
                };
                let is_it = died(&row, LETTER_CHANGES)
                    .and_then(|at| is_meant(filter, &row, LETTER_CHANGES, at, &stream));
                meant += u64::from(is_it.unwrap_or(false));
            }
        }
        Ok(meant)
    }
}
