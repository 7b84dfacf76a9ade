//! Opening a file with as many ids as fit: how long, and how large it is.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use redrive::Moment;
use redrive::store::window::{ClaimResult, DedupeWindow, IdMark, WindowSettings};

/// Commits that are handed in together.
const TOGETHER: usize = 1_000;

/// What was measured.
#[derive(Debug)]
pub(crate) struct Figures {
    /// Writing them, commits of a thousand callers sharing syncs.
    pub(crate) written: Duration,
    /// Opening the file again.
    pub(crate) opened: Duration,
    /// Bytes of the file for an id.
    pub(crate) bytes: f64,
}

/// Writes a file and opens it again.
pub(crate) fn measure(folder: &Path, ids: usize) -> Result<Figures, String> {
    eprintln!("bench: a file of {ids} ids");
    let path = folder.join("full.db");
    let settings = WindowSettings { count: ids, ..WindowSettings::default() };
    let now = Moment::from(SystemTime::now());
    let open = || DedupeWindow::open(&path, settings, now).map_err(|error| error.to_string());
    let window = open()?;
    let start = Instant::now();
    for first in (0..ids).step_by(TOGETHER) {
        let mut committing = Vec::with_capacity(TOGETHER);
        for number in first..(first + TOGETHER).min(ids) {
            match window.claim(IdMark::of("", &number.to_be_bytes()), now) {
                Ok(ClaimResult::First(ticket)) => committing.push(window.commit(ticket, now)),
                other => return Err(format!("{number} is new: {other:?}")),
            }
        }
        for commit in committing {
            commit.wait_blocking().map_err(|error| error.to_string())?;
        }
    }
    let written = start.elapsed();
    drop(window);
    let bytes = std::fs::metadata(&path).map_err(|error| error.to_string())?.len();
    let start = Instant::now();
    let window = open()?;
    let opened = start.elapsed();
    let found = window.figures(now).ids;
    if found != ids {
        return Err(format!("{found} of {ids} ids came back"));
    }
    let per_id = |bytes: u64| Duration::from_nanos(bytes).as_secs_f64() * 1e9;
    Ok(Figures { written, opened, bytes: per_id(bytes) / per_id(ids as u64) })
}
