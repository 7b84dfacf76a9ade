//! Finding: what is known of an identity.

use redrive_core::event::State;

use super::desk::{DeskAt, one};
use super::faults::{Step, damaged};
use super::held::{Held, Stand};
use super::receipt::Receipt;
use super::rows::{Damage, EventRow, Stream};
use super::rules::{View, held_by};
use crate::found::Found;
use crate::stores::shared::acts::discarded;
use crate::stores::shared::numbers::{column, stream_of};

impl DeskAt<'_> {
    /// What is known of an identity.
    pub(super) async fn find(&mut self, tenant: &str, queue: &str, id: &str) -> Step<Option<Found>> {
        let Some(stream) = self.find_stream(queue, tenant).await? else { return Ok(None) };
        let view = self.view().await?;
        match self.receipt(stream.id, id).await? {
            Some(receipt) => self.found(receipt, &view).await.map(Some),
            None => Ok(None),
        }
    }

    /// What became of the event that has this receipt.
    pub(super) async fn found(&mut self, receipt: Receipt, view: &View) -> Step<Found> {
        let seq = receipt.seq;
        let Some(stream) = self.stream(stream_of(seq)).await? else {
            return Err(damaged("stream", seq.0).into());
        };
        if let Some(live) = self.live(seq, &stream).await? {
            let row = live.map_err(|Damage| damaged("live", seq.0))?;
            // After an edit, another event is in the place of the first.
            if row.event.id != receipt.id {
                return Ok(receipt.into_found());
            }
            return self.ready(row, &stream, view).await;
        }
        if let Some(held) = self.held(seq, &stream).await? {
            let held = held.map_err(|Damage| damaged("held", seq.0))?;
            if held.row.event.id == receipt.id {
                let known = self.kept(&held, &stream, view).await?;
                return Ok(if held.stand == Stand::Discarded { discarded(known, &receipt) } else { known });
            }
        }
        Ok(receipt.into_found())
    }

    /// An event that never ran: it may, unless it is not its turn.
    pub(super) async fn ready(&mut self, row: EventRow, stream: &Stream, view: &View) -> Step<Found> {
        if row.key().is_none() {
            return Ok(view.ready(&row, stream));
        }
        let known = view.ready(&row, stream);
        let held = Held::fresh(row, Stand::Waits);
        Ok(Found { state: self.place(&held, stream, view).await?, ..known })
    }

    /// An event that is held. When it was discarded, and until when it can be restored, its receipt knows.
    pub(super) async fn kept(&mut self, held: &Held, stream: &Stream, view: &View) -> Step<Found> {
        Ok(held.found(self.place(held, stream, view).await?))
    }

    /// Where an event is.
    pub(super) async fn place(&mut self, held: &Held, stream: &Stream, view: &View) -> Step<State> {
        Ok(match held.stand {
            Stand::Discarded => State::Discarded,
            Stand::DeadHolding | Stand::DeadPassed => State::Dead,
            Stand::Leased => State::Running,
            Stand::Waits | Stand::Blocked | Stand::Withheld => {
                let rule = held.row.key().and_then(|key| view.rules.withholding(stream, key));
                if view.is_quarantined(stream) {
                    State::Quarantined
                } else if self.is_parked(held, stream).await? {
                    State::Parked
                } else if let Some(rule) = rule {
                    held_by(rule)
                } else if held.progress.due <= view.now && self.is_head(&held.row, stream).await? {
                    State::Ready
                } else {
                    State::Waiting
                }
            }
        })
    }

    /// Whether a dead letter of its key holds it up.
    async fn is_parked(&mut self, held: &Held, stream: &Stream) -> sqlx::Result<bool> {
        let Some(key) = held.row.key() else { return Ok(false) };
        one!(
            self,
            "SELECT EXISTS (SELECT 1 FROM redrive.held WHERE stream = $1 AND key = $2 AND state = 2 AND seq < $3)",
            i64::from(stream.id.0),
            key,
            column(held.row.seq.0)
        )
    }
}
