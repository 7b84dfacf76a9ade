//! Since when the oldest event of each queue could run.

use std::collections::BTreeMap;

use redrive_core::Moment;

use super::desk::{Desk, maybe, one};
use super::faults::Step;
use super::keys::is_head;
use super::rows::Stream;
use crate::stores::shared::cells::Cells;
use crate::stores::shared::numbers::to_moment;

impl Desk {
    /// The oldest of each queue.
    pub(super) async fn oldest_due(&mut self) -> Step<Vec<(String, Moment)>> {
        let view = self.view().await?;
        let mut oldest: BTreeMap<String, Moment> = BTreeMap::new();
        for stream in self.streams(None, None).await? {
            if view.is_quarantined(&stream) {
                continue;
            }
            let due = self.first_due(&stream).await?;
            if let Some(due) = due.filter(|due| *due <= view.now) {
                let entry = oldest.entry(stream.queue.clone()).or_insert(due);
                *entry = due.min(*entry);
            }
        }
        Ok(oldest.into_iter().collect())
    }

    /// When the first of a stream is due, which may be later.
    async fn first_due(&mut self, stream: &Stream) -> Step<Option<Moment>> {
        let withheld = self.withheld(stream).await?;
        // In the order of their seqs, which is about that of their publishing.
        let live = maybe!(
            self,
            concat!(
                "SELECT published FROM redrive.live event WHERE stream = $1 AND (key IS NULL OR key <> ALL($2)) AND ",
                is_head!("event"),
                " ORDER BY seq LIMIT 1"
            ),
            i64::from(stream.id.0),
            &withheld
        )?;
        let held: Option<i64> = one!(
            self,
            concat!(
                "SELECT min(due) FROM redrive.held event WHERE stream = $1 AND state = 0 \
                 AND (key IS NULL OR key <> ALL($2)) AND ",
                is_head!("event")
            ),
            i64::from(stream.id.0),
            &withheld
        )?;
        let live = live.and_then(|row| row.number(0).ok());
        Ok(live.into_iter().chain(held).min().map(to_moment))
    }
}
