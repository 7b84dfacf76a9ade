//! Runs seeds of the simulation, from as many threads as there are processors. `cargo xtask sim` calls it.
//!
//! `sim --seeds N [--from S]` runs N seeds from S; `sim --seed S` runs one and prints its figures, or its steps
//! if it fails; `sim --planted [--seeds N]` plants every bug of `redrive_core::planted` and runs up to N seeds to
//! find it.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use redrive_core::planted::Flaw;
use redrive_testkit::simulation::{self, Failure, Figures, planted};

/// How many seeds a thread takes at a time.
const SLICE: u64 = 64;

#[derive(Debug, Default)]
struct Options {
    seeds: Option<u64>,
    from: u64,
    seed: Option<u64>,
    planted: bool,
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    match options {
        Options { planted: true, seeds, .. } => find_planted(seeds.unwrap_or(100_000)),
        Options { seed: Some(seed), .. } => one(seed),
        Options { seeds, from, .. } => many(from, seeds.unwrap_or(10_000)),
    }
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(word) = words.next() {
        let mut number = || {
            let next = words.next().ok_or_else(|| format!("{word} wants a number"))?;
            next.parse::<u64>().map_err(|_| format!("{word} wants a number, not `{next}`"))
        };
        match word.as_str() {
            "--seeds" => options.seeds = Some(number()?),
            "--from" => options.from = number()?,
            "--seed" => options.seed = Some(number()?),
            "--planted" => options.planted = true,
            _ => {
                return Err(format!(
                    "`{word}` is not known; there are --seeds, --from, --seed and --planted"
                ));
            }
        }
    }
    Ok(options)
}

fn one(seed: u64) -> ExitCode {
    match simulation::run(seed) {
        Ok(figures) => {
            println!("{figures}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn many(from: u64, seeds: u64) -> ExitCode {
    let (next, end) = (AtomicU64::new(from), from.saturating_add(seeds));
    let sum: Mutex<(Figures, u64, Option<Box<Failure>>)> = Mutex::default();
    let began = Instant::now();
    let work = || {
        let (mut figures, mut ran) = (Figures::default(), 0);
        let mut failed = None;
        while failed.is_none() {
            let first = next.fetch_add(SLICE, Ordering::Relaxed);
            if first >= end {
                break;
            }
            for seed in first..end.min(first + SLICE) {
                ran += 1;
                match simulation::run(seed) {
                    Ok(more) => figures.add(&more),
                    Err(failure) => {
                        failed = Some(failure);
                        next.store(end, Ordering::Relaxed);
                        break;
                    }
                }
            }
        }
        let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        sum.0.add(&figures);
        sum.1 += ran;
        let first = |failure: &Failure| failure.seed;
        if failed.as_deref().map(first) < sum.2.as_deref().map(first) || sum.2.is_none() {
            sum.2 = failed.or(sum.2.take());
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (figures, ran, failed) = sum.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("{figures}");
    let took = began.elapsed();
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    let rate = ran as f64 / took.as_secs_f64().max(1e-9);
    println!("{ran} seeds in {:.1} s, {rate:.0} a second", took.as_secs_f64());
    match failed {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            println!("\n{failure}\nrun it again with `cargo xtask sim --seed {}`", failure.seed);
            ExitCode::FAILURE
        }
    }
}

fn find_planted(seeds_max: u64) -> ExitCode {
    // Some are found by a panic; it is caught, and need not be told.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = 0;
    for flaw in Flaw::ALL {
        let name = format!("{flaw:?}");
        match planted::find(flaw, seeds_max) {
            Some(planted::Found { seed, seeds, what }) => {
                let what: String = what.chars().take(80).collect();
                println!("{name:<24} found by {seeds:>6} seeds, the last is {seed:>6}: {what}");
            }
            None => {
                missed += 1;
                println!("{name:<24} NOT FOUND by {seeds_max} seeds");
            }
        }
    }
    println!("\n{} of {} found", Flaw::ALL.len() - missed, Flaw::ALL.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
