//! How long a node owns its shards by its own clock, and what it does after it has read the table of shards.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use redrive_core::nodes::{LeaseClock, NodeId, NodeStep, ShardRow, beat_every, look_in, steps};
use redrive_core::queue_entry::{EventProgress, FencingToken, QueueEntry, Seq, StreamId, TakenShard};
use redrive_core::scheduler::{Action, Input, NoteId, QueuePlan, Scheduler};
use redrive_core::{Event, Moment, Policy, SeededRandom};

const NOW: Moment = Moment::from_nanos(1 << 50);
const ME: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

proptest! {
    /// The database writes the new end some time after the renewal was sent, by a clock that is up to a
    /// hundredth faster or slower than the node's.
    #[test]
    fn what_a_node_thinks_is_left_is_left_in_the_database(
        lease in 1_000_u64..60_000,
        sent in 0_u64..1_000_000,
        under_way in 0_u64..10_000,
        passed in 0_u64..70_000,
        pace in 0.99_f64..1.01,
    ) {
        let lease = millis(lease);
        let in_database = |own: u64| millis(own).mul_f64(pace);
        let end = in_database(sent + under_way) + lease;
        let now = in_database(sent + passed);
        // A renewal without an answer does not count.
        prop_assume!(passed >= under_way);
        let term = LeaseClock::new(lease, millis(passed), NOW);
        if !term.is_over(NOW) {
            let really = end.saturating_sub(now);
            let left = term.left(NOW);
            prop_assert!(left.mul_f64(pace) <= really, "{left:?} of {really:?}");
        }
        prop_assert_eq!(term.is_over(NOW), term.left(NOW).is_zero());
        for time in [None, Some(millis(5)), Some(lease * 2)] {
            prop_assert!(!(term.is_over(NOW) && term.has_time_for(time, NOW)));
        }
    }

    /// While renewals arrive, every attempt may start, whatever its time limit.
    #[test]
    fn a_node_that_is_heard_of_starts_everything(lease in 1_000_u64..600_000, time in prop::option::of(0_u64..1_000_000)) {
        let lease = millis(lease);
        let term = LeaseClock::new(lease, beat_every(lease), NOW);
        prop_assert!(term.has_time_for(time.map(millis), NOW));
    }
}

#[test]
fn no_attempt_starts_that_could_outlast_the_lease() {
    let term = LeaseClock::new(millis(8_000), millis(5_000), NOW);
    assert_eq!(term.left(NOW), millis(2_000), "an eighth is margin");
    for (time, may) in [(Some(1_999), true), (Some(2_000), true), (Some(2_001), false), (None, false)] {
        assert_eq!(term.has_time_for(time.map(millis), NOW), may, "{time:?}");
    }
    assert!(!term.has_time_for(Some(Duration::ZERO), NOW + millis(2_000)), "it is over");
}

#[test]
fn a_node_looks_when_the_first_lease_of_another_may_be_over() {
    assert_eq!(look_in([]), millis(500));
    assert_eq!(look_in([millis(9_000), millis(100)]), millis(120));
}

fn token(shard: u32, epoch: u64) -> FencingToken {
    FencingToken { shard, epoch, incarnation: 7 }
}

fn row(owner: NodeId, epoch: u64) -> ShardRow {
    ShardRow { owner: Some(owner), epoch }
}

#[test]
fn a_table_is_compared_with_what_the_node_knows() {
    let free = ShardRow { owner: None, epoch: 3 };
    for (what, rows, held, expected) in [
        ("free", vec![free], vec![], vec![NodeStep::Take(0)]),
        ("its own", vec![row(ME, 3)], vec![token(0, 3)], vec![]),
        ("its answer was lost, or its lease was over", vec![row(ME, 3)], vec![], vec![NodeStep::Take(0)]),
        ("taken from it", vec![row(OTHER, 4)], vec![token(0, 3)], vec![NodeStep::Drop(token(0, 3))]),
        ("given away", vec![free], vec![token(0, 3)], vec![NodeStep::Drop(token(0, 3)), NodeStep::Take(0)]),
        ("taken since the look", vec![row(OTHER, 3)], vec![token(0, 4)], vec![]),
        (
            "more than its share",
            vec![row(ME, 1), row(ME, 1)],
            vec![token(0, 1), token(1, 1)],
            vec![NodeStep::Give(token(1, 1))],
        ),
        ("its dead neighbour's", vec![row(NodeId(9), 5)], vec![], vec![NodeStep::Take(0)]),
    ] {
        assert_eq!(steps(ME, &[ME, OTHER], &rows, &held), expected, "{what}");
    }
}

fn entry(number: u64) -> QueueEntry {
    QueueEntry {
        seq: Seq(number),
        rev: 0,
        stream: StreamId(1),
        shard: 0,
        published: NOW,
        expires: None,
        event: Arc::new(Event::new("mail", number.to_string())),
        progress: EventProgress::fresh(NOW),
    }
}

fn started(scheduler: &mut Scheduler, now: Moment) -> usize {
    starts_and_note(scheduler, now).0
}

/// How many attempts start, and the dispatch note that is planned.
fn starts_and_note(scheduler: &mut Scheduler, now: Moment) -> (usize, Option<NoteId>) {
    let mut actions = Vec::new();
    scheduler.act(now, &mut actions);
    let note = actions.iter().find_map(|action| match action {
        Action::Note(note, _) => Some(*note),
        _ => None,
    });
    (actions.iter().filter(|action| matches!(action, Action::Attempt(_))).count(), note)
}

#[test]
fn the_scheduler_starts_nothing_under_a_lease_that_is_too_short() {
    let mut random = SeededRandom::new(1);
    let lease = millis(8_000);
    for (unclean, ran_at_once) in [(false, 2), (true, 0)] {
        let mut scheduler = Scheduler::new();
        let policy = Policy::builder().attempt_time(millis(3_000)).build().unwrap();
        scheduler.add_queue(QueuePlan::new("mail", policy).concurrency(2));
        let taken = TakenShard { token: token(0, 1), unclean, suspects: vec![], streams: vec![] };
        scheduler.set_term(Some(LeaseClock::new(lease, millis(5_000), NOW)));
        scheduler.handle(Input::Own(taken), NOW, &mut random);
        scheduler.handle(Input::Arrived(vec![entry(1), entry(2)]), NOW, &mut random);
        assert_eq!(started(&mut scheduler, NOW), 0, "two seconds are left, and it may take three");
        let later = scheduler.next_wake().unwrap();
        scheduler.set_term(Some(LeaseClock::new(lease, Duration::ZERO, later)));
        let (ran, note) = starts_and_note(&mut scheduler, later);
        assert_eq!(ran, ran_at_once, "after a renewal");
        assert_eq!(note.is_some(), unclean);
        if let Some(note) = note {
            // Writing the dispatch note took longer than the lease lasts.
            let late = later + millis(7_000);
            scheduler.handle(Input::Noted(note), late, &mut random);
            assert_eq!(started(&mut scheduler, late), 0, "nothing is left");
            assert!(scheduler.under_way().is_empty());
        }
    }
}
