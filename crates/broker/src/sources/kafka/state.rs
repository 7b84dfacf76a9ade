//! What a flow knows of its partitions.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use redrive_core::Moment;

use super::settings::random;
use crate::due::DueQueue;
use crate::message::{Message, Partition};
use crate::metadata::Metadata;
use crate::offsets::progress::Seen;
use crate::offsets::{DoneSet, Progress};
use crate::source::{AssignmentChange, AssignmentEvent, Receipt, Received, SourceError};

/// The partitions of one consumer, and the messages that it has read ahead.
#[derive(Debug, Default)]
pub(super) struct FlowState {
    partitions: HashMap<Partition, Owned>,
    due: DueQueue<(Receipt, Arc<Message>)>,
    events: Vec<AssignmentEvent>,
    /// Kept over assignments.
    paused: HashSet<Partition>,
    epoch: u64,
    pub(super) failed: Option<SourceError>,
    pub(super) closed: bool,
}

/// A partition that is assigned.
#[derive(Debug)]
struct Owned {
    epoch: u64,
    assignment: u64,
    /// `None` until the committed offset and its done-set are read.
    progress: Option<Progress>,
    /// The committed offset at the start.
    start: i64,
    /// Messages that wait in memory.
    waiting: usize,
    /// Messages that the consumer has, unsettled.
    handed: usize,
    /// Whether the client has paused it.
    is_paused: bool,
}

impl FlowState {
    pub(super) fn assign(&mut self, partition: Partition) {
        self.epoch += 1;
        let epoch = self.epoch;
        let owned = Owned {
            epoch,
            assignment: random(),
            progress: None,
            start: 0,
            waiting: 0,
            handed: 0,
            is_paused: true,
        };
        self.partitions.insert(partition.clone(), owned);
        self.events.push(AssignmentEvent { partition, epoch, change: AssignmentChange::Assigned });
    }

    pub(super) fn revoke(&mut self, partition: &Partition) {
        let Some(owned) = self.partitions.remove(partition) else { return };
        self.due.retain(|(receipt, _)| receipt.partition != *partition);
        let (partition, epoch) = (partition.clone(), owned.epoch);
        self.events.push(AssignmentEvent { partition, epoch, change: AssignmentChange::Revoked });
    }

    pub(super) fn revoke_all(&mut self) {
        let all: Vec<Partition> = self.partitions.keys().cloned().collect();
        all.iter().for_each(|partition| self.revoke(partition));
    }

    pub(super) fn events(&mut self) -> Vec<AssignmentEvent> {
        std::mem::take(&mut self.events)
    }

    /// Partitions whose committed offset is not read yet.
    pub(super) fn unloaded(&self) -> Vec<Partition> {
        let open = self.partitions.iter().filter(|(_, owned)| owned.progress.is_none());
        open.map(|(partition, _)| partition.clone()).collect()
    }

    /// The committed offset and its done-set are read.
    pub(super) fn load(&mut self, partition: &Partition, low: i64, done: DoneSet) {
        if let Some(owned) = self.partitions.get_mut(partition) {
            owned.progress = Some(Progress::new(low, done, owned.assignment));
            owned.start = low;
        }
    }

    /// A message was delivered.
    pub(super) fn add(&mut self, partition: &Partition, offset: i64, message: Message, now: Moment) {
        let Some(owned) = self.partitions.get_mut(partition) else { return };
        // Paused until it is loaded, so this does not happen; dropping it would lose it.
        let Some(progress) = &mut owned.progress else {
            self.failed =
                Some(SourceError::Failed(format!("{partition} was delivered before it was loaded")));
            return;
        };
        if offset < owned.start {
            self.failed = Some(SourceError::Misconfigured(format!(
                "the group has committed offset {} of {partition}, but offset {offset} was delivered: the topic was \
                 deleted and created again, or the offsets were reset while members were running; stop all members \
                 and reset the offsets of the group",
                owned.start
            )));
            return;
        }
        if progress.see(offset) != Seen::New {
            return;
        }
        owned.waiting += 1;
        let receipt =
            Receipt { partition: partition.clone(), position: offset, epoch: owned.epoch, delivery: 0 };
        let due = Metadata::read(&message, partition, offset, now).due.unwrap_or(now);
        self.due.push(due, (receipt, Arc::new(message)));
    }

    /// Hands out up to `max` messages that are due. A partition whose done-set might not hold them all hands out none.
    pub(super) fn take(&mut self, max: usize, now: Moment) -> Vec<Received> {
        let mut taken = Vec::new();
        let mut held_back = Vec::new();
        while taken.len() < max
            && let Some((due, (receipt, message))) = self.due.pop(now)
        {
            let Some(owned) = self.partitions.get_mut(&receipt.partition) else { continue };
            let room = owned.progress.as_ref().map_or(0, Progress::room);
            if owned.handed >= room || self.paused.contains(&receipt.partition) {
                held_back.push((due, (receipt, message)));
                continue;
            }
            owned.handed += 1;
            owned.waiting -= 1;
            taken.push(Received { receipt, message, deliveries: None });
        }
        held_back.into_iter().for_each(|(due, item)| self.due.push(due, item));
        taken
    }

    /// When the next message is due.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.due.next_due()
    }

    /// Whether a receipt is of the present assignment.
    pub(super) fn owns(&self, receipt: &Receipt) -> bool {
        self.partitions.get(&receipt.partition).is_some_and(|owned| owned.epoch == receipt.epoch)
    }

    /// A copy of the progress of a partition, to form a commit with.
    pub(super) fn progress(&self, partition: &Partition) -> Option<Progress> {
        self.partitions.get(partition).and_then(|owned| owned.progress.clone())
    }

    /// Whether an offset was delivered and is not settled.
    pub(super) fn is_pending(&self, partition: &Partition, offset: i64) -> bool {
        let progress = self.partitions.get(partition).and_then(|owned| owned.progress.as_ref());
        progress.is_some_and(|progress| progress.is_pending(offset))
    }

    /// A commit happened: these offsets are settled.
    pub(super) fn settled(&mut self, partition: &Partition, offsets: &[i64]) {
        let Some(owned) = self.partitions.get_mut(partition) else { return };
        owned.handed = owned.handed.saturating_sub(offsets.len());
        if let Some(progress) = &mut owned.progress {
            progress.settle(offsets.iter().copied());
        }
    }

    pub(super) fn pause(&mut self, partition: &Partition, paused: bool) {
        if paused {
            self.paused.insert(partition.clone());
        } else {
            self.paused.remove(partition);
        }
    }

    /// The partitions whose fetching must change: to pause, and to resume. Derived from the state each time, so that no
    /// pause is forgotten and none outlives its reason.
    pub(super) fn pauses(&mut self, read_ahead: usize) -> (Vec<Partition>, Vec<Partition>) {
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        for (partition, owned) in &mut self.partitions {
            let is_full = owned.waiting + owned.handed >= read_ahead;
            let is_pressing = owned.handed > 0 && owned.progress.as_ref().is_some_and(Progress::is_pressing);
            let wants = owned.progress.is_none() || is_full || is_pressing || self.paused.contains(partition);
            if wants != owned.is_paused {
                owned.is_paused = wants;
                if wants { pause.push(partition.clone()) } else { resume.push(partition.clone()) }
            }
        }
        (pause, resume)
    }

    /// For each partition, the offset after the last that was read, and what is not settled below it.
    pub(super) fn positions(&self) -> Vec<(Partition, i64, u64)> {
        let loaded = |(partition, owned): (&Partition, &Owned)| {
            let progress = owned.progress.as_ref()?;
            Some((partition.clone(), progress.position(), progress.pending() as u64))
        };
        self.partitions.iter().filter_map(loaded).collect()
    }
}
