//! Which events a publisher keeps in its own process, and how many.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::local_slots::{LocalSlots, Slot};
use redrive_core::observe::Outcome;
use redrive_core::queue_entry::{
    EventProgress, FencingToken, LoadedEvents, QueueEntry, Seq, SettleResult, StreamId, TakenShard,
};
use redrive_core::scheduler::{Action, AttemptEnd, EndedAttempt, Input, QueuePlan, Scheduler};
use redrive_core::triage::{ActiveRule, ActiveRules, Rule};
use redrive_core::{Disposition, Event, Limit, Moment, Policy, SeededRandom};

const NOW: Moment = Moment::from_nanos(1 << 50);

/// A process whose loop the test drives by hand.
struct Process {
    scheduler: Scheduler,
    local_slots: Arc<LocalSlots>,
    random: SeededRandom,
    last: u64,
}

impl Process {
    fn new(concurrency: u32, owned: &[u32]) -> Self {
        Self::under(Policy::builder().no_budget().build().unwrap(), concurrency, owned)
    }

    fn under(policy: Policy, concurrency: u32, owned: &[u32]) -> Self {
        let mut scheduler = Scheduler::new();
        scheduler.add_queue(QueuePlan::new("mail", policy).concurrency(concurrency));
        let local_slots = Arc::new(LocalSlots::new([Arc::from("mail")], 100));
        let mut process = Self { scheduler, local_slots, random: SeededRandom::new(1), last: 0 };
        for shard in owned {
            let taken =
                TakenShard { token: token(*shard), unclean: false, suspects: vec![], streams: vec![] };
            process.hand_in(Input::Own(taken));
        }
        process.act();
        process
    }

    fn hand_in(&mut self, input: Input) {
        self.scheduler.handle(input, NOW, &mut self.random);
    }

    /// Passes in the pending inputs and acts on them.
    fn act(&mut self) -> Vec<Action> {
        self.local_slots.hear();
        let mut actions = Vec::new();
        self.scheduler.act(NOW, &mut actions);
        self.local_slots.update(&self.scheduler, NOW);
        actions
    }

    /// The shard of a local slot for an event, which then counts as published.
    fn take(&self, event: &Event) -> Option<u32> {
        self.local_slots.take(event, NOW).map(|slot| slot.shard())
    }

    fn entry(&mut self, shard: u32) -> QueueEntry {
        self.last += 1;
        QueueEntry {
            seq: Seq(self.last),
            rev: 0,
            stream: StreamId(1),
            shard,
            published: NOW,
            expires: None,
            event: Arc::new(mail()),
            progress: EventProgress::fresh(NOW),
        }
    }

    fn arrive(&mut self, shard: u32) -> QueueEntry {
        let entry = self.entry(shard);
        self.hand_in(Input::Arrived(vec![entry.clone()]));
        entry
    }

    fn free(&self) -> u32 {
        self.scheduler.free_slots(0, NOW)
    }

    fn ruled(&mut self, version: u64, rule: Option<Rule>) {
        let control =
            |rule| ActiveRule { rule, since: NOW, until: None, who: String::new(), why: String::new() };
        self.hand_in(Input::Ruled(ActiveRules { version, list: rule.into_iter().map(control).collect() }));
        self.act();
    }
}

fn mail() -> Event {
    Event::new("mail", "1")
}

const fn token(shard: u32) -> FencingToken {
    FencingToken { shard, epoch: 1, incarnation: 7 }
}

#[test]
fn only_what_may_go_anywhere_and_start_now_is_kept_near() {
    let process = Process::new(9, &[3]);
    assert_eq!(process.take(&mail()), Some(3));
    assert_eq!(process.take(&mail().key("k")), None, "all of a key are in one shard");
    assert_eq!(process.take(&mail().delay(Duration::from_nanos(1))), None, "any process may be free then");
    assert_eq!(process.take(&Event::new("order", "1")), None, "its queue does not run here");
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
    let local_slots = process.local_slots.clone();
    let (first, second) = (local_slots.take(&mail(), NOW), local_slots.take(&mail(), NOW));
    assert!(first.is_some() && second.is_some());
    assert_eq!(process.take(&mail()), None, "both are taken");
    second.into_iter().for_each(Slot::give_up);
    process.act();
    let second = local_slots.take(&mail(), NOW);
    assert!(second.is_some(), "a duplicate needs none");
    assert_eq!(process.take(&mail()), None, "and gives up no other's");

    // The first event arrives, and then its publish is answered; the loop has not processed the answer.
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
    let ended = EndedAttempt::new(AttemptEnd::Outcome(Outcome::Classified(Disposition::Ok)));
    process.hand_in(Input::Ended { token: token(0), seq, rev, ended });
    process.act();
    assert_eq!(process.take(&mail()), Some(0), "whether its end is written or not");
    process.hand_in(Input::Settled { token: token(0), seq, rev, settled: SettleResult::Stale });
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
    let [Action::Load(first, _)] = actions[..] else { panic!("{actions:?}") };
    let entries = [process.arrive(0), process.arrive(0)];
    assert_eq!(process.free(), 1, "two came while it was loaded, and are not in memory");
    process.hand_in(Input::LoadFailed(first));
    assert_eq!(process.free(), 1);

    let mut later = Vec::new();
    let again = NOW + Duration::from_secs(1);
    process.scheduler.act(again, &mut later);
    let [Action::Load(second, _)] = later[..] else { panic!("{later:?}") };
    process.arrive(0);
    assert_eq!(process.free(), 0);
    process.hand_in(Input::Loaded(
        second,
        LoadedEvents { entries: entries.to_vec(), ..LoadedEvents::default() },
    ));
    process.act();
    assert_eq!((process.scheduler.running_in(0), process.free()), (3, 0), "the third was kept meanwhile");
    process.hand_in(Input::Lost(token(0)));
    process.act();
    assert_eq!((process.free(), process.take(&mail())), (3, None), "and all of it is");
}

#[test]
fn a_shard_that_is_given_back_gets_nothing_more() {
    let mut process = Process::new(9, &[1, 2]);
    process.arrive(1);
    process.act();
    process.hand_in(Input::GiveBack(token(1)));
    process.act();
    assert!((0..4).all(|_| process.take(&mail()) == Some(2)), "one is under way in the other");
    process.local_slots.close();
    assert_eq!(process.take(&mail()), None);
}
