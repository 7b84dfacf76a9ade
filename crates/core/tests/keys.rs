//! Events of a key run one at a time, and none is forgotten, while publishers and owners race at the store.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::observe::Outcome;
use redrive_core::queue_entry::{
    EventProgress, FencingToken, LoadedEvents, OverdueDeadLetter, QueueEntry, Seq, SettleResult, StreamId,
    TakenShard,
};
use redrive_core::scheduler::{Action, AttemptEnd, EndedAttempt, Input, LoadId, QueuePlan, Scheduler};
use redrive_core::{Disposition, Event, Fault, Moment, Policy, SeededRandom};

const GRANT: FencingToken = FencingToken { shard: 0, epoch: 1, incarnation: 1 };
const NOW: Moment = Moment::from_nanos(10_000_000_000);

fn entry(seq: u64, key: Option<&str>) -> QueueEntry {
    let mut event = Event::new("orders", seq.to_string());
    event.key = key.map(str::to_owned);
    QueueEntry {
        seq: Seq(seq),
        rev: 1,
        stream: StreamId(1),
        shard: 0,
        published: NOW,
        expires: None,
        event: Arc::new(event),
        progress: EventProgress::fresh(NOW),
    }
}

fn of_key(seq: u64) -> QueueEntry {
    entry(seq, Some("k"))
}

fn again() -> AttemptEnd {
    AttemptEnd::Outcome(Outcome::Classified(Fault::transient().into()))
}

/// An owner of the only shard, with nothing to do.
struct Owner {
    scheduler: Scheduler,
    random: SeededRandom,
    now: Moment,
    /// The last load that the scheduler planned.
    asked: Option<LoadId>,
}

/// The actions of the owner's scheduler.
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

    /// A queue with room for one first attempt and one retry.
    fn narrow(ordered: bool) -> Self {
        Self::with(QueuePlan { ordered, window_max: 2, ..QueuePlan::new("orders", Policy::default()) })
    }

    fn with(plan: QueuePlan) -> Self {
        let mut scheduler = Scheduler::new();
        scheduler.add_queue(plan);
        let mut it = Self { scheduler, random: SeededRandom::new(1), now: NOW, asked: None };
        let streams = vec![(StreamId(1), "orders".to_owned(), String::new())];
        it.hand_in(Input::Own(TakenShard { token: GRANT, unclean: false, suspects: vec![], streams }));
        assert_eq!(it.loads(vec![]), Wants::default());
        it
    }

    fn hand_in(&mut self, input: Input) {
        self.scheduler.handle(input, self.now, &mut self.random);
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
                Action::Load(load, _) => {
                    wants.loads += 1;
                    self.asked = Some(load);
                }
                _ => {}
            }
        }
        wants
    }

    /// The scheduler plans a load, and the load finds these.
    fn loads(&mut self, entries: Vec<QueueEntry>) -> Wants {
        self.finds(LoadedEvents { entries, ..LoadedEvents::default() })
    }

    fn finds(&mut self, loaded: LoadedEvents) -> Wants {
        let actions = self.actions();
        let key = actions.iter().find_map(|action| match action {
            Action::Load(key, _) => Some(*key),
            _ => None,
        });
        self.hand_in(Input::Loaded(key.expect("a load"), loaded));
        self.act()
    }

    fn ends(&mut self, seq: u64, end: AttemptEnd) -> Wants {
        let ended = EndedAttempt::new(end);
        self.hand_in(Input::Ended { token: GRANT, seq: Seq(seq), rev: 1, ended });
        self.act()
    }

    fn succeeds(&mut self, seq: u64) -> Wants {
        self.ends(seq, AttemptEnd::Outcome(Outcome::Classified(Disposition::Ok)))
    }

    fn settled(&mut self, seq: u64, next: Option<QueueEntry>) {
        let settled = SettleResult::Applied { rev: 2, next };
        self.hand_in(Input::Settled { token: GRANT, seq: Seq(seq), rev: 1, settled });
    }

    fn misses(&mut self) {
        self.hand_in(Input::Missed(vec![(StreamId(1), "orders".to_owned(), String::new())]));
    }

    /// A later event of the key runs when the first one becomes visible, and a load finds the first one.
    fn with_a_late_first() -> Self {
        let mut it = Self::new();
        it.hand_in(Input::Arrived(vec![of_key(2)]));
        assert_eq!(it.act().starts, [2]);
        it.misses();
        assert_eq!(it.loads(vec![of_key(1)]), Wants::default(), "one of a key at a time");
        it
    }
}

/// The publisher of the first event of a key took longer to commit than the publisher of the second.
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

/// The same, and the later event has to be retried: now the first event goes first.
#[test]
fn a_late_first_goes_before_what_is_tried_again() {
    let mut it = Owner::with_a_late_first();
    assert_eq!(it.ends(2, again()).settles, [2]);
    it.settled(2, None);
    assert_eq!(it.act().starts, [1]);
}

/// An event does not wait for a later event of another key, or without a key.
#[test]
fn only_those_of_its_key_are_waited_for() {
    let mut it = Owner::new();
    it.hand_in(Input::Arrived(vec![entry(2, Some("other")), entry(3, None), entry(4, None), of_key(5)]));
    assert_eq!(it.act().starts, [2, 3, 4, 5]);
    it.misses();
    assert_eq!(it.loads(vec![of_key(1), entry(6, None), entry(7, Some("third"))]).starts, [6, 7]);
}

/// Without order, an event does not wait for others of its key.
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

/// The settle of the event before is being written: in the store the next is already the first of its key.
#[test]
fn an_end_that_is_not_answered_holds_up_nobody() {
    let mut it = Owner::new();
    it.hand_in(Input::Arrived(vec![of_key(1)]));
    assert_eq!(it.act().starts, [1]);
    assert_eq!(it.succeeds(1).settles, [1]);
    it.hand_in(Input::Arrived(vec![of_key(2)]));
    assert_eq!(it.act().starts, [2]);
}

/// The next event of a key is published while the settle of the one before is written. Neither sees the
/// other: the settle looked too early, and the load that the publisher causes sees the one before.
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
    let ended = EndedAttempt::new(AttemptEnd::Committed { next: None });
    it.hand_in(Input::Ended { token: GRANT, seq: Seq(1), rev: 1, ended });
    assert_eq!(it.loads(vec![of_key(2)]).starts, [2]);
}

/// The settle named another event, which runs; it is not settled, and so names no next event.
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

/// A dead letter's key is being unparked while the first event that it would park is published.
#[test]
fn the_next_is_found_that_crossed_the_end_of_a_hold() {
    let mut it = Owner::new();
    it.misses();
    let overdue = vec![OverdueDeadLetter { seq: Seq(1), rev: 1 }];
    assert_eq!(it.finds(LoadedEvents { overdue, ..LoadedEvents::default() }).settles, [1]);
    it.misses();
    assert_eq!(it.loads(vec![]), Wants::default());
    it.settled(1, None);
    assert_eq!(it.loads(vec![of_key(2)]).starts, [2]);
}

/// A settle without a key, or without a concurrent publish, costs no load.
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
    /// The scheduler plans a load; returns its id.
    fn asks(&mut self) -> LoadId {
        self.misses();
        let load = self.actions().into_iter().find_map(|action| match action {
            Action::Load(key, _) => Some(key),
            _ => None,
        });
        load.expect("a load")
    }

    /// The load returns without events.
    fn found_nothing(&mut self, key: LoadId) -> Wants {
        self.hand_in(Input::Loaded(key, LoadedEvents::default()));
        self.act()
    }
}

/// The scheduler does not load events that are in memory.
#[test]
fn what_arrives_during_a_load_runs_after_it_and_is_not_loaded() {
    let mut it = Owner::of(false);
    let key = it.asks();
    it.hand_in(Input::Arrived(vec![entry(1, None)]));
    assert_eq!(it.act(), Wants::default(), "the load may bring older ones");
    it.hand_in(Input::Loaded(key, LoadedEvents { entries: vec![entry(1, None)], ..LoadedEvents::default() }));
    assert_eq!(it.act(), Wants { starts: vec![1], ..Wants::default() }, "once, from the load or the arrival");

    let key = it.asks();
    it.hand_in(Input::Arrived(vec![entry(2, None)]));
    assert_eq!(it.found_nothing(key), Wants { starts: vec![2], ..Wants::default() });

    let key = it.asks();
    it.hand_in(Input::Arrived(vec![entry(3, None)]));
    it.hand_in(Input::Loaded(key, LoadedEvents { more_live: true, ..LoadedEvents::default() }));
    assert_eq!(it.act(), Wants { loads: 1, ..Wants::default() }, "older ones go first");
}

impl Owner {
    /// One event runs, and a load for retries only is running.
    fn with_a_load_for_others() -> (Self, LoadId) {
        let mut it = Self::narrow(false);
        it.misses();
        let first =
            LoadedEvents { entries: vec![entry(1, None)], more_retry: true, ..LoadedEvents::default() };
        assert_eq!(it.finds(first), Wants { starts: vec![1], loads: 1, ..Wants::default() });
        let load = it.asked.expect("a load");
        (it, load)
    }
}

/// A command takes the event that arrived during a load.
#[test]
fn what_arrived_before_an_order_is_loaded_again() {
    let (mut it, key) = Owner::with_a_load_for_others();
    assert_eq!(it.succeeds(1).settles, [1]);
    it.settled(1, None);
    it.hand_in(Input::Arrived(vec![entry(2, None)]));
    it.hand_in(Input::Recall);
    assert_eq!(it.found_nothing(key), Wants { loads: 1, ..Wants::default() });
}

/// A running event is announced once more and ends, both before the load is finished.
#[test]
fn what_arrived_during_a_load_and_has_ended_is_over() {
    let (mut it, key) = Owner::with_a_load_for_others();
    it.hand_in(Input::Arrived(vec![entry(1, None)]));
    assert_eq!(it.succeeds(1).settles, [1]);
    it.settled(1, None);
    assert_eq!(it.found_nothing(key), Wants { loads: 1, ..Wants::default() });
}

/// The second event of a key and a late first one are settled at the same time, and the answer for the second
/// arrives first. The other answer names the second as the next event: it was, when the first was settled.
#[test]
fn a_late_first_does_not_bring_back_the_one_that_ran_before_it() {
    let mut it = Owner::new();
    it.hand_in(Input::Arrived(vec![of_key(2)]));
    assert_eq!(it.act().starts, [2]);
    let due = it.now + Duration::from_millis(1);
    it.hand_in(Input::Arrived(vec![QueueEntry { progress: EventProgress::fresh(due), ..of_key(1) }]));
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

/// The settle of a death has an unknown outcome, and a load finds that it was written and that its parking
/// time is over. The answer to the death must not be taken for the answer to the unpark, which is written
/// once.
#[test]
fn a_letter_is_told_once_whatever_became_of_its_death() {
    let mut it = Owner::new();
    let key = it.asks();
    let overdue = || LoadedEvents {
        overdue: vec![OverdueDeadLetter { seq: Seq(1), rev: 2 }],
        ..LoadedEvents::default()
    };
    it.hand_in(Input::Loaded(key, overdue()));
    assert_eq!(it.act().settles, [1]);
    it.hand_in(Input::SettleFailed { token: GRANT, seq: Seq(1), rev: 1, unknown: true });
    let key = it.asks();
    it.hand_in(Input::Loaded(key, overdue()));
    assert_eq!(it.act().settles, [0; 0]);
}
