//! Many seeds, on all cores.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive_testkit::simulation::{RunStats, try_run};

use crate::options::Campaign;

/// How many seeds a thread takes at a time.
const SLICE: u64 = 64;
/// How many failing seeds are listed.
const LISTED_MAX: usize = 100;

/// The results of all threads.
#[derive(Default)]
struct Sum {
    figures: RunStats,
    failures: Vec<(u64, String)>,
}

/// The progress of the threads.
struct Progress {
    next: AtomicU64,
    end: u64,
    ran: AtomicU64,
    failed: AtomicU64,
    began: Instant,
}

/// Runs the seeds, prints figures and failures.
pub(crate) fn run(campaign: &Campaign) -> ExitCode {
    let Campaign { from, seeds, stop } = *campaign;
    println!("seeds from {from}; run the same again with `cargo xtask sim --from {from} --seeds {seeds}`\n");
    let progress = Progress {
        next: AtomicU64::new(from),
        end: from.saturating_add(seeds),
        ran: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        began: Instant::now(),
    };
    let sum = Mutex::new(Sum::default());
    let (end, ended) = channel::<()>();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (progress, sum, end) = (&progress, &sum, end.clone());
            scope.spawn(move || {
                work(progress, sum, stop);
                drop(end);
            });
        }
        drop(end);
        watch(&progress, &ended);
    });
    let Sum { figures, mut failures } = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{figures}\n{}", figures.order);
    println!("{}", progress.said());
    if failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    failures.sort();
    list(&failures, progress.failed.load(Ordering::Relaxed));
    ExitCode::FAILURE
}

/// Runs slices of seeds until there are none left.
fn work(progress: &Progress, sum: &Mutex<Sum>, stop: bool) {
    let mut own = Sum::default();
    loop {
        let first = progress.next.fetch_add(SLICE, Ordering::Relaxed);
        if first >= progress.end {
            break;
        }
        for seed in first..progress.end.min(first.saturating_add(SLICE)) {
            let ran = try_run(seed);
            progress.ran.fetch_add(1, Ordering::Relaxed);
            match ran {
                Ok(figures) => own.figures.add(&figures),
                Err(what) => {
                    progress.failed.fetch_add(1, Ordering::Relaxed);
                    if own.failures.len() < LISTED_MAX {
                        own.failures.push((seed, what));
                    }
                    if stop {
                        progress.next.store(progress.end, Ordering::Relaxed);
                        break;
                    }
                }
            }
        }
    }
    let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
    sum.figures.add(&own.figures);
    sum.failures.append(&mut own.failures);
}

/// Prints the progress: every second on a terminal, every half a minute elsewhere.
fn watch(progress: &Progress, ended: &Receiver<()>) {
    let mut stderr = std::io::stderr();
    let is_terminal = stderr.is_terminal();
    let (pause, start, end) = if is_terminal { (1, "\r\x1b[K", "") } else { (30, "", "\n") };
    while ended.recv_timeout(Duration::from_secs(pause)) == Err(RecvTimeoutError::Timeout) {
        // A progress line that cannot be printed is not worth a failure.
        let _ = write!(stderr, "{start}{}{end}", progress.said());
        let _ = stderr.flush();
    }
    if is_terminal {
        let _ = write!(stderr, "{start}");
    }
}

impl Progress {
    fn said(&self) -> String {
        let (ran, failed) = (self.ran.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed));
        let seconds = self.began.elapsed().as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = ran as f64 / seconds.max(1e-9);
        format!("{ran} seeds in {seconds:.1} s, {rate:.0} seeds a second, {failed} failed")
    }
}

fn list(failures: &[(u64, String)], count: u64) {
    println!("\nfailing seeds");
    for (seed, what) in failures.iter().take(LISTED_MAX) {
        println!("  seed {seed}: {what}");
    }
    let listed = failures.len().min(LISTED_MAX) as u64;
    if count > listed {
        println!("  and {} more", count - listed);
    }
    if let Some((seed, _)) = failures.first() {
        println!("\nshrink the first to its shortest trace with `cargo xtask sim --seed {seed}`");
    }
}
