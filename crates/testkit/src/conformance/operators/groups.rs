//! Dead letters, grouped and counted.

use std::sync::Arc;

use redrive_core::event::{AttemptHistory, Cause, DeadReason, Fingerprint};
use redrive_core::queue_entry::{EventChange, EventProgress, ParkFollowers};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{CauseId, Filter, JobPlan, JobStrategy, RedriveOptions, cause};
use redrive_store::operate::{
    EventAction, Group, GroupBy, GroupQuery, GroupRedrive, ImportedLetter, JobAdvance, OperatorAction,
};
use redrive_store::{EventQuery, FilterMatches};

use crate::conformance::Subject;
use crate::conformance::desk::{REASON, out_of_order, redrive, skip_head, target};
use crate::conformance::owner::{MAILS, ORDERS, Owner, at, dead, history, mail, order, retry};

/// A death with this message.
fn of(text: &str, park: ParkFollowers) -> EventChange {
    let mut history = (*history(text)).clone();
    history.first[0].cause = Some(Cause::new("Http", text).code("500"));
    let progress = EventProgress { history: Some(Arc::new(history)), ..retry(at(0)) };
    EventChange::Dead { reason: REASON, progress, park }
}

fn cause_of(change: &EventChange) -> CauseId {
    let EventChange::Dead { reason, progress, .. } = change else { panic!("{change:?}") };
    cause::of(*reason, progress.history.as_deref()).0
}

impl<S: Subject> Owner<S> {
    async fn groups(&self, query: GroupQuery) -> Vec<Group> {
        self.store.groups(query).await.unwrap()
    }

    async fn the_group(&self) -> Group {
        let mut groups = self.groups(GroupQuery::default()).await;
        assert_eq!(groups.len(), 1, "{groups:?}");
        groups.remove(0)
    }

    async fn matching(&self, filter: Filter) -> FilterMatches {
        self.store.matching(filter).await.unwrap()
    }

    /// Publishes an event, which dies of this.
    async fn dies_of(&self, event: redrive_core::Event, secs: u64, change: EventChange) {
        self.publish(event.clone(), at(secs)).await;
        self.dies(&event, at(secs), change).await;
    }
}

/// Dead letters with one cause are one group over all queues, the largest group first.
pub async fn letters_of_one_cause_are_a_group<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let rare = of("no such customer", ParkFollowers::No);
    owner.dies_of(mail("0"), 1, rare.clone()).await;
    let common = of("order 17 not found", ParkFollowers::No);
    owner.dies_of(mail("1"), 2, common.clone()).await;
    owner.dies_of(mail("2").tenant("t"), 3, of("order 18 not found", ParkFollowers::No)).await;
    owner.dies_of(order("3", "k"), 4, of("order 19 not found", ParkFollowers::UntilResolved)).await;
    let owner = owner.crash().await;
    let groups = owner.groups(GroupQuery::default()).await;
    let expected = Group {
        cause: Some(cause_of(&common)),
        title: "Http 500: order # not found".to_owned(),
        queues: vec![MAILS.to_owned(), ORDERS.to_owned()],
        letters: 3,
        first: at(2),
        last: at(4),
        keys_blocked: 1,
        redriven: None,
        looked: None,
    };
    assert_eq!(groups[0], expected);
    assert_eq!((groups.len(), groups[1].cause, groups[1].letters), (2, Some(cause_of(&rare)), 1));
    assert_eq!(owner.found(&mail("1")).await.cause, Some(cause_of(&common)));
    let first = owner.groups(GroupQuery { limit: 1, ..GroupQuery::default() }).await;
    assert_eq!(first, [expected]);
}

/// Dead letters can be grouped by queue and by tenant, and filtered by either.
pub async fn letters_are_put_together_as_asked<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.dies_of(mail("1"), 1, of("a", ParkFollowers::No)).await;
    owner.dies_of(mail("2").tenant("t"), 2, of("b", ParkFollowers::No)).await;
    owner.dies_of(mail("3").tenant("t"), 3, of("a", ParkFollowers::No)).await;
    owner.dies_of(order("4", "k").tenant("t"), 4, of("a", ParkFollowers::UntilResolved)).await;
    let brief = async |by, queue: Option<&str>, tenant: Option<&str>| {
        let (queue, tenant) = (queue.map(str::to_owned), tenant.map(str::to_owned));
        let groups = owner.groups(GroupQuery { by, queue, tenant, limit: 0 }).await;
        groups.into_iter().map(|group| (group.title, group.letters, group.queues.len())).collect::<Vec<_>>()
    };
    let of = |title: &str, letters, queues| (title.to_owned(), letters, queues);
    assert_eq!(brief(GroupBy::Queue, None, None).await, [of(MAILS, 3, 1), of(ORDERS, 1, 1)]);
    assert_eq!(brief(GroupBy::Tenant, None, None).await, [of("t", 3, 2), of("", 1, 1)]);
    assert_eq!(brief(GroupBy::Queue, None, Some("t")).await, [of(MAILS, 2, 1), of(ORDERS, 1, 1)]);
    assert_eq!(
        brief(GroupBy::Cause, Some(MAILS), None).await,
        [of("Http 500: a", 2, 1), of("Http 500: b", 1, 1)]
    );
}

/// Dead letters can be grouped by their type and their key. Those without one are a group, too.
pub async fn letters_are_put_together_by_type_and_key<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let typed = |event: redrive_core::Event, kind: &str| event.header("a", "b").header("ce-type", kind);
    owner.dies_of(mail("1"), 1, of("a", ParkFollowers::No)).await;
    owner.dies_of(typed(mail("2").key("k").tenant("t"), "paid"), 2, of("b", ParkFollowers::No)).await;
    owner.dies_of(typed(order("3", "k"), "paid"), 3, of("a", ParkFollowers::UntilResolved)).await;
    owner.dies_of(typed(order("4", "l").tenant("t"), "sent"), 4, of("a", ParkFollowers::No)).await;
    owner.dies_of(typed(mail("5"), "paid"), 5, of("a", ParkFollowers::No)).await;
    owner.publish(typed(mail("6").key("k"), "paid"), at(6)).await;
    let owner = owner.crash().await;
    let brief = async |by, queue: Option<&str>, tenant: Option<&str>| {
        let (queue, tenant) = (queue.map(str::to_owned), tenant.map(str::to_owned));
        let groups = owner.groups(GroupQuery { by, queue, tenant, limit: 0 }).await;
        groups.into_iter().map(|group| (group.title, group.letters)).collect::<Vec<_>>()
    };
    let of = |title: &str, letters| (title.to_owned(), letters);
    assert_eq!(brief(GroupBy::Type, None, None).await, [of("paid", 3), of("sent", 1), of("", 1)]);
    assert_eq!(brief(GroupBy::Key, None, None).await, [of("", 2), of("k", 2), of("l", 1)]);
    assert_eq!(brief(GroupBy::Key, Some(ORDERS), None).await, [of("l", 1), of("k", 1)]);
    assert_eq!(brief(GroupBy::Type, None, Some("t")).await, [of("sent", 1), of("paid", 1)]);
    let by_key = GroupQuery { by: GroupBy::Key, limit: 2, ..GroupQuery::default() };
    let expected = Group {
        cause: None,
        title: "k".to_owned(),
        queues: vec![MAILS.to_owned(), ORDERS.to_owned()],
        letters: 2,
        first: at(2),
        last: at(3),
        keys_blocked: 1,
        redriven: None,
        looked: None,
    };
    assert_eq!(owner.groups(by_key.clone()).await[1], expected);
    owner.act(&mail("2").tenant("t"), redrive(), at(7)).await;
    owner.act(&order("3", "k"), EventAction::Discard, at(7)).await;
    assert_eq!(brief(GroupBy::Key, None, None).await, [of("", 2), of("l", 1)]);
    assert_eq!(brief(GroupBy::Type, None, None).await, [of("paid", 1), of("sent", 1), of("", 1)]);
}

/// A dead letter is in its group as long as it is dead, whatever removes it and brings it back.
pub async fn groups_count_what_is_dead_now<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let letter = order("1", "k");
    let counts = async || {
        let groups = owner.groups(GroupQuery::default()).await;
        groups.iter().map(|group| (group.letters, group.keys_blocked)).collect::<Vec<_>>()
    };
    owner.dies_of(letter.clone(), 0, of("a", ParkFollowers::UntilResolved)).await;
    assert_eq!(counts().await, [(1, 1)]);
    owner.done(skip_head("k"), at(1)).await;
    assert_eq!(counts().await, [(1, 0)]);
    owner.act(&letter, EventAction::Discard, at(2)).await;
    assert_eq!(counts().await, []);
    owner.act(&letter, EventAction::Restore, at(3)).await;
    assert_eq!(counts().await, [(1, 0)]);
    owner.act(&letter, out_of_order(), at(4)).await;
    assert_eq!(counts().await, []);
    owner.dies(&letter, at(5), of("a", ParkFollowers::UntilResolved)).await;
    assert_eq!(counts().await, [(1, 1)]);
    let fixed = crate::conformance::desk::edited(order("2", "k"));
    owner.done(OperatorAction::Edit(target(&letter), Box::new(fixed)), at(6)).await;
    assert_eq!(counts().await, []);
    owner.act(&order("2", "k"), EventAction::Kill, at(7)).await;
    assert_eq!(counts().await, [(1, 0)]);
    owner.act(&order("2", "k"), EventAction::Discard, at(8)).await;
    assert_eq!(counts().await, []);
}

/// A group reports how many of its last redrive failed again, for whatever cause.
pub async fn a_group_tells_what_became_of_its_last_redrive<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3", "4", "rest"] {
        owner.dies_of(mail(id), 0, of("a", ParkFollowers::No)).await;
    }
    let redriven = async || owner.groups(GroupQuery::default()).await.remove(0).redriven;
    assert_eq!(redriven().await, None);
    let targets = ["1", "2", "3"].map(|id| target(&mail(id))).to_vec();
    owner.done(OperatorAction::Events(targets, redrive()), at(1)).await;
    assert_eq!(redriven().await, Some(GroupRedrive { at: at(1), letters: 3, failed: 0 }));
    owner.dies(&mail("1"), at(2), of("a", ParkFollowers::No)).await;
    owner.dies(&mail("2"), at(2), of("something else", ParkFollowers::No)).await;
    assert_eq!(redriven().await, Some(GroupRedrive { at: at(1), letters: 3, failed: 2 }));
    owner.act(&mail("4"), redrive(), at(3)).await;
    assert_eq!(redriven().await, Some(GroupRedrive { at: at(3), letters: 1, failed: 0 }));
    owner.dies(&mail("3"), at(4), of("a", ParkFollowers::No)).await;
    assert_eq!(
        redriven().await,
        Some(GroupRedrive { at: at(3), letters: 1, failed: 0 }),
        "3 was of another one"
    );
    owner.dies(&mail("4"), at(4), of("a", ParkFollowers::No)).await;
    assert_eq!(redriven().await, Some(GroupRedrive { at: at(3), letters: 1, failed: 1 }));
}

/// All steps of a job are one redrive.
pub async fn a_job_is_one_redrive_of_a_group<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3", "4"] {
        owner.die(&mail(id), at(0), ParkFollowers::No).await;
    }
    let act = JobAct::Redrive(RedriveOptions::default());
    let plan = JobPlan { filter: Filter::default(), act, strategy: JobStrategy::default() };
    let job = owner.operate(OperatorAction::Start(Box::new(plan)), at(1)).await.job.unwrap();
    let mut from = None;
    for secs in [100, 200, 300] {
        let step = JobAdvance { job, from, most: 1, at: at(secs) };
        from = owner.store.advance(step).await.unwrap().unwrap().cursor;
    }
    owner.dies(&mail("2"), at(300), dead(ParkFollowers::No)).await;
    let group = owner.the_group().await;
    let redriven = group.redriven.map(|redriven| (redriven.letters, redriven.failed));
    assert_eq!((group.letters, redriven), (2, Some((3, 1))));
}

/// A preview returns how many dead letters a filter selects, and what is known about them.
pub async fn what_a_filter_means_can_be_asked<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    assert_eq!(owner.matching(Filter::default()).await, FilterMatches::default());
    owner.die(&order("1", "held"), at(0), ParkFollowers::UntilResolved).await;
    owner.die(&order("2", "passed"), at(0), ParkFollowers::No).await;
    owner.publish(order("3", "held"), at(0)).await;
    owner
        .dies_of(
            mail("4"),
            10,
            EventChange::Dead {
                reason: DeadReason::Permanent,
                progress: EventProgress { attempts: 5, ..EventProgress::fresh(at(0)) },
                park: ParkFollowers::No,
            },
        )
        .await;
    owner.act(&mail("4"), redrive(), at(11)).await;
    let no_story = EventProgress {
        attempts: 5,
        history: Some(Arc::new(AttemptHistory::default())),
        ..EventProgress::fresh(at(0))
    };
    let permanent =
        EventChange::Dead { reason: DeadReason::Permanent, progress: no_story, park: ParkFollowers::No };
    owner.dies(&mail("4"), at(12), permanent).await;
    let all = owner.matching(Filter::default()).await;
    let mut keys = all.keys.clone();
    keys.sort();
    assert_eq!(keys, ["held", "passed"]);
    let expected = FilterMatches {
        letters: 3,
        keys_blocked: 1,
        out_of_order: 1,
        redriven_before: 1,
        unsure: 2,
        queues: vec![(MAILS.to_owned(), 1), (ORDERS.to_owned(), 2)],
        keys: all.keys.clone(),
    };
    assert_eq!(all, expected);
}

/// A filter selects the same dead letters in counts and in lists.
pub async fn a_filter_means_what_it_says<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.dies_of(order("a1", "k"), 10, of("order 17 not found", ParkFollowers::No)).await;
    owner.dies_of(mail("a2").tenant("t"), 20, of("Timeout", ParkFollowers::No)).await;
    owner
        .dies_of(
            mail("b3"),
            30,
            EventChange::Dead {
                reason: DeadReason::Undecodable,
                progress: EventProgress { attempts: 7, ..EventProgress::fresh(at(0)) },
                park: ParkFollowers::No,
            },
        )
        .await;
    let none = Filter::default;
    let nanos = |secs| Some(at(secs).as_nanos());
    let text = |text: &str| Filter { text: Some(text.to_owned()), ..none() };
    let found = cause_of(&of("order 99 not found", ParkFollowers::No));
    let cases: [(Filter, &[&str]); 13] = [
        (none(), &["a1", "a2", "b3"]),
        (Filter::queue(MAILS), &["a2", "b3"]),
        (Filter { tenant: Some("t".to_owned()), ..none() }, &["a2"]),
        (Filter { key: Some("k".to_owned()), ..none() }, &["a1"]),
        (Filter { id: Some("b3".to_owned()), ..none() }, &["b3"]),
        (Filter { cause: Some(found), ..none() }, &["a1"]),
        (Filter { reason: Some("undecodable".to_owned()), ..none() }, &["b3"]),
        (Filter { attempts_min: Some(2), ..none() }, &["b3"]),
        (Filter { attempts_max: Some(2), ..none() }, &["a1", "a2"]),
        (Filter { since_ns: nanos(20), before_ns: nanos(30), ..none() }, &["a2"]),
        (text("TIME"), &["a2"]),
        (text("a"), &["a1", "a2"]),
        (Filter { text: Some("not found".to_owned()), ..Filter::queue(MAILS) }, &[]),
    ];
    for (filter, meant) in cases {
        let listed =
            owner.store.list(EventQuery { filter: filter.clone(), ..EventQuery::default() }).await.unwrap();
        let mut ids: Vec<_> = listed.events.iter().map(|(event, _)| event.id.as_str()).collect();
        ids.sort_unstable();
        assert_eq!(ids, meant, "{filter:?}");
        let matching = owner.matching(filter.clone()).await;
        assert_eq!(matching.letters, u64::try_from(meant.len()).unwrap(), "{filter:?}");
    }
}

/// Some of the keys are named, and not all of them if there are many.
pub async fn some_keys_are_named<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for n in 0..25 {
        let key = format!("k{n}");
        owner.die(&order(&n.to_string(), &key), at(0), ParkFollowers::UntilResolved).await;
    }
    let matching = owner.matching(Filter::default()).await;
    let mut keys = matching.keys.clone();
    keys.sort();
    keys.dedup();
    assert_eq!((matching.letters, matching.keys.len(), keys.len()), (25, 20, 20));
}

/// Dead letters with distinct causes have separate groups up to a limit, and then share one group.
pub async fn too_many_causes_are_one_group<S: Subject>(subject: S) {
    const CAUSES_MAX: usize = 10_000;
    let owner = Owner::of(subject).await;
    let letter = |queue: &str, n: usize| {
        let event = redrive_core::Event::new(queue, n.to_string());
        let mut history = (*history("")).clone();
        history.first[0].cause = Some(Cause::new(format!("Kind{n}"), ""));
        ImportedLetter {
            fingerprint: Fingerprint::of(&event),
            event: Arc::new(event),
            published: at(0),
            died: at(1),
            attempts: 1,
            reason: REASON,
            history: Some(Arc::new(history)),
        }
    };
    let letters = (0..CAUSES_MAX).map(|n| letter(MAILS, n)).collect();
    assert_eq!(owner.done(OperatorAction::Import(letters), at(2)).await, 10_000);
    let more = vec![letter(MAILS, 10_000), letter(MAILS, 10_001), letter(ORDERS, 10_002)];
    owner.done(OperatorAction::Import(more), at(3)).await;
    let groups = owner.groups(GroupQuery { limit: 2, ..GroupQuery::default() }).await;
    assert_eq!((groups[0].cause, groups[0].letters), (Some(CauseId::OTHER), 2));
    assert_eq!((groups[0].title.as_str(), groups[1].letters), ("other causes", 1));
    assert_eq!(owner.found(&mail("10001")).await.cause, Some(CauseId::OTHER));
    let other = owner.found(&redrive_core::Event::new(ORDERS, "10002")).await.cause;
    assert!(other.is_some_and(|cause| cause != CauseId::OTHER), "another stream has a number of its own");
    // However many events are scanned for a page, all matches are found.
    let filter = Filter { id: Some("10001".to_owned()), ..Filter::default() };
    let (mut query, mut found) = (EventQuery { filter, ..EventQuery::default() }, 0);
    loop {
        let page = owner.store.list(query.clone()).await.unwrap();
        found += page.events.len();
        let Some(next) = page.next else { break };
        query.after = Some(next);
    }
    assert_eq!(found, 1);
}
