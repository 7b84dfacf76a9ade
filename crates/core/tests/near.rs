//! Which events a publisher keeps to its own process, and how many of them.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::entry::{Entry, Grant, Loaded, Progress, Seq, Settled, StreamId, Taken};
use redrive_core::near::{Near, Place};
use redrive_core::observe::Outcome;
use redrive_core::scheduler::{Action, Ending, FlowKey, Input, QueuePlan, Said, Scheduler};
use redrive_core::triage::{Control, Controls, Rule};
use redrive_core::{Disposition, Event, Limit, Moment, Policy, Seeded};

const NOW: Moment = Moment::from_nanos(1 << 50);

/// A process: what its loop does, by hand.
struct Process {
    scheduler: Scheduler,
    near: Arc<Near>,
    dice: Seeded,
    last: u64,
}

impl Process {
    fn new(concurrency: u32, owned: &[u32]) -> Self {
        Self::under(Policy::builder().no_budget().build().unwrap(), concurrency, owned)
    }

    fn under(policy: Policy, concurrency: u32, owned: &[u32]) -> Self {
        let mut scheduler = Scheduler::new();
        scheduler.add_queue(QueuePlan::new("mail", policy).concurrency(concurrency));
        let near = Arc::new(Near::new([Arc::from("mail")], 100));
        let mut process = Self { scheduler, near, dice: Seeded::new(1), last: 0 };
        for shard in owned {
            let taken = Taken { grant: grant(*shard), unclean: false, suspects: vec![], streams: vec![] };
            process.hand_in(Input::Own(taken));
        }
        process.act();
        process
    }

    fn hand_in(&mut self, input: Input) {
        self.scheduler.handle(input, NOW, &mut self.dice);
    }

    /// Hands in what was told and acts on it.
    fn act(&mut self) -> Vec<Action> {
        self.near.hear();
        let mut actions = Vec::new();
        self.scheduler.act(NOW, &mut actions);
        self.near.update(&self.scheduler, NOW);
        actions
    }

    /// The shard of a place for an event, which is then as good as published.
    fn take(&self, event: &Event) -> Option<u32> {
        self.near.take(event, NOW).map(|place| place.shard())
    }

    fn entry(&mut self, shard: u32) -> Entry {
        self.last += 1;
        Entry {
            seq: Seq(self.last),
            rev: 0,
            stream: StreamId(1),
            shard,
            published: NOW,
            expires: None,
            event: Arc::new(mail()),
            progress: Progress::fresh(NOW),
        }
    }

    fn arrive(&mut self, shard: u32) -> Entry {
        let entry = self.entry(shard);
        self.hand_in(Input::Arrived(vec![entry.clone()]));
        entry
    }

    fn free(&self) -> u32 {
        self.scheduler.free_places(0, NOW)
    }

    fn ruled(&mut self, version: u64, rule: Option<Rule>) {
        let control =
            |rule| Control { rule, since: NOW, until: None, who: String::new(), why: String::new() };
        self.hand_in(Input::Ruled(Controls { version, list: rule.into_iter().map(control).collect() }));
        self.act();
    }
}

fn mail() -> Event {
    Event::new("mail", "1")
}

const fn grant(shard: u32) -> Grant {
    Grant { shard, epoch: 1, incarnation: 7 }
}

#[test]
fn only_what_may_go_anywhere_and_start_now_is_kept_near() {
    let process = Process::new(9, &[3]);
    assert_eq!(process.take(&mail()), Some(3));
    assert_eq!(process.take(&mail().key("k")), None, "all of a key are in one shard");
    assert_eq!(process.take(&mail().delay(Duration::from_nanos(1))), None, "nobody knows who is free then");
    assert_eq!(process.take(&Event::new("order", "1")), None, "nobody runs it here");
    assert_eq!(Process::new(9, &[]).take(&mail()), None, "nothing is ours");
}

#[test]
fn shards_take_turns() {
    let process = Process::new(9, &[2, 64, 99]);
    let shards: Vec<_> = (0..6).map(|_| process.take(&mail()).unwrap()).collect();
    assert_eq!(shards, [2, 64, 99, 2, 64, 99]);
}

#[test]
fn a_place_is_given_once() {
    let mut process = Process::new(2, &[0]);
    let near = process.near.clone();
    let (first, second) = (near.take(&mail(), NOW), near.take(&mail(), NOW));
    assert!(first.is_some() && second.is_some());
    assert_eq!(process.take(&mail()), None, "both are taken");
    second.into_iter().for_each(Place::give_up);
    process.act();
    let second = near.take(&mail(), NOW);
    assert!(second.is_some(), "a duplicate needs none");
    assert_eq!(process.take(&mail()), None, "and gives up no other's");

    // The first is told, and then answered; its loop has not heard of the answer.
    process.arrive(0);
    process.act();
    drop(first);
    assert_eq!(process.take(&mail()), None);
    drop(second);
    assert_eq!(process.take(&mail()), None, "answered is not heard of");
    process.arrive(0);
    process.act();
    assert_eq!((process.scheduler.running_in(0), process.take(&mail())), (2, None));
}

#[test]
fn a_place_is_free_again_when_its_attempt_ended() {
    let mut process = Process::new(1, &[0]);
    assert_eq!(process.take(&mail()), Some(0));
    let entry = process.arrive(0);
    process.act();
    assert_eq!(process.take(&mail()), None);
    let (seq, rev) = (entry.seq, entry.rev);
    let ending = Ending::new(Said::Outcome(Outcome::Said(Disposition::Ok)));
    process.hand_in(Input::Ended { grant: grant(0), seq, rev, ending });
    process.act();
    assert_eq!(process.take(&mail()), Some(0), "whether its end is written or not");
    process.hand_in(Input::Settled { grant: grant(0), seq, rev, settled: Settled::Stale });
    process.act();
    assert_eq!(process.take(&mail()), Some(0), "nothing came of the one before");
}

#[test]
fn nothing_is_near_where_something_waits_already() {
    let mut process = Process::new(2, &[0]);
    process.hand_in(Input::Drain);
    process.act();
    assert_eq!(process.free(), 0, "it stops");

    let limited = Policy::builder().no_budget().limit(Limit::fixed(1).unwrap()).build().unwrap();
    let mut process = Process::under(limited, 3, &[0]);
    process.arrive(0);
    process.act();
    assert_eq!(process.free(), 2);
    process.arrive(0);
    process.act();
    assert_eq!((process.scheduler.running_in(0), process.free()), (1, 0), "one waits for its turn");

    let rule = |rule| {
        let mut process = Process::new(2, &[0]);
        process.ruled(1, Some(rule));
        let free = process.free();
        process.ruled(2, None);
        assert_eq!(process.free(), 2);
        free
    };
    let (queue, tenant, key) = ("mail".to_owned(), "t".to_owned(), "k".to_owned());
    assert_eq!(rule(Rule::Pause { queue: queue.clone() }), 0);
    assert_eq!(rule(Rule::Pause { queue: "other".to_owned() }), 2);
    assert_eq!(rule(Rule::QuarantineTenant { queue: None, tenant: tenant.clone() }), 0);
    assert_eq!(rule(Rule::Reroute { queue: queue.clone(), to: "other".to_owned() }), 0);
    assert_eq!(rule(Rule::QuarantineKey { queue, tenant, key }), 2);
}

#[test]
fn what_a_load_is_to_bring_has_a_place() {
    let mut process = Process::new(3, &[0]);
    process.hand_in(Input::Missed(vec![(StreamId(1), "mail".to_owned(), String::new())]));
    let actions = process.act();
    assert!(matches!(actions[..], [Action::Load(..)]), "{actions:?}");
    let entries = [process.arrive(0), process.arrive(0)];
    assert_eq!(process.free(), 1, "two came while it was loaded, and are not in memory");
    let key = FlowKey { shard: 0, epoch: 1, stream: StreamId(1) };
    process.hand_in(Input::LoadFailed(key));
    assert_eq!(process.free(), 1);

    let mut later = Vec::new();
    let again = NOW + Duration::from_secs(1);
    process.scheduler.act(again, &mut later);
    assert!(matches!(later[..], [Action::Load(..)]), "{later:?}");
    process.arrive(0);
    assert_eq!(process.free(), 0);
    process.hand_in(Input::Loaded(key, Loaded { entries: entries.to_vec(), ..Loaded::default() }));
    process.act();
    assert_eq!((process.scheduler.running_in(0), process.free()), (3, 0), "the third was kept meanwhile");
    process.hand_in(Input::Lost(grant(0)));
    process.act();
    assert_eq!((process.free(), process.take(&mail())), (3, None), "and all of it is");
}

#[test]
fn a_shard_that_is_given_back_gets_nothing_more() {
    let mut process = Process::new(9, &[1, 2]);
    process.arrive(1);
    process.act();
    process.hand_in(Input::GiveBack(grant(1)));
    process.act();
    assert!((0..4).all(|_| process.take(&mail()) == Some(2)), "one is under way in the other");
    process.near.close();
    assert_eq!(process.take(&mail()), None);
}
