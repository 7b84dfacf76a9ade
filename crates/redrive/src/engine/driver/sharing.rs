//! Sharing the shards of a store with other processes.
//!
//! There is no leader. Each process looks now and then which processes live and which shards they own, computes by
//! itself which shards fall to it ([`steps`]), takes them, and hands off its surplus. It looks when another process
//! announces a change, when the first lease of another owner may have run out, and twice a second in any case.
//!
//! A process owns its shards until its lease runs out by its own clock. The loop checks that before each dispatch, so
//! a process that was stopped for a while finds out first; it then drops everything and starts over with new fencing
//! tokens once the database has renewed its lease. Attempts that were running are left to the fence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use redrive_core::Moment;
use redrive_core::local_slots::LocalSlots;
use redrive_core::nodes::{NodeStep, look_in, steps};
use redrive_core::queue_entry::{FencingToken, StreamId};
use redrive_core::scheduler::{Action, FlowKey, Input};
use redrive_store::nodes::{NodeLease as Tenure, NodeList};
use redrive_store::{Arrivals, Store, StoreError, TakenShard};
use tokio::time::Instant;

use super::super::perform::Answered;
use super::super::queue::Queue;
use super::super::{Inner, observe};
use super::Conducting;

/// How many shards are taken at the same time: each needs a connection.
const TAKEN_AT_ONCE: usize = 4;
/// When to look again after a look that failed, or that could do nothing because our own lease ran out.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The result of a look at the other processes.
#[derive(Debug, Default)]
pub(in crate::engine) struct PeerLook {
    taken: Vec<TakenShard>,
    dropped: Vec<FencingToken>,
    to_give: Vec<FencingToken>,
    /// When to look again.
    again: Duration,
}

/// What the loop knows of the other processes.
#[derive(Debug)]
pub(super) struct ShardSharing {
    pub(super) tenure: Arc<Tenure>,
    /// The free slots that publishers of this process may use.
    pub(super) local_slots: Arc<LocalSlots>,
    /// Whether a look is under way.
    is_visiting: bool,
    look_at: Instant,
    /// Streams with arrivals during a look: perhaps of a shard that was just taken.
    heard: BTreeMap<StreamId, (String, String)>,
}

impl Drop for ShardSharing {
    /// However the loop ended: this process owns no shard any more, and the others wait for one lease at most.
    fn drop(&mut self) {
        self.local_slots.close();
        self.tenure.resign();
    }
}

impl ShardSharing {
    /// Joins the other processes, if the store is shared.
    pub(super) async fn join(
        store: &Arc<dyn Store>,
        queues: &[Arc<Queue>],
    ) -> Result<Option<Self>, StoreError> {
        let Some(tenure) = store.node_lease() else { return Ok(None) };
        store.enlist(true).await?;
        let (look_at, heard) = (Instant::now(), BTreeMap::new());
        let names = queues.iter().map(|queue| queue.plan.name.clone());
        let local_slots = Arc::new(LocalSlots::new(names, store.shards()));
        Ok(Some(Self { tenure, local_slots, is_visiting: false, look_at, heard }))
    }

    /// Tells publishers in this process which events could run here at once.
    pub(super) fn tell_publishers(&self, inner: &Inner) {
        let _ = inner.local_slots.set(self.local_slots.clone());
    }

    /// Returns when it is time to look at the other processes.
    pub(super) async fn stirred(this: Option<&Self>) {
        match this {
            Some(sharing) if !sharing.is_visiting => tokio::select! {
                () = tokio::time::sleep_until(sharing.look_at) => {}
                () = sharing.tenure.stirred() => {}
            },
            _ => std::future::pending().await,
        }
    }

    /// Records arrivals while a look is under way.
    pub(super) fn hear(&mut self, arrivals: &Arrivals) {
        if !self.is_visiting {
            return;
        }
        for entry in &arrivals.entries {
            let named = || (entry.event.queue.clone(), entry.event.tenant.clone());
            self.heard.entry(entry.stream).or_insert_with(named);
        }
        self.hear_streams(&arrivals.streams);
    }

    pub(super) fn hear_streams(&mut self, streams: &[(StreamId, String, String)]) {
        if self.is_visiting {
            let named =
                |(id, queue, tenant): &(StreamId, String, String)| (*id, (queue.clone(), tenant.clone()));
            self.heard.extend(streams.iter().map(named));
        }
    }
}

/// Looks at the other processes, and takes the shards that fall to this one.
pub(super) async fn visit(
    store: Arc<dyn Store>,
    tenure: Arc<Tenure>,
    held: Vec<FencingToken>,
    now: Moment,
) -> PeerLook {
    let lease = tenure.lease();
    let visiting = look_and_take(store, tenure, held, now);
    // A look that hangs is not waited for: the next one finds a shard that was taken meanwhile.
    match tokio::time::timeout(lease, visiting).await {
        Ok(Ok(visit)) => visit,
        Ok(Err(error)) => {
            observe::in_trouble(&error);
            PeerLook { again: LOOK_AGAIN, ..PeerLook::default() }
        }
        Err(_) => PeerLook { again: LOOK_AGAIN, ..PeerLook::default() },
    }
}

async fn look_and_take(
    store: Arc<dyn Store>,
    tenure: Arc<Tenure>,
    held: Vec<FencingToken>,
    now: Moment,
) -> Result<PeerLook, StoreError> {
    let Some(nodes) = store.nodes().await? else { return Ok(PeerLook::default()) };
    let NodeList { me, shards, .. } = &nodes;
    let mut visit = PeerLook { again: look_in(nodes.leases_of_others()), ..PeerLook::default() };
    let mut to_take = Vec::new();
    for step in steps(*me, &nodes.sharing(), shards, &held) {
        match step {
            NodeStep::Drop(token) => visit.dropped.push(token),
            NodeStep::Give(token) => visit.to_give.push(token),
            NodeStep::Take(shard) => to_take.push(shard),
        }
    }
    if !to_take.is_empty() && tenure.is_over() {
        visit.again = LOOK_AGAIN;
        return Ok(visit);
    }
    let take = |shard| store.take(shard, now);
    let mut takes = stream::iter(to_take.into_iter().map(take)).buffer_unordered(TAKEN_AT_ONCE);
    while let Some(taken) = takes.next().await {
        match taken {
            Ok(taken) => visit.taken.push(taken),
            // Another process was quicker.
            Err(StoreError::NotOwner { .. }) => {}
            Err(error) => {
                observe::in_trouble(&error);
                visit.again = LOOK_AGAIN;
            }
        }
    }
    Ok(visit)
}

impl Conducting {
    /// Takes in the result of the first look, before any attempt starts.
    pub(super) async fn visit_first(&mut self, now: Moment) {
        let Some(sharing) = &self.sharing else { return };
        let first = visit(self.context.store.clone(), sharing.tenure.clone(), Vec::new(), now).await;
        self.visited(first, now);
    }

    /// Starts a look, unless one is under way or the loop stops.
    pub(super) fn look_around(&mut self, now: Moment) {
        let Some(sharing) = self.sharing.as_mut().filter(|sharing| !sharing.is_visiting) else { return };
        if self.stopping.is_some() {
            sharing.look_at = Instant::now() + LOOK_AGAIN;
            return;
        }
        sharing.is_visiting = true;
        let (store, tenure) = (self.context.store.clone(), sharing.tenure.clone());
        let visiting = visit(store, tenure, self.tokens.clone(), now);
        self.answers.push(async move { Answered::Visited(visiting.await) }.boxed());
    }

    /// Feeds the result of a look to the scheduler.
    pub(super) fn visited(&mut self, visit: PeerLook, now: Moment) {
        let Some(sharing) = &mut self.sharing else { return };
        sharing.is_visiting = false;
        sharing.look_at = Instant::now() + visit.again;
        let heard = std::mem::take(&mut sharing.heard);
        for token in visit.dropped {
            self.scheduler.handle(Input::Lost(token), now, &mut self.random);
        }
        if visit.taken.is_empty() && visit.to_give.is_empty() {
            return;
        }
        if self.stopping.is_some() {
            // The shards just taken are handed back, as clean as they were found.
            let found = visit.taken.iter().map(|taken| (taken.token, !taken.unclean)).collect::<Vec<_>>();
            found.into_iter().for_each(|(token, clean)| self.hand_back(token, clean));
            return;
        }
        for taken in visit.taken {
            if taken.unclean {
                observe::taken_over();
            }
            self.own(taken, now);
        }
        self.count_shards();
        let heard = heard.into_iter().map(|(id, (queue, tenant))| (id, queue, tenant)).collect();
        self.scheduler.handle(Input::Missed(heard), now, &mut self.random);
        for token in visit.to_give {
            self.scheduler.handle(Input::GiveBack(token), now, &mut self.random);
        }
    }

    /// Tells the scheduler its lease. When the lease has run out, this process owns nothing any more.
    pub(super) fn look_at_lease(&mut self, now: Moment) {
        let Some(sharing) = &self.sharing else { return };
        let term = sharing.tenure.term(now);
        self.scheduler.set_term(Some(term));
        if term.is_over(now) {
            for token in &self.tokens {
                self.scheduler.handle(Input::Lost(*token), now, &mut self.random);
            }
        }
    }

    /// When the lease runs out, if a shard is owned under it.
    pub(super) fn lease_ends(&self, now: Moment) -> Option<Instant> {
        let sharing = self.sharing.as_ref().filter(|_| !self.tokens.is_empty())?;
        Some(Instant::now() + sharing.tenure.term(now).left(now))
    }

    /// Performs the actions about shards, and leaves the others. Publishers learn the free slots.
    pub(super) fn part_with(&mut self, actions: &mut Vec<Action>, now: Moment) {
        let Some(sharing) = &self.sharing else { return };
        sharing.local_slots.update(&self.scheduler, now);
        let is_about_shards = |action: &mut Action| matches!(action, Action::Lost(_) | Action::Given { .. });
        for action in actions.extract_if(.., is_about_shards).collect::<Vec<_>>() {
            match action {
                Action::Lost(token) => {
                    observe::lost(token.shard);
                    self.tokens.retain(|own| *own != token);
                    self.soon();
                }
                Action::Given { token, clean } => {
                    self.tokens.retain(|own| *own != token);
                    let blocked = self.context.is_blocked();
                    self.hand_back(token, clean && !blocked);
                }
                _ => {}
            }
            self.count_shards();
        }
    }

    fn count_shards(&self) {
        if let Some(sharing) = &self.sharing {
            observe::owned(sharing.tenure.name(), self.tokens.len());
        }
    }

    /// Hands all shards back at the end of the loop: as clean if no attempt is running and the crash guard was
    /// inactive.
    pub(super) async fn give_all_back(&mut self, is_clean: bool) {
        let store = self.context.store.clone();
        let clean = is_clean && !self.context.is_blocked() && !self.scheduler.is_careful();
        let tokens = std::mem::take(&mut self.tokens);
        let Some(sharing) = &self.sharing else {
            for token in tokens {
                if is_clean {
                    // No process died: no event is suspect.
                    let _ = store.note(token, Vec::new()).await;
                }
                if clean {
                    let _ = store.release(token).await;
                }
            }
            return;
        };
        let give = |token| {
            let store = store.clone();
            async move {
                if is_clean && !clean {
                    let _ = store.note(token, Vec::new()).await;
                }
                let _ = if clean { store.release(token) } else { store.abandon(token) }.await;
            }
        };
        let giving = async {
            stream::iter(tokens.into_iter().map(give))
                .for_each_concurrent(TAKEN_AT_ONCE, |given| given)
                .await;
            let _ = store.enlist(false).await;
        };
        // An unreachable database is not waited for: the lease runs out by itself.
        let _ = tokio::time::timeout(sharing.tenure.lease(), giving).await;
    }

    pub(super) fn hand_back(&mut self, token: FencingToken, clean: bool) {
        let store = &self.context.store;
        let giving = if clean { store.release(token) } else { store.abandon(token) };
        self.answers.push(async move { Answered::Gave(giving.await) }.boxed());
    }

    /// A shard was handed back. If that failed, the table still names this process, and the next look finds it.
    pub(super) fn gave(&mut self, gave: Result<(), StoreError>) {
        if let Err(error) = gave
            && error.is_transient()
        {
            observe::in_trouble(&error);
        }
        self.soon();
    }

    /// Starts another look soon.
    pub(super) fn soon(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            sharing.look_at = sharing.look_at.min(Instant::now() + LOOK_AGAIN);
        }
    }

    /// The fencing token that a load ran under, if this process still owns the shard.
    pub(super) fn grant_of(&self, key: FlowKey) -> Option<FencingToken> {
        self.tokens.iter().find(|token| (token.shard, token.epoch) == (key.shard, key.epoch)).copied()
    }

    /// Interprets a failed answer. In a shared store, shards come and go.
    ///
    /// # Errors
    /// If the store can no longer be trusted.
    pub(super) fn excuse(&mut self, answered: Answered) -> Result<Vec<Input>, StoreError> {
        let is_shared = self.sharing.is_some();
        let passes = StoreError::is_transient;
        let is_lost = |error: &StoreError| is_shared && matches!(error, StoreError::NotOwner { .. });
        Ok(match answered {
            Answered::Loaded(load, Err(error)) if is_lost(&error) => {
                self.grant_of(load.flow).map(Input::Lost).into_iter().collect()
            }
            Answered::Noted(note, Err(error)) if is_lost(&error) => vec![Input::Lost(note.token)],
            Answered::Loaded(load, Err(error)) if passes(&error) => vec![Input::LoadFailed(load)],
            Answered::Noted(note, Err(error)) if passes(&error) => vec![Input::NoteFailed(note)],
            Answered::Settled(settles, Err(error)) if passes(&error) => {
                observe::in_trouble(&error);
                let unknown = !error.is_definite();
                let failed = |(token, seq, rev)| Input::SettleFailed { token, seq, rev, unknown };
                settles.into_iter().map(failed).collect()
            }
            Answered::Loaded(_, Err(error))
            | Answered::Noted(_, Err(error))
            | Answered::Ruled(Err(error))
            | Answered::Settled(_, Err(error)) => return Err(error),
            Answered::Kept(Err(error @ (StoreError::Unknown { .. } | StoreError::Poisoned { .. }))) => {
                return Err(error);
            }
            // Whatever other error it reports, the next call will report it again.
            _ => Vec::new(),
        })
    }
}
