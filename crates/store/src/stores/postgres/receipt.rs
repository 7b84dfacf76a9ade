//! Receipts, and how events ended, as rows of PostgreSQL.

use redrive_core::Moment;
use redrive_core::entry::{Seq, StreamId};
use redrive_core::event::Fingerprint;

use super::desk::{DeskAt, maybe, run};
use super::faults::{Fault, Step, damaged};
use super::rows::{Damage, Stream};
use crate::stores::shared::numbers::{column, from_moment};
pub(super) use crate::stores::shared::receipt::{End, Receipt, ending_of};
use crate::stores::shared::receipt::{Ended, end_sum, fresh_sum};
use crate::stores::shared::stories::write_story;

impl DeskAt<'_> {
    /// Writes a receipt without an end. `false` where the identity has one already; waits for whoever is about to
    /// write one.
    pub(super) async fn insert_receipt(
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
            "INSERT INTO redrive.receipt (id, stream, fingerprint, seq, published, until, crc) \
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

    /// The receipt of an identity.
    pub(super) async fn receipt(&mut self, stream: StreamId, id: &str) -> Step<Option<Receipt>> {
        let select = if self.writes {
            "SELECT fingerprint, seq, published, until, state, ended, attempts, story, result, became, crc \
             FROM redrive.receipt WHERE stream = $1 AND id = $2 FOR UPDATE"
        } else {
            "SELECT fingerprint, seq, published, until, state, ended, attempts, story, result, became, crc \
             FROM redrive.receipt WHERE stream = $1 AND id = $2"
        };
        let Some(row) = maybe!(self, select, i64::from(stream.0), id)? else { return Ok(None) };
        let damaged = |Damage| damaged("receipt", format!("{} {id}", stream.0));
        let mut receipt = Receipt::read(&row, stream, id).map_err(damaged)?;
        if receipt.end.is_none() {
            receipt.end = self.ending_of_seq(receipt.seq).await?;
        }
        Ok(Some(receipt))
    }

    /// Writes on a receipt how its event ended, and until when it is remembered.
    pub(super) async fn update_receipt(&mut self, receipt: &Receipt) -> sqlx::Result<()> {
        let end = receipt.end.as_ref();
        let Ended { until, state, at, attempts, story, crc } = receipt.ended();
        run!(
            self,
            "UPDATE redrive.receipt SET until = $3, state = $4, ended = $5, attempts = $6, story = $7, result = $8, \
             became = $9, crc = $10 WHERE stream = $1 AND id = $2",
            i64::from(receipt.stream.0),
            &receipt.id,
            until,
            state,
            at,
            attempts,
            story,
            end.and_then(|end| end.result.as_deref()),
            end.and_then(|end| end.became.as_deref()),
            crc
        )
        .map(drop)
    }

    /// Forgets an identity, and how its event ended, unless it was published anew since. Where its end is on the
    /// receipt, another may have its seq, and that one's end stays.
    pub(super) async fn delete_receipt_at(
        &mut self,
        stream: StreamId,
        id: &str,
        seq: Seq,
    ) -> sqlx::Result<()> {
        run!(
            self,
            "WITH gone AS (DELETE FROM redrive.receipt WHERE stream = $1 AND id = $2 AND seq = $3 \
             RETURNING seq, state) DELETE FROM redrive.ending WHERE seq IN (SELECT seq FROM gone WHERE state IS NULL)",
            i64::from(stream.0),
            id,
            column(seq.0)
        )
        .map(drop)
    }

    /// Writes on a receipt how its event ended, and remembers it for long enough.
    pub(super) async fn stamp(
        &mut self,
        stream: &Stream,
        id: &str,
        at: Moment,
        end: Option<End>,
    ) -> Step<()> {
        let window = self.window(&stream.queue).await?;
        match self.receipt(stream.id, id).await {
            Ok(Some(mut receipt)) => {
                receipt.until = receipt.until.max(at + window);
                receipt.end = end;
                self.update_receipt(&receipt).await?;
                Ok(())
            }
            // A damaged receipt stays damaged: whoever asks for it is told so.
            Ok(None) | Err(Fault::Refused(_)) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Writes how the event with this seq ended.
    pub(super) async fn write_end(&mut self, end: &End, seq: Seq) -> sqlx::Result<()> {
        let (seq, state, ended) = (column(seq.0), end.state.as_str(), from_moment(end.at));
        let (attempts, story) = (i64::from(end.attempts), write_story(end.story.as_deref()));
        let token = end.token.map(|token| token.to_vec());
        let left = (end.result.as_deref(), token.as_deref());
        let crc = end_sum(seq, state, ended, attempts, story.as_deref(), left);
        run!(
            self,
            "INSERT INTO redrive.ending (seq, state, ended, attempts, story, result, token, crc) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (seq) DO UPDATE SET state = $2, ended = $3, \
             attempts = $4, story = $5, result = $6, token = $7, crc = $8",
            seq,
            state,
            ended,
            attempts,
            story,
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
            "SELECT state, ended, attempts, story, result, token, crc FROM redrive.ending WHERE seq = $1",
            column(seq.0)
        )?;
        let read = found.map(|row| End::read(&row, seq)).transpose();
        read.map_err(|Damage| damaged("ending", seq.0).into())
    }
}
