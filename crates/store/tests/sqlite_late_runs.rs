//! Events that are done after they had failed, settled together: each gets the same answer as alone, and the file has
//! the same rows.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Event;
use redrive_core::event::{DeadReason, Mode};
use redrive_core::queue_entry::{
    EventChange, EventProgress, ParkFollowers, QueueEntry, SettleRequest, SettleResult,
};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, JobPlan, JobStrategy, Operator, RedriveOptions};
use redrive_store::operate::{EventAction, EventRef, JobAdvance, OperatorAction, OperatorCommand};
use redrive_store::{Sqlite, prelude::*};

mod sqlite_common;
use sqlite_common::{AT, TestStore, due, history, publish, rows, settle};

const EVENTS: usize = 8;

/// How one event of the run differs from the others.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Odd {
    Nothing,
    /// It has an ordered key, and a later event of it follows.
    Key,
    /// It is gone.
    Gone,
    /// It was changed since.
    Rev,
    /// It is dead.
    Dead,
    /// It was discarded.
    Discarded,
    /// Its dedupe record has to last longer.
    Late,
    /// It is dropped.
    Dropped,
    /// Another owner settles it.
    Fenced,
    /// It has nothing to record.
    Plain,
}

/// Settles of events that failed, or that died and were redriven by a job, one of which is odd.
async fn filled(store_dir: &TestStore, odd: Odd, put_back: bool) -> (Arc<Sqlite>, Vec<SettleRequest>) {
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    for id in 0..EVENTS {
        let event = Event::new("orders", id.to_string());
        publish(&store, if odd == Odd::Key && id == 3 { event.key("k") } else { event }).await.unwrap();
    }
    publish(&store, Event::new("orders", "next").key("k")).await.unwrap();
    let progress =
        EventProgress { attempts: 1, mode: Mode::Retry, history: history(1), ..EventProgress::fresh(AT) };
    let (reason, park) = (DeadReason::Permanent, ParkFollowers::UntilResolved);
    let dead = EventChange::Dead { reason, progress: progress.clone(), park };
    let change = if put_back { dead.clone() } else { EventChange::Retry(progress) };
    let is_run = |entry: &QueueEntry| entry.event.id != "next";
    let first = due(&store, token).await;
    let first = first.iter().filter(|entry| is_run(entry));
    store.settle(first.map(|entry| settle(token, entry, change.clone())).collect()).await.unwrap();
    if put_back {
        let keep_attempts = odd == Odd::Plain;
        let act = JobAct::Redrive(RedriveOptions {
            out_of_order: true,
            keep_attempts,
            ..RedriveOptions::default()
        });
        let plan = JobPlan { filter: Filter::default(), act, strategy: JobStrategy::default() };
        let what = OperatorAction::Start(Box::new(plan));
        let order = OperatorCommand { by: Operator::engine(), at: AT, what };
        let job = store.operate(order).await.unwrap().job.unwrap();
        let step = JobAdvance { job, from: None, most: 100, at: AT };
        assert_eq!(store.advance(step).await.unwrap().unwrap().taken, EVENTS as u64);
    }
    let entries: Vec<_> = due(&store, token).await.into_iter().filter(is_run).collect();
    assert_eq!(entries.len(), EVENTS);
    let attempts = u32::from(!put_back || odd == Odd::Plain);
    assert!(entries.iter().all(|entry| entry.progress.attempts == attempts), "{odd:?} {put_back}");
    let done = |entry: &QueueEntry| {
        let history = history(u32::try_from(entry.seq.0 & 0xff).unwrap());
        settle(token, entry, EventChange::DoneWith { result: None, attempts: 2, history })
    };
    let mut settles: Vec<SettleRequest> = entries.iter().map(done).collect();
    let one = &mut settles[3];
    match odd {
        Odd::Nothing | Odd::Key => {}
        Odd::Gone => drop(store.settle(vec![one.clone()]).await.unwrap()),
        Odd::Rev => one.rev += 1,
        Odd::Dead => drop(store.settle(vec![settle(token, &entries[3], dead)]).await.unwrap()),
        Odd::Discarded => {
            let what = OperatorAction::Events(vec![EventRef::new("", "orders", "3")], EventAction::Discard);
            let order = OperatorCommand { by: Operator::engine(), at: AT, what };
            assert_eq!(store.operate(order).await.unwrap().changed, 1);
        }
        Odd::Late => one.at = AT + Duration::from_secs(10),
        Odd::Dropped => one.change = EventChange::Dropped { attempts: 2, history: None },
        Odd::Fenced => one.token.epoch -= 1,
        Odd::Plain => one.change = EventChange::Done,
    }
    if matches!(odd, Odd::Dead | Odd::Discarded) {
        // A guessed rev changes nothing either.
        one.rev += 1;
    }
    (store, settles)
}

#[tokio::test]
async fn together_they_are_done_as_one_by_one() {
    let odds = [
        Odd::Nothing,
        Odd::Key,
        Odd::Gone,
        Odd::Rev,
        Odd::Dead,
        Odd::Discarded,
        Odd::Late,
        Odd::Dropped,
        Odd::Fenced,
        Odd::Plain,
    ];
    for (odd, put_back) in odds.into_iter().flat_map(|odd| [(odd, false), (odd, true)]) {
        let (together, alone) = (TestStore::new(), TestStore::new());
        let (store, settles) = filled(&together, odd, put_back).await;
        let (other, others) = filled(&alone, odd, put_back).await;
        let answers = store.settle(settles).await.unwrap();
        let mut expected = Vec::new();
        for settle in others {
            expected.push(other.settle(vec![settle]).await.unwrap().remove(0));
        }
        let is_done = |answer: &&SettleResult| matches!(answer, SettleResult::Applied { .. });
        assert!(answers.iter().filter(is_done).count() >= EVENTS - 1, "{odd:?} {put_back}: {answers:?}");
        assert_eq!(format!("{answers:#?}"), format!("{expected:#?}"), "{odd:?} {put_back}");
        for table in ["redrive_tracked", "redrive_ending", "redrive_dedupe", "redrive_tally", "redrive_job"] {
            let select = format!("SELECT * FROM {table} ORDER BY 1, 2");
            assert_eq!(rows(&together, &select), rows(&alone, &select), "{odd:?} {put_back}: {table}");
        }
        let told = rows(&together, "SELECT * FROM redrive_ending").len();
        let expected = match odd {
            Odd::Rev | Odd::Dead | Odd::Discarded | Odd::Fenced | Odd::Plain => EVENTS - 1,
            _ => EVENTS,
        };
        assert_eq!(told, expected, "{odd:?} {put_back}");
        if put_back {
            let job = store.jobs(None).await.unwrap().remove(0);
            let left = u64::from(matches!(odd, Odd::Rev | Odd::Fenced));
            assert_eq!(job.under_way(), left, "{odd:?}: {job:?}");
        }
    }
}
