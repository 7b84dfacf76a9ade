//! Publishing into a shard of this process if it has a free slot for the event. The decision is core's.

use redrive_core::local_slots::Slot;
use redrive_store::{NewEvent, PublishError, Published};

use crate::engine::Inner;

impl Inner {
    /// A slot for an event that is about to be published, if there is one.
    pub(in crate::engine) fn slot(&self, new: &mut NewEvent) -> Option<Slot<'_>> {
        let slot = self.local_slots.get()?.take(&new.event, new.at)?;
        new.local_shard = Some(slot.shard());
        Some(slot)
    }
}

/// The publish was answered: a duplicate needs no slot.
pub(in crate::engine) fn answered(slot: Option<Slot<'_>>, answer: &Result<Published, PublishError>) {
    if let Some(slot) = slot
        && !matches!(answer, Ok(Published::Accepted(_)))
    {
        slot.give_up();
    }
}
