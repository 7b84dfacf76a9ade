//! Rules: which events operators hold back.

use redrive_core::event::State;
use redrive_core::queue_entry::{EventChange, ParkFollowers};
use redrive_core::triage::{Operator, Rule};
use redrive_store::EventQuery;
use redrive_store::operate::{EventAction, OperatorAction, Refusal};

use crate::conformance::Subject;
use crate::conformance::desk::{park_key, quarantine_key, recalled, redrive, set, state, told, unpark};
use crate::conformance::owner::{MAILS, ORDERS, Owner, at, dead, mail, order, retry, secs};

fn pause(queue: &str) -> Rule {
    Rule::Pause { queue: queue.to_owned() }
}

fn reroute(queue: &str, to: &str) -> Rule {
    Rule::Reroute { queue: queue.to_owned(), to: to.to_owned() }
}

/// A rule survives a crash, names its operator and reason, and is gone when it is lifted.
pub async fn rules_hold_until_they_are_lifted<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    assert_eq!(owner.store.controls().await.unwrap().list, []);
    let quarantine = Rule::QuarantineTenant { queue: None, tenant: "t".to_owned() };
    for rule in [pause(ORDERS), quarantine.clone(), quarantine_key("k")] {
        assert_eq!(owner.done(set(rule), at(5)).await, 1);
    }
    let owner = owner.crash().await;
    let controls = owner.store.controls().await.unwrap();
    let mut rules: Vec<_> = controls.list.iter().map(|control| control.rule.clone()).collect();
    rules.sort();
    assert_eq!(rules, [pause(ORDERS), quarantine.clone(), quarantine_key("k")]);
    for control in &controls.list {
        assert_eq!((control.since, control.until), (at(5), None));
        assert_eq!((control.who.as_str(), control.why.as_str()), ("ann", "it is tried out"));
    }
    assert_eq!(owner.done(OperatorAction::Lift(quarantine.clone()), at(6)).await, 1);
    assert_eq!(owner.refused(OperatorAction::Lift(quarantine), at(6)).await, Refusal::NoRule);
    assert_eq!(owner.store.controls().await.unwrap().list.len(), 2);
}

/// A rule that is set again is one rule, and a queue is rerouted to one other queue.
pub async fn a_rule_replaces_the_one_before<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.done(set(reroute(ORDERS, MAILS)), at(1)).await;
    owner.done(set(reroute(ORDERS, ORDERS)), at(2)).await;
    owner.done(set(pause(ORDERS)), at(1)).await;
    let until = Some(at(50));
    owner.done(OperatorAction::Set { rule: pause(ORDERS), until, why: String::new() }, at(3)).await;
    let list = owner.store.controls().await.unwrap().list;
    assert_eq!(list.len(), 2, "{list:?}");
    let of = |rule: Rule| list.iter().find(|control| control.rule == rule).unwrap();
    assert_eq!((of(pause(ORDERS)).since, of(pause(ORDERS)).until), (at(3), until));
    assert_eq!(of(reroute(ORDERS, ORDERS)).since, at(2));
}

/// An invalid rule is refused.
pub async fn a_senseless_rule_is_refused<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let nowhere = || "nowhere".to_owned();
    let tenant = || Rule::QuarantineTenant { queue: Some(nowhere()), tenant: "t".to_owned() };
    let key = || Rule::ParkKey { queue: nowhere(), tenant: String::new(), key: "k".to_owned() };
    let retries = || Rule::PauseRetries { queue: nowhere() };
    let rules =
        [pause("nowhere"), retries(), tenant(), key(), reroute("nowhere", MAILS), reroute(MAILS, "nowhere")];
    for rule in rules {
        assert_eq!(owner.refused(set(rule), at(1)).await, Refusal::NoQueue { queue: nowhere() });
    }
    let over = OperatorAction::Set { rule: pause(MAILS), until: Some(at(1)), why: String::new() };
    let refusal = owner.refused(over, at(1)).await;
    assert!(matches!(refusal, Refusal::Senseless(_)), "{refusal:?}");
    let unordered =
        Rule::QuarantineKey { queue: MAILS.to_owned(), tenant: String::new(), key: "k".to_owned() };
    let refusal = owner.refused(set(unordered), at(1)).await;
    assert!(matches!(refusal, Refusal::Senseless(_)), "a key that keeps no order has no head: {refusal:?}");
    assert_eq!(owner.store.controls().await.unwrap().list, []);
}

/// Owners are notified to look again when a rule is set and when it ends.
pub async fn a_change_of_rules_is_recalled<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let arrivals = owner.watch();
    let mut version = owner.version().await;
    for what in
        [set(pause(MAILS)), set(pause(MAILS)), OperatorAction::Lift(pause(MAILS)), set(quarantine_key("k"))]
    {
        owner.done(what, at(1)).await;
        assert!(recalled(&arrivals));
        let now = owner.version().await;
        assert!(now > version);
        version = now;
    }
    owner.refused(OperatorAction::Lift(pause(MAILS)), at(2)).await;
    assert_eq!(owner.version().await, version);
    let owner = owner.crash().await;
    assert_eq!(owner.version().await, version);
}

/// No event of a key that is held back is loaded: neither its first, nor a new one, nor after a crash.
pub async fn nothing_of_a_withheld_key_is_handed_out<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    owner.publish(order("2", "k"), at(0)).await;
    let arrivals = owner.watch();
    owner.done(set(quarantine_key("k")), at(1)).await;
    owner.done(set(quarantine_key("new")), at(1)).await;
    owner.publish(order("3", "k"), at(2)).await;
    owner.publish(order("4", "new"), at(2)).await;
    owner.publish(order("5", "free"), at(2)).await;
    owner.publish(order("6", "k").tenant("t"), at(2)).await;
    assert_eq!(owner.due_ids(at(9)).await, ["5", "6"]);
    let heard: Vec<_> = arrivals.lock().unwrap().iter().flat_map(|told| told.entries.clone()).collect();
    assert!(heard.iter().all(|entry| ["5", "6"].contains(&entry.event.id.as_str())), "{heard:?}");
    for (id, key) in [("1", "k"), ("2", "k"), ("3", "k"), ("4", "new")] {
        assert_eq!(owner.state(&order(id, key)).await, State::Quarantined);
    }
    let owner = owner.crash().await;
    assert_eq!(owner.due_ids(at(9)).await, ["5", "6"]);
}

/// A key whose rule is lifted continues with its first event, which is announced.
pub async fn a_lifted_key_goes_on_with_its_head<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k").delay(secs(50)), at(0)).await;
    owner.publish(order("2", "k"), at(0)).await;
    owner.done(set(park_key("k")), at(1)).await;
    assert_eq!(owner.state(&order("1", "k")).await, State::Parked);
    assert_eq!(owner.state(&order("2", "k")).await, State::Parked);
    assert_eq!(owner.due_ids(at(99)).await, [""; 0]);
    let arrivals = owner.watch();
    owner.done(OperatorAction::Lift(park_key("k")), at(2)).await;
    assert!(told(&arrivals, "1"));
    assert_eq!(owner.due_ids(at(49)).await, [""; 0]);
    assert_eq!(owner.due_ids(at(50)).await, ["1"]);
}

/// An event that was running when its key was held back is settled as usual; later events are held back.
pub async fn what_runs_is_settled_though_its_key_is_withheld<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(order(id, "k"), at(0)).await;
    }
    let entry = owner.entry("1", at(0)).await;
    owner.done(set(quarantine_key("k")), at(1)).await;
    assert_eq!(owner.settle_next(&entry, at(2), EventChange::Done).await, None);
    assert_eq!(owner.due_ids(at(9)).await, [""; 0]);
    assert_eq!(owner.state(&order("2", "k")).await, State::Quarantined);
    owner.done(OperatorAction::Lift(quarantine_key("k")), at(3)).await;
    let entry = owner.entry("2", at(3)).await;
    owner.done(set(quarantine_key("k")), at(4)).await;
    assert_eq!(owner.settle_next(&entry, at(5), EventChange::Retry(retry(at(6)))).await, None);
    assert_eq!(owner.due_ids(at(9)).await, [""; 0]);
    assert_eq!(owner.state(&order("2", "k")).await, State::Quarantined);
    owner.done(OperatorAction::Lift(quarantine_key("k")), at(7)).await;
    assert_eq!(owner.due_ids(at(9)).await, ["2"]);
    assert_eq!(owner.entry("2", at(9)).await.progress, retry(at(6)));
}

/// A dead letter redriven into a key that is held back waits with the others.
pub async fn a_redrive_to_a_withheld_key_waits<S: Subject>(subject: S) {
    let owner = Owner::parked(subject).await;
    owner.done(set(quarantine_key("k")), at(5)).await;
    owner.act(&order("1", "k"), redrive(), at(6)).await;
    assert_eq!(owner.due_ids(at(9)).await, [""; 0]);
    assert_eq!(owner.state(&order("1", "k")).await, State::Quarantined);
    assert_eq!(owner.act_refused(&order("1", "k"), redrive(), at(7)).await, state(State::Quarantined));
    owner.act(&order("1", "k"), EventAction::Discard, at(7)).await;
    assert_eq!(owner.due_ids(at(9)).await, [""; 0], "the next of the key is held back as well");
    owner.done(OperatorAction::Lift(quarantine_key("k")), at(8)).await;
    assert_eq!(owner.due_ids(at(9)).await, ["2"]);
}

/// A suspect of a key that is held back is not returned either, however long the rule lasts.
pub async fn a_withheld_suspect_is_not_handed_out<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    owner.store.note(owner.token(&entry), vec![entry.seq]).await.unwrap();
    owner.done(set(quarantine_key("k")), at(1)).await;
    let owner = owner.crash().await;
    assert_eq!(owner.suspects(), [""; 0]);
    owner.done(OperatorAction::Lift(quarantine_key("k")), at(2)).await;
    assert!(owner.entry("1", at(2)).await.progress.suspect, "it is suspect all the same");
}

/// One command frees a key from everything that holds it back.
pub async fn one_order_frees_a_key<S: Subject>(subject: S) {
    let owner = Owner::parked(subject).await;
    owner.done(set(park_key("k")), at(5)).await;
    let arrivals = owner.watch();
    assert_eq!(owner.done(unpark("k"), at(6)).await, 2);
    assert!(told(&arrivals, "2"));
    assert_eq!(owner.due_ids(at(6)).await, ["2"]);
    assert_eq!(owner.store.controls().await.unwrap().list, []);
    assert_eq!(owner.refused(unpark("k"), at(7)).await, Refusal::NotParked);
    let entry = owner.entry("2", at(7)).await;
    owner.settle_next(&entry, at(8), dead(ParkFollowers::UntilResolved)).await;
    assert_eq!(owner.done(unpark("k"), at(9)).await, 1);
    assert_eq!(owner.due_ids(at(9)).await, ["3"]);
}

/// A rule with an end is lifted at its end, with an audit entry, and that is announced.
pub async fn a_rule_ends_at_its_time<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    let until = Some(at(50));
    owner.done(OperatorAction::Set { rule: quarantine_key("k"), until, why: String::new() }, at(1)).await;
    owner.store.forget(at(49)).await.unwrap();
    assert_eq!(owner.due_ids(at(49)).await, [""; 0]);
    let (arrivals, version) = (owner.watch(), owner.version().await);
    assert!(owner.store.forget(at(50)).await.unwrap() > 0);
    assert!(arrivals.lock().unwrap().iter().any(|told| told.recall || told.missed));
    assert!(told(&arrivals, "1"));
    assert!(owner.version().await > version);
    assert_eq!(owner.due_ids(at(50)).await, ["1"]);
    assert_eq!(owner.store.controls().await.unwrap().list, []);
    let line = owner.store.audit(None, 1).await.unwrap().remove(0);
    assert_eq!((line.verb.as_str(), line.by, line.at), ("lift", Operator::engine(), at(50)));
}

/// Events that are held back have that state, in lists and in counts.
pub async fn what_is_held_back_is_listed_as_such<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("head", "q"), at(0)).await;
    owner.publish(order("behind", "q"), at(0)).await;
    owner.publish(order("parked", "p"), at(0)).await;
    owner.publish(mail("tenant").tenant("t"), at(0)).await;
    owner.publish(mail("later").tenant("t").delay(secs(99)), at(0)).await;
    owner.publish(mail("free"), at(0)).await;
    owner.done(set(quarantine_key("q")), at(1)).await;
    owner.done(set(park_key("p")), at(1)).await;
    owner.done(set(Rule::QuarantineTenant { queue: None, tenant: "t".to_owned() }), at(1)).await;
    let ids = async |state| {
        let listed =
            owner.store.list(EventQuery { state: Some(state), ..EventQuery::default() }).await.unwrap();
        let mut ids: Vec<_> = listed.events.iter().map(|(event, _)| event.id.clone()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(State::Quarantined).await, ["behind", "head", "later", "tenant"]);
    assert_eq!(ids(State::Parked).await, ["parked"]);
    assert_eq!(ids(State::Ready).await, ["free"]);
    assert_eq!(ids(State::Waiting).await, [""; 0]);
    let counts = owner.store.count(at(2)).await.unwrap();
    let counted = |queue: &str, state| {
        let of = counts.iter().filter(|count| count.queue == queue && count.state == state);
        of.map(|count| count.events).sum::<u64>()
    };
    assert_eq!((counted(ORDERS, State::Quarantined), counted(MAILS, State::Quarantined)), (2, 2));
    assert_eq!((counted(ORDERS, State::Parked), counted(MAILS, State::Ready)), (1, 1));
    assert_eq!((counted(MAILS, State::Waiting), counted(ORDERS, State::Waiting)), (0, 0));
    assert_eq!(owner.state(&mail("tenant").tenant("t")).await, State::Quarantined);
}
