//! Commands and rules that arrive while an event is about to start.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_core::queue_entry::{
    EventChange, EventProgress, FencingToken, LoadedEvents, OverdueDeadLetter, QueueEntry, Seq, SettleResult,
    StreamId, TakenShard,
};
use redrive_core::scheduler::{
    Action, AttemptEnd, EndedAttempt, Input, LoadId, NoteId, QueuePlan, Scheduler,
};
use redrive_core::triage::{ActiveRule, ActiveRules, Rule};
use redrive_core::{Disposition, Event, Moment, Policy, SeededRandom};

const GRANT: FencingToken = FencingToken { shard: 0, epoch: 1, incarnation: 1 };
const NOW: Moment = Moment::from_nanos(10_000_000_000);

fn entry(seq: u64) -> QueueEntry {
    QueueEntry {
        seq: Seq(seq),
        rev: 1,
        stream: StreamId(1),
        shard: 0,
        published: NOW,
        expires: None,
        event: Arc::new(Event::new("orders", seq.to_string())),
        progress: EventProgress::fresh(NOW),
    }
}

/// An owner whose predecessor died: the crash guard is on, so it notes events before it starts them.
struct Careful(Scheduler, SeededRandom);

impl Careful {
    fn with(suspects: Vec<QueueEntry>) -> Self {
        let mut scheduler = Scheduler::new();
        scheduler.add_queue(QueuePlan::new("orders", Policy::default()));
        let streams = vec![(StreamId(1), "orders".to_owned(), String::new())];
        let mut it = Self(scheduler, SeededRandom::new(1));
        it.hand_in(Input::Own(TakenShard { token: GRANT, unclean: true, suspects, streams }));
        it
    }

    fn hand_in(&mut self, input: Input) {
        self.0.handle(input, NOW, &mut self.1);
    }

    fn act(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.0.act(NOW, &mut actions);
        actions
    }
}

fn pause() -> ActiveRules {
    let rule = Rule::Pause { queue: "orders".to_owned() };
    let (who, why) = (String::new(), String::new());
    ActiveRules { version: 1, list: vec![ActiveRule { rule, since: NOW, until: None, who, why }] }
}

fn starts(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Attempt(_)))
}

/// An event is being noted when its queue is paused, or when a command takes it: it does not start.
#[test]
fn what_is_being_noted_when_an_order_comes_does_not_start() {
    for order in [Input::Ruled(pause()), Input::Recall] {
        let mut it = Careful::with(vec![]);
        let loads = it.act();
        let Some(Action::Load(key, _)) = loads.into_iter().next() else { panic!("nothing is loaded") };
        let loaded =
            redrive_core::queue_entry::LoadedEvents { entries: vec![entry(1)], ..Default::default() };
        it.hand_in(Input::Loaded(key, loaded));
        let noting = it.act();
        let note = noting.iter().find_map(|action| match action {
            Action::Note(note, list) if list == &[Seq(1)] => Some(*note),
            _ => None,
        });
        it.hand_in(order);
        it.act();
        it.hand_in(Input::Noted(note.expect("a note")));
        let actions = it.act();
        assert!(!starts(&actions), "{actions:?}");
        assert!(it.0.is_quiet());
    }
}

/// A suspect's crash count is being written when its queue is paused: the crash count is taken back.
#[test]
fn what_is_being_struck_when_an_order_comes_does_not_start() {
    let suspect =
        QueueEntry { progress: EventProgress { suspect: true, ..EventProgress::fresh(NOW) }, ..entry(1) };
    let mut it = Careful::with(vec![suspect]);
    let striking = it.act();
    assert!(
        striking
            .iter()
            .any(|action| matches!(action, Action::Settle(it) if it.change == EventChange::CountCrash))
    );
    it.hand_in(Input::Ruled(pause()));
    it.act();
    let settled = SettleResult::Applied { rev: 2, next: None };
    it.hand_in(Input::Settled { token: GRANT, seq: Seq(1), rev: 1, settled });
    let actions = it.act();
    assert!(!starts(&actions), "{actions:?}");
    let back = actions.iter().find_map(|action| match action {
        Action::Settle(settle) => Some(settle),
        _ => None,
    });
    let Some(EventChange::Retry(progress)) = back.map(|settle| &settle.change) else { panic!("{actions:?}") };
    assert_eq!((progress.crash_count, progress.suspect), (0, true));
}

/// The load and the dispatch note that are planned.
fn asked(actions: &[Action]) -> (Option<LoadId>, Option<NoteId>) {
    let load =
        actions.iter().find_map(|action| if let Action::Load(id, _) = action { Some(*id) } else { None });
    let note =
        actions.iter().find_map(|action| if let Action::Note(id, _) = action { Some(*id) } else { None });
    (load, note)
}

/// An event from before the takeover goes back to the store while a load that skipped it is running. That
/// load finds nothing and proves nothing about the event: the next owner of the shard needs the crash guard.
#[test]
fn a_load_that_left_an_event_out_does_not_make_its_shard_clean() {
    let mut it = Careful::with(vec![]);
    let first = asked(&it.act()).0.unwrap();
    let loaded = LoadedEvents { entries: vec![entry(1)], more_live: true, ..LoadedEvents::default() };
    it.hand_in(Input::Loaded(first, loaded));
    let (second, note) = asked(&it.act());
    it.hand_in(Input::Noted(note.unwrap()));
    assert!(starts(&it.act()));
    let ended = EndedAttempt::new(AttemptEnd::Outcome(Disposition::Ok.into()));
    it.hand_in(Input::Ended { token: GRANT, seq: Seq(1), rev: 1, ended });
    it.act();
    it.hand_in(Input::Settled { token: GRANT, seq: Seq(1), rev: 1, settled: SettleResult::Stale });
    it.hand_in(Input::Loaded(second.unwrap(), LoadedEvents::default()));
    it.act();
    it.hand_in(Input::GiveBack(GRANT));
    let actions = it.act();
    let given = actions.iter().find_map(|action| match action {
        Action::Given { clean, .. } => Some(*clean),
        _ => None,
    });
    assert_eq!(given, Some(false), "{actions:?}");
}

/// A dead letter's key cannot be unparked, because the store is busy. Its flow is otherwise empty, and the
/// queue has many flows, but the scheduler looks at this one again.
#[test]
fn a_flow_whose_letter_could_not_be_written_is_not_forgotten() {
    let mut scheduler = Scheduler::new();
    scheduler.add_queue(QueuePlan::new("orders", Policy::default()));
    let stream = |number: u32| (StreamId(number), "orders".to_owned(), format!("tenant-{number}"));
    let mut it = Careful(scheduler, SeededRandom::new(1));
    let streams = (1..=4).map(stream).collect();
    it.hand_in(Input::Own(TakenShard { token: GRANT, unclean: false, suspects: vec![], streams }));
    for action in it.act() {
        let Action::Load(id, load) = action else { continue };
        let overdue =
            if load.stream == StreamId(1) { vec![OverdueDeadLetter { seq: Seq(1), rev: 2 }] } else { vec![] };
        it.hand_in(Input::Loaded(id, LoadedEvents { overdue, ..LoadedEvents::default() }));
    }
    assert!(it.act().iter().any(|action| matches!(action, Action::Settle(_))));
    it.hand_in(Input::SettleFailed { token: GRANT, seq: Seq(1), rev: 2, unknown: false });
    let later = it.0.next_wake().expect("it is looked at again");
    let mut actions = Vec::new();
    it.0.act(later, &mut actions);
    let is_looked_at =
        |action: &Action| matches!(action, Action::Load(_, load) if load.stream == StreamId(1));
    assert!(actions.iter().any(is_looked_at), "{actions:?}");
}
