//! Three processes on one PostgreSQL database, under load, while one at random is killed, stopped for longer than its
//! lease, cut off, or asked to end. `cargo xtask faults nodes` does so for longer.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod audit;

mod fleet;

mod load;

mod node;

mod notices;

mod witness;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redrive::{RandomSource, SeededRandom};
use redrive_testkit::postgres::{Disk, Server};

use fleet::{Fault, Fleet};

/// How many processes.
const NODES: usize = 3;
/// How long a process owns its shards after its last renewal: short, because every fault waits for it.
const LEASE: Duration = Duration::from_secs(2);
/// How much longer than a lease it may take until other processes own all shards of one that is gone.
const GRACE: Duration = Duration::from_secs(1);
/// How many faults by default: two of each kind after which a replaced process goes on. Each takes some seconds.
const FAULTS: u64 = 8;

fn asked(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Not a test by itself: the processes.
#[test]
fn as_a_node() {
    node::run();
}

#[test]
fn whatever_happens_to_one_of_three_each_event_has_its_effect_once_and_in_order() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(campaign(asked("REDRIVE_FAULTS", FAULTS), asked("REDRIVE_SEED", 1)));
}

async fn campaign(faults: u64, seed: u64) {
    let began = Instant::now();
    let server = Server::start(Disk::Fast).unwrap();
    let mut fleet = Fleet::start(&server).await;
    witness::watch(&server).await;
    let mut load = load::start(&server).await;
    let mut random = SeededRandom::new(seed);
    let mut below = |count: u64| random.roll() % count;
    let mut taken_over: BTreeMap<Fault, Vec<Duration>> = BTreeMap::new();
    for number in 0..faults {
        // Every kind in turn, so that a short run has all of them; the victim and the time are random.
        let fault = Fault::ALL[usize::try_from(number).unwrap() % Fault::ALL.len()];
        let victim = usize::try_from(below(NODES as u64)).unwrap();
        load.more(below(10)).await;
        let took = fleet.suffer(victim, fault).await;
        println!("{:>4} of {faults}: node {victim} {fault:?}: {took:?}", number + 1);
        let bound = fault.bound() + took.stood;
        assert!(took.took <= bound, "seed {seed}: {fault:?}: {took:?}, and not within {bound:?}");
        taken_over.entry(fault).or_default().push(took.took);
    }
    let published = load.stop().await;
    let account = audit::account(&server, &published).await;
    fleet.end().await;
    println!("\n{:>6}  {:>8}  {:>8}  fault", "times", "median", "longest");
    for (fault, times) in &mut taken_over {
        times.sort();
        let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{:>6}  {:>6.2} s  {:>6.2} s  {fault:?}",
            times.len(),
            median.as_secs_f64(),
            longest.as_secs_f64()
        );
    }
    println!("\n{account}");
    println!("ok    {faults} faults with seed {seed} in {} s", began.elapsed().as_secs());
}
