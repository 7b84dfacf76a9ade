//! Publishing into a shard of this process, where it could run the event at once. The decision is core's.

use redrive_core::near::Place;
use redrive_store::{New, PublishError, Published};

use super::Inner;

impl Inner {
    /// A place for an event that is about to be published, if there is one.
    pub(super) fn place(&self, new: &mut New) -> Option<Place<'_>> {
        let place = self.near.get()?.take(&new.event, new.at)?;
        new.near = Some(place.shard());
        Some(place)
    }
}

/// The publish was answered: whoever was not new needs no place.
pub(super) fn answered(place: Option<Place<'_>>, answer: &Result<Published, PublishError>) {
    if let Some(place) = place
        && !matches!(answer, Ok(Published::Accepted(_)))
    {
        place.give_up();
    }
}
