//! Leases for workers outside the engine: settled by attempt.

use std::sync::Arc;

use redrive::desk::{EventRef, GroupQuery, How};
use redrive::engine::lease::LeaseHandle;
use redrive::engine::{EventClock, Memory, OpenOptions};
use redrive::event::State;
use redrive::store::lease::LeaseSettleResult;
use redrive::{AfterDead, Event, Failure, Moment, Redrive, Reply, testing};

use crate::{SECOND, patient};

async fn pulled() -> Redrive {
    let redrive = testing::memory();
    redrive.queue("work").policy(patient()).ordered().pull().await.unwrap();
    redrive.start().await.unwrap();
    redrive
}

async fn lease_one(redrive: &Redrive) -> Option<LeaseHandle> {
    redrive.lease("work", 1, 10 * SECOND).await.unwrap().first().map(|lease| lease.held())
}

async fn settle(redrive: &Redrive, held: &LeaseHandle, reply: Reply) -> LeaseSettleResult {
    redrive.settle(vec![(held.clone(), reply)]).await.unwrap().remove(0)
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_settled_once_and_says_so_the_second_time() {
    let redrive = pulled().await;
    for id in ["1", "2"] {
        redrive.publish(Event::new("work", id).key("k")).await.unwrap();
    }
    let first = lease_one(&redrive).await.unwrap();
    assert_eq!(testing::fate(&redrive, "work", "1").await.state, State::Running);
    assert!(lease_one(&redrive).await.is_none(), "the key has one at a time");
    assert_eq!(settle(&redrive, &first, Reply::ok()).await, LeaseSettleResult::Applied);
    assert_eq!(settle(&redrive, &first, Reply::ok()).await, LeaseSettleResult::Already);
    assert_eq!(lease_one(&redrive).await.unwrap().id, "2");
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_counts_until_somebody_else_has_the_event() {
    let redrive = pulled().await;
    redrive.publish(Event::new("work", "1")).await.unwrap();
    let first = lease_one(&redrive).await.unwrap();
    tokio::time::sleep(20 * SECOND).await;
    let found = testing::fate(&redrive, "work", "1").await;
    assert_eq!(
        (found.attempts, found.history.unwrap().is_unsure()),
        (1, true),
        "an attempt of unknown outcome"
    );
    let second = lease_one(&redrive).await.unwrap();
    assert_eq!(second.attempt, 2);
    let late = settle(&redrive, &first, Reply::ok()).await;
    assert!(matches!(late, LeaseSettleResult::Conflict(_)), "{late:?}");
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(
        settle(&redrive, &second, Reply::ok()).await,
        LeaseSettleResult::Applied,
        "late, and no other worker has leased it"
    );
    let found = testing::fate(&redrive, "work", "1").await;
    assert_eq!((found.state, found.attempts), (State::Done, 2));
}

/// No call looks before the next request for leases; the attempt had ended all the same.
#[tokio::test(start_paused = true)]
async fn a_lapse_is_told_as_of_its_lease_and_not_of_when_it_was_noticed() {
    let redrive = testing::memory();
    redrive.queue("work").policy(patient()).pull().await.unwrap();
    redrive.publish(Event::new("work", "1")).await.unwrap();
    tokio::time::sleep(3 * SECOND).await;
    let [lease] = &redrive.lease("work", 1, 10 * SECOND).await.unwrap()[..] else { panic!("one is due") };
    tokio::time::sleep(500 * SECOND).await;
    assert_eq!(lease_one(&redrive).await, None, "it waits for its retry");
    let found = testing::fate(&redrive, "work", "1").await;
    let history = found.history.unwrap();
    let record = history.records().next().unwrap();
    let millis = |at: std::time::SystemTime| at.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    assert_eq!((u128::from(record.at_ms), record.took_ms), (millis(lease.until) - 10_000, 10_000));
}

/// An event whose last attempt was leased, and not settled in time: a dead letter that blocks its key.
async fn lapsed(redrive: &Redrive) -> LeaseHandle {
    for id in ["1", "2"] {
        redrive.publish(Event::new("work", id).key("k")).await.unwrap();
    }
    let mut last = None;
    for _ in 0..3 {
        last = lease_one(redrive).await;
        tokio::time::sleep(20 * SECOND).await;
    }
    let dead = testing::expect_dead(redrive, "work", "1").await;
    assert_eq!((dead.attempts, dead.reason.unwrap().as_str()), (3, "attempts_spent"));
    assert!(lease_one(redrive).await.is_none(), "it holds up its key");
    last.unwrap()
}

async fn parking() -> Redrive {
    let redrive = testing::memory();
    let work = redrive.queue("work").policy(patient()).after_dead(AfterDead::Park);
    work.pull().await.unwrap();
    redrive.start().await.unwrap();
    redrive
}

#[tokio::test(start_paused = true)]
async fn a_late_success_of_the_last_attempt_ends_its_dead_letter() {
    let redrive = parking().await;
    let held = lapsed(&redrive).await;
    assert_eq!(settle(&redrive, &held, Reply::ok()).await, LeaseSettleResult::Applied);
    assert_eq!(settle(&redrive, &held, Reply::ok()).await, LeaseSettleResult::Already);
    let found = testing::fate(&redrive, "work", "1").await;
    assert_eq!((found.state, found.attempts), (State::Done, 3));
    let history = found.history.unwrap();
    let said: Vec<_> = history.records().map(|record| record.disposition.as_str()).collect();
    assert_eq!(said, ["timeout", "timeout", "ok"]);
    assert!(redrive.desk("ann", "").groups(GroupQuery::default()).await.unwrap().is_empty());
    assert_eq!(lease_one(&redrive).await.unwrap().id, "2");
}

#[tokio::test(start_paused = true)]
async fn a_late_failure_of_the_last_attempt_is_the_cause_of_its_dead_letter() {
    let redrive = parking().await;
    let held = lapsed(&redrive).await;
    let failure = Failure::permanent_text("no such picture").kind("Store").not_executed();
    assert_eq!(settle(&redrive, &held, failure.into()).await, LeaseSettleResult::Applied);
    let groups = redrive.desk("ann", "").groups(GroupQuery::default()).await.unwrap();
    let groups: Vec<_> =
        groups.iter().map(|group| (&*group.title, group.letters, group.keys_blocked)).collect();
    assert_eq!(groups, [("Store: no such picture", 1, 1)]);
    assert!(matches!(settle(&redrive, &held, Reply::ok()).await, LeaseSettleResult::Conflict(_)));
    assert!(lease_one(&redrive).await.is_none(), "it still holds up its key");
}

#[tokio::test(start_paused = true)]
async fn a_late_retry_of_the_last_attempt_leaves_its_dead_letter_dead() {
    let redrive = parking().await;
    let held = lapsed(&redrive).await;
    let busy = Failure::transient_text("busy").kind("Store");
    assert_eq!(settle(&redrive, &held, busy.into()).await, LeaseSettleResult::Applied);
    let dead = testing::expect_dead(&redrive, "work", "1").await;
    assert_eq!((dead.attempts, dead.reason.unwrap().as_str()), (3, "attempts_spent"));
    let history = dead.history.unwrap();
    let last = history.records().next_back().unwrap();
    assert_eq!((last.attempt, last.cause.as_ref().unwrap().message.as_str()), (3, "busy"));
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_was_put_back_takes_no_late_answer() {
    let redrive = parking().await;
    let held = lapsed(&redrive).await;
    let letter = vec![EventRef::new("", "work", "1")];
    assert_eq!(redrive.desk("ann", "").redrive(letter, How::default()).await.unwrap().changed, 1);
    assert!(matches!(settle(&redrive, &held, Reply::ok()).await, LeaseSettleResult::Conflict(_)));
    let again = lease_one(&redrive).await.unwrap();
    assert_eq!((again.id.as_str(), again.attempt), ("1", 1));
    assert!(matches!(settle(&redrive, &held, Reply::ok()).await, LeaseSettleResult::Conflict(_)));
    assert_eq!(settle(&redrive, &again, Reply::ok()).await, LeaseSettleResult::Applied);
}

#[tokio::test(start_paused = true)]
async fn the_policy_decides_what_a_failure_means() {
    let redrive = pulled().await;
    redrive.publish(Event::new("work", "1")).await.unwrap();
    for _ in 0..3 {
        let held = loop {
            match lease_one(&redrive).await {
                Some(held) => break held,
                None => tokio::time::sleep(SECOND).await,
            }
        };
        assert_eq!(
            settle(&redrive, &held, Failure::transient_text("busy").into()).await,
            LeaseSettleResult::Applied
        );
    }
    let dead = testing::expect_dead(&redrive, "work", "1").await;
    assert_eq!((dead.attempts, dead.reason.unwrap().as_str()), (3, "attempts_spent"));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_extended_by_its_holder_alone() {
    let redrive = pulled().await;
    redrive.publish(Event::new("work", "1")).await.unwrap();
    let held = lease_one(&redrive).await.unwrap();
    assert!(!format!("{held:?}").contains(&held.token), "tokens are for their holders, and not for logs");
    let forged = LeaseHandle { token: "0.00".to_owned(), ..held.clone() };
    for _ in 0..5 {
        tokio::time::sleep(8 * SECOND).await;
        let extended = redrive.extend(vec![held.clone(), forged.clone()], 10 * SECOND).await.unwrap();
        assert_eq!(extended[0], LeaseSettleResult::Applied);
        assert_ne!(extended[1], LeaseSettleResult::Applied);
    }
    assert_ne!(settle(&redrive, &forged, Reply::ok()).await, LeaseSettleResult::Applied);
    assert_eq!(settle(&redrive, &held, Reply::ok()).await, LeaseSettleResult::Applied);
    let nobody = LeaseHandle { id: "nobody".to_owned(), ..held };
    assert_eq!(settle(&redrive, &nobody, Reply::ok()).await, LeaseSettleResult::Unknown);
}

#[tokio::test(start_paused = true)]
async fn only_a_queue_that_is_pulled_from_gives_leases() {
    let redrive = testing::memory();
    redrive.queue("mails").handle(|_| std::future::ready(())).await.unwrap();
    let refused = redrive.lease("mails", 1, SECOND).await.unwrap_err();
    assert!(refused.to_string().contains("cannot pull from"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_gets_a_handler_runs_what_somebody_had_leased() {
    let memory = Memory::new();
    let start = Moment::from_nanos(1_790_000_000_000_000_000);
    let engine = |store: Memory| OpenOptions::new().clock(EventClock::paused_at(start)).over(Arc::new(store));
    let before = engine(memory.clone());
    before.queue("work").policy(patient()).ordered().pull().await.unwrap();
    before.start().await.unwrap();
    for id in ["1", "2"] {
        before.publish(Event::new("work", id).key("k")).await.unwrap();
    }
    assert_eq!(lease_one(&before).await.unwrap().id, "1");
    before.shutdown(SECOND).await.unwrap();

    let after = engine(memory.reopen());
    after.queue("work").policy(patient()).ordered().handle(|_| std::future::ready(())).await.unwrap();
    after.start().await.unwrap();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(testing::fate(&after, "work", "1").await.state, State::Running, "a worker has leased it");
    tokio::time::sleep(10 * SECOND).await;
    for id in ["1", "2"] {
        assert_eq!(testing::fate(&after, "work", id).await.state, State::Done);
    }
}
