//! Sharing the shards of a store with other processes.
//!
//! Nobody leads. Each process looks now and then who lives and who owns what, works out by itself what falls to it
//! ([`steps`]), takes that, and gives back what it has too much of. It looks when somebody says that something changed,
//! when the first lease of another owner may be over, and twice a second anyhow.
//!
//! What it owns it owns until its lease is over by its own clock. That is looked at before anything is dispatched, so
//! that a process that was stopped for a while finds out first; it then drops everything and begins anew, with other
//! grants, once the database has heard of it. What was under way is left to the fence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use redrive_core::Moment;
use redrive_core::entry::{Grant, StreamId};
use redrive_core::near::Near;
use redrive_core::nodes::{Step, look_in, steps};
use redrive_core::scheduler::{Action, FlowKey, Input};
use redrive_store::nodes::{Nodes, Tenure};
use redrive_store::{Arrivals, Store, StoreError, Taken};
use tokio::time::Instant;

use super::super::perform::Answered;
use super::super::queue::Queue;
use super::super::{Inner, observe};
use super::Conducting;

/// How many shards are taken at the same time: each wants a connection.
const TAKEN_AT_ONCE: usize = 4;
/// When to look again after a look that failed, or that found nothing to be done because our own lease is over.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What came of a look around.
#[derive(Debug, Default)]
pub(in crate::engine) struct Visit {
    taken: Vec<Taken>,
    dropped: Vec<Grant>,
    to_give: Vec<Grant>,
    /// When to look again.
    again: Duration,
}

/// What the loop knows of those that share its store.
#[derive(Debug)]
pub(super) struct Sharing {
    pub(super) tenure: Arc<Tenure>,
    /// What publishers in this process may keep to it.
    pub(super) near: Arc<Near>,
    /// Whether somebody looks around.
    is_visiting: bool,
    look_at: Instant,
    /// Streams in which something arrived while somebody looked around: perhaps in a shard that was just taken.
    heard: BTreeMap<StreamId, (String, String)>,
}

impl Drop for Sharing {
    /// However the loop ended: nobody owns anything here any more, and the others are not to wait for longer than a
    /// lease.
    fn drop(&mut self) {
        self.near.close();
        self.tenure.resign();
    }
}

impl Sharing {
    /// Joins those that share the store, if it is one that is shared.
    pub(super) async fn join(
        store: &Arc<dyn Store>,
        queues: &[Arc<Queue>],
    ) -> Result<Option<Self>, StoreError> {
        let Some(tenure) = store.tenure() else { return Ok(None) };
        store.enlist(true).await?;
        let (look_at, heard) = (Instant::now(), BTreeMap::new());
        let names = queues.iter().map(|queue| queue.plan.name.clone());
        let near = Arc::new(Near::new(names, store.shards()));
        Ok(Some(Self { tenure, near, is_visiting: false, look_at, heard }))
    }

    /// Lets whoever publishes here know what could run here at once.
    pub(super) fn tell_publishers(&self, inner: &Inner) {
        let _ = inner.near.set(self.near.clone());
    }

    /// Returns when it is time to look around.
    pub(super) async fn stirred(this: Option<&Self>) {
        match this {
            Some(sharing) if !sharing.is_visiting => tokio::select! {
                () = tokio::time::sleep_until(sharing.look_at) => {}
                () = sharing.tenure.stirred() => {}
            },
            _ => std::future::pending().await,
        }
    }

    /// Takes note of what arrived, while somebody looks around.
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

/// Looks around, and takes what falls to this process.
pub(super) async fn visit(
    store: Arc<dyn Store>,
    tenure: Arc<Tenure>,
    held: Vec<Grant>,
    now: Moment,
) -> Visit {
    let lease = tenure.lease();
    let visiting = look_and_take(store, tenure, held, now);
    // What hangs is not waited for: a shard that was taken meanwhile is found by the next look.
    match tokio::time::timeout(lease, visiting).await {
        Ok(Ok(visit)) => visit,
        Ok(Err(error)) => {
            observe::in_trouble(&error);
            Visit { again: LOOK_AGAIN, ..Visit::default() }
        }
        Err(_) => Visit { again: LOOK_AGAIN, ..Visit::default() },
    }
}

async fn look_and_take(
    store: Arc<dyn Store>,
    tenure: Arc<Tenure>,
    held: Vec<Grant>,
    now: Moment,
) -> Result<Visit, StoreError> {
    let Some(nodes) = store.nodes().await? else { return Ok(Visit::default()) };
    let Nodes { me, shards, .. } = &nodes;
    let mut visit = Visit { again: look_in(nodes.leases_of_others()), ..Visit::default() };
    let mut to_take = Vec::new();
    for step in steps(*me, &nodes.sharing(), shards, &held) {
        match step {
            Step::Drop(grant) => visit.dropped.push(grant),
            Step::Give(grant) => visit.to_give.push(grant),
            Step::Take(shard) => to_take.push(shard),
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
            // Somebody else was quicker.
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
    /// Takes in what came of the first look around, before anything runs.
    pub(super) async fn visit_first(&mut self, now: Moment) {
        let Some(sharing) = &self.sharing else { return };
        let first = visit(self.context.store.clone(), sharing.tenure.clone(), Vec::new(), now).await;
        self.visited(first, now);
    }

    /// Looks around, unless somebody does, or it stops.
    pub(super) fn look_around(&mut self, now: Moment) {
        let Some(sharing) = self.sharing.as_mut().filter(|sharing| !sharing.is_visiting) else { return };
        if self.stopping.is_some() {
            sharing.look_at = Instant::now() + LOOK_AGAIN;
            return;
        }
        sharing.is_visiting = true;
        let (store, tenure) = (self.context.store.clone(), sharing.tenure.clone());
        let visiting = visit(store, tenure, self.grants.clone(), now);
        self.answers.push(async move { Answered::Visited(visiting.await) }.boxed());
    }

    /// Hands in what came of a look around.
    pub(super) fn visited(&mut self, visit: Visit, now: Moment) {
        let Some(sharing) = &mut self.sharing else { return };
        sharing.is_visiting = false;
        sharing.look_at = Instant::now() + visit.again;
        let heard = std::mem::take(&mut sharing.heard);
        for grant in visit.dropped {
            self.scheduler.handle(Input::Lost(grant), now, &mut self.dice);
        }
        if visit.taken.is_empty() && visit.to_give.is_empty() {
            return;
        }
        if self.stopping.is_some() {
            // What was taken is given back, as it was found.
            let found = visit.taken.iter().map(|taken| (taken.grant, !taken.unclean)).collect::<Vec<_>>();
            found.into_iter().for_each(|(grant, clean)| self.hand_back(grant, clean));
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
        self.scheduler.handle(Input::Missed(heard), now, &mut self.dice);
        for grant in visit.to_give {
            self.scheduler.handle(Input::GiveBack(grant), now, &mut self.dice);
        }
    }

    /// Tells the scheduler under which lease it works. When that is over, nothing is ours any more.
    pub(super) fn look_at_lease(&mut self, now: Moment) {
        let Some(sharing) = &self.sharing else { return };
        let term = sharing.tenure.term(now);
        self.scheduler.set_term(Some(term));
        if term.is_over(now) {
            for grant in &self.grants {
                self.scheduler.handle(Input::Lost(*grant), now, &mut self.dice);
            }
        }
    }

    /// When the lease is over, where something is owned under it.
    pub(super) fn lease_ends(&self, now: Moment) -> Option<Instant> {
        let sharing = self.sharing.as_ref().filter(|_| !self.grants.is_empty())?;
        Some(Instant::now() + sharing.tenure.term(now).left(now))
    }

    /// Does what is to be done about shards, and leaves the other actions. Publishers hear what is free now.
    pub(super) fn part_with(&mut self, actions: &mut Vec<Action>, now: Moment) {
        let Some(sharing) = &self.sharing else { return };
        sharing.near.update(&self.scheduler, now);
        let is_about_shards = |action: &mut Action| matches!(action, Action::Lost(_) | Action::Given { .. });
        for action in actions.extract_if(.., is_about_shards).collect::<Vec<_>>() {
            match action {
                Action::Lost(grant) => {
                    observe::lost(grant.shard);
                    self.grants.retain(|own| *own != grant);
                    self.soon();
                }
                Action::Given { grant, clean } => {
                    self.grants.retain(|own| *own != grant);
                    let blocked = self.context.is_blocked();
                    self.hand_back(grant, clean && !blocked);
                }
                _ => {}
            }
            self.count_shards();
        }
    }

    fn count_shards(&self) {
        if let Some(sharing) = &self.sharing {
            observe::owned(sharing.tenure.name(), self.grants.len());
        }
    }

    /// Gives everything back at the end of the loop: as clean where nothing is left under way and nobody was careful.
    pub(super) async fn give_all_back(&mut self, is_clean: bool) {
        let store = self.context.store.clone();
        let clean = is_clean && !self.context.is_blocked() && !self.scheduler.is_careful();
        let grants = std::mem::take(&mut self.grants);
        let Some(sharing) = &self.sharing else {
            for grant in grants {
                if is_clean {
                    // Nothing died: nobody is suspect.
                    let _ = store.note(grant, Vec::new()).await;
                }
                if clean {
                    let _ = store.release(grant).await;
                }
            }
            return;
        };
        let give = |grant| {
            let store = store.clone();
            async move {
                if is_clean && !clean {
                    let _ = store.note(grant, Vec::new()).await;
                }
                let _ = if clean { store.release(grant) } else { store.abandon(grant) }.await;
            }
        };
        let giving = async {
            stream::iter(grants.into_iter().map(give))
                .for_each_concurrent(TAKEN_AT_ONCE, |given| given)
                .await;
            let _ = store.enlist(false).await;
        };
        // A database that cannot be reached is not waited for: the lease runs out by itself.
        let _ = tokio::time::timeout(sharing.tenure.lease(), giving).await;
    }

    fn hand_back(&mut self, grant: Grant, clean: bool) {
        let store = &self.context.store;
        let giving = if clean { store.release(grant) } else { store.abandon(grant) };
        self.answers.push(async move { Answered::Gave(giving.await) }.boxed());
    }

    /// A shard was given back. Where it could not be, it is ours by the table, and the next look finds it.
    pub(super) fn gave(&mut self, gave: Result<(), StoreError>) {
        if let Err(error) = gave
            && error.is_transient()
        {
            observe::in_trouble(&error);
        }
        self.soon();
    }

    /// Has somebody look around soon.
    pub(super) fn soon(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            sharing.look_at = sharing.look_at.min(Instant::now() + LOOK_AGAIN);
        }
    }

    /// The grant that a load was made under, if the shard is still ours.
    pub(super) fn grant_of(&self, key: FlowKey) -> Option<Grant> {
        self.grants.iter().find(|grant| (grant.shard, grant.epoch) == (key.shard, key.epoch)).copied()
    }

    /// What a failed answer means. Where others share the store, shards come and go.
    ///
    /// # Errors
    /// Where the store is not to be trusted any more.
    pub(super) fn excuse(&mut self, answered: Answered) -> Result<Vec<Input>, StoreError> {
        let is_shared = self.sharing.is_some();
        let passes = StoreError::is_transient;
        let is_lost = |error: &StoreError| is_shared && matches!(error, StoreError::NotOwner { .. });
        Ok(match answered {
            Answered::Loaded(key, Err(error)) if is_lost(&error) => {
                self.grant_of(key).map(Input::Lost).into_iter().collect()
            }
            Answered::Noted(grant, Err(error)) if is_lost(&error) => vec![Input::Lost(grant)],
            Answered::Loaded(key, Err(error)) if passes(&error) => vec![Input::LoadFailed(key)],
            Answered::Noted(grant, Err(error)) if passes(&error) => vec![Input::NoteFailed(grant)],
            Answered::Settled(settles, Err(error)) if passes(&error) => {
                observe::in_trouble(&error);
                let unknown = !error.is_definite();
                let failed = |(grant, seq, rev)| Input::SettleFailed { grant, seq, rev, unknown };
                settles.into_iter().map(failed).collect()
            }
            Answered::Loaded(_, Err(error))
            | Answered::Noted(_, Err(error))
            | Answered::Ruled(Err(error))
            | Answered::Settled(_, Err(error)) => return Err(error),
            Answered::Kept(Err(error @ (StoreError::Unknown { .. } | StoreError::Poisoned { .. }))) => {
                return Err(error);
            }
            // Whatever else it says, the next one will say it again.
            _ => Vec::new(),
        })
    }
}
