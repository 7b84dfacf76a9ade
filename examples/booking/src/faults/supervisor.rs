//! A supervised program: it is started, dies as planned, and is started again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive::{RandomSource, SeededRandom};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::fault_counts::FaultCounts;
use super::process::{AppProcess, PlannedEnd, Point, Role, Setting, is_killed, stops};
use super::proxy::Proxy;
use crate::crash_points;

/// Lives of the API's processes, the provider and the email program that end in a round.
const KILLS: [u32; 3] = [9, 2, 2];
/// Within this time a process is killed at a random moment.
const RANDOM_MILLIS: u64 = 900;
/// Maximum number of passes of a crash point before the process dies there: at the first pass there is little to
/// lose.
const TIMES_MAX: u64 = 3;

/// How often a program may fail to start, one time after the other.
const STARTS_MAX: u32 = 3;

/// Points that a life passes seldom.
const SELDOM: &[&str] = &["before-email", "after-email", "in-renewal", "before-end", "take-after-epoch"];

/// The points of the store that every round passes. Others want a full log or a suspect.
pub(crate) const STORE: &[&str] =
    &["after-begin", "after-work", "before-commit", "after-commit", "take-after-epoch", "before-answer"];

/// The faults of a test bed.
#[derive(Debug)]
pub(crate) struct Storm {
    random: Mutex<SeededRandom>,
    /// The planned ends of each role in this round.
    kills: [AtomicU32; 3],
    round: watch::Sender<u64>,
    /// Crash points of the store; empty if it was built without them.
    store_points: &'static [&'static str],
}

/// The planned end of a process.
#[derive(Debug, Clone, Copy)]
enum End {
    At(Point),
    After(Duration),
    Never,
}

impl Storm {
    pub(crate) fn new(seed: u64, store_points: &'static [&'static str]) -> Self {
        let (random, round) = (Mutex::new(SeededRandom::new(seed)), watch::Sender::new(0));
        Self { random, kills: Default::default(), round, store_points }
    }

    /// Begins.
    pub(crate) fn rise(&self) {
        KILLS.iter().zip(&self.kills).for_each(|(kills, left)| left.store(*kills, Ordering::SeqCst));
        self.round.send_modify(|round| *round += 1);
    }

    /// Ends the faults: processes started from now on live.
    pub(crate) fn calm(&self) {
        self.kills.iter().for_each(|left| left.store(0, Ordering::SeqCst));
    }

    /// A number below another.
    pub(crate) fn below(&self, max: u64) -> u64 {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).roll() % max.max(1)
    }

    /// One of several.
    pub(crate) fn pick<'a, T>(&self, among: &'a [T]) -> Option<&'a T> {
        let at = self.below(u64::try_from(among.len()).unwrap_or(u64::MAX));
        among.get(usize::try_from(at).unwrap_or_default())
    }

    fn may_kill(&self, role: Role) -> bool {
        let left = self.kills[role as usize]
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.is_ok()
    }

    fn is_up(&self) -> bool {
        self.kills.iter().any(|left| left.load(Ordering::SeqCst) > 0)
    }

    fn soon(&self) -> Duration {
        Duration::from_millis(self.below(RANDOM_MILLIS))
    }

    fn end(&self, role: Role, tally: &FaultCounts) -> End {
        if !self.may_kill(role) {
            return End::Never;
        }
        let point = match self.below(4) {
            0 => return End::After(self.soon()),
            1 => self.point(role, |_| 0),
            // In turn: a crash point with the fewest deaths.
            _ => self.point(role, |point| tally.times(&death_at(role, point.name, point.in_store))),
        };
        point.map_or(End::Never, End::At)
    }

    /// Where a process stops, if it does.
    fn stop(&self, role: Role, tally: &FaultCounts) -> Option<Point> {
        let stops = role == Role::Api && self.is_up() && self.below(3) == 0;
        // The store's own points can only be died at.
        let times = |point: Point| if point.in_store { u64::MAX } else { tally.times(&stop_at(point.name)) };
        stops.then(|| self.point(role, times)).flatten()
    }

    /// One of the points of a role at which fewest faults happened.
    fn point(&self, role: Role, faults: impl Fn(Point) -> u64) -> Option<Point> {
        let own = match role {
            Role::Api => crash_points::API,
            Role::Provider => crash_points::PROVIDER,
            Role::Mailer => crash_points::MAILER,
        };
        let of_store = if role == Role::Api { self.store_points } else { &[] };
        let all = own.iter().map(|name| (*name, false)).chain(of_store.iter().map(|name| (*name, true)));
        let all: Vec<_> = all.map(|(name, in_store)| Point { name, time: 1, in_store }).collect();
        let least = all.iter().map(|point| faults(*point)).min().unwrap_or_default();
        let rarest: Vec<_> = all.into_iter().filter(|point| faults(*point) == least).collect();
        let point = self.pick(&rarest)?;
        let times_max = match point.name {
            _ if SELDOM.contains(&point.name) => 1,
            // Passed with every commit, including those of the start.
            _ if point.in_store => 12 * TIMES_MAX,
            _ => TIMES_MAX,
        };
        Some(Point { time: 1 + self.below(times_max), ..*point })
    }
}

/// The fault that a death at a point is.
pub(crate) fn death_at(role: Role, point: &str, in_store: bool) -> String {
    format!("{} killed at {point}{}", word(role), if in_store { ", in the store" } else { "" })
}

/// The fault that a stop at a point is.
pub(crate) fn stop_at(point: &str) -> String {
    format!("api stopped at {point} for longer than its lease, and woken")
}

const fn word(role: Role) -> &'static str {
    match role {
        Role::Api => "api",
        Role::Provider => "provider",
        Role::Mailer => "mailer",
    }
}

/// A program, process after process.
#[derive(Debug, Clone)]
pub(crate) struct Supervisor {
    pub(crate) setting: Setting,
    pub(crate) proxy: Proxy,
    pub(crate) storm: Arc<Storm>,
    pub(crate) tally: Arc<FaultCounts>,
}

impl Supervisor {
    /// Supervises until dropped, or until the program ends unexpectedly.
    pub(crate) async fn keep(self) {
        let mut failed = 0;
        loop {
            let stops_at = self.storm.stop(self.setting.role, &self.tally);
            // A process that is to stop is left alone until it has, if the round is long enough.
            let end = match stops_at {
                Some(_) => End::Never,
                None => self.storm.end(self.setting.role, &self.tally),
            };
            let dies_at = if let End::At(point) = end { Some(point) } else { None };
            match self.setting.start(PlannedEnd { dies_at, stops_at }).await {
                Ok(Some(life)) => {
                    failed = 0;
                    self.proxy.aim(Some(life.address));
                    let lived = self.live(life, end, stops_at).await;
                    self.proxy.aim(None);
                    match lived {
                        Ok(fault) => self.tally.count(fault),
                        Err(what) => return self.tally.violation(what),
                    }
                }
                Ok(None) => self.tally.count(self.fault_at(dies_at)),
                // A process stopped in the middle of a commit may block all others: the next start may work.
                Err(_) if failed + 1 < STARTS_MAX => {
                    failed += 1;
                    self.tally.saw("starts that had to be made again", 1);
                }
                Err(error) => return self.tally.violation(format!("{error:#}")),
            }
        }
    }

    /// Lives until the end: what happened, or what should not have.
    async fn live(&self, mut life: AppProcess, end: End, stops_at: Option<Point>) -> Result<String, String> {
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
                    // It may have died at its crash point at this very moment; that counts too.
                    life.child.kill().await.map_err(|error| error.to_string())?;
                    return Ok(format!("{word} killed at a random time"));
                }
                () = stops(&mut life.said) => {
                    self.sleep_over().await;
                    life.wake();
                    self.tally.count(stop_at(stops_at.map_or("a point", |point| point.name)));
                }
                Ok(()) = round.changed() => {
                    if self.setting.role == Role::Api && self.storm.below(3) == 0 {
                        self.freeze(&mut life).await;
                    }
                    // A process that waits for its crash point gets another chance.
                    let waits = matches!(end, End::At(_)) && self.storm.below(2) == 0;
                    if killed_at.is_none() && !waits && self.storm.may_kill(self.setting.role) {
                        killed_at = Some(Instant::now() + self.storm.soon());
                    }
                }
            }
        }
    }

    /// Stops it for longer than its leases, somewhere in its work, and continues it.
    async fn freeze(&self, life: &mut AppProcess) {
        sleep(self.storm.soon() / 2).await;
        if !matches!(life.child.try_wait(), Ok(None)) {
            return; // it died of something else
        }
        life.stop();
        self.sleep_over().await;
        life.wake();
        self.tally.count("api stopped at a random time for longer than its leases, and woken");
    }

    /// Waits until another process has the leases of a stopped one.
    async fn sleep_over(&self) {
        sleep(self.setting.lease * 5 / 2).await;
    }

    fn fault_at(&self, point: Option<Point>) -> String {
        let (name, in_store) = point.map_or(("a point", false), |point| (point.name, point.in_store));
        death_at(self.setting.role, name, in_store)
    }
}
