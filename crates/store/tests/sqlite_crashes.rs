//! A process that dies at any point of a write: answered calls are durable, and unanswered ones are complete or
//! absent.
#![cfg(all(feature = "sqlite", feature = "planted"))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use redrive_core::Event;
use redrive_core::event::State;
use redrive_core::queue_entry::EventChange;
use redrive_store::{Published, prelude::*, sqlite};

mod sqlite_common;
use sqlite_common::{AT, TestStore, due, publish, settle};

const PLACE: &str = "REDRIVE_TEST_PLACE";

/// The process that dies: it prints which calls were answered.
#[tokio::test]
async fn the_process_that_dies() {
    let Some(path) = std::env::var_os(PLACE) else { return };
    let store_dir = TestStore { path: path.into(), ..TestStore::new() };
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    for n in 0..24 {
        // Large ones, so that the log is written back in between.
        let event = Event::new("orders", n.to_string()).payload(vec![7; 1 << 20]);
        publish(&store, event).await.unwrap();
        println!("accepted {n}");
        let entry =
            due(&store, token).await.into_iter().find(|entry| entry.event.id == n.to_string()).unwrap();
        store.note(token, vec![entry.seq]).await.unwrap();
        let mut end = settle(token, &entry, EventChange::Done);
        if n % 8 == 0 {
            store.settle(vec![settle(token, &entry, EventChange::CountCrash)]).await.unwrap();
            println!("struck {n}");
            end.rev += 1;
        }
        if n % 2 == 0 {
            store.settle(vec![end]).await.unwrap();
            println!("done {n}");
        }
    }
    println!("survived");
}

/// Runs it until it dies at the `times`th pass of a point; returns its output.
fn die(store_dir: &TestStore, point: &str, times: u32) -> Vec<String> {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_process_that_dies", "--nocapture"])
        .env(PLACE, &store_dir.path)
        .env("REDRIVE_CRASH_AT", format!("{point}:{times}"))
        .output()
        .unwrap();
    let said = String::from_utf8(child.stdout).unwrap();
    assert_eq!(child.status.signal(), Some(9), "{point}:{times} {said}");
    said.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_death_at_any_point_loses_nothing_that_was_answered() {
    for point in sqlite::crash_points() {
        let seldom = ["take-after-epoch", "before-checkpoint", "after-checkpoint"].contains(point);
        for times in if seldom { [1, 1] } else { [2, 3] } {
            let store_dir = TestStore::new();
            let said = die(&store_dir, point, times);
            let store = store_dir.open().await;
            let sound: String =
                store_dir.raw().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
            assert_eq!(sound, "ok", "{point}");

            let heard = |word: &str| -> HashSet<String> {
                let word = format!("{word} ");
                said.iter().filter_map(|line| line.split_once(&word)).map(|(_, n)| n.to_owned()).collect()
            };
            let (accepted, done, struck) = (heard("accepted"), heard("done"), heard("struck"));
            for id in &accepted {
                let found = store.find("", "orders", id).await.unwrap();
                let found = found.unwrap_or_else(|| panic!("{id} was accepted and is gone, at {point}"));
                assert!(!done.contains(id) || found.state == State::Done, "{id} at {point}: {found:?}");
                let event = Event::new("orders", id).payload(vec![7; 1 << 20]);
                assert!(
                    matches!(publish(&store, event).await, Ok(Published::Duplicate(_))),
                    "{id} at {point}"
                );
            }
            let taken = store.take(0, AT).await.unwrap();
            let opened_only = taken.token.epoch == 1;
            assert_eq!(taken.unclean, !opened_only, "{point}");
            for id in struck.difference(&done) {
                let entry = taken.suspects.iter().find(|entry| entry.event.id == *id);
                assert!(
                    entry.is_some_and(|entry| entry.progress.crash_count > 0) || is_done(&store, id).await,
                    "{id} at {point}"
                );
            }
            // Nothing incomplete: an event has a dedupe record, and everything loads.
            let left = due(&store, taken.token).await;
            let (live, receipts): (usize, usize) = (left.len(), receipts(&store_dir));
            assert!(live <= receipts && receipts >= accepted.len(), "{live} {receipts} at {point}");
        }
    }
}

async fn is_done(store: &redrive_store::Sqlite, id: &str) -> bool {
    store.find("", "orders", id).await.unwrap().is_some_and(|found| found.state == State::Done)
}

fn receipts(store_dir: &TestStore) -> usize {
    let count: u32 =
        store_dir.raw().query_row("SELECT count(*) FROM redrive_dedupe", [], |row| row.get(0)).unwrap();
    count as usize
}
