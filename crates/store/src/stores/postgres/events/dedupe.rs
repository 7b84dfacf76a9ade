//! Dedupe records, and how events ended, as rows of PostgreSQL.

use redrive_core::Moment;
use redrive_core::event::Fingerprint;
use redrive_core::queue_entry::{Seq, StreamId};

use super::fresh::Damage;
use crate::stores::postgres::faults::{Step, damaged};
use crate::stores::postgres::tx::{PgTx, maybe, run};
pub(in crate::stores::postgres) use crate::stores::shared::dedupe::{DedupeRecord, End, ending_of};
use crate::stores::shared::dedupe::{Ended, end_sum, fresh_sum};
use crate::stores::shared::history::write_history;
use crate::stores::shared::numbers::{column, from_moment};

impl PgTx<'_> {
    /// Inserts a dedupe record without an end. `false` if the identity has one already; waits for a transaction that is
    /// about to insert one.
    pub(in crate::stores::postgres) async fn insert_dedupe(
        &mut self,
        (stream, id): (StreamId, &str),
        Fingerprint(print): Fingerprint,
        seq: Seq,
        (published, until): (Moment, Moment),
    ) -> sqlx::Result<bool> {
        let (seq, published, until) = (column(seq.0), from_moment(published), from_moment(until));
        let crc = fresh_sum((stream, id), &print, (seq, published, until));
        let inserted = run!(
            self,
            "INSERT INTO redrive.dedupe (id, stream, fingerprint, seq, published, until, crc) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
            id,
            i64::from(stream.0),
            print.to_vec(),
            seq,
            published,
            until,
            crc
        )?;
        Ok(inserted == 1)
    }

    /// The dedupe record of an identity.
    pub(in crate::stores::postgres) async fn dedupe(
        &mut self,
        stream: StreamId,
        id: &str,
    ) -> Step<Option<DedupeRecord>> {
        let select = if self.writes {
            "SELECT fingerprint, seq, published, until, state, ended, attempts, history, result, became, crc \
             FROM redrive.dedupe WHERE stream = $1 AND id = $2 FOR UPDATE"
        } else {
            "SELECT fingerprint, seq, published, until, state, ended, attempts, history, result, became, crc \
             FROM redrive.dedupe WHERE stream = $1 AND id = $2"
        };
        let Some(row) = maybe!(self, select, i64::from(stream.0), id)? else { return Ok(None) };
        let damaged = |Damage| damaged("dedupe", format!("{} {id}", stream.0));
        let mut dedupe = DedupeRecord::read(&row, stream, id).map_err(damaged)?;
        if dedupe.end.is_none() {
            dedupe.end = self.ending_of_seq(dedupe.seq).await?;
        }
        Ok(Some(dedupe))
    }

    /// Writes on a dedupe record how its event ended, and until when it is remembered.
    pub(in crate::stores::postgres) async fn update_dedupe(
        &mut self,
        dedupe: &DedupeRecord,
    ) -> sqlx::Result<()> {
        let end = dedupe.end.as_ref();
        let Ended { until, state, at, attempts, history, crc } = dedupe.ended();
        run!(
            self,
            "UPDATE redrive.dedupe SET until = $3, state = $4, ended = $5, attempts = $6, history = $7, result = $8, \
             became = $9, crc = $10 WHERE stream = $1 AND id = $2",
            i64::from(dedupe.stream.0),
            &dedupe.id,
            until,
            state,
            at,
            attempts,
            history,
            end.and_then(|end| end.result.as_deref()),
            end.and_then(|end| end.became.as_deref()),
            crc
        )
        .map(drop)
    }

    /// Deletes the dedupe record and the end of an identity, unless it was published anew since. If its end is on the
    /// dedupe record, another event may have its seq, and the end of that one stays.
    pub(in crate::stores::postgres) async fn delete_dedupe_at(
        &mut self,
        stream: StreamId,
        id: &str,
        seq: Seq,
    ) -> sqlx::Result<()> {
        run!(
            self,
            "WITH gone AS (DELETE FROM redrive.dedupe WHERE stream = $1 AND id = $2 AND seq = $3 \
             RETURNING seq, state) DELETE FROM redrive.ending WHERE seq IN (SELECT seq FROM gone WHERE state IS NULL)",
            i64::from(stream.0),
            id,
            column(seq.0)
        )
        .map(drop)
    }

    /// Writes how the event with this seq ended.
    pub(in crate::stores::postgres) async fn write_end(&mut self, end: &End, seq: Seq) -> sqlx::Result<()> {
        let (seq, state, ended) = (column(seq.0), end.state.as_str(), from_moment(end.at));
        let (attempts, history) = (i64::from(end.attempts), write_history(end.history.as_deref()));
        let token = end.token.map(|token| token.to_vec());
        let left = (end.result.as_deref(), token.as_deref());
        let crc = end_sum(seq, state, ended, attempts, history.as_deref(), left);
        run!(
            self,
            "INSERT INTO redrive.ending (seq, state, ended, attempts, history, result, token, crc) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (seq) DO UPDATE SET state = $2, ended = $3, \
             attempts = $4, history = $5, result = $6, token = $7, crc = $8",
            seq,
            state,
            ended,
            attempts,
            history,
            left.0,
            left.1,
            crc
        )
        .map(drop)
    }

    /// How the event with this seq ended, if it is written.
    async fn ending_of_seq(&mut self, seq: Seq) -> Step<Option<End>> {
        let found = maybe!(
            self,
            "SELECT state, ended, attempts, history, result, token, crc FROM redrive.ending WHERE seq = $1",
            column(seq.0)
        )?;
        let read = found.map(|row| End::read(&row, seq)).transpose();
        read.map_err(|Damage| damaged("ending", seq.0).into())
    }
}
