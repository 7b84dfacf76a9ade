//! A post that is never left for long: a program is started, dies as the storm wants it, and is started again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive::{Dice, Seeded};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::life::{Life, Point, Role, Setting, is_killed};
use super::proxy::Proxy;
use super::tally::Tally;
use crate::points;

/// Within how long a process is killed that is killed at a random time.
const RANDOM_MILLIS: u64 = 900;
/// A point is passed up to so many times before the process dies there: the first time there is little else to lose.
const TIMES_MAX: u64 = 3;

/// The points of the store that every round passes. Others want a full log or a suspect.
pub(crate) const STORE: &[&str] =
    &["after-begin", "after-work", "before-commit", "after-commit", "take-after-epoch", "before-answer"];

/// What is done to the programs of a world.
#[derive(Debug)]
pub(crate) struct Storm {
    dice: Mutex<Seeded>,
    /// How many more processes are to be killed in this round.
    kills: AtomicU32,
    round: watch::Sender<u64>,
    /// Points of the store at which a process can be made to die; none where it was built without them.
    store_points: &'static [&'static str],
}

/// How a life is to end.
#[derive(Debug, Clone, Copy)]
enum End {
    At(Point),
    After(Duration),
    Never,
}

impl Storm {
    pub(crate) fn new(seed: u64, store_points: &'static [&'static str]) -> Self {
        let (dice, round) = (Mutex::new(Seeded::new(seed)), watch::Sender::new(0));
        Self { dice, kills: AtomicU32::new(0), round, store_points }
    }

    /// Begins: so many kills from now on.
    pub(crate) fn rise(&self, kills: u32) {
        self.kills.store(kills, Ordering::SeqCst);
        self.round.send_modify(|round| *round += 1);
    }

    /// Ends: who is started from now on lives.
    pub(crate) fn calm(&self) {
        self.kills.store(0, Ordering::SeqCst);
    }

    /// A number below another.
    pub(crate) fn below(&self, max: u64) -> u64 {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner).roll() % max.max(1)
    }

    /// One of several.
    pub(crate) fn pick<'a, T>(&self, among: &'a [T]) -> Option<&'a T> {
        let at = self.below(u64::try_from(among.len()).unwrap_or(u64::MAX));
        among.get(usize::try_from(at).unwrap_or_default())
    }

    fn may_kill(&self) -> bool {
        let left = self.kills.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.is_ok()
    }

    fn soon(&self) -> Duration {
        Duration::from_millis(self.below(RANDOM_MILLIS))
    }

    fn end(&self, role: Role, tally: &Tally) -> End {
        if !self.may_kill() {
            return End::Never;
        }
        match self.below(4) {
            0 => End::After(self.soon()),
            1 => self.point(role, |_| 0),
            // In turn: at one of those where fewest have died.
            _ => self.point(role, |name| tally.times(&death_at(role, name))),
        }
    }

    fn point(&self, role: Role, deaths: impl Fn(&str) -> u64) -> End {
        let own = match role {
            Role::Api => points::API,
            Role::Provider => points::PROVIDER,
            Role::Mailer => points::MAILER,
        };
        let of_store = if role == Role::Api { self.store_points } else { &[] };
        let all = own.iter().map(|name| (*name, false)).chain(of_store.iter().map(|name| (*name, true)));
        let all: Vec<_> = all.map(|(name, in_store)| (deaths(name), name, in_store)).collect();
        let least = all.iter().map(|(deaths, ..)| *deaths).min().unwrap_or_default();
        let rarest: Vec<_> = all.into_iter().filter(|(deaths, ..)| *deaths == least).collect();
        let Some(&(_, name, in_store)) = self.pick(&rarest) else { return End::Never };
        // The store's are passed by every commit, also those of the start.
        let time = 1 + self.below(if in_store { 12 * TIMES_MAX } else { TIMES_MAX });
        let time = if name.ends_with("email") || name == "in-renewal" { 1 } else { time };
        End::At(Point { name, time, in_store })
    }
}

/// The fault that a death at a point is.
pub(crate) fn death_at(role: Role, point: &str) -> String {
    format!("{} killed at {point}", word(role))
}

const fn word(role: Role) -> &'static str {
    match role {
        Role::Api => "api",
        Role::Provider => "provider",
        Role::Mailer => "mailer",
    }
}

/// Where a program runs, life after life.
#[derive(Debug, Clone)]
pub(crate) struct Post {
    pub(crate) setting: Setting,
    pub(crate) proxy: Proxy,
    pub(crate) storm: Arc<Storm>,
    pub(crate) tally: Arc<Tally>,
}

impl Post {
    /// Keeps the post until this is dropped, or the program ends otherwise than it was told.
    pub(crate) async fn keep(self) {
        loop {
            let end = self.storm.end(self.setting.role, &self.tally);
            let dies_at = if let End::At(point) = end { Some(point) } else { None };
            match self.setting.start(dies_at).await {
                Ok(Some(life)) => {
                    self.proxy.aim(Some(life.address));
                    let lived = self.live(life, end).await;
                    self.proxy.aim(None);
                    match lived {
                        Ok(fault) => self.tally.count(fault),
                        Err(what) => return self.tally.violation(what),
                    }
                }
                Ok(None) => self.tally.count(self.fault_at(dies_at)),
                Err(error) => return self.tally.violation(format!("{error:#}")),
            }
        }
    }

    /// Lives until the end: what happened, or what should not have.
    async fn live(&self, mut life: Life, end: End) -> Result<String, String> {
        let mut round = self.storm.round.subscribe();
        let word = word(self.setting.role);
        let mut killed_at = if let End::After(wait) = end { Some(Instant::now() + wait) } else { None };
        loop {
            let never = Instant::now() + Duration::from_secs(86_400);
            tokio::select! {
                status = life.child.wait() => {
                    let status = status.map_err(|error| error.to_string())?;
                    return match end {
                        End::At(point) if is_killed(status) => Ok(self.fault_at(Some(point))),
                        _ => Err(format!("{} ended by itself: {status}; see {}", self.setting.name,
                            self.setting.log().display())),
                    };
                }
                () = sleep_until(killed_at.unwrap_or(never)), if killed_at.is_some() => {
                    // It may have died at its point in this very moment; that is a kill as well.
                    life.child.kill().await.map_err(|error| error.to_string())?;
                    return Ok(format!("{word} killed at a random time"));
                }
                Ok(()) = round.changed() => {
                    if self.setting.role == Role::Api && self.storm.below(3) == 0 {
                        self.freeze(&mut life).await;
                    }
                    // One that waits for its point has another chance to pass it.
                    let waits = matches!(end, End::At(_)) && self.storm.below(2) == 0;
                    if killed_at.is_none() && !waits && self.storm.may_kill() {
                        killed_at = Some(Instant::now() + self.storm.soon());
                    }
                }
            }
        }
    }

    /// Stops it for longer than its leases, somewhere in its work, and lets it go on as if nothing had been.
    async fn freeze(&self, life: &mut Life) {
        sleep(self.storm.soon() / 2).await;
        if !matches!(life.child.try_wait(), Ok(None)) {
            return; // it died of something else
        }
        life.freeze(true);
        sleep(self.setting.lease * 2).await;
        life.freeze(false);
        self.tally.count("api stopped for longer than its leases, and woken");
    }

    fn fault_at(&self, point: Option<Point>) -> String {
        death_at(self.setting.role, point.map_or("a point", |point| point.name))
    }
}
