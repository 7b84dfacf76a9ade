//! A disk that fails at one sync or one write, by means of `strace`.
//!
//! After a failed sync the contents of the disk are unknown: every call of the commit gets `Unknown`, every later call
//! `Poisoned`, and the engine stops and says so. After the next start every event is there, or is accepted again, and
//! its effect happens once.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::{Command, Output};

use redrive::engine::Transaction;
use redrive::{Delivery, Event, Failure, PublishError, Published, Redrive, StoreError};
use redrive_testkit::crash::{Explorer, Kill};
use rusqlite::Connection;

use crate::shop::Lines;
use crate::{SECOND, child, file, open, quick};

const EVENTS: usize = 20;

/// One life of a till: publishes one event after the other, and notes the results.
pub(crate) async fn run(folder: &Path) {
    let fate = Lines::append(folder, "fate.txt");
    let redrive = match opened(folder).await {
        Ok(redrive) => redrive,
        Err(error) => return fate.add(&format!("not opened: {error}")),
    };
    if let Err(error) = publish(&redrive, folder, &fate).await {
        fate.add(&format!("published: {}", word(&error)));
        let after = redrive.publish(Event::new("till", "one-more")).await.map_err(|error| word(&error));
        fate.add(&format!("after it: {}", after.err().unwrap_or("published")));
    }
    let ended = tokio::select! {
        () = drained(&redrive) => "drained",
        error = redrive.failed() => store_word(&error),
        () = tokio::time::sleep(5 * SECOND) => "nothing for five seconds",
    };
    fate.add(&format!("ended: {ended}"));
    // It does not matter here whether it can be closed cleanly.
    let _ = redrive.shutdown(SECOND).await;
}

/// Waits until the file is empty; forever if that cannot be.
async fn drained(redrive: &Redrive) {
    // Not `testing::drain`, which panics where the store fails, as it is about to here.
    loop {
        redrive.idle().await;
        if redrive.counts().await.is_ok_and(|counts| counts.is_empty()) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

async fn opened(folder: &Path) -> Result<Redrive, Box<dyn std::error::Error>> {
    let redrive = redrive::engine::OpenOptions::new().disk_least(0);
    let redrive = redrive.open(&format!("sqlite:{}", file(folder).display())).await?;
    let make = "CREATE TABLE IF NOT EXISTS effect (id TEXT NOT NULL)";
    redrive.transact(|tx: &mut Transaction<'_>| tx.sqlite().unwrap().execute_batch(make)).await?;
    let handler = |tx: &mut Transaction<'_>, delivery: &Delivery| {
        tx.sqlite().unwrap().execute("INSERT INTO effect VALUES (?1)", [delivery.id()])?;
        Ok::<_, Failure>(())
    };
    redrive.queue("till").policy(quick()).concurrency(4).handle_in(handler).await?;
    redrive.start().await?;
    Ok(redrive)
}

async fn publish(redrive: &Redrive, folder: &Path, fate: &Lines) -> Result<(), PublishError> {
    let text = std::fs::read_to_string(folder.join("acknowledged.txt")).unwrap_or_default();
    let before: HashSet<&str> = text.lines().collect();
    let lines = Lines::append(folder, "acknowledged.txt");
    for id in (0..EVENTS).map(|n| format!("sale-{n}")) {
        let published = loop {
            match redrive.publish(Event::new("till", &id)).await {
                Err(error) if error.is_transient() => fate.add(&format!("passing: {error}")),
                published => break published?,
            }
        };
        let is_new = matches!(published, Published::Accepted(_));
        if is_new && before.contains(id.as_str()) {
            fate.add(&format!("lost: {id}"));
        }
        lines.add(&id);
    }
    Ok(())
}

fn word(error: &PublishError) -> &'static str {
    if let PublishError::Store(error) = error { store_word(error) } else { "no error of the store" }
}

fn store_word(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unknown { .. } => "unknown",
        StoreError::Poisoned { .. } => "poisoned",
        error if error.is_transient() => "passing",
        _ => "something else",
    }
}

/// Runs a life in which these calls fail: `number` is one of them in each thread, or `1+` for all.
fn live_with(folder: &Path, calls: &str, error: &str, number: &str, words: &[&str]) -> Output {
    let plain = child("till", folder);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(folder.join("strace.txt")).args(words);
    let inject = format!("inject={calls}:error={error}:when={number}");
    strace.args(["-e", &format!("trace={calls}"), "-e", &inject]);
    strace.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        strace.env(name, value.unwrap_or_default());
    }
    strace
        .output()
        .unwrap_or_else(|error| panic!("cannot run strace; `cargo xtask install` brings it: {error}"))
}

/// Creates the file, so that the failing calls are not those that create it.
fn make(folder: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { opened(folder).await.unwrap().shutdown(SECOND).await.unwrap() });
}

/// The results of lives, and how often each occurred.
type Fates = BTreeMap<String, u32>;

/// Makes one call fail, then starts again without, and checks the result.
fn fail_and_check(calls: &str, error: &str, n: u32, fates: &mut Fates) {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    let what = format!("{calls} number {n} with {error}");
    let output = live_with(folder.path(), calls, error, &n.to_string(), &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{stderr}", output.status);
    let text = std::fs::read_to_string(folder.path().join("fate.txt")).unwrap();
    let has_failed = text.contains("unknown") || text.contains("poisoned");
    for line in text.lines() {
        let (when, how) = line.split_once(": ").unwrap();
        let fits = match (when, how) {
            ("not opened", _) => true,
            ("published", how) => matches!(how, "unknown" | "poisoned"),
            ("after it", how) => how == "poisoned",
            ("ended", how) if has_failed => matches!(how, "unknown" | "poisoned"),
            ("ended", how) => how == "drained",
            ("passing", how) => how.starts_with("the disk is full") && error == "ENOSPC",
            _ => false,
        };
        assert!(fits, "{what}: {line} in\n{text}");
        let word = if matches!(when, "not opened" | "passing") { when } else { line };
        *fates.entry(word.to_owned()).or_default() += 1;
    }

    std::fs::remove_file(folder.path().join("fate.txt")).unwrap();
    let output = child("till", folder.path()).output().unwrap();
    assert!(output.status.success(), "{what}, then: {}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(folder.path().join("fate.txt")).unwrap();
    assert_eq!(text, "ended: drained\n", "{what}, then");
    let db = Connection::open(file(folder.path())).unwrap();
    let one = |sql: &str| db.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(one("PRAGMA integrity_check"), "ok");
    let sales = "SELECT count(*) || ' ' || count(DISTINCT id) FROM effect WHERE id LIKE 'sale-%'";
    assert_eq!(one(sales), format!("{EVENTS} {EVENTS}"), "{what}: effects, and different ones");
}

#[test]
fn a_failed_sync_is_unknown_and_stops_everything_until_it_is_opened_again() {
    let mut fates = Fates::new();
    for n in [1, 2, 3, 4, 5, 6, 8, 11, 15, 20] {
        fail_and_check("fsync,fdatasync", "EIO", n, &mut fates);
    }
    eprintln!("failed syncs: {fates:#?}");
    assert!(fates.contains_key("published: unknown"), "{fates:?}");
    assert!(fates.contains_key("ended: poisoned") || fates.contains_key("ended: unknown"), "{fates:?}");
}

#[test]
fn a_failed_write_stops_everything_until_it_is_opened_again() {
    let mut fates = Fates::new();
    for n in [1, 5, 10, 20, 30, 31, 32, 40, 60] {
        fail_and_check("pwrite64", "EIO", n, &mut fates);
    }
    eprintln!("failed writes: {fates:#?}");
    assert!(fates.keys().any(|fate| fate.starts_with("published: ")), "{fates:?}");
}

#[test]
fn a_write_without_room_passes() {
    let mut fates = Fates::new();
    for n in [1, 5, 10, 20, 30, 31, 32, 40, 60] {
        fail_and_check("pwrite64", "ENOSPC", n, &mut fates);
    }
    eprintln!("writes without room: {fates:#?}");
    assert!(fates.contains_key("passing"), "{fates:?}");
    assert!(fates.contains_key("ended: drained"), "{fates:?}");
}

/// Under the crash guard the running attempts are noted before they run. If the note cannot be written, nothing runs,
/// and it is tried again now and then.
#[tokio::test]
async fn notes_that_cannot_be_written_are_tried_now_and_then() {
    let folder = tempfile::tempdir().unwrap();
    let redrive = open(folder.path()).await;
    redrive.queue("till").declare().await.unwrap();
    redrive.publish(Event::new("till", "sale-0")).await.unwrap();
    redrive.shutdown(SECOND).await.unwrap();
    let explorer = Explorer::new(|| {
        // It dies in its first life only, before anything ran.
        let is_first = !folder.path().join("fate.txt").exists();
        child(if is_first { "till" } else { "nobody" }, folder.path())
    });
    explorer.run([Kill::At("take-after-epoch", 1)]).unwrap();

    let notes = format!("{}-notes", file(folder.path()).display());
    let output = live_with(folder.path(), "pwrite64", "ENOSPC", "1+", &["-P", &notes]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let fate = std::fs::read_to_string(folder.path().join("fate.txt")).unwrap();
    assert_eq!(fate, "ended: nothing for five seconds\n");
    let calls = std::fs::read_to_string(folder.path().join("strace.txt")).unwrap();
    let tries = calls.lines().filter(|line| line.contains("INJECTED")).count();
    assert!((2..200).contains(&tries), "{tries} notes in five seconds");
}
