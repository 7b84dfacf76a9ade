//! Retrying events: in groups, and counted.

use std::collections::BTreeMap;

use redrive_core::queue_entry::StreamId;
use sqlx::Row as _;

use crate::operate::{FailingGroup, FailingQuery, Failings, Retrying};
use crate::stores::postgres::faults::Step;
use crate::stores::postgres::tx::{OwnTx, rows};
use crate::stores::shared::dead_letter_filter::letter_columns;
use crate::stores::shared::failing::look;
use crate::stores::shared::numbers::{bits, column, to_moment};
use crate::stores::shared::tracked::states;

impl OwnTx {
    /// Retrying events by cause.
    pub(in crate::stores::postgres) async fn failing(
        &mut self,
        query: &FailingQuery,
    ) -> Step<Vec<FailingGroup>> {
        let mut failings = Failings::of(query);
        for stream in self.streams(query.queue.as_deref(), query.tenant.as_deref()).await? {
            // One more than the sample, to learn whether there are more.
            let found = rows!(
                self,
                concat!(
                    "SELECT ",
                    letter_columns!(),
                    " FROM redrive.tracked WHERE stream = $1 AND flow = 1 AND state = ",
                    states!(Waiting),
                    " LIMIT $2"
                ),
                i64::from(stream.id.0),
                column(failings.room() as u64 + 1)
            )?;
            for row in &found {
                if !failings.may_look() {
                    break;
                }
                look(&mut failings, row, &stream);
            }
        }
        Ok(failings.end())
    }

    /// How many events of each queue are retrying. It reads every one of them.
    pub(in crate::stores::postgres) async fn retrying(&mut self) -> Step<Vec<Retrying>> {
        let found = rows!(
            self,
            concat!(
                "SELECT stream, count(*), min(coalesce(started, due)) FROM redrive.tracked WHERE state IN (",
                states!(Waiting, Leased),
                ") AND attempts > 0 GROUP BY stream"
            )
        )?;
        let mut queues: BTreeMap<String, Retrying> = BTreeMap::new();
        for row in found {
            let id = StreamId(u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default());
            let Some(stream) = self.stream(id).await? else { continue };
            let (events, since) = (bits(row.try_get(1)?), to_moment(row.try_get(2)?));
            let queue = stream.queue.clone();
            let one = queues.entry(queue.clone()).or_insert(Retrying { queue, events: 0, since });
            one.events += events;
            one.since = one.since.min(since);
        }
        Ok(queues.into_values().collect())
    }
}
