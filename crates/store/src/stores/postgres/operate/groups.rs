//! Groups: dead letters with a common property, counted by stream and cause.
//!
//! The counts change with every death and every redrive, so a query over a million dead letters reads one row per
//! cause and not per dead letter. Types and keys have no counts: a query samples the newest dead letters of every
//! stream, in proportion to the stream's share of all dead letters, and returns the size of the sample if it did not
//! read all.

use std::collections::HashMap;

use redrive_core::queue_entry::StreamId;
use redrive_core::triage::CauseId;
use sqlx::Row;

use crate::operate::{Group, GroupBy, GroupQuery};
use crate::stores::postgres::events::fresh::{Damage, Stream};
use crate::stores::postgres::faults::{Step, damaged};
use crate::stores::postgres::tx::{OwnTx, rows};
use crate::stores::shared::dead_letter_filter::LOOKED_MAX;
use crate::stores::shared::group::{Groups, Merged, Tally, page};
use crate::stores::shared::numbers::{bits, column, span, to_moment};
use crate::stores::shared::rows::kind_of;
use crate::stores::shared::tracked::states;

impl OwnTx {
    /// Dead letters in groups.
    pub(in crate::stores::postgres) async fn groups(&mut self, query: &GroupQuery) -> Step<Vec<Group>> {
        if let GroupBy::Type | GroupBy::Key = query.by {
            return self.sampled(query).await;
        }
        let mut groups = Groups::default();
        let found = rows!(
            self,
            "SELECT stream, cause, title, letters, holding, first, last, redrive, redriven_at, redriven_letters, \
             redriven_failed FROM redrive.tally WHERE letters > 0"
        )?;
        for row in found {
            let id = StreamId(u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default());
            let Some(stream) = self.stream(id).await? else { continue };
            let tally = Tally::from_row(&row, 2).map_err(|Damage| damaged("tally", stream.id.0))?;
            groups.add(query, &stream, CauseId(bits(row.try_get(1)?)), &tally);
        }
        Ok(groups.end(query))
    }

    /// Dead letters grouped by their own properties, sampled.
    async fn sampled(&mut self, query: &GroupQuery) -> Step<Vec<Group>> {
        let found = rows!(
            self,
            "SELECT stream, sum(letters)::bigint FROM redrive.tally WHERE letters > 0 GROUP BY stream ORDER BY stream"
        )?;
        let mut shares = Vec::new();
        for row in found {
            let id = StreamId(u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default());
            let Some(stream) = self.stream(id).await? else { continue };
            if query.is_of(&stream.queue, &stream.tenant) {
                shares.push((stream, bits(row.try_get(1)?)));
            }
        }
        let all: u64 = shares.iter().map(|(_, letters)| *letters).sum();
        let looks = (LOOKED_MAX as u64).min(all);
        let mut merged = HashMap::new();
        let mut looked = 0;
        for (stream, letters) in shares {
            // At least one of each, so that no small stream is left out.
            let part = (u128::from(looks) * u128::from(letters)).div_ceil(u128::from(all));
            let part = u64::try_from(part).unwrap_or(looks);
            looked += self.sample(query.by, &stream, part, &mut merged).await?;
        }
        let looked = (looked < all).then_some(looked);
        let groups = merged.into_values().map(|merged: Merged| Group { looked, ..merged.end() });
        Ok(page(groups.collect(), query.limit))
    }

    /// Counts the newest dead letters of a stream. Returns how many it read.
    async fn sample(
        &mut self,
        by: GroupBy,
        stream: &Stream,
        most: u64,
        merged: &mut HashMap<String, Merged>,
    ) -> Step<u64> {
        let (first, last) = span(stream.id);
        let found = rows!(
            self,
            concat!(
                "SELECT coalesce(key, tag), extra, state, died FROM redrive.tracked WHERE state IN (",
                states!(DeadHolding, DeadPassed),
                ") \
             AND seq BETWEEN $1 AND $2 ORDER BY seq DESC LIMIT $3"
            ),
            first,
            last,
            column(most)
        )?;
        for row in &found {
            let title = match by {
                GroupBy::Key => row.try_get::<Option<String>, _>(0)?,
                // An unreadable value counts as none: the event is still a dead letter.
                _ => row.try_get::<Option<&[u8]>, _>(1)?.and_then(kind_of),
            };
            let title = title.unwrap_or_default();
            let died = to_moment(row.try_get::<Option<i64>, _>(3)?.unwrap_or_default());
            let mut tally = Tally::new(String::new(), died);
            (tally.letters, tally.holding) = (1, u64::from(row.try_get::<i64, _>(2)? == 2));
            let into = merged.entry(title.clone()).or_insert_with(|| Merged::new(None, title, &tally));
            into.add(&tally, &stream.queue);
        }
        Ok(found.len() as u64)
    }
}
