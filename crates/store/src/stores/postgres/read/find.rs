//! Finding: the status of an event.

use redrive_core::event::State;
use redrive_core::queue_entry::StreamId;
use sqlx::Row as _;

use crate::event_status::{EventStatus, NAMED_MAX, Named};
use crate::stores::postgres::events::dedupe::DedupeRecord;
use crate::stores::postgres::events::fresh::{Damage, EventRow, Stream};
use crate::stores::postgres::events::tracked::{RowState, TrackedEvent};
use crate::stores::postgres::faults::{Step, damaged};
use crate::stores::postgres::operate::rules::{View, state_under};
use crate::stores::postgres::tx::{PgTx, one, rows};
use crate::stores::shared::acts::discarded;
use crate::stores::shared::numbers::{column, stream_of};
use crate::stores::shared::tracked::states;

impl PgTx<'_> {
    /// The status of an event.
    pub(in crate::stores::postgres) async fn find(
        &mut self,
        tenant: &str,
        queue: &str,
        id: &str,
    ) -> Step<Option<EventStatus>> {
        let Some(stream) = self.find_stream(queue, tenant).await? else { return Ok(None) };
        let view = self.view().await?;
        match self.dedupe(stream.id, id).await? {
            Some(dedupe) => self.found(dedupe, &view).await.map(Some),
            None => Ok(None),
        }
    }

    /// The status of all events with this id. Their key begins with it.
    pub(in crate::stores::postgres) async fn find_by_id(&mut self, id: &str) -> Step<Vec<Named>> {
        let view = self.view().await?;
        let found = rows!(
            self,
            "SELECT stream FROM redrive.dedupe WHERE id = $1 ORDER BY stream LIMIT $2",
            id,
            column(NAMED_MAX as u64)
        )?;
        let mut all = Vec::new();
        for row in found {
            let of = StreamId(u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default());
            let Some(stream) = self.stream(of).await? else { continue };
            let Some(dedupe) = self.dedupe(of, id).await? else { continue };
            let found = self.found(dedupe, &view).await?;
            all.push(Named { tenant: stream.tenant.clone(), queue: stream.queue.clone(), found });
        }
        Ok(all)
    }

    /// The status of the event of this dedupe record.
    pub(in crate::stores::postgres) async fn found(
        &mut self,
        dedupe: DedupeRecord,
        view: &View,
    ) -> Step<EventStatus> {
        let seq = dedupe.seq;
        let Some(stream) = self.stream(stream_of(seq)).await? else {
            return Err(damaged("stream", seq.0).into());
        };
        if let Some(fresh) = self.fresh(seq, &stream).await? {
            let row = fresh.map_err(|Damage| damaged("fresh", seq.0))?;
            // After an edit, the replacement has the seq of the original.
            if row.event.id != dedupe.id {
                return Ok(dedupe.into_found());
            }
            return self.ready(row, &stream, view).await;
        }
        if let Some(tracked) = self.tracked(seq, &stream).await? {
            let tracked = tracked.map_err(|Damage| damaged("tracked", seq.0))?;
            if tracked.row.event.id == dedupe.id {
                let known = self.kept(&tracked, &stream, view).await?;
                return Ok(if tracked.state == RowState::Discarded {
                    discarded(known, &dedupe)
                } else {
                    known
                });
            }
        }
        Ok(dedupe.into_found())
    }

    /// An event that never ran: it is ready, unless it waits for its key.
    pub(in crate::stores::postgres) async fn ready(
        &mut self,
        row: EventRow,
        stream: &Stream,
        view: &View,
    ) -> Step<EventStatus> {
        if row.key().is_none() {
            return Ok(view.ready(&row, stream));
        }
        let known = view.ready(&row, stream);
        let tracked = TrackedEvent::fresh(row, RowState::Waiting);
        Ok(EventStatus { state: self.place(&tracked, stream, view).await?, ..known })
    }

    /// A tracked event. Its dedupe record has the time of a discard, and until when it can be restored.
    pub(in crate::stores::postgres) async fn kept(
        &mut self,
        tracked: &TrackedEvent,
        stream: &Stream,
        view: &View,
    ) -> Step<EventStatus> {
        Ok(tracked.found(self.place(tracked, stream, view).await?))
    }

    /// The state of an event.
    pub(in crate::stores::postgres) async fn place(
        &mut self,
        tracked: &TrackedEvent,
        stream: &Stream,
        view: &View,
    ) -> Step<State> {
        Ok(match tracked.state {
            RowState::Discarded => State::Discarded,
            RowState::DeadHolding | RowState::DeadPassed => State::Dead,
            RowState::Leased => State::Running,
            RowState::Waiting | RowState::Blocked | RowState::Withheld => {
                let rule = tracked.row.key().and_then(|key| view.rules.withholding(stream, key));
                if view.is_quarantined(stream) {
                    State::Quarantined
                } else if self.is_parked(tracked, stream).await? {
                    State::Parked
                } else if let Some(rule) = rule {
                    state_under(rule)
                } else if tracked.progress.due <= view.now && self.is_head(&tracked.row, stream).await? {
                    State::Ready
                } else {
                    State::Waiting
                }
            }
        })
    }

    /// Whether a dead letter of its key blocks it.
    async fn is_parked(&mut self, tracked: &TrackedEvent, stream: &Stream) -> sqlx::Result<bool> {
        let Some(key) = tracked.row.key() else { return Ok(false) };
        one!(
            self,
            concat!(
                "SELECT EXISTS (SELECT 1 FROM redrive.tracked WHERE stream = $1 AND key = $2 AND state = ",
                states!(DeadHolding),
                " AND seq < $3)"
            ),
            i64::from(stream.id.0),
            key,
            column(tracked.row.seq.0)
        )
    }
}
