//! The loop around the scheduler: hands in what happened, asks what to do, does it.
//!
//! One task. It owns the scheduler, the attempts under way and the store's answers that are still to come.
//! Arrivals are handled before the store's answers, because the contract of a store is that it tells them in
//! that order, and the scheduler relies on it.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redrive_core::entry::{Entry, Grant, Settled};
use redrive_core::scheduler::{Ending, Input, Said, Scheduler};
use redrive_core::triage::Controls;
use redrive_core::{Moment, Seeded};
use redrive_store::{Arrivals, By, Store, StoreError, Taken};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};

use super::baton::{Command, Conductor};
use super::context::Context;
use super::giving;
use super::missed::{Missed, watch_store};
use super::perform::{AbortOnDrop, Answered, Attempted, Ended, perform, read_rules};
use super::queue::Queue;
use super::{Inner, Redrive, StartError, clerk, lease};

mod sharing;

pub(super) use sharing::Visit;

use sharing::Sharing;

/// How often, and how many times, to look whether somebody has opened the file who had just begun to.
const OPENING_LOOK: Duration = Duration::from_millis(20);
const OPENING_LOOKS: u32 = 25;
/// How many batches of arrivals wait at most; what is beyond is loaded from the store instead.
const ARRIVALS_MAX: usize = 64;
/// From how many forgotten receipts on the next slice is due at once.
const FORGET_AGAIN: usize = 500;
/// How often old receipts are looked for, and the clock is compared with the time of day.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// Takes the shards and starts the loop.
pub(super) async fn start(redrive: &Redrive) -> Result<(), StartError> {
    let inner = &*redrive.0;
    if inner.starting.swap(true, Ordering::AcqRel) {
        let is_over = inner.conductor.get().is_some_and(Conductor::is_over);
        return Err(if is_over { StartError::Store(StoreError::Closed) } else { StartError::Twice });
    }
    let started = conduct(inner).await;
    if started.is_err() {
        inner.starting.store(false, Ordering::Release);
    }
    started
}

/// Takes a shard. Whoever opens the file has its lock for a moment, and names nobody: two programs that start together
/// must not take each other for the owner.
async fn take(store: &dyn Store, shard: u32, now: Moment) -> Result<Taken, StoreError> {
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
    // Queues without a handler here are left alone.
    let queues = inner.queues.to_run();
    for queue in &queues {
        scheduler.add_queue(queue.plan.clone());
    }
    let (tell, arrivals) = mpsc::channel(ARRIVALS_MAX);
    let missed = Arc::new(Missed::default());
    watch_store(&inner.store, tell, missed.clone());

    let now = inner.clock.now();
    let mut dice = Seeded::new(inner.seed.unwrap_or_else(|| RandomState::new().hash_one(now)));
    // Before anything is taken, so that nothing starts that is not to.
    scheduler.handle(Input::Ruled(inner.store.controls().await?), now, &mut dice);
    let sharing = Sharing::join(&inner.store, &queues).await?;
    let mut owned = Vec::new();
    if sharing.is_none() {
        for shard in 0..inner.store.shards() {
            owned.push(take(&*inner.store, shard, now).await?);
        }
    }
    for spec in inner.queues.specs() {
        inner.store.declare(spec, By::Runner).await?;
    }
    let mut pulled = inner.queues.to_pull();
    for queue in &queues {
        if lease::has_leases(&*inner.store, queue).await? {
            pulled.push(queue.clone());
        }
    }
    let (commands, orders) = mpsc::unbounded_channel();
    let (fail, failed) = watch::channel(None);
    if inner.conductor.set(Conductor { commands, failed }).is_err() {
        return Err(StartError::Twice);
    }
    sharing.iter().for_each(|sharing| sharing.tell_publishers(inner));
    let mut conducting = Conducting {
        context: Arc::new(Context {
            store: inner.store.clone(),
            tenure: inner.store.tenure(),
            clock: inner.clock.clone(),
            queues,
            all: inner.queues.clone(),
            damaged: Mutex::default(),
        }),
        scheduler,
        dice,
        grants: Vec::new(),
        sharing,
        arrivals,
        missed,
        clerk: AbortOnDrop(tokio::spawn(clerk::work(
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
    dice: Seeded,
    grants: Vec<Grant>,
    /// Those that share the store, where it is one that is shared.
    sharing: Option<Sharing>,
    arrivals: mpsc::Receiver<Arrivals>,
    missed: Arc<Missed>,
    /// Works until this is dropped.
    clerk: AbortOnDrop<()>,
    /// Queues whose leases are looked after here: those that are pulled from, and those that were.
    pulled: Vec<Arc<Queue>>,
    attempts: JoinSet<Attempted>,
    answers: FuturesUnordered<futures_util::future::BoxFuture<'static, Answered>>,
    orders: mpsc::UnboundedReceiver<Command>,
    idle: Vec<oneshot::Sender<()>>,
    /// Who waits until the rules are heeded that hold now.
    heeding: Vec<oneshot::Sender<()>>,
    /// Whether the rules are being read, and are to be read once more.
    is_asking: bool,
    is_asked_again: bool,
    stopping: Option<Stop>,
    fail: watch::Sender<Option<StoreError>>,
}

/// A stop that was ordered, perhaps several times.
struct Stop {
    /// When patience ends: the earliest of all.
    until: tokio::time::Instant,
    /// Who wants to know how it went.
    waiters: Vec<oneshot::Sender<bool>>,
}

/// What woke the loop.
enum Woken {
    Arrived(Arrivals),
    Attempted(Result<Attempted, JoinError>),
    Answered(Answered),
    Ordered(Option<Command>),
    /// Somebody else may own other shards than before.
    Stirred,
    Time,
    Housekeeping,
}

impl Conducting {
    /// A shard is ours.
    fn own(&mut self, taken: Taken, now: Moment) {
        // Those that workers fetch from have no handler, and need none. Tenants have a stream each.
        let names: BTreeSet<&str> = taken.streams.iter().map(|(_, name, _)| name.as_str()).collect();
        let (queues, pulled) = (&self.context.queues, self.context.all.to_pull());
        for name in names {
            if !queues.iter().chain(&pulled).any(|queue| queue.name() == name) {
                super::observe::unhandled(name);
            }
        }
        self.grants.retain(|grant| grant.shard != taken.grant.shard);
        self.grants.push(taken.grant);
        self.scheduler.handle(Input::Own(taken), now, &mut self.dice);
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
            () = Sharing::stirred(self.sharing.as_ref()) => Woken::Stirred,
            () = time => Woken::Time,
            _ = housekeeping.tick() => Woken::Housekeeping,
        }
    }

    /// Takes in what woke the loop, and whatever else is there.
    fn take_in(&mut self, woken: Woken) -> Result<(), StoreError> {
        let now = self.context.clock.now();
        let (mut ended, mut answered) = (Vec::new(), Vec::new());
        self.sharing.iter().for_each(|sharing| sharing.near.hear());
        match woken {
            Woken::Arrived(arrivals) => self.arrived(arrivals, now),
            Woken::Attempted(attempted) => self.attempted(attempted, &mut ended),
            Woken::Answered(answer) => answered.push(answer),
            Woken::Ordered(Some(command)) => self.ordered(command),
            // Every handle is gone: stop as if told to.
            Woken::Ordered(None) => self.ordered(Command::Stop(Duration::ZERO, oneshot::channel().0)),
            Woken::Housekeeping => self.keep_house(now),
            Woken::Stirred => self.look_around(now),
            Woken::Time => {}
        }
        while let Some(attempted) = self.attempts.try_join_next() {
            self.attempted(attempted, &mut ended);
        }
        while let Some(Some(answer)) = self.answers.next().now_or_never() {
            answered.push(answer);
        }
        // After the answers were fetched, so that whatever was told before them is here.
        while let Ok(arrivals) = self.arrivals.try_recv() {
            self.arrived(arrivals, now);
        }
        if let Some((streams, recall)) = self.missed.take() {
            self.sharing.iter_mut().for_each(|sharing| sharing.hear_streams(&streams));
            if recall {
                self.scheduler.handle(Input::Recall, now, &mut self.dice);
            }
            self.scheduler.handle(Input::Missed(streams), now, &mut self.dice);
            self.ask_for_rules();
        }
        for (grant, seq, rev, ending) in ended {
            self.scheduler.handle(Input::Ended { grant, seq, rev, ending }, now, &mut self.dice);
        }
        for answer in answered {
            self.answered(answer, now)?;
        }
        Ok(())
    }

    /// Gathers those that ended. Whoever goes on does so in a task of its own.
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
        let Arrivals { entries, missed, recall, streams, answers } = arrivals;
        // Whoever waits for the commit goes on.
        giving::give_soon(answers);
        if recall {
            self.scheduler.handle(Input::Recall, now, &mut self.dice);
            // Who shares a commit with an order may be held back or behind another one by it: the store knows.
            let named = |entry: Entry| (entry.stream, entry.event.queue.clone(), entry.event.tenant.clone());
            let named = entries.into_iter().map(named).collect();
            self.scheduler.handle(Input::Missed(named), now, &mut self.dice);
        } else {
            self.scheduler.handle(Input::Arrived(entries), now, &mut self.dice);
        }
        if missed {
            self.scheduler.handle(Input::Missed(streams), now, &mut self.dice);
        }
        if recall || missed {
            self.ask_for_rules();
        }
    }

    /// Reads the rules: something was ordered, or may have been by another process.
    fn ask_for_rules(&mut self) {
        if std::mem::replace(&mut self.is_asking, true) {
            self.is_asked_again = true;
            return;
        }
        self.answers.push(read_rules(self.context.store.clone()).boxed());
    }

    /// The rules as they are. Whoever asked before they were read is told.
    fn ruled(&mut self, controls: Controls, now: Moment) {
        self.is_asking = false;
        if controls.version != self.scheduler.rules_version() {
            self.scheduler.handle(Input::Ruled(controls), now, &mut self.dice);
        }
        if std::mem::take(&mut self.is_asked_again) {
            self.ask_for_rules();
            return;
        }
        for waiter in self.heeding.drain(..) {
            let _ = waiter.send(());
        }
    }

    /// Hands in what the store answered. A store that is no longer to be trusted ends the loop.
    fn answered(&mut self, answered: Answered, now: Moment) -> Result<(), StoreError> {
        let mut hand_in = |input| self.scheduler.handle(input, now, &mut self.dice);
        match answered {
            Answered::Ruled(Ok(controls)) => self.ruled(controls, now),
            Answered::Loaded(key, Ok(loaded)) => hand_in(Input::Loaded(key, loaded)),
            // There may be more to forget: a busy store makes receipts faster than one slice a second.
            Answered::Kept(Ok(forgotten)) if forgotten >= FORGET_AGAIN && self.stopping.is_none() => {
                self.keep_house(now);
            }
            Answered::Noted(grant, Ok(())) => hand_in(Input::Noted(grant)),
            Answered::Settled(settles, Ok(answers)) => {
                for ((grant, seq, rev), settled) in settles.into_iter().zip(answers) {
                    if settled == Settled::Fenced {
                        super::observe::fenced();
                    }
                    hand_in(Input::Settled { grant, seq, rev, settled });
                }
            }
            Answered::Visited(visit) => self.visited(visit, now),
            Answered::Gave(gave) => self.gave(gave),
            other => {
                for input in self.excuse(other)? {
                    self.scheduler.handle(input, now, &mut self.dice);
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
            Command::Stop(grace, answer) => {
                let now = self.context.clock.now();
                self.scheduler.handle(Input::Drain, now, &mut self.dice);
                let until = tokio::time::Instant::now() + grace;
                let stop = self.stopping.get_or_insert_with(|| Stop { until, waiters: Vec::new() });
                stop.until = stop.until.min(until);
                stop.waiters.push(answer);
            }
        }
    }

    /// Also finds a store that stopped while there was nothing to load or to settle: a publish may have failed,
    /// or the transaction of a handler.
    fn keep_house(&mut self, now: Moment) {
        self.context.clock.follow();
        let forgetting = self.context.store.forget(now);
        self.answers.push(async move { Answered::Kept(forgetting.await) }.boxed());
        for queue in &self.pulled {
            let lapsing = lease::let_lapse(&self.context.store, queue, now);
            self.answers.push(async move { Answered::Kept(lapsing.await) }.boxed());
        }
    }

    /// Writes what became of the last attempts: those that ended just now, and those that were given up.
    async fn write_the_last(&mut self, ended: Vec<Ended>) {
        let now = self.context.clock.now();
        self.scheduler.handle(Input::Drain, now, &mut self.dice);
        for (grant, seq, rev, ending) in ended {
            self.scheduler.handle(Input::Ended { grant, seq, rev, ending }, now, &mut self.dice);
        }
        for (grant, seq, rev) in self.scheduler.under_way() {
            let ending = Ending::new(Said::Released);
            self.scheduler.handle(Input::Ended { grant, seq, rev, ending }, now, &mut self.dice);
        }
        // What is being written is waited for: its fate is better known than not. An answer may ask for more: a
        // strike that was just committed is taken back.
        let mut actions = Vec::new();
        loop {
            self.scheduler.act(now, &mut actions);
            let _ = perform(&self.context, &mut actions, &mut self.attempts, &self.answers);
            let Some(answer) = self.answers.next().await else { return };
            if self.answered(answer, now).is_err() {
                return;
            }
        }
    }

    /// The end of the loop. Attempts that are still under way are given up and not charged; they are made again
    /// after the next start. Only where nothing is left under way are the shards given back as clean.
    async fn end(mut self, error: Option<StoreError>) {
        // Not the tasks: one may have nothing left to do.
        let late = self.scheduler.under_way().len();
        self.clerk.0.abort();
        self.sharing.iter().for_each(|sharing| sharing.near.close());
        // From now on whoever waits for a commit is answered by the store itself.
        self.arrivals.close();
        while self.arrivals.try_recv().is_ok() {}
        self.attempts.abort_all();
        let mut ended = Vec::new();
        while let Some(last) = self.attempts.join_next().await {
            match last {
                Ok(Attempted::One(last)) => ended.extend(last),
                // Those that would go on are given up.
                Ok(Attempted::Several(last, _)) => ended.extend(last),
                Err(_) => {}
            }
        }
        if error.is_none() {
            self.write_the_last(ended).await;
        }
        self.give_all_back(error.is_none()).await;
        if let Some(error) = error {
            super::observe::failed(&error);
            self.fail.send_replace(Some(error));
        }
        // Whoever hears that it stopped finds it stopped.
        self.orders.close();
        let mut waiters: Vec<_> = self.stopping.into_iter().flat_map(|stop| stop.waiters).collect();
        while let Ok(command) = self.orders.try_recv() {
            if let Command::Stop(_, waiter) = command {
                waiters.push(waiter);
            }
        }
        for waiter in waiters {
            let _ = waiter.send(late == 0);
        }
    }
}
