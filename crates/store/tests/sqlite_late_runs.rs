//! Events that are done after they had failed, settled together: each has the answer that it has alone, and the same
//! is in the file.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Event;
use redrive_core::entry::{Change, Entry, Park, Progress, Settle, Settled};
use redrive_core::event::{DeadReason, Mode};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, JobPlan, Operator, Redrive, Strategy};
use redrive_store::operate::{Act, Advance, Order, Target, What};
use redrive_store::{Sqlite, Store};

mod sqlite_common;
use sqlite_common::{AT, Place, due, publish, rows, settle, story};

const EVENTS: usize = 8;

/// What is unlike the others of one event of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Odd {
    Nothing,
    /// It keeps order in a key, and another of it follows.
    Key,
    /// It is gone.
    Gone,
    /// It was changed since.
    Rev,
    /// It is dead.
    Dead,
    /// It was discarded.
    Discarded,
    /// Its receipt has to last longer.
    Late,
    /// It is dropped.
    Dropped,
    /// Somebody else settles it.
    Fenced,
    /// It has nothing to say.
    Plain,
}

/// Settles of events that failed, or that died and were put back by a job, one of which is odd.
async fn filled(place: &Place, odd: Odd, put_back: bool) -> (Arc<Sqlite>, Vec<Settle>) {
    let store = place.open().await;
    let grant = store.take(0, AT).await.unwrap().grant;
    for id in 0..EVENTS {
        let event = Event::new("orders", id.to_string());
        publish(&store, if odd == Odd::Key && id == 3 { event.key("k") } else { event }).await.unwrap();
    }
    publish(&store, Event::new("orders", "next").key("k")).await.unwrap();
    let progress = Progress { attempts: 1, mode: Mode::Retry, story: story(1), ..Progress::fresh(AT) };
    let (reason, park) = (DeadReason::Permanent, Park::Stay);
    let dead = Change::Dead { reason, progress: progress.clone(), park };
    let change = if put_back { dead.clone() } else { Change::Again(progress) };
    let is_run = |entry: &Entry| entry.event.id != "next";
    let first = due(&store, grant).await;
    let first = first.iter().filter(|entry| is_run(entry));
    store.settle(first.map(|entry| settle(grant, entry, change.clone())).collect()).await.unwrap();
    if put_back {
        let keep_attempts = odd == Odd::Plain;
        let act = JobAct::Redrive(Redrive { out_of_order: true, keep_attempts, ..Redrive::default() });
        let plan = JobPlan { filter: Filter::default(), act, strategy: Strategy::default() };
        let what = What::Start(Box::new(plan));
        let order = Order { by: Operator::engine(), at: AT, what };
        let job = store.operate(order).await.unwrap().job.unwrap();
        let step = Advance { job, from: None, most: 100, at: AT };
        assert_eq!(store.advance(step).await.unwrap().unwrap().taken, EVENTS as u64);
    }
    let entries: Vec<_> = due(&store, grant).await.into_iter().filter(is_run).collect();
    assert_eq!(entries.len(), EVENTS);
    let attempts = u32::from(!put_back || odd == Odd::Plain);
    assert!(entries.iter().all(|entry| entry.progress.attempts == attempts), "{odd:?} {put_back}");
    let done = |entry: &Entry| {
        let story = story(u32::try_from(entry.seq.0 & 0xff).unwrap());
        settle(grant, entry, Change::DoneWith { result: None, attempts: 2, story })
    };
    let mut settles: Vec<Settle> = entries.iter().map(done).collect();
    let one = &mut settles[3];
    match odd {
        Odd::Nothing | Odd::Key => {}
        Odd::Gone => drop(store.settle(vec![one.clone()]).await.unwrap()),
        Odd::Rev => one.rev += 1,
        Odd::Dead => drop(store.settle(vec![settle(grant, &entries[3], dead)]).await.unwrap()),
        Odd::Discarded => {
            let what = What::Events(vec![Target::new("", "orders", "3")], Act::Discard);
            let order = Order { by: Operator::engine(), at: AT, what };
            assert_eq!(store.operate(order).await.unwrap().changed, 1);
        }
        Odd::Late => one.at = AT + Duration::from_secs(10),
        Odd::Dropped => one.change = Change::Dropped { attempts: 2, story: None },
        Odd::Fenced => one.grant.epoch -= 1,
        Odd::Plain => one.change = Change::Done,
    }
    if matches!(odd, Odd::Dead | Odd::Discarded) {
        // Whoever guesses the rev changes nothing either.
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
        let (together, alone) = (Place::new(), Place::new());
        let (store, settles) = filled(&together, odd, put_back).await;
        let (other, others) = filled(&alone, odd, put_back).await;
        let answers = store.settle(settles).await.unwrap();
        let mut expected = Vec::new();
        for settle in others {
            expected.push(other.settle(vec![settle]).await.unwrap().remove(0));
        }
        let is_done = |answer: &&Settled| matches!(answer, Settled::Applied { .. });
        assert!(answers.iter().filter(is_done).count() >= EVENTS - 1, "{odd:?} {put_back}: {answers:?}");
        assert_eq!(format!("{answers:#?}"), format!("{expected:#?}"), "{odd:?} {put_back}");
        for table in ["redrive_held", "redrive_end", "redrive_receipt", "redrive_group", "redrive_job"] {
            let select = format!("SELECT * FROM {table} ORDER BY 1, 2");
            assert_eq!(rows(&together, &select), rows(&alone, &select), "{odd:?} {put_back}: {table}");
        }
        let told = rows(&together, "SELECT * FROM redrive_end").len();
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
