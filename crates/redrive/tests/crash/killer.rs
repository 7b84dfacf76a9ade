//! A handler that kills the process is convicted, and no other event is.

use std::path::Path;
use std::time::{Duration, Instant};

use redrive::engine::Transaction;
use redrive::event::{DeadReason, State};
use redrive::{Delivery, Event, Redrive, testing};
use redrive_testkit::crash::{Course, Explorer, Kill};

use crate::{SECOND, child, open, quick};

/// By the protocol: one death unnoticed, one that makes suspects, three alone.
const DEATHS_MAX: usize = 5;
const INNOCENTS: usize = 400;
/// How long an innocent handler takes: long enough for eight to run together. And short, because an event whose
/// process is killed from outside three times while it runs alone is taken for the killer.
const WORK: Duration = Duration::from_millis(2);

/// One life of a process, with or without a killer among its events.
pub(crate) async fn run(folder: &Path, with_killer: bool) {
    let redrive = open(folder).await;
    let handler = |delivery: Delivery| async move {
        tokio::time::sleep(WORK).await;
        kill_if_told(&delivery);
    };
    redrive.queue("office").policy(quick()).concurrency(8).handle(handler).await.unwrap();
    publish_and_finish(&redrive, with_killer).await;
}

/// The same in the store's transaction.
pub(crate) async fn run_in(folder: &Path) {
    let redrive = open(folder).await;
    let handler = |tx: &mut Transaction<'_>, delivery: &Delivery| {
        tx.sqlite().unwrap().execute("INSERT INTO done VALUES (?1)", [delivery.id()])?;
        kill_if_told(delivery);
        Ok::<_, redrive::Failure>(())
    };
    redrive.queue("office").policy(quick()).concurrency(8).handle_in(handler).await.unwrap();
    let make = |tx: &mut Transaction<'_>| {
        tx.sqlite().unwrap().execute_batch("CREATE TABLE IF NOT EXISTS done (id TEXT PRIMARY KEY)")
    };
    redrive.transact(make).await.unwrap();
    publish_and_finish(&redrive, true).await;
}

fn kill_if_told(delivery: &Delivery) {
    if delivery.id() == "killer" {
        std::process::abort();
    }
}

async fn publish_and_finish(redrive: &Redrive, with_killer: bool) {
    redrive.start().await.unwrap();
    let mut events: Vec<Event> =
        (0..INNOCENTS).map(|n| Event::new("office", format!("innocent-{n}"))).collect();
    if with_killer {
        events.insert(INNOCENTS / 2, Event::new("office", "killer"));
    }
    for answer in redrive.publish_all(events).await.unwrap() {
        answer.unwrap();
    }
    tokio::select! {
        () = testing::drain(redrive) => {}
        error = redrive.failed() => panic!("the store failed: {error}"),
    }
    redrive.shutdown(10 * SECOND).await.unwrap();
}

async fn expect_innocents_done(redrive: &Redrive, course: &Course) {
    for n in 0..INNOCENTS {
        let found = testing::fate(redrive, "office", &format!("innocent-{n}")).await;
        assert_eq!(found.state, State::Done, "innocent-{n} after {course:?}");
    }
}

#[tokio::test]
async fn a_handler_that_kills_the_process_is_convicted_alone() {
    for role in ["killer", "killer in a transaction"] {
        let folder = tempfile::tempdir().unwrap();
        let explorer = Explorer::new(|| child(role, folder.path())).own_deaths_max(DEATHS_MAX);
        let course = explorer.run([]).unwrap_or_else(|failed| panic!("{role}: {failed}"));
        let redrive = open(folder.path()).await;
        redrive.queue("office").declare().await.unwrap();
        let dead = testing::dead_letters(&redrive, "office").await;
        assert_eq!(dead, [("killer".to_owned(), DeadReason::KilledProcess)], "{role}: {course:?}");
        expect_innocents_done(&redrive, &course).await;
        redrive.shutdown(SECOND).await.unwrap();
        eprintln!("{role}: convicted after {} deaths", course.deaths.len());
    }
}

#[tokio::test]
async fn kills_from_outside_convict_nobody() {
    let whole = {
        let (folder, begin) = (tempfile::tempdir().unwrap(), Instant::now());
        Explorer::new(|| child("office", folder.path())).run([]).unwrap();
        begin.elapsed()
    };
    let (mut kills, mut seed) = (0, 1);
    while kills < 20 {
        let folder = tempfile::tempdir().unwrap();
        let explorer = Explorer::new(|| child("office", folder.path()));
        let course = explorer.run(Kill::at_random(seed, 20, whole)).unwrap();
        let redrive = open(folder.path()).await;
        assert_eq!(testing::dead_letters(&redrive, "office").await, [], "seed {seed}: {course:?}");
        expect_innocents_done(&redrive, &course).await;
        redrive.shutdown(SECOND).await.unwrap();
        kills += course.deaths_from_outside();
        seed += 1;
    }
    eprintln!("{kills} kills from outside within {whole:?} convicted no event");
}
