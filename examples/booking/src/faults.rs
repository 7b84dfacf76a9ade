//! A campaign of faults against the booking API, and the account after it.
//!
//! Test beds run side by side, each with its own files and programs, because most of the time is spent waiting: for
//! the lease of a dead process, for two seconds of quiet. Each runs rounds: clients send requests while programs die,
//! freeze and have their connections cut; then everything is quiet, every key is requested again from both processes,
//! and the files of all programs are compared with the clients' answers.

pub(crate) mod audit;

pub(crate) mod clients;

pub(crate) mod process;

pub(crate) mod supervisor;

pub(crate) mod proxy;

pub(crate) mod shared_store;

pub(crate) mod fault_counts;

pub(crate) mod testbed;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::task::JoinSet;

use fault_counts::{Counts, FaultCounts};
use supervisor::{Storm, death_at};
use testbed::{Meanwhile, Testbed};

use process::Role;

use crate::crash_points;

/// Test beds at once, each with its own file.
const WORLDS: u64 = 4;
/// The same if they share a server, which has its own share of the work.
const WORLDS_OF_A_SERVER: u64 = 1;
/// From this number of faults on, every crash point must have killed a process: a campaign that missed one shows less
/// than it claims.
const EVERY_POINT: u64 = 500;
/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(5);

/// What to do.
#[derive(Debug, Clone)]
pub(crate) struct Campaign {
    /// How many faults at least.
    pub(crate) faults: u64,
    pub(crate) seed: u64,
    /// Crash points of the store, if it was built with them.
    pub(crate) store_points: &'static [&'static str],
    /// The PostgreSQL server on which each world has a database, in place of a file.
    pub(crate) server: Option<String>,
}

impl Campaign {
    /// Whether every crash point must kill a process.
    fn is_long(&self) -> bool {
        self.faults >= EVERY_POINT
    }

    /// Whether it may end. It continues for a while if some crash point has killed no process yet.
    fn is_enough(&self, counts: &Counts) -> bool {
        let all = counts.all();
        all >= self.faults && (!self.is_long() || missed(counts, self).is_empty() || all >= self.faults * 2)
    }
}

/// Runs it. 1 where something does not hold.
pub(crate) async fn run(campaign: Campaign) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let worlds_in_all = if campaign.server.is_some() { WORLDS_OF_A_SERVER } else { WORLDS };
    println!("seed {}: at least {} faults in {worlds_in_all} worlds", campaign.seed, campaign.faults);
    let tally = Arc::new(FaultCounts::default());
    let mut worlds = JoinSet::new();
    for number in 1..=worlds_in_all {
        worlds.spawn(one(number, campaign.clone(), Arc::clone(&tally)));
    }
    let telling = tokio::spawn(tell(campaign.faults, Arc::clone(&tally)));
    let mut sums = [0; 4];
    while let Some(world) = worlds.join_next().await {
        let world = world.context("a world")??;
        sums.iter_mut().zip(world).for_each(|(sum, part)| *sum += part);
    }
    telling.abort();
    Ok(account(&tally.so_far(), &campaign, sums, began.elapsed()))
}

/// One test bed, round after round, until there were enough faults or something is wrong. Returns the numbers of
/// bookings, authorisations and emails.
async fn one(number: u64, campaign: Campaign, tally: Arc<FaultCounts>) -> anyhow::Result<[u64; 4]> {
    let storm = Storm::new(campaign.seed.wrapping_mul(1000) + number, campaign.store_points);
    let (name, server) = (format!("world-{number}"), campaign.server.as_deref());
    let mut world = Testbed::start(name, server, storm, Arc::clone(&tally)).await?;
    for round in 1.. {
        if let Err(error) = world.round(round).await
            && !error.is::<Meanwhile>()
        {
            tally.violation(format!("world {number}, round {round}: {error:#}"));
        }
        tally.saw("rounds", 1);
        if !tally.is_fine() || campaign.is_enough(&tally.so_far()) {
            break;
        }
    }
    if tally.is_fine()
        && let Err(error) = world.last_look().await
    {
        tally.violation(format!("world {number}, at the end: {error:#}"));
    }
    if !tally.is_fine() {
        println!("the files of world {number} are kept in {}", world.keep().await.display());
        return Ok([0; 4]);
    }
    let books = world.books().await?;
    let parts = [world.booked(), &books.stored.bookings, &books.authorisations, &books.emails];
    Ok(parts.map(|per| per.values().map(|count| u64::from(*count)).sum()))
}

async fn tell(faults: u64, tally: Arc<FaultCounts>) {
    loop {
        tokio::time::sleep(PROGRESS).await;
        let counts = tally.so_far();
        eprintln!(
            "{} of {faults} faults, {} rounds, {} intents",
            counts.all(),
            counts.of("rounds"),
            counts.of("intents")
        );
    }
}

/// Prints what happened, and whether it adds up.
fn account(counts: &Counts, campaign: &Campaign, sums: [u64; 4], took: Duration) -> ExitCode {
    println!("\n{:>8}  fault", "times");
    counts.faults.iter().for_each(|(kind, times)| println!("{times:>8}  {kind}"));
    println!("{:>8}  in all", counts.all());
    println!("\n{:>8}  seen by the guests", "times");
    counts.seen.iter().for_each(|(what, times)| println!("{times:>8}  {what}"));
    let [booked, bookings, authorisations, emails] = sums;
    println!("\n{booked:>8}  intents were told that they are booked");
    println!("{bookings:>8}  bookings\n{authorisations:>8}  standing authorisations\n{emails:>8}  emails");
    let mut wrong = counts.violations.clone();
    let missed = missed(counts, campaign);
    if campaign.is_long() && wrong.is_empty() {
        wrong.extend(missed.iter().map(|death| format!("it never happened: {death}")));
    }
    wrong.iter().for_each(|what| println!("WRONG {what}"));
    let word = if wrong.is_empty() { "ok   " } else { "WRONG" };
    let (all, seed, seconds) = (counts.all(), campaign.seed, took.as_secs());
    println!("{word} {all} faults with seed {seed} in {seconds} s, {} violations", wrong.len());
    ExitCode::from(u8::from(!wrong.is_empty()))
}

/// Crash points that killed no process.
fn missed(counts: &Counts, campaign: &Campaign) -> Vec<String> {
    let parts = [
        (Role::Api, crash_points::API, false),
        (Role::Api, campaign.store_points, true),
        (Role::Provider, crash_points::PROVIDER, false),
        (Role::Mailer, crash_points::MAILER, false),
    ];
    let deaths = parts
        .into_iter()
        .flat_map(|(role, points, in_store)| points.iter().map(move |point| death_at(role, point, in_store)));
    deaths.filter(|death| !counts.faults.contains_key(death)).collect()
}
