//! Groups: dead letters that have something in common, counted by stream and cause.
//!
//! The counts are kept with every death and every end of one, so that looking at a million letters reads a row for
//! each cause and not for each letter. Types and keys are not counted so: a look reads letters, the newest of every stream,
//! of each stream as large a part as its letters are of all, and says how many it looked at where that was not all.

use std::collections::HashMap;

use redrive_core::entry::StreamId;
use redrive_core::triage::CauseId;
use sqlx::Row;

use super::desk::{Desk, rows};
use super::faults::{Step, damaged};
use super::rows::{Damage, Stream};
use crate::operate::{Group, GroupBy, GroupQuery};
use crate::stores::shared::group::{Groups, Merged, Tally, page};
use crate::stores::shared::letters::LOOKED_MAX;
use crate::stores::shared::numbers::{bits, column, span, to_moment};
use crate::stores::shared::rows::kind_of;

impl Desk {
    /// Dead letters, put together.
    pub(super) async fn groups(&mut self, query: &GroupQuery) -> Step<Vec<Group>> {
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

    /// Dead letters, put together by what they say themselves.
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
            // At least one of each, so that none is left out for being small.
            let part = (u128::from(looks) * u128::from(letters)).div_ceil(u128::from(all));
            let part = u64::try_from(part).unwrap_or(looks);
            looked += self.sample(query.by, &stream, part, &mut merged).await?;
        }
        let looked = (looked < all).then_some(looked);
        let groups = merged.into_values().map(|merged: Merged| Group { looked, ..merged.end() });
        Ok(page(groups.collect(), query.limit))
    }

    /// Counts the newest letters of a stream. How many it looked at.
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
            "SELECT coalesce(key, tag), extra, state, died FROM redrive.held WHERE state IN (2, 3) \
             AND seq BETWEEN $1 AND $2 ORDER BY seq DESC LIMIT $3",
            first,
            last,
            column(most)
        )?;
        for row in &found {
            let title = match by {
                GroupBy::Key => row.try_get::<Option<String>, _>(0)?,
                // What cannot be read is among those without one: it is still a letter.
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
