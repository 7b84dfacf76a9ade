//! The retention of dead letters per queue. The [row engine](crate::stores::rows::retention) purges them.

use redrive_core::queue_entry::StreamId;
use rusqlite::{OptionalExtension, params};

use crate::store::DeadLetterRetention;
use crate::stores::rows::retention::DeadRef;
use crate::stores::shared::numbers::{bits, to_duration};
use crate::stores::shared::tracked::states;
use crate::stores::sqlite::writer::tx::WriterTx;

impl WriterTx {
    /// The queues that keep only some of their dead letters.
    pub(in crate::stores::sqlite) fn queues_with_retention(
        &self,
    ) -> rusqlite::Result<Vec<(String, DeadLetterRetention)>> {
        let mut select = self.conn.prepare_cached(
            "SELECT name, keep_time, keep_count FROM redrive_queue \
             WHERE keep_time IS NOT NULL OR keep_count IS NOT NULL",
        )?;
        let queues = select.query_map([], |row| {
            let time = row.get::<_, Option<i64>>(1)?.map(to_duration);
            Ok((row.get(0)?, DeadLetterRetention { time, count: row.get::<_, Option<i64>>(2)?.map(bits) }))
        })?;
        queues.collect()
    }

    /// How many dead letters of a queue block no key.
    pub(in crate::stores::sqlite) fn passed_letters(&self, queue: &str) -> rusqlite::Result<u64> {
        self.conn
            .prepare_cached(
                "SELECT coalesce(sum(letters - holding), 0) FROM redrive_tally JOIN redrive_stream ON id = stream \
                 WHERE queue = ?1",
            )?
            .query_row([queue], |row| row.get(0).map(bits))
    }

    /// The oldest dead letter of a stream after another one.
    pub(in crate::stores::sqlite) fn next_dead(
        &self,
        stream: StreamId,
        after: DeadRef,
    ) -> rusqlite::Result<Option<DeadRef>> {
        self.conn
            .prepare_cached(concat!(
                "SELECT died, death, seq FROM redrive_tracked WHERE state = ",
                states!(DeadPassed),
                " AND stream = ?1 \
                 AND (died, death) > (?2, ?3) ORDER BY died, death LIMIT 1"
            ))?
            .query_row(params![stream.0, after.died, after.death], |row| {
                Ok(DeadRef { died: row.get(0)?, death: row.get(1)?, seq: row.get(2)? })
            })
            .optional()
    }
}
