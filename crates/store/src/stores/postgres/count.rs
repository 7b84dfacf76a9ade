//! Counting what there is, by queue and state. It reads every event: an index for it would cost each of them.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::entry::StreamId;
use redrive_core::event::State;
use sqlx::Row;

use super::desk::{Desk, rows};
use super::faults::Step;
use super::keys::is_head;
use super::rules::held_by;
use crate::found::Count;
use crate::stores::shared::numbers::{bits, from_moment};

/// The states that the statement tells apart.
const STATES: [State; 7] = [
    State::Ready,
    State::Waiting,
    State::Parked,
    State::Dead,
    State::Quarantined,
    State::Discarded,
    State::Running,
];

impl Desk {
    /// How many events there are.
    pub(super) async fn count(&mut self) -> Step<Vec<Count>> {
        let view = self.view().await?;
        let (mut streams, mut keys, mut states) = (Vec::new(), Vec::new(), Vec::new());
        let mut seen = BTreeSet::new();
        for control in &view.rules.controls.list {
            // The first rule over a key is the one that its events tell of.
            let Some((queue, tenant, key)) = control.rule.key().filter(|key| seen.insert(*key)) else {
                continue;
            };
            let Some(stream) = self.find_stream(queue, tenant).await? else { continue };
            streams.push(i64::from(stream.id.0));
            keys.push(key.to_owned());
            states.push(if held_by(&control.rule) == State::Parked { 2_i64 } else { 4 });
        }
        let found = rows!(
            self,
            concat!(
                "SELECT event.stream, CASE WHEN state IN (2, 3) THEN 3 WHEN state IN (5, 6) THEN state \
                 WHEN event.key IS NOT NULL AND EXISTS (SELECT 1 FROM redrive.held dead WHERE dead.key = event.key \
                 AND dead.state = 2 AND dead.stream = event.stream AND dead.seq < event.seq) THEN 2 \
                 WHEN rule.place IS NOT NULL THEN rule.place WHEN due <= $1 AND ",
                is_head!("event"),
                " THEN 0 ELSE 1 END AS place, count(*) FROM (SELECT stream, key, seq, 0::bigint AS state, 0::bigint AS due \
                 FROM redrive.live UNION ALL SELECT stream, key, seq, state, due FROM redrive.held) event \
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
        Ok(counts.map(|((queue, state), events)| Count { queue, state, events }).collect())
    }
}
