//! A window in a file after a restart, a death, a failing disk and a flipped bit.
#![cfg(all(feature = "sqlite", feature = "planted"))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use redrive_core::Moment;
use redrive_store::StoreError;
use redrive_store::window::{
    ClaimResult, DedupeWindow, WindowClaimError, WindowCommitError, WindowSettings, WindowSettingsError,
};
use redrive_testkit::window::{first, id, mark, small, start};
use rusqlite::Connection;
use rusqlite::ffi::{self, SQLITE_IOERR_FSYNC};

const SECOND: Duration = Duration::from_secs(1);
const PLACE: &str = "REDRIVE_TEST_PLACE";

struct TestStore {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl TestStore {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seen.db");
        Self { folder, path }
    }

    fn open(&self, now: Moment) -> DedupeWindow {
        DedupeWindow::open(&self.path, small(1_000), now).unwrap()
    }

    fn refusal(&self) -> String {
        DedupeWindow::open(&self.path, small(10), start()).unwrap_err().to_string()
    }

    fn raw(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    fn rows(&self) -> u32 {
        self.raw().query_row("SELECT count(*) FROM redrive_window", [], |row| row.get(0)).unwrap()
    }
}

fn is_seen(window: &DedupeWindow, n: usize, now: Moment) -> bool {
    matches!(window.claim(id(n), now), Ok(ClaimResult::Seen { .. }))
}

#[tokio::test]
async fn what_was_committed_is_seen_after_a_restart_and_a_claim_is_not() {
    let store_dir = TestStore::new();
    let window = store_dir.open(start());
    mark(&window, id(1), start()).await;
    let _effect_without_commit = first(&window, id(2), start());
    drop(window);

    let later = start() + 59 * SECOND;
    let window = store_dir.open(later);
    assert_eq!(window.claim(id(1), later).unwrap(), ClaimResult::Seen { since: start() });
    // Its outcome is unknown: it can be claimed at once, and may run again.
    first(&window, id(2), later);
    drop(window);

    let over = start() + 60 * SECOND;
    let window = store_dir.open(over);
    first(&window, id(1), over);
}

#[tokio::test]
async fn a_clock_that_ran_ahead_is_set_right_by_a_restart() {
    let store_dir = TestStore::new();
    let year = 365 * 24 * 3600 * SECOND;
    let window = store_dir.open(start() + year);
    mark(&window, id(1), start() + year).await;
    drop(window);
    let window = store_dir.open(start());
    assert!(is_seen(&window, 1, start()));
    mark(&window, id(2), start() + SECOND).await;
    assert!(is_seen(&window, 1, start() + SECOND));
    drop(window);
    let window = store_dir.open(start() + 60 * SECOND);
    first(&window, id(1), start() + 60 * SECOND);
    assert!(is_seen(&window, 2, start() + 60 * SECOND));
}

#[tokio::test]
async fn the_file_forgets_as_the_window_does() {
    let store_dir = TestStore::new();
    let window = DedupeWindow::open(&store_dir.path, small(50), start()).unwrap();
    for n in 0..200 {
        mark(&window, id(n), start()).await;
    }
    assert_eq!(store_dir.rows(), 50, "by count");
    let later = start() + 60 * SECOND;
    for n in 200..220 {
        mark(&window, id(n), later).await;
    }
    assert_eq!(store_dir.rows(), 20, "by time");
    drop(window);
    let window = DedupeWindow::open(&store_dir.path, small(10), later).unwrap();
    assert!((210..220).all(|n| is_seen(&window, n, later)), "the latest stay where less fits");
}

#[tokio::test]
async fn commits_share_a_sync() {
    let store_dir = TestStore::new();
    let window = store_dir.open(start());
    let tickets: Vec<_> = (0..500).map(|n| first(&window, id(n), start())).collect();
    let committing: Vec<_> = tickets.iter().map(|ticket| window.commit(*ticket, start())).collect();
    for commit in committing {
        commit.wait().await.unwrap();
    }
    assert!(window.syncs() < 250, "{} for 500 commits", window.syncs());
    assert_eq!(u64::from(store_dir.rows()), window.syncs());
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_answered_until_the_file_is_opened_again() {
    let store_dir = TestStore::new();
    let window = store_dir.open(start());
    mark(&window, id(0), start()).await;
    let (one, two) = (first(&window, id(1), start()), first(&window, id(2), start()));
    let fail = |conn: &mut Connection| {
        let hook = |_: &mut rusqlite::hooks::Wal, _| {
            Err(rusqlite::Error::SqliteFailure(ffi::Error::new(SQLITE_IOERR_FSYNC), None))
        };
        conn.wal_hook(Some(hook)).unwrap();
    };
    window.meddle(fail).await;
    let unknown = window.commit(one, start()).wait().await;
    assert!(matches!(unknown, Err(WindowCommitError::Unknown { .. })), "{unknown:?}");
    let poisoned = window.commit(two, start()).wait().await;
    assert!(matches!(poisoned, Err(WindowCommitError::Store(StoreError::Poisoned { .. }))), "{poisoned:?}");
    // Neither "first time" nor "seen", not even for certain ids: the caller asks again, after another opening.
    for n in [0, 1, 3] {
        let claimed = window.claim(id(n), start() + 99 * SECOND);
        assert!(matches!(claimed, Err(WindowClaimError::Store(StoreError::Poisoned { .. }))), "{claimed:?}");
    }
    drop(window);
    let window = store_dir.open(start());
    assert!(is_seen(&window, 0, start()) && is_seen(&window, 1, start()), "it had happened");
    first(&window, id(2), start());
}

#[tokio::test]
async fn a_full_disk_means_later_and_never_first_time() {
    let store_dir = TestStore::new();
    let window = store_dir.open(start());
    let tickets: Vec<_> = (0..600).map(|n| first(&window, id(n), start())).collect();
    let limit = |pages: u32| {
        move |conn: &mut Connection| {
            conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(())).unwrap();
        }
    };
    window.meddle(limit(1)).await;
    // One at a time, until the existing pages are full.
    let mut refused = None;
    for ticket in &tickets {
        if let Err(error) = window.commit(*ticket, start()).wait().await {
            refused = Some((*ticket, error));
            break;
        }
    }
    let (ticket, error) = refused.unwrap();
    assert!(error.is_transient() && error.to_string().contains("the disk is full"), "{error}");
    let claimed = window.claim(id(700), start());
    assert!(matches!(&claimed, Err(error) if error.is_transient()), "{claimed:?}");
    assert!(window.figures(start()).claims > 0, "its claim is still its own");

    window.meddle(limit(1_000_000)).await;
    window.commit(ticket, start()).wait().await.unwrap();
    mark(&window, id(700), start()).await;
    drop(window);
    let window = store_dir.open(start());
    assert!(is_seen(&window, 0, start()) && is_seen(&window, 700, start()));
}

#[tokio::test]
async fn claims_go_on_a_second_after_a_commit_that_failed() {
    let store_dir = TestStore::new();
    let window = store_dir.open(start());
    window.meddle(|conn| conn.busy_timeout(Duration::ZERO).unwrap()).await;
    let ticket = first(&window, id(1), start());
    let other = store_dir.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(window.commit(ticket, start()).wait().await.unwrap_err().is_transient());
    assert!(window.claim(id(2), start() + (SECOND - Duration::from_nanos(1))).unwrap_err().is_transient());
    // One claim has to find out whether the trouble passed.
    first(&window, id(2), start() + SECOND);
    other.execute_batch("ROLLBACK").unwrap();
    window.commit(ticket, start()).wait().await.unwrap();
}

#[tokio::test]
async fn a_flipped_bit_is_named_and_everything_else_is_seen() {
    let store_dir = TestStore::new();
    let window = store_dir.open(start());
    for n in 0..3 {
        mark(&window, id(n), start()).await;
    }
    drop(window);
    let flip = "UPDATE redrive_window SET marks = CAST(x'01' || substr(marks, 2) AS BLOB) WHERE n = 2";
    store_dir.raw().execute(flip, []).unwrap();
    let window = store_dir.open(start());
    assert_eq!(window.damaged(), ["redrive_window row 2"]);
    assert!(is_seen(&window, 0, start()) && is_seen(&window, 2, start()));
    // Better twice than never.
    first(&window, id(1), start());
}

#[tokio::test]
async fn what_cannot_be_opened_says_what_to_do() {
    let store_dir = TestStore::new();
    let nowhere = DedupeWindow::open(store_dir.folder.path().join("missing/seen.db"), small(10), start());
    let nowhere = nowhere.unwrap_err().to_string();
    assert!(nowhere.contains("there is no folder") && nowhere.contains("create it first"), "{nowhere}");
    std::fs::write(&store_dir.path, "a letter to my mother, ".repeat(10)).unwrap();
    assert!(store_dir.refusal().contains("not a SQLite database"), "{}", store_dir.refusal());

    let store_dir = TestStore::new();
    drop(
        redrive_store::Sqlite::open(&store_dir.path, redrive_store::sqlite::SqliteSettings::default())
            .unwrap(),
    );
    assert!(store_dir.refusal().contains("give the window a file of its own"), "{}", store_dir.refusal());

    let store_dir = TestStore::new();
    let owner = store_dir.open(start());
    assert!(store_dir.refusal().contains("another process has it"), "{}", store_dir.refusal());
    drop(owner);
    store_dir.raw().execute("UPDATE redrive_window_meta SET schema = 99", []).unwrap();
    let newer = DedupeWindow::open(&store_dir.path, small(10), start());
    assert!(matches!(newer, Err(StoreError::Newer { found: 99, known: 1, .. })), "{newer:?}");

    let none = DedupeWindow::memory(WindowSettings { count: 0, ..small(10) });
    assert!(matches!(none, Err(WindowSettingsError::Count(0))), "{none:?}");
    let long = WindowSettings { claim: 61 * SECOND, ..small(10) };
    let long = DedupeWindow::open(&store_dir.path, long, start()).unwrap_err().to_string();
    assert!(long.contains("outlast the window"), "{long}");
}

/// The process that is killed: it prints which calls were answered.
#[tokio::test]
async fn the_process_that_is_killed() {
    let Some(path) = std::env::var_os(PLACE) else { return };
    let window = DedupeWindow::open(path, small(100_000), start()).unwrap();
    for n in 0..20_000 {
        let ticket = match window.claim(id(n), start()).unwrap() {
            ClaimResult::First(ticket) => ticket,
            _ => continue,
        };
        println!("effect {n}");
        // A few at a time, so that some share a commit.
        if n % 3 == 0 {
            window.commit(ticket, start()).wait().await.unwrap();
            println!("committed {n}");
        } else {
            let _ = window.commit(ticket, start());
        }
    }
}

fn the_process(store_dir: &TestStore) -> Command {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "the_process_that_is_killed", "--nocapture"]).env(PLACE, &store_dir.path);
    process
}

/// Ids that were reported as committed are seen, and ids that never began are free.
fn look(store_dir: &TestStore, said: &[String], when: &str) {
    let heard = |word: &str| -> Vec<usize> {
        let numbers = said.iter().filter_map(|line| line.split_once(word)?.1.trim().parse().ok());
        numbers.collect()
    };
    let window = DedupeWindow::open(&store_dir.path, small(100_000), start()).unwrap();
    for n in heard("committed ") {
        assert!(is_seen(&window, n, start()), "{n} was committed and is gone, {when}");
    }
    // Two more may have begun without a report.
    first(&window, id(heard("effect ").len() + 2), start());
}

#[tokio::test]
async fn a_death_at_any_point_loses_no_commit_that_was_answered() {
    for point in ["window-before-commit", "window-after-commit", "window-before-answer"] {
        for times in [1, 7] {
            let store_dir = TestStore::new();
            let when = format!("{point}:{times}");
            let child = the_process(&store_dir).env("REDRIVE_CRASH_AT", &when).output().unwrap();
            assert_eq!(child.status.signal(), Some(9), "{when}");
            let said: Vec<_> = String::from_utf8(child.stdout).unwrap().lines().map(str::to_owned).collect();
            assert!(times == 1 || said.iter().any(|line| line.starts_with("committed")), "{when} {said:?}");
            look(&store_dir, &said, &when);
        }
    }
}

#[tokio::test]
async fn a_kill_at_any_time_loses_no_commit_that_was_answered() {
    for lines in [50, 333, 1_000] {
        let store_dir = TestStore::new();
        let mut child = the_process(&store_dir).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            said.push(line.unwrap());
            if said.len() == lines {
                child.kill().unwrap();
            }
        }
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        look(&store_dir, &said, &format!("after {lines} lines"));
    }
}

#[test]
fn a_window_is_no_store_of_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seen.db");
    drop(DedupeWindow::open(&path, small(10), start()).unwrap());
    let refused =
        redrive_store::Sqlite::open(&path, redrive_store::sqlite::SqliteSettings::default()).unwrap_err();
    assert!(refused.to_string().contains("it is a dedupe window"), "{refused}");
}
