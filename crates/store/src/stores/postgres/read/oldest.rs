//! Since when the oldest event of each queue is due.

use std::collections::BTreeMap;

use redrive_core::Moment;

use crate::stores::postgres::events::fresh::Stream;
use crate::stores::postgres::faults::Step;
use crate::stores::postgres::keys::is_head;
use crate::stores::postgres::tx::{OwnTx, maybe, one};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::numbers::to_moment;
use crate::stores::shared::tracked::states;

impl OwnTx {
    /// The oldest of each queue.
    pub(in crate::stores::postgres) async fn oldest_due(&mut self) -> Step<Vec<(String, Moment)>> {
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

    /// When the first event of a stream is due, which may be later.
    async fn first_due(&mut self, stream: &Stream) -> Step<Option<Moment>> {
        let withheld = self.withheld(stream).await?;
        // In the order of their seqs, which is about that of their publishing.
        let fresh = maybe!(
            self,
            concat!(
                "SELECT published FROM redrive.fresh event WHERE stream = $1 AND (key IS NULL OR key <> ALL($2)) AND ",
                is_head!("event"),
                " ORDER BY seq LIMIT 1"
            ),
            i64::from(stream.id.0),
            &withheld
        )?;
        let tracked: Option<i64> = one!(
            self,
            concat!(
                "SELECT min(due) FROM redrive.tracked event WHERE stream = $1 AND state = ",
                states!(Waiting),
                " \
                 AND (key IS NULL OR key <> ALL($2)) AND ",
                is_head!("event")
            ),
            i64::from(stream.id.0),
            &withheld
        )?;
        let fresh = fresh.and_then(|row| row.number(0).ok());
        Ok(fresh.into_iter().chain(tracked).min().map(to_moment))
    }
}
