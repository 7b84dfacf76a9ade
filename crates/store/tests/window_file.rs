//! A window in a file: what a restart, a death, a failing disk and a flipped bit leave of it.
#![cfg(all(feature = "sqlite", feature = "planted"))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use redrive_core::Moment;
use redrive_store::StoreError;
use redrive_store::window::{ClaimError, Claimed, CommitError, Settings, SettingsError, Window};
use redrive_testkit::window::{first, id, mark, small, start};
use rusqlite::Connection;
use rusqlite::ffi::{self, SQLITE_IOERR_FSYNC};

const SECOND: Duration = Duration::from_secs(1);
const PLACE: &str = "REDRIVE_TEST_PLACE";

struct Place {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seen.db");
        Self { folder, path }
    }

    fn open(&self, now: Moment) -> Window {
        Window::open(&self.path, small(1_000), now).unwrap()
    }

    fn refusal(&self) -> String {
        Window::open(&self.path, small(10), start()).unwrap_err().to_string()
    }

    fn raw(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    fn rows(&self) -> u32 {
        self.raw().query_row("SELECT count(*) FROM redrive_window", [], |row| row.get(0)).unwrap()
    }
}

fn is_seen(window: &Window, n: usize, now: Moment) -> bool {
    matches!(window.claim(id(n), now), Ok(Claimed::Seen { .. }))
}

#[tokio::test]
async fn what_was_committed_is_seen_after_a_restart_and_a_claim_is_not() {
    let place = Place::new();
    let window = place.open(start());
    mark(&window, id(1), start()).await;
    let _effect_without_commit = first(&window, id(2), start());
    drop(window);

    let later = start() + 59 * SECOND;
    let window = place.open(later);
    assert_eq!(window.claim(id(1), later).unwrap(), Claimed::Seen { since: start() });
    // Nobody knows what became of it: it is given out at once, and may run again.
    first(&window, id(2), later);
    drop(window);

    let over = start() + 60 * SECOND;
    let window = place.open(over);
    first(&window, id(1), over);
}

#[tokio::test]
async fn a_clock_that_ran_ahead_is_set_right_by_a_restart() {
    let place = Place::new();
    let year = 365 * 24 * 3600 * SECOND;
    let window = place.open(start() + year);
    mark(&window, id(1), start() + year).await;
    drop(window);
    let window = place.open(start());
    assert!(is_seen(&window, 1, start()));
    mark(&window, id(2), start() + SECOND).await;
    assert!(is_seen(&window, 1, start() + SECOND));
    drop(window);
    let window = place.open(start() + 60 * SECOND);
    first(&window, id(1), start() + 60 * SECOND);
    assert!(is_seen(&window, 2, start() + 60 * SECOND));
}

#[tokio::test]
async fn the_file_forgets_as_the_window_does() {
    let place = Place::new();
    let window = Window::open(&place.path, small(50), start()).unwrap();
    for n in 0..200 {
        mark(&window, id(n), start()).await;
    }
    assert_eq!(place.rows(), 50, "by count");
    let later = start() + 60 * SECOND;
    for n in 200..220 {
        mark(&window, id(n), later).await;
    }
    assert_eq!(place.rows(), 20, "by time");
    drop(window);
    let window = Window::open(&place.path, small(10), later).unwrap();
    assert!((210..220).all(|n| is_seen(&window, n, later)), "the latest stay where less fits");
}

#[tokio::test]
async fn commits_share_a_sync() {
    let place = Place::new();
    let window = place.open(start());
    let tickets: Vec<_> = (0..500).map(|n| first(&window, id(n), start())).collect();
    let committing: Vec<_> = tickets.iter().map(|ticket| window.commit(*ticket, start())).collect();
    for commit in committing {
        commit.wait().await.unwrap();
    }
    assert!(window.syncs() < 250, "{} for 500 commits", window.syncs());
    assert_eq!(u64::from(place.rows()), window.syncs());
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_answered_until_the_file_is_opened_again() {
    let place = Place::new();
    let window = place.open(start());
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
    assert!(matches!(unknown, Err(CommitError::Unknown { .. })), "{unknown:?}");
    let poisoned = window.commit(two, start()).wait().await;
    assert!(matches!(poisoned, Err(CommitError::Store(StoreError::Poisoned { .. }))), "{poisoned:?}");
    // Neither "first time" nor "seen", not even of what is certain: the caller asks again, of another opening.
    for n in [0, 1, 3] {
        let claimed = window.claim(id(n), start() + 99 * SECOND);
        assert!(matches!(claimed, Err(ClaimError::Store(StoreError::Poisoned { .. }))), "{claimed:?}");
    }
    drop(window);
    let window = place.open(start());
    assert!(is_seen(&window, 0, start()) && is_seen(&window, 1, start()), "it had happened");
    first(&window, id(2), start());
}

#[tokio::test]
async fn a_full_disk_means_later_and_never_first_time() {
    let place = Place::new();
    let window = place.open(start());
    let tickets: Vec<_> = (0..600).map(|n| first(&window, id(n), start())).collect();
    let limit = |pages: u32| {
        move |conn: &mut Connection| {
            conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(())).unwrap();
        }
    };
    window.meddle(limit(1)).await;
    // One at a time, until the pages that are there are full.
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
    let window = place.open(start());
    assert!(is_seen(&window, 0, start()) && is_seen(&window, 700, start()));
}

#[tokio::test]
async fn claims_go_on_a_second_after_a_commit_that_failed() {
    let place = Place::new();
    let window = place.open(start());
    window.meddle(|conn| conn.busy_timeout(Duration::ZERO).unwrap()).await;
    let ticket = first(&window, id(1), start());
    let other = place.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(window.commit(ticket, start()).wait().await.unwrap_err().is_transient());
    assert!(window.claim(id(2), start() + (SECOND - Duration::from_nanos(1))).unwrap_err().is_transient());
    // Somebody has to find out whether it passed.
    first(&window, id(2), start() + SECOND);
    other.execute_batch("ROLLBACK").unwrap();
    window.commit(ticket, start()).wait().await.unwrap();
}

#[tokio::test]
async fn a_flipped_bit_is_named_and_everything_else_is_seen() {
    let place = Place::new();
    let window = place.open(start());
    for n in 0..3 {
        mark(&window, id(n), start()).await;
    }
    drop(window);
    let flip = "UPDATE redrive_window SET marks = CAST(x'01' || substr(marks, 2) AS BLOB) WHERE n = 2";
    place.raw().execute(flip, []).unwrap();
    let window = place.open(start());
    assert_eq!(window.damaged(), ["redrive_window row 2"]);
    assert!(is_seen(&window, 0, start()) && is_seen(&window, 2, start()));
    // Better twice than never.
    first(&window, id(1), start());
}

#[tokio::test]
async fn what_cannot_be_opened_says_what_to_do() {
    let place = Place::new();
    let nowhere = Window::open(place.folder.path().join("missing/seen.db"), small(10), start());
    let nowhere = nowhere.unwrap_err().to_string();
    assert!(nowhere.contains("there is no folder") && nowhere.contains("make it first"), "{nowhere}");
    std::fs::write(&place.path, "a letter to my mother, ".repeat(10)).unwrap();
    assert!(place.refusal().contains("not a SQLite database"), "{}", place.refusal());

    let place = Place::new();
    drop(redrive_store::Sqlite::open(&place.path, redrive_store::sqlite::Settings::default()).unwrap());
    assert!(place.refusal().contains("give the window a file of its own"), "{}", place.refusal());

    let place = Place::new();
    let owner = place.open(start());
    assert!(place.refusal().contains("another process has it"), "{}", place.refusal());
    drop(owner);
    place.raw().execute("UPDATE redrive_window_meta SET schema = 99", []).unwrap();
    let newer = Window::open(&place.path, small(10), start());
    assert!(matches!(newer, Err(StoreError::Newer { found: 99, known: 1, .. })), "{newer:?}");

    let none = Window::memory(Settings { count: 0, ..small(10) });
    assert!(matches!(none, Err(SettingsError::Count(0))), "{none:?}");
    let long = Settings { claim: 61 * SECOND, ..small(10) };
    let long = Window::open(&place.path, long, start()).unwrap_err().to_string();
    assert!(long.contains("outlast the window"), "{long}");
}

/// What the process does until it is killed: it says what was answered.
#[tokio::test]
async fn the_process_that_is_killed() {
    let Some(path) = std::env::var_os(PLACE) else { return };
    let window = Window::open(path, small(100_000), start()).unwrap();
    for n in 0..20_000 {
        let ticket = match window.claim(id(n), start()).unwrap() {
            Claimed::First(ticket) => ticket,
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

fn the_process(place: &Place) -> Command {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "the_process_that_is_killed", "--nocapture"]).env(PLACE, &place.path);
    process
}

/// What was said to be committed is seen, and what never began is free.
fn look(place: &Place, said: &[String], when: &str) {
    let heard = |word: &str| -> Vec<usize> {
        let numbers = said.iter().filter_map(|line| line.split_once(word)?.1.trim().parse().ok());
        numbers.collect()
    };
    let window = Window::open(&place.path, small(100_000), start()).unwrap();
    for n in heard("committed ") {
        assert!(is_seen(&window, n, start()), "{n} was committed and is gone, {when}");
    }
    // Two more may have begun without our hearing of it.
    first(&window, id(heard("effect ").len() + 2), start());
}

#[tokio::test]
async fn a_death_at_any_point_loses_no_commit_that_was_answered() {
    for point in ["window-before-commit", "window-after-commit", "window-before-answer"] {
        for times in [1, 7] {
            let place = Place::new();
            let when = format!("{point}:{times}");
            let child = the_process(&place).env("REDRIVE_CRASH_AT", &when).output().unwrap();
            assert_eq!(child.status.signal(), Some(9), "{when}");
            let said: Vec<_> = String::from_utf8(child.stdout).unwrap().lines().map(str::to_owned).collect();
            assert!(times == 1 || said.iter().any(|line| line.starts_with("committed")), "{when} {said:?}");
            look(&place, &said, &when);
        }
    }
}

#[tokio::test]
async fn a_kill_at_any_time_loses_no_commit_that_was_answered() {
    for lines in [50, 333, 1_000] {
        let place = Place::new();
        let mut child = the_process(&place).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            said.push(line.unwrap());
            if said.len() == lines {
                child.kill().unwrap();
            }
        }
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        look(&place, &said, &format!("after {lines} lines"));
    }
}

#[test]
fn a_window_is_no_store_of_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seen.db");
    drop(Window::open(&path, small(10), start()).unwrap());
    let refused = redrive_store::Sqlite::open(&path, redrive_store::sqlite::Settings::default()).unwrap_err();
    assert!(refused.to_string().contains("it is a dedupe window"), "{refused}");
}
