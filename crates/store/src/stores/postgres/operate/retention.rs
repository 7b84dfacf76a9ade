//! The retention of dead letters per queue. The [row engine](crate::stores::rows::retention) purges them.

use redrive_core::queue_entry::StreamId;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::store::DeadLetterRetention;
use crate::stores::postgres::tx::{OwnTx, maybe, one, rows};
use crate::stores::rows::retention::DeadRef;
use crate::stores::shared::numbers::{bits, to_duration};
use crate::stores::shared::tracked::states;

impl OwnTx {
    /// The queues that keep only some of their dead letters.
    pub(in crate::stores::postgres) async fn queues_with_retention(
        &mut self,
    ) -> sqlx::Result<Vec<(String, DeadLetterRetention)>> {
        let found = rows!(
            self,
            "SELECT name, keep_time, keep_count FROM redrive.queue \
             WHERE keep_time IS NOT NULL OR keep_count IS NOT NULL"
        )?;
        let keep = |row: &PgRow| {
            let time = row.try_get::<Option<i64>, _>(1)?.map(to_duration);
            Ok((
                row.try_get(0)?,
                DeadLetterRetention { time, count: row.try_get::<Option<i64>, _>(2)?.map(bits) },
            ))
        };
        found.iter().map(keep).collect()
    }

    /// How many dead letters of a queue block no key.
    pub(in crate::stores::postgres) async fn passed_letters(&mut self, queue: &str) -> sqlx::Result<u64> {
        one!(
            self,
            "SELECT coalesce(sum(letters - holding), 0)::bigint FROM redrive.tally JOIN redrive.stream ON id = stream \
             WHERE queue = $1",
            queue
        )
        .map(bits)
    }

    /// The oldest dead letter of a stream after another one.
    pub(in crate::stores::postgres) async fn next_dead(
        &mut self,
        stream: StreamId,
        after: DeadRef,
    ) -> sqlx::Result<Option<DeadRef>> {
        let found = maybe!(
            self,
            concat!(
                "SELECT died, death, seq FROM redrive.tracked WHERE state = ",
                states!(DeadPassed),
                " AND stream = $1 AND (died, death) > ($2, $3) \
             ORDER BY died, death LIMIT 1"
            ),
            i64::from(stream.0),
            after.died,
            after.death
        )?;
        let dead =
            |row: PgRow| Ok(DeadRef { died: row.try_get(0)?, death: row.try_get(1)?, seq: row.try_get(2)? });
        found.map(dead).transpose()
    }
}
