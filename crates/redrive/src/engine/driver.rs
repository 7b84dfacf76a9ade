//! The loop around the scheduler: feeds it inputs and performs its actions.
//!
//! One task owns the scheduler, the running attempts and the pending answers of the store. It handles arrivals before
//! the store's answers, because a store reports them in that order and the scheduler relies on it.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redrive_core::queue_entry::{FencingToken, QueueEntry, SettleResult};
use redrive_core::scheduler::{Input, Scheduler};
use redrive_core::triage::ActiveRules;
use redrive_core::{Moment, SeededRandom};
use redrive_store::{Arrivals, DeclaredBy, Store, StoreError, TakenShard};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};

use super::context::Context;
use super::queue::Queue;
use super::{Inner, Redrive, StartError, job_runner, lease};
use control::{Command, DriverHandle};
use missed_arrivals::{MissedArrivals, watch_store};
use perform::{AbortOnDrop, Answered, Attempted, Ended, perform, read_rules};

pub(in crate::engine) mod attempt_batch;
pub(in crate::engine) mod control;
pub(in crate::engine) mod local_slots;
pub(in crate::engine) mod missed_arrivals;
pub(in crate::engine) mod perform;
mod shutdown;
pub(in crate::engine) mod wake;

mod sharing;
mod stalls;

pub(super) use sharing::PeerLook;

use sharing::ShardSharing;
use stalls::Stalls;

/// How often, and how many times, to check whether a process that was opening the file has opened it.
const OPENING_LOOK: Duration = Duration::from_millis(20);
const OPENING_LOOKS: u32 = 25;
/// How many batches of arrivals wait at most; the loop loads the rest from the store instead.
const ARRIVALS_MAX: usize = 64;
/// If so many dedupe records were deleted, the next slice is due at once.
const FORGET_AGAIN: usize = 500;
/// How often expired dedupe records are deleted, and the clock is compared with the time of day.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// Takes the shards and starts the loop.
pub(super) async fn start(redrive: &Redrive) -> Result<(), StartError> {
    let inner = &*redrive.0;
    if inner.starting.swap(true, Ordering::AcqRel) {
        let is_over = inner.driver.get().is_some_and(DriverHandle::is_over);
        return Err(if is_over { StartError::Store(StoreError::Closed) } else { StartError::Twice });
    }
    let started = conduct(inner).await;
    if started.is_err() {
        inner.starting.store(false, Ordering::Release);
    }
    started
}

/// Takes a shard. A process that opens the file holds its lock for a moment without naming an owner: two programs that
/// start together must not take each other for the owner.
async fn take(store: &dyn Store, shard: u32, now: Moment) -> Result<TakenShard, StoreError> {
    for _ in 0..OPENING_LOOKS {
        match store.take(shard, now).await {
            Err(StoreError::NotOwner { pid: None, .. }) => tokio::time::sleep(OPENING_LOOK).await,
            taken => return taken,
        }
    }
    store.take(shard, now).await
}

async fn conduct(inner: &Inner) -> Result<(), StartError> {
    let mut scheduler = Scheduler::new();
    if let Some(stall_after) = inner.stall_after {
        scheduler.set_stall_after(stall_after);
    }
    // Queues without a handler here are left alone.
    let queues = inner.queues.to_run();
    for queue in &queues {
        scheduler.add_queue(queue.plan.clone());
    }
    let (tell, arrivals) = mpsc::channel(ARRIVALS_MAX);
    let missed = Arc::new(MissedArrivals::default());
    watch_store(&inner.store, tell, missed.clone());

    let now = inner.clock.now();
    let mut random = SeededRandom::new(inner.seed.unwrap_or_else(|| RandomState::new().hash_one(now)));
    // Before any shard is taken, so that no attempt starts that the rules forbid.
    scheduler.handle(Input::Ruled(inner.store.controls().await?), now, &mut random);
    let sharing = ShardSharing::join(&inner.store, &queues).await?;
    let mut owned = Vec::new();
    if sharing.is_none() {
        for shard in 0..inner.store.shards() {
            owned.push(take(&*inner.store, shard, now).await?);
        }
    }
    for spec in inner.queues.specs() {
        inner.store.declare(spec, DeclaredBy::Runner).await?;
    }
    let mut pulled = inner.queues.to_pull();
    for queue in &queues {
        if lease::has_leases(&*inner.store, queue).await? {
            pulled.push(queue.clone());
        }
    }
    let (commands, orders) = mpsc::unbounded_channel();
    let (fail, failed) = watch::channel(None);
    if inner.driver.set(DriverHandle { commands, failed }).is_err() {
        return Err(StartError::Twice);
    }
    sharing.iter().for_each(|sharing| sharing.tell_publishers(inner));
    let mut conducting = Conducting {
        context: Arc::new(Context {
            store: inner.store.clone(),
            tenure: inner.store.node_lease(),
            clock: inner.clock.clone(),
            queues,
            all: inner.queues.clone(),
            damaged: Mutex::default(),
        }),
        scheduler,
        random,
        tokens: Vec::new(),
        sharing,
        arrivals,
        missed,
        clerk: AbortOnDrop(tokio::spawn(job_runner::work(
            inner.store.clone(),
            inner.clock.clone(),
            inner.clerk.clone(),
        ))),
        pulled,
        attempts: JoinSet::new(),
        answers: FuturesUnordered::new(),
        orders,
        idle: Vec::new(),
        heeding: Vec::new(),
        is_asking: false,
        is_asked_again: false,
        stopping: None,
        stalls: Stalls::new(inner.stalled.clone()),
        fail,
    };
    for taken in owned {
        conducting.own(taken, now);
    }
    conducting.visit_first(now).await;
    tokio::spawn(conducting.run());
    Ok(())
}

/// The loop's state.
struct Conducting {
    context: Arc<Context>,
    scheduler: Scheduler,
    random: SeededRandom,
    tokens: Vec<FencingToken>,
    /// The other processes, if the store is shared.
    sharing: Option<ShardSharing>,
    arrivals: mpsc::Receiver<Arrivals>,
    missed: Arc<MissedArrivals>,
    /// Runs until this is dropped.
    clerk: AbortOnDrop<()>,
    /// Queues whose leases this process watches: queues that are pulled from, and queues that were.
    pulled: Vec<Arc<Queue>>,
    attempts: JoinSet<Attempted>,
    answers: FuturesUnordered<futures_util::future::BoxFuture<'static, Answered>>,
    orders: mpsc::UnboundedReceiver<Command>,
    idle: Vec<oneshot::Sender<()>>,
    /// Callers that wait until the present rules are followed.
    heeding: Vec<oneshot::Sender<()>>,
    /// Whether the rules are being read, and must be read once more.
    is_asking: bool,
    is_asked_again: bool,
    stopping: Option<Stop>,
    stalls: Stalls,
    fail: watch::Sender<Option<StoreError>>,
}

/// A stop, perhaps requested several times.
struct Stop {
    /// When the grace ends: the earliest of all requests.
    until: tokio::time::Instant,
    /// Callers that wait for the result.
    waiters: Vec<oneshot::Sender<bool>>,
}

/// What woke the loop.
enum Woken {
    Arrived(Arrivals),
    Attempted(Result<Attempted, JoinError>),
    Answered(Answered),
    Ordered(Option<Command>),
    /// Another process may own other shards than before.
    Stirred,
    Time,
    Housekeeping,
}

impl Conducting {
    /// This process owns a shard.
    fn own(&mut self, taken: TakenShard, now: Moment) {
        // Queues that workers lease from have no handler, and need none. Tenants have a stream each.
        let names: BTreeSet<&str> = taken.streams.iter().map(|(_, name, _)| name.as_str()).collect();
        let (queues, pulled) = (&self.context.queues, self.context.all.to_pull());
        for name in names {
            if !queues.iter().chain(&pulled).any(|queue| queue.name() == name) {
                super::observe::unhandled(name);
            }
        }
        self.tokens.retain(|token| token.shard != taken.token.shard);
        self.tokens.push(taken.token);
        self.scheduler.handle(Input::Own(taken), now, &mut self.random);
    }

    async fn run(mut self) {
        let mut actions = Vec::new();
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        housekeeping.tick().await;
        loop {
            let now = self.context.clock.now();
            self.scheduler.set_origin(self.context.clock.origin());
            self.look_at_lease(now);
            self.scheduler.act(now, &mut actions);
            self.recover_stalled(&mut actions, now);
            self.part_with(&mut actions, now);
            if let Err(error) = perform(&self.context, &mut actions, &mut self.attempts, &self.answers) {
                return self.end(Some(error)).await;
            }
            if self.scheduler.is_idle(now) {
                for waiter in self.idle.drain(..) {
                    let _ = waiter.send(());
                }
            }
            if let Some(stop) = &self.stopping
                && (self.scheduler.is_quiet() || tokio::time::Instant::now() >= stop.until)
            {
                return self.end(None).await;
            }
            let woken = self.wait(&mut housekeeping).await;
            if let Err(error) = self.take_in(woken) {
                return self.end(Some(error)).await;
            }
        }
    }

    async fn wait(&mut self, housekeeping: &mut tokio::time::Interval) -> Woken {
        let wake = self.scheduler.next_wake().map(|at| self.context.clock.instant(at));
        let stop = self.stopping.as_ref().map(|stop| stop.until);
        let lease = self.lease_ends(self.context.clock.now());
        let wake = [wake, stop, lease].into_iter().flatten().min();
        let time = async {
            match wake {
                Some(wake) => tokio::time::sleep_until(wake).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(arrived) = self.arrivals.recv() => Woken::Arrived(arrived),
            Some(ended) = self.attempts.join_next() => Woken::Attempted(ended),
            Some(answered) = self.answers.next() => Woken::Answered(answered),
            command = self.orders.recv() => Woken::Ordered(command),
            () = ShardSharing::stirred(self.sharing.as_ref()) => Woken::Stirred,
            () = time => Woken::Time,
            _ = housekeeping.tick() => Woken::Housekeeping,
        }
    }

    /// Takes in what woke the loop, and everything else that is pending.
    fn take_in(&mut self, woken: Woken) -> Result<(), StoreError> {
        let now = self.context.clock.now();
        let (mut ended, mut answered) = (Vec::new(), Vec::new());
        self.sharing.iter().for_each(|sharing| sharing.local_slots.hear());
        match woken {
            Woken::Arrived(arrivals) => self.arrived(arrivals, now),
            Woken::Attempted(attempted) => self.attempted(attempted, &mut ended),
            Woken::Answered(answer) => answered.push(answer),
            Woken::Ordered(Some(command)) => self.ordered(command),
            // Every handle is gone: stop, as if requested.
            Woken::Ordered(None) => self.ordered(Command::Stop(Duration::ZERO, oneshot::channel().0)),
            Woken::Housekeeping => {
                self.keep_house(now);
                self.watch_shards(now)?;
            }
            Woken::Stirred => self.look_around(now),
            Woken::Time => {}
        }
        while let Some(attempted) = self.attempts.try_join_next() {
            self.attempted(attempted, &mut ended);
        }
        while let Some(Some(answer)) = self.answers.next().now_or_never() {
            answered.push(answer);
        }
        // After the answers were fetched, so that every arrival reported before them is here.
        while let Ok(arrivals) = self.arrivals.try_recv() {
            self.arrived(arrivals, now);
        }
        if let Some((streams, recall)) = self.missed.take() {
            self.sharing.iter_mut().for_each(|sharing| sharing.hear_streams(&streams));
            self.stalls.hear_streams(&streams);
            if recall {
                self.scheduler.handle(Input::Recall, now, &mut self.random);
            }
            self.scheduler.handle(Input::Missed(streams), now, &mut self.random);
            self.ask_for_rules();
        }
        for (token, seq, rev, ended) in ended {
            self.scheduler.handle(Input::Ended { token, seq, rev, ended }, now, &mut self.random);
        }
        for answer in answered {
            self.answered(answer, now)?;
        }
        Ok(())
    }

    /// Gathers the attempts that ended. Attempts that are still running get a task each.
    fn attempted(&mut self, attempted: Result<Attempted, JoinError>, ended: &mut Vec<Ended>) {
        match attempted {
            Ok(Attempted::One(one)) => ended.extend(one),
            Ok(Attempted::Several(several, going_on)) => {
                ended.extend(several);
                for attempt in going_on {
                    self.attempts.spawn(attempt.map(Attempted::One));
                }
            }
            Err(_) => {}
        }
    }

    fn arrived(&mut self, arrivals: Arrivals, now: Moment) {
        self.sharing.iter_mut().for_each(|sharing| sharing.hear(&arrivals));
        self.stalls.hear(&arrivals);
        let Arrivals { entries, missed, recall, streams, answers } = arrivals;
        // Publishers that wait for the commit go on.
        wake::give_soon(answers);
        if recall {
            self.scheduler.handle(Input::Recall, now, &mut self.random);
            // An event that shares a commit with a command may be held back or reordered by it: the store knows.
            let named =
                |entry: QueueEntry| (entry.stream, entry.event.queue.clone(), entry.event.tenant.clone());
            let named = entries.into_iter().map(named).collect();
            self.scheduler.handle(Input::Missed(named), now, &mut self.random);
        } else {
            self.scheduler.handle(Input::Arrived(entries), now, &mut self.random);
        }
        if missed {
            self.scheduler.handle(Input::Missed(streams), now, &mut self.random);
        }
        if recall || missed {
            self.ask_for_rules();
        }
    }

    /// Reads the rules: this process or another may have changed them.
    fn ask_for_rules(&mut self) {
        if std::mem::replace(&mut self.is_asking, true) {
            self.is_asked_again = true;
            return;
        }
        self.answers.push(read_rules(self.context.store.clone()).boxed());
    }

    /// The present rules. Answers the callers that asked before the rules were read.
    fn ruled(&mut self, controls: ActiveRules, now: Moment) {
        self.is_asking = false;
        if controls.version != self.scheduler.rules_version() {
            self.scheduler.handle(Input::Ruled(controls), now, &mut self.random);
        }
        if std::mem::take(&mut self.is_asked_again) {
            self.ask_for_rules();
            return;
        }
        for waiter in self.heeding.drain(..) {
            let _ = waiter.send(());
        }
    }

    /// Feeds the store's answer to the scheduler. A store that can no longer be trusted ends the loop.
    fn answered(&mut self, answered: Answered, now: Moment) -> Result<(), StoreError> {
        let mut hand_in = |input| self.scheduler.handle(input, now, &mut self.random);
        match answered {
            Answered::Ruled(Ok(controls)) => self.ruled(controls, now),
            Answered::Loaded(load, Ok(loaded)) => hand_in(Input::Loaded(load, loaded)),
            // There may be more to delete: a busy store makes dedupe records faster than one slice a second.
            Answered::Kept(Ok(forgotten)) if forgotten >= FORGET_AGAIN && self.stopping.is_none() => {
                self.keep_house(now);
            }
            Answered::Checked(flow, Ok(loaded)) => hand_in(Input::Checked(flow, loaded)),
            Answered::TakenAgain(taken) => return self.taken_again(taken, now),
            Answered::Noted(note, Ok(())) => hand_in(Input::Noted(note)),
            Answered::Settled(settles, Ok(answers)) => {
                for ((token, seq, rev), settled) in settles.into_iter().zip(answers) {
                    if settled == SettleResult::Fenced {
                        super::observe::fenced();
                    }
                    hand_in(Input::Settled { token, seq, rev, settled });
                }
            }
            Answered::Visited(visit) => self.visited(visit, now),
            Answered::Gave(gave) => self.gave(gave),
            other => {
                for input in self.excuse(other)? {
                    self.scheduler.handle(input, now, &mut self.random);
                }
            }
        }
        Ok(())
    }

    fn ordered(&mut self, command: Command) {
        match command {
            Command::IsRunning(seq, answer) => {
                let _ = answer.send(self.scheduler.is_running(seq));
            }
            Command::Running(answer) => {
                let _ = answer.send(self.scheduler.running().cloned().collect());
            }
            Command::Heed(answer) => {
                self.heeding.push(answer);
                self.ask_for_rules();
            }
            Command::Idle(answer) => self.idle.push(answer),
            Command::Stall(shard) => self.scheduler.stall(shard),
            Command::Stop(grace, answer) => {
                let now = self.context.clock.now();
                self.scheduler.handle(Input::Drain, now, &mut self.random);
                let until = tokio::time::Instant::now() + grace;
                let stop = self.stopping.get_or_insert_with(|| Stop { until, waiters: Vec::new() });
                stop.until = stop.until.min(until);
                stop.waiters.push(answer);
            }
        }
    }

    /// Also detects a store that stopped while there was nothing to load or to settle: a publish may have failed, or a
    /// handler's transaction.
    fn keep_house(&mut self, now: Moment) {
        self.context.clock.follow();
        let forgetting = self.context.store.forget(now);
        self.answers.push(async move { Answered::Kept(forgetting.await) }.boxed());
        for queue in &self.pulled {
            let lapsing = lease::let_lapse(&self.context.store, queue, now);
            self.answers.push(async move { Answered::Kept(lapsing.await) }.boxed());
        }
    }
}
