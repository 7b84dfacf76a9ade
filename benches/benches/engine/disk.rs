//! What one sync of this disk takes: the unit in which a wait for durability is counted.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// What a small commit writes at least: one page.
const PAGE: [u8; 4096] = [b'x'; 4096];

/// The middle of all syncs in that time, in microseconds: a page appended, then `fdatasync`.
pub(crate) fn sync_p50_us(folder: &Path, time: Duration) -> io::Result<f64> {
    let path = folder.join("syncs");
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    let mut waits = Vec::new();
    let began = Instant::now();
    while began.elapsed() < time {
        waits.push(one(&mut file)?);
    }
    std::fs::remove_file(path)?;
    waits.sort();
    Ok(waits[waits.len() / 2].as_secs_f64() * 1e6)
}

fn one(file: &mut File) -> io::Result<Duration> {
    let began = Instant::now();
    file.write_all(&PAGE)?;
    file.sync_data()?;
    Ok(began.elapsed())
}

/// The kind of file system that a folder is on, as the system names it.
pub(crate) fn file_system(folder: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let kinds = mounts.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (place, kind) = (Path::new(words.next()?), words.next()?);
        folder.starts_with(place).then(|| (place.components().count(), kind.to_owned()))
    });
    // The last of equals lies on top of the others.
    kinds.max_by_key(|(depth, _)| *depth).map_or_else(|| "unknown".to_owned(), |(_, kind)| kind)
}
