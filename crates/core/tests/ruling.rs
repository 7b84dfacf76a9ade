//! Orders and rules that come while something is about to start.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_core::entry::{Change, Entry, Grant, Progress, Seq, Settled, StreamId, Taken};
use redrive_core::scheduler::{Action, Input, QueuePlan, Scheduler};
use redrive_core::triage::{Control, Controls, Rule};
use redrive_core::{Event, Moment, Policy, Seeded};

const GRANT: Grant = Grant { shard: 0, epoch: 1, incarnation: 1 };
const NOW: Moment = Moment::from_nanos(10_000_000_000);

fn entry(seq: u64) -> Entry {
    Entry {
        seq: Seq(seq),
        rev: 1,
        stream: StreamId(1),
        shard: 0,
        published: NOW,
        expires: None,
        event: Arc::new(Event::new("orders", seq.to_string())),
        progress: Progress::fresh(NOW),
    }
}

/// An owner whose predecessor died: what it starts is noted first.
struct Careful(Scheduler, Seeded);

impl Careful {
    fn with(suspects: Vec<Entry>) -> Self {
        let mut scheduler = Scheduler::new();
        scheduler.add_queue(QueuePlan::new("orders", Policy::default()));
        let streams = vec![(StreamId(1), "orders".to_owned(), String::new())];
        let mut it = Self(scheduler, Seeded::new(1));
        it.hand_in(Input::Own(Taken { grant: GRANT, unclean: true, suspects, streams }));
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

fn pause() -> Controls {
    let rule = Rule::Pause { queue: "orders".to_owned() };
    let (who, why) = (String::new(), String::new());
    Controls { version: 1, list: vec![Control { rule, since: NOW, until: None, who, why }] }
}

fn starts(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Attempt(_)))
}

/// An event is being noted when its queue is paused, or when it is taken away: it does not start.
#[test]
fn what_is_being_noted_when_an_order_comes_does_not_start() {
    for order in [Input::Ruled(pause()), Input::Recall] {
        let mut it = Careful::with(vec![]);
        let loads = it.act();
        let Some(Action::Load(key, _)) = loads.into_iter().next() else { panic!("nothing is loaded") };
        let loaded = redrive_core::entry::Loaded { entries: vec![entry(1)], ..Default::default() };
        it.hand_in(Input::Loaded(key, loaded));
        let noting = it.act();
        assert!(noting.iter().any(|action| matches!(action, Action::Note(_, list) if list == &[Seq(1)])));
        it.hand_in(order);
        it.act();
        it.hand_in(Input::Noted(GRANT));
        let actions = it.act();
        assert!(!starts(&actions), "{actions:?}");
        assert!(it.0.is_quiet());
    }
}

/// A suspect's strike is being written when its queue is paused: the strike is taken back.
#[test]
fn what_is_being_struck_when_an_order_comes_does_not_start() {
    let suspect = Entry { progress: Progress { suspect: true, ..Progress::fresh(NOW) }, ..entry(1) };
    let mut it = Careful::with(vec![suspect]);
    let striking = it.act();
    assert!(
        striking.iter().any(|action| matches!(action, Action::Settle(it) if it.change == Change::Strike))
    );
    it.hand_in(Input::Ruled(pause()));
    it.act();
    let settled = Settled::Applied { rev: 2, next: None };
    it.hand_in(Input::Settled { grant: GRANT, seq: Seq(1), rev: 1, settled });
    let actions = it.act();
    assert!(!starts(&actions), "{actions:?}");
    let back = actions.iter().find_map(|action| match action {
        Action::Settle(settle) => Some(settle),
        _ => None,
    });
    let Some(Change::Again(progress)) = back.map(|settle| &settle.change) else { panic!("{actions:?}") };
    assert_eq!((progress.strikes, progress.suspect), (0, true));
}
