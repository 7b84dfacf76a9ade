//! Shards that have work and stand still: a bug of ours, detected and repaired.
//!
//! The scheduler's [watchdog](redrive_core::scheduler::STALL_AFTER) finds them. The loop gives such a shard up and
//! takes it again, so that everything is loaded anew. Until an attempt starts there, the shard counts as stalled: the
//! log, the metric and the server's readiness say so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use redrive_core::Moment;
use redrive_core::queue_entry::StreamId;
use redrive_core::scheduler::{Action, Input};
use redrive_store::{Arrivals, StoreError, TakenShard};
use tokio::time::Instant;

use super::super::observe;
use super::super::perform::{Answered, perform};
use super::Conducting;

/// How long a shard counts as stalled if no attempt starts in it here: another process may own it by now.
const REMEMBERED: Duration = Duration::from_secs(300);

/// The shards that stalled.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// Since when, by shard.
    shards: BTreeMap<u32, Instant>,
    /// How many there are, shared with `Redrive::stalled_shards`.
    count: Arc<AtomicUsize>,
    /// A shard that is being taken again, where no other process shares the store.
    retaking: Option<u32>,
    /// Streams with arrivals meanwhile, which this process did not own.
    heard: BTreeMap<StreamId, (String, String)>,
}

impl Stalls {
    pub(super) fn new(count: Arc<AtomicUsize>) -> Self {
        Self { count, ..Self::default() }
    }

    fn update(&self) {
        self.count.store(self.shards.len(), Ordering::Release);
        observe::stalled_shards(self.shards.len());
    }

    /// Records in which streams events arrive while a shard is being taken again.
    pub(super) fn hear(&mut self, arrivals: &Arrivals) {
        if self.retaking.is_none() {
            return;
        }
        let entries = arrivals.entries.iter();
        let named =
            entries.map(|entry| (entry.stream, (entry.event.queue.clone(), entry.event.tenant.clone())));
        self.heard.extend(named);
        self.hear_streams(&arrivals.streams);
    }

    pub(super) fn hear_streams(&mut self, streams: &[(StreamId, String, String)]) {
        if self.retaking.is_some() {
            let named = streams.iter().map(|(id, queue, tenant)| (*id, (queue.clone(), tenant.clone())));
            self.heard.extend(named);
        }
    }
}

impl Conducting {
    /// Once a second: asks the store about shards that stand still, and forgets old stalls.
    pub(super) fn watch_shards(&mut self, now: Moment) -> Result<(), StoreError> {
        let count = self.stalls.shards.len();
        self.stalls.shards.retain(|_, since| since.elapsed() < REMEMBERED);
        if self.stalls.shards.len() != count {
            self.stalls.update();
        }
        let mut checks = Vec::new();
        self.scheduler.watch(now, &mut checks);
        perform(&self.context, &mut checks, &mut self.attempts, &self.answers)
    }

    /// Gives up shards that stalled and takes them again; a shard in which an attempt starts has recovered.
    pub(super) fn recover_stalled(&mut self, actions: &mut Vec<Action>, now: Moment) {
        let is_stall = |action: &mut Action| matches!(action, Action::Stalled { .. });
        if !self.stalls.shards.is_empty() {
            self.note_starts(actions);
        }
        for action in actions.extract_if(.., is_stall).collect::<Vec<_>>() {
            let Action::Stalled { token, waiting } = action else { continue };
            observe::stalled(token.shard, waiting);
            self.stalls.shards.insert(token.shard, Instant::now());
            self.stalls.update();
            self.tokens.retain(|own| *own != token);
            if self.sharing.is_some() {
                // Not as clean: the next owner uses the crash guard, as after a crash.
                self.hand_back(token, false);
            } else {
                self.take_again(token.shard, now);
            }
        }
    }

    fn note_starts(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::Attempt(ticket) = action
                && self.stalls.shards.remove(&ticket.token.shard).is_some()
            {
                self.stalls.update();
            }
        }
    }

    fn take_again(&mut self, shard: u32, now: Moment) {
        self.stalls.retaking = Some(shard);
        let taking = self.context.store.take(shard, now);
        self.answers.push(async move { Answered::TakenAgain(taking.await) }.boxed());
    }

    /// A shard was taken again. If that failed, the store can no longer be trusted.
    pub(super) fn taken_again(
        &mut self,
        taken: Result<TakenShard, StoreError>,
        now: Moment,
    ) -> Result<(), StoreError> {
        let Some(shard) = self.stalls.retaking.take() else { return Ok(()) };
        let heard = std::mem::take(&mut self.stalls.heard);
        match taken {
            Ok(taken) => self.own(taken, now),
            Err(error) if error.is_transient() => {
                observe::in_trouble(&error);
                self.take_again(shard, now);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let heard = heard.into_iter().map(|(id, (queue, tenant))| (id, queue, tenant)).collect();
        self.scheduler.handle(Input::Missed(heard), now, &mut self.random);
        Ok(())
    }
}
