//! Counting events, by queue and state. It reads every event: an index for it would cost each of them.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::event::State;
use redrive_core::queue_entry::StreamId;
use sqlx::Row;

use crate::event_status::EventCount;
use crate::stores::postgres::faults::Step;
use crate::stores::postgres::keys::is_head;
use crate::stores::postgres::operate::rules::state_under;
use crate::stores::postgres::tx::{OwnTx, rows};
use crate::stores::shared::numbers::{bits, from_moment};
use crate::stores::shared::tracked::states;

/// The states that the statement distinguishes.
const STATES: [State; 7] = [
    State::Ready,
    State::Waiting,
    State::Parked,
    State::Dead,
    State::Quarantined,
    State::Discarded,
    State::Running,
];

impl OwnTx {
    /// How many events there are.
    pub(in crate::stores::postgres) async fn count(&mut self) -> Step<Vec<EventCount>> {
        let view = self.view().await?;
        let (mut streams, mut keys, mut states) = (Vec::new(), Vec::new(), Vec::new());
        let mut seen = BTreeSet::new();
        for control in &view.rules.controls.list {
            // The first rule over a key determines the state of its events.
            let Some((queue, tenant, key)) = control.rule.key().filter(|key| seen.insert(*key)) else {
                continue;
            };
            let Some(stream) = self.find_stream(queue, tenant).await? else { continue };
            streams.push(i64::from(stream.id.0));
            keys.push(key.to_owned());
            states.push(if state_under(&control.rule) == State::Parked { 2_i64 } else { 4 });
        }
        let found = rows!(
            self,
            concat!(
                "SELECT event.stream, CASE WHEN state IN (",
                states!(DeadHolding, DeadPassed),
                ") THEN 3 WHEN state IN (",
                states!(Discarded, Leased),
                ") THEN state \
                 WHEN event.key IS NOT NULL AND EXISTS (SELECT 1 FROM redrive.tracked dead WHERE dead.key = event.key \
                 AND dead.state = ",
                states!(DeadHolding),
                " AND dead.stream = event.stream AND dead.seq < event.seq) THEN 2 \
                 WHEN rule.place IS NOT NULL THEN rule.place WHEN due <= $1 AND ",
                is_head!("event"),
                " THEN 0 ELSE 1 END AS place, count(*) FROM (SELECT stream, key, seq, 0::bigint AS state, 0::bigint AS due \
                 FROM redrive.fresh UNION ALL SELECT stream, key, seq, state, due FROM redrive.tracked) event \
                 LEFT JOIN unnest($2::bigint[], $3::text[], $4::bigint[]) AS rule (stream, key, place) \
                 ON rule.stream = event.stream AND rule.key = event.key GROUP BY 1, 2"
            ),
            from_moment(view.now),
            streams,
            keys,
            states
        )?;
        let mut by_queue: BTreeMap<(String, State), u64> = BTreeMap::new();
        for row in found {
            let id = StreamId(u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default());
            let place = usize::try_from(row.try_get::<i64, _>(1)?).unwrap_or_default();
            let Some(stream) = self.stream(id).await? else { continue };
            let Some(state) = STATES.get(place).copied() else { continue };
            let is_free = matches!(state, State::Ready | State::Waiting | State::Parked);
            let state = if is_free && view.is_quarantined(&stream) { State::Quarantined } else { state };
            *by_queue.entry((stream.queue.clone(), state)).or_default() += bits(row.try_get(2)?);
        }
        let counts = by_queue.into_iter();
        Ok(counts.map(|((queue, state), events)| EventCount { queue, state, events }).collect())
    }
}
