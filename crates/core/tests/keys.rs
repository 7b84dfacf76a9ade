//! One of a key at a time, and none of them forgotten, over a store in which publishers and owners cross.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::entry::{Entry, Grant, Loaded, Overdue, Progress, Seq, Settled, StreamId, Taken};
use redrive_core::observe::Outcome;
use redrive_core::scheduler::{Action, Ending, FlowKey, Input, QueuePlan, Said, Scheduler};
use redrive_core::{Disposition, Event, Fault, Moment, Policy, Seeded};

const GRANT: Grant = Grant { shard: 0, epoch: 1, incarnation: 1 };
const NOW: Moment = Moment::from_nanos(10_000_000_000);

fn entry(seq: u64, key: Option<&str>) -> Entry {
    let mut event = Event::new("orders", seq.to_string());
    event.key = key.map(str::to_owned);
    Entry {
        seq: Seq(seq),
        rev: 1,
        stream: StreamId(1),
        shard: 0,
        published: NOW,
        expires: None,
        event: Arc::new(event),
        progress: Progress::fresh(NOW),
    }
}

fn of_key(seq: u64) -> Entry {
    entry(seq, Some("k"))
}

fn again() -> Said {
    Said::Outcome(Outcome::Said(Fault::transient().into()))
}

/// An owner of the only shard, with nothing to do.
struct Owner {
    scheduler: Scheduler,
    dice: Seeded,
    now: Moment,
}

/// What an owner wants done.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wants {
    starts: Vec<u64>,
    settles: Vec<u64>,
    loads: usize,
}

impl Owner {
    fn new() -> Self {
        Self::of(true)
    }

    fn of(ordered: bool) -> Self {
        Self::with(QueuePlan { ordered, ..QueuePlan::new("orders", Policy::default()) })
    }

    /// There is room for one that never ran, and for one that has.
    fn narrow(ordered: bool) -> Self {
        Self::with(QueuePlan { ordered, window_max: 2, ..QueuePlan::new("orders", Policy::default()) })
    }

    fn with(plan: QueuePlan) -> Self {
        let mut scheduler = Scheduler::new();
        scheduler.add_queue(plan);
        let mut it = Self { scheduler, dice: Seeded::new(1), now: NOW };
        let streams = vec![(StreamId(1), "orders".to_owned(), String::new())];
        it.hand_in(Input::Own(Taken { grant: GRANT, unclean: false, suspects: vec![], streams }));
        assert_eq!(it.loads(vec![]), Wants::default());
        it
    }

    fn hand_in(&mut self, input: Input) {
        self.scheduler.handle(input, self.now, &mut self.dice);
    }

    fn actions(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.scheduler.act(self.now, &mut actions);
        actions
    }

    fn act(&mut self) -> Wants {
        let mut wants = Wants::default();
        for action in self.actions() {
            match action {
                Action::Attempt(ticket) => wants.starts.push(ticket.entry.seq.0),
                Action::Settle(settle) => wants.settles.push(settle.seq.0),
                Action::Load(..) => wants.loads += 1,
                _ => {}
            }
        }
        wants
    }

    /// A load is asked for, and finds this.
    fn loads(&mut self, entries: Vec<Entry>) -> Wants {
        self.finds(Loaded { entries, ..Loaded::default() })
    }

    fn finds(&mut self, loaded: Loaded) -> Wants {
        let actions = self.actions();
        let key = actions.iter().find_map(|action| match action {
            Action::Load(key, _) => Some(*key),
            _ => None,
        });
        self.hand_in(Input::Loaded(key.expect("a load"), loaded));
        self.act()
    }

    fn ends(&mut self, seq: u64, said: Said) -> Wants {
        let ending = Ending::new(said);
        self.hand_in(Input::Ended { grant: GRANT, seq: Seq(seq), rev: 1, ending });
        self.act()
    }

    fn succeeds(&mut self, seq: u64) -> Wants {
        self.ends(seq, Said::Outcome(Outcome::Said(Disposition::Ok)))
    }

    fn settled(&mut self, seq: u64, next: Option<Entry>) {
        let settled = Settled::Applied { rev: 2, next };
        self.hand_in(Input::Settled { grant: GRANT, seq: Seq(seq), rev: 1, settled });
    }

    fn misses(&mut self) {
        self.hand_in(Input::Missed(vec![(StreamId(1), "orders".to_owned(), String::new())]));
    }

    /// A later one of the key runs when the first becomes visible, and a load finds that.
    fn with_a_late_first() -> Self {
        let mut it = Self::new();
        it.hand_in(Input::Arrived(vec![of_key(2)]));
        assert_eq!(it.act().starts, [2]);
        it.misses();
        assert_eq!(it.loads(vec![of_key(1)]), Wants::default(), "one of a key at a time");
        it
    }
}

/// Whoever published the first of a key took longer to commit than whoever published the second.
#[test]
fn a_late_first_waits_for_the_one_that_runs() {
    let mut it = Owner::with_a_late_first();
    for _ in 0..3 {
        it.now = it.now + Duration::from_secs(1);
        assert_eq!(it.act(), Wants::default(), "the other one still runs");
    }
    assert_eq!(it.succeeds(2).settles, [2]);
    it.settled(2, Some(of_key(1)));
    assert_eq!(it.act().starts, [1], "at once");
    assert_eq!(it.act(), Wants::default(), "and once");
    assert_eq!(it.succeeds(1).settles, [1]);
    it.settled(1, None);
    it.act();
    assert!(it.scheduler.is_quiet());
}

/// The same, and the later one has to be tried again: now the first goes first.
#[test]
fn a_late_first_goes_before_what_is_tried_again() {
    let mut it = Owner::with_a_late_first();
    assert_eq!(it.ends(2, again()).settles, [2]);
    it.settled(2, None);
    assert_eq!(it.act().starts, [1]);
}

/// A later one of another key, or of none, is nothing to wait for.
#[test]
fn only_those_of_its_key_are_waited_for() {
    let mut it = Owner::new();
    it.hand_in(Input::Arrived(vec![entry(2, Some("other")), entry(3, None), entry(4, None), of_key(5)]));
    assert_eq!(it.act().starts, [2, 3, 4, 5]);
    it.misses();
    assert_eq!(it.loads(vec![of_key(1), entry(6, None), entry(7, Some("third"))]).starts, [6, 7]);
}

/// Where there is no order, a key is nothing to wait for either.
#[test]
fn where_there_is_no_order_nobody_waits() {
    let mut it = Owner::of(false);
    it.hand_in(Input::Arrived(vec![of_key(2), of_key(3)]));
    assert_eq!(it.act().starts, [2, 3]);
    it.misses();
    assert_eq!(it.loads(vec![of_key(1)]).starts, [1]);
    assert_eq!(it.succeeds(2).settles, [2]);
    it.settled(2, None);
    assert_eq!(it.act(), Wants::default());
}

/// The end of the one before is being written: in the store the next is the first of its key already.
#[test]
fn an_end_that_is_not_answered_holds_up_nobody() {
    let mut it = Owner::new();
    it.hand_in(Input::Arrived(vec![of_key(1)]));
    assert_eq!(it.act().starts, [1]);
    assert_eq!(it.succeeds(1).settles, [1]);
    it.hand_in(Input::Arrived(vec![of_key(2)]));
    assert_eq!(it.act().starts, [2]);
}

/// The next of a key is published while the end of the one before is written. Neither sees the other: the settle looked
/// too early, and the load that the publisher causes sees the one before.
#[test]
fn the_next_is_found_that_crossed_the_end_of_the_one_before() {
    let mut it = Owner::new();
    it.hand_in(Input::Arrived(vec![of_key(1)]));
    assert_eq!(it.act().starts, [1]);
    assert_eq!(it.succeeds(1).settles, [1]);
    it.misses();
    assert_eq!(it.loads(vec![]), Wants::default());
    it.settled(1, None);
    assert_eq!(it.loads(vec![of_key(2)]).starts, [2]);
}

/// The same, where the handler's transaction is the settle.
#[test]
fn the_next_is_found_that_crossed_a_transaction() {
    let mut it = Owner::new();
    it.hand_in(Input::Arrived(vec![of_key(1)]));
    assert_eq!(it.act().starts, [1]);
    it.misses();
    assert_eq!(it.loads(vec![]), Wants::default());
    let ending = Ending::new(Said::Committed { next: None });
    it.hand_in(Input::Ended { grant: GRANT, seq: Seq(1), rev: 1, ending });
    assert_eq!(it.loads(vec![of_key(2)]).starts, [2]);
}

/// The settle named another one, which runs; it does not end, and so names nobody.
#[test]
fn the_next_is_found_behind_the_one_that_was_named() {
    let mut it = Owner::new();
    it.hand_in(Input::Arrived(vec![of_key(1)]));
    assert_eq!(it.act().starts, [1]);
    assert_eq!(it.succeeds(1).settles, [1]);
    it.misses();
    assert_eq!(it.loads(vec![]), Wants::default());
    it.settled(1, Some(of_key(3)));
    assert_eq!(it.act(), Wants { starts: vec![3], ..Wants::default() }, "no load on the way of a busy key");
    assert_eq!(it.ends(3, again()).settles, [3]);
    it.settled(3, None);
    assert_eq!(it.loads(vec![of_key(2)]).starts, [2]);
}

/// A dead letter is told to hold up nobody any more while the first that it would hold up is published.
#[test]
fn the_next_is_found_that_crossed_the_end_of_a_hold() {
    let mut it = Owner::new();
    it.misses();
    let overdue = vec![Overdue { seq: Seq(1), rev: 1 }];
    assert_eq!(it.finds(Loaded { overdue, ..Loaded::default() }).settles, [1]);
    it.misses();
    assert_eq!(it.loads(vec![]), Wants::default());
    it.settled(1, None);
    assert_eq!(it.loads(vec![of_key(2)]).starts, [2]);
}

/// What has no key, or was not crossed by anything, costs no load.
#[test]
fn other_ends_ask_for_nothing() {
    for (event, is_crossed) in [(entry(1, None), true), (of_key(1), false)] {
        let mut it = Owner::new();
        it.hand_in(Input::Arrived(vec![event]));
        assert_eq!(it.act().starts, [1]);
        if is_crossed {
            it.misses();
            assert_eq!(it.loads(vec![]), Wants::default());
        }
        assert_eq!(it.succeeds(1).settles, [1]);
        it.settled(1, None);
        assert_eq!(it.act(), Wants::default());
    }
}

impl Owner {
    /// A load is asked for: its key.
    fn asks(&mut self) -> FlowKey {
        self.misses();
        let load = self.actions().into_iter().find_map(|action| match action {
            Action::Load(key, _) => Some(key),
            _ => None,
        });
        load.expect("a load")
    }

    /// It is there, and has found nothing.
    fn found_nothing(&mut self, key: FlowKey) -> Wants {
        self.hand_in(Input::Loaded(key, Loaded::default()));
        self.act()
    }
}

/// Nobody reads from the store what is in memory.
#[test]
fn what_arrives_during_a_load_runs_after_it_and_is_not_loaded() {
    let mut it = Owner::of(false);
    let key = it.asks();
    it.hand_in(Input::Arrived(vec![entry(1, None)]));
    assert_eq!(it.act(), Wants::default(), "the load may bring older ones");
    it.hand_in(Input::Loaded(key, Loaded { entries: vec![entry(1, None)], ..Loaded::default() }));
    assert_eq!(it.act(), Wants { starts: vec![1], ..Wants::default() }, "once, whoever brings it");

    let key = it.asks();
    it.hand_in(Input::Arrived(vec![entry(2, None)]));
    assert_eq!(it.found_nothing(key), Wants { starts: vec![2], ..Wants::default() });

    let key = it.asks();
    it.hand_in(Input::Arrived(vec![entry(3, None)]));
    it.hand_in(Input::Loaded(key, Loaded { more_live: true, ..Loaded::default() }));
    assert_eq!(it.act(), Wants { loads: 1, ..Wants::default() }, "older ones go first");
}

impl Owner {
    /// One runs, and a load is under way that is for those alone that have run before.
    fn with_a_load_for_others() -> (Self, FlowKey) {
        let mut it = Self::narrow(false);
        it.misses();
        let first = Loaded { entries: vec![entry(1, None)], more_retry: true, ..Loaded::default() };
        assert_eq!(it.finds(first), Wants { starts: vec![1], loads: 1, ..Wants::default() });
        (it, FlowKey { shard: 0, epoch: 1, stream: StreamId(1) })
    }
}

/// An order takes the event away that arrived during a load.
#[test]
fn what_arrived_before_an_order_is_loaded_again() {
    let (mut it, key) = Owner::with_a_load_for_others();
    assert_eq!(it.succeeds(1).settles, [1]);
    it.settled(1, None);
    it.hand_in(Input::Arrived(vec![entry(2, None)]));
    it.hand_in(Input::Recall);
    assert_eq!(it.found_nothing(key), Wants { loads: 1, ..Wants::default() });
}

/// What runs is told once more, and ends: both before the load is there.
#[test]
fn what_arrived_during_a_load_and_has_ended_is_over() {
    let (mut it, key) = Owner::with_a_load_for_others();
    it.hand_in(Input::Arrived(vec![entry(1, None)]));
    assert_eq!(it.succeeds(1).settles, [1]);
    it.settled(1, None);
    assert_eq!(it.found_nothing(key), Wants { loads: 1, ..Wants::default() });
}

/// The second of a key and a late first are settled at once, and the answer of the second is here first. The other answer
/// names the second as the next one: it was, when the first was settled.
#[test]
fn a_late_first_does_not_bring_back_the_one_that_ran_before_it() {
    let mut it = Owner::new();
    it.hand_in(Input::Arrived(vec![of_key(2)]));
    assert_eq!(it.act().starts, [2]);
    let due = it.now + Duration::from_millis(1);
    it.hand_in(Input::Arrived(vec![Entry { progress: Progress::fresh(due), ..of_key(1) }]));
    it.now = due;
    assert_eq!(it.loads(vec![of_key(1)]), Wants::default(), "one of a key at a time");
    assert_eq!(it.succeeds(2).settles, [2]);
    it.now = it.now + Duration::from_millis(50);
    assert_eq!(it.act().starts, [1]);
    assert_eq!(it.succeeds(1).settles, [1]);
    it.settled(2, None);
    it.settled(1, Some(of_key(2)));
    assert_eq!(it.act().starts, [0; 0]);
}

/// A death is of unknown fate, and a load finds that it was written, and is overdue. What is said of the death is not said of
/// the letter: that one is told once.
#[test]
fn a_letter_is_told_once_whatever_became_of_its_death() {
    let mut it = Owner::new();
    let key = it.asks();
    let overdue = || Loaded { overdue: vec![Overdue { seq: Seq(1), rev: 2 }], ..Loaded::default() };
    it.hand_in(Input::Loaded(key, overdue()));
    assert_eq!(it.act().settles, [1]);
    it.hand_in(Input::SettleFailed { grant: GRANT, seq: Seq(1), rev: 1, unknown: true });
    let key = it.asks();
    it.hand_in(Input::Loaded(key, overdue()));
    assert_eq!(it.act().settles, [0; 0]);
}
