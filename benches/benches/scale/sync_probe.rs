//! The disk's weather: what a sync takes now and then while something else is measured.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Fallible;

/// Between two syncs: often enough to see a disk that stands still, too seldom to be the reason.
const PAUSE: Duration = Duration::from_millis(50);

/// What a small commit writes at least: one page.
const PAGE: [u8; 4096] = [b'x'; 4096];

/// A thread that syncs a file of its own beside the database.
pub(crate) struct Probe {
    over: Arc<AtomicBool>,
    thread: JoinHandle<std::io::Result<Vec<Duration>>>,
}

impl Probe {
    pub(crate) fn start(beside: &Path) -> Fallible<Self> {
        let path = beside.with_extension("probe");
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let thread = std::thread::spawn(move || {
            let mut waits = vec![one(&mut file)?];
            while !is_over.load(Relaxed) {
                std::thread::sleep(PAUSE);
                waits.push(one(&mut file)?);
            }
            std::fs::remove_file(path)?;
            Ok(waits)
        });
        Ok(Self { over, thread })
    }

    /// The median and the longest, in milliseconds.
    pub(crate) fn end(self) -> Fallible<(f64, f64)> {
        self.over.store(true, Relaxed);
        let mut waits = self.thread.join().map_err(|_| "the probe died")??;
        waits.sort();
        let ms = |wait: Option<&Duration>| wait.copied().unwrap_or_default().as_secs_f64() * 1e3;
        Ok((ms(waits.get(waits.len() / 2)), ms(waits.last())))
    }
}

fn one(file: &mut File) -> std::io::Result<Duration> {
    let began = Instant::now();
    file.write_all(&PAGE)?;
    file.sync_data()?;
    Ok(began.elapsed())
}
