//! Groups: dead letters that have something in common, counted by stream and cause.
//!
//! The counts are kept with every death and every end of one, so that looking at a million letters reads a row for
//! each cause and not for each letter.

use redrive_core::entry::StreamId;
use redrive_core::triage::CauseId;
use sqlx::Row;

use super::desk::{Desk, rows};
use super::faults::{Step, damaged};
use super::rows::Damage;
use crate::operate::{Group, GroupQuery};
use crate::stores::shared::group::{Groups, Tally};
use crate::stores::shared::numbers::bits;

impl Desk {
    /// Dead letters, put together.
    pub(super) async fn groups(&mut self, query: &GroupQuery) -> Step<Vec<Group>> {
        let mut groups = Groups::default();
        let found = rows!(
            self,
            "SELECT stream, cause, title, letters, holding, first, last, redrive, redriven_at, redriven_letters, \
             redriven_failed FROM redrive.tally WHERE letters > 0"
        )?;
        for row in found {
            let id = StreamId(u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default());
            let Some(stream) = self.stream(id).await? else { continue };
            let tally = Tally::from_row(&row, 2).map_err(|Damage| damaged("tally", stream.id.0))?;
            groups.add(query, &stream, CauseId(bits(row.try_get(1)?)), &tally);
        }
        Ok(groups.end(query))
    }
}
