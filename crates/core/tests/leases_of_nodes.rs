//! How long a node owns what it owns, by its own clock, and what it does about a table that it has looked at.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use redrive_core::entry::{Entry, Grant, Progress, Seq, StreamId, Taken};
use redrive_core::nodes::{NodeId, Row, Step, Term, beat_every, look_in, steps};
use redrive_core::scheduler::{Action, Input, QueuePlan, Scheduler};
use redrive_core::{Event, Moment, Policy, Seeded};

const NOW: Moment = Moment::from_nanos(1 << 50);
const ME: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

proptest! {
    /// The database writes the new end some time after the renewal was sent, by a clock that is up to a hundredth faster
    /// or slower than the node's.
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
        // What has not arrived is not known to be renewed.
        prop_assume!(passed >= under_way);
        let term = Term::new(lease, millis(passed), NOW);
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

    /// While renewals arrive, everything may start, however long it may take.
    #[test]
    fn a_node_that_is_heard_of_starts_everything(lease in 1_000_u64..600_000, time in prop::option::of(0_u64..1_000_000)) {
        let lease = millis(lease);
        let term = Term::new(lease, beat_every(lease), NOW);
        prop_assert!(term.has_time_for(time.map(millis), NOW));
    }
}

#[test]
fn no_attempt_starts_that_could_outlast_the_lease() {
    let term = Term::new(millis(8_000), millis(5_000), NOW);
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

fn grant(shard: u32, epoch: u64) -> Grant {
    Grant { shard, epoch, incarnation: 7 }
}

fn row(owner: NodeId, epoch: u64) -> Row {
    Row { owner: Some(owner), epoch }
}

#[test]
fn a_table_is_compared_with_what_the_node_knows() {
    let free = Row { owner: None, epoch: 3 };
    for (what, rows, held, expected) in [
        ("free", vec![free], vec![], vec![Step::Take(0)]),
        ("its own", vec![row(ME, 3)], vec![grant(0, 3)], vec![]),
        ("its answer was lost, or its lease was over", vec![row(ME, 3)], vec![], vec![Step::Take(0)]),
        ("taken from it", vec![row(OTHER, 4)], vec![grant(0, 3)], vec![Step::Drop(grant(0, 3))]),
        ("given away", vec![free], vec![grant(0, 3)], vec![Step::Drop(grant(0, 3)), Step::Take(0)]),
        ("taken since the look", vec![row(OTHER, 3)], vec![grant(0, 4)], vec![]),
        (
            "more than its share",
            vec![row(ME, 1), row(ME, 1)],
            vec![grant(0, 1), grant(1, 1)],
            vec![Step::Give(grant(1, 1))],
        ),
        ("its dead neighbour's", vec![row(NodeId(9), 5)], vec![], vec![Step::Take(0)]),
    ] {
        assert_eq!(steps(ME, &[ME, OTHER], &rows, &held), expected, "{what}");
    }
}

fn entry(number: u64) -> Entry {
    Entry {
        seq: Seq(number),
        rev: 0,
        stream: StreamId(1),
        shard: 0,
        published: NOW,
        expires: None,
        event: Arc::new(Event::new("mail", number.to_string())),
        progress: Progress::fresh(NOW),
    }
}

fn started(scheduler: &mut Scheduler, now: Moment) -> usize {
    let mut actions = Vec::new();
    scheduler.act(now, &mut actions);
    actions.iter().filter(|action| matches!(action, Action::Attempt(_))).count()
}

#[test]
fn the_scheduler_starts_nothing_under_a_lease_that_is_too_short() {
    let mut dice = Seeded::new(1);
    let lease = millis(8_000);
    for (unclean, ran_at_once) in [(false, 2), (true, 0)] {
        let mut scheduler = Scheduler::new();
        let policy = Policy::builder().attempt_time(millis(3_000)).build().unwrap();
        scheduler.add_queue(QueuePlan::new("mail", policy).concurrency(2));
        let taken = Taken { grant: grant(0, 1), unclean, suspects: vec![], streams: vec![] };
        scheduler.set_term(Some(Term::new(lease, millis(5_000), NOW)));
        scheduler.handle(Input::Own(taken), NOW, &mut dice);
        scheduler.handle(Input::Arrived(vec![entry(1), entry(2)]), NOW, &mut dice);
        assert_eq!(started(&mut scheduler, NOW), 0, "two seconds are left, and it may take three");
        let later = scheduler.next_wake().unwrap();
        scheduler.set_term(Some(Term::new(lease, Duration::ZERO, later)));
        assert_eq!(started(&mut scheduler, later), ran_at_once, "after a renewal");
        if unclean {
            // They were noted, which took longer than the lease lasts.
            let late = later + millis(7_000);
            scheduler.handle(Input::Noted(grant(0, 1)), late, &mut dice);
            assert_eq!(started(&mut scheduler, late), 0, "nothing is left");
            assert!(scheduler.under_way().is_empty());
        }
    }
}
