//! Dead letters: shown, redriven, edited, discarded.

use std::pin::pin;
use std::sync::{Arc, Mutex};

use futures_util::poll;
use redrive::engine::desk::{DeskError, Edit};
use redrive::event::{Mode, State};
use redrive::store::operate::{EventRef, GroupBy, GroupQuery, Refusal};
use redrive::triage::{Filter, RedriveOptions as How};
use redrive::{Delivery, Event, EventQuery, Published, Redrive, testing};
use tokio::sync::Semaphore;

use crate::{SECOND, Service, desk, mail, order, patient, publish, started};

#[tokio::test(start_paused = true)]
async fn a_redrive_runs_under_the_same_identity_and_keeps_its_story() {
    let service = Service::default();
    service.breaks(&["1"]);
    let redrive = started(&service).await;
    publish(&redrive, "orders", Some("k"), &["1", "2"]).await;
    testing::drain(&redrive).await;
    assert_eq!(service.calls(), ["1"], "the second is parked");
    let shown = desk(&redrive).show("", "orders", "1").await.unwrap().unwrap();
    assert!(shown.found.holds && shown.behind.len() == 1, "{shown:?}");
    assert_eq!(shown.behind[0].1.state, State::Parked);

    service.mend();
    let done = desk(&redrive).redrive(order("1"), How::default()).await.unwrap();
    assert_eq!((done.changed, done.refused.len()), (1, 0));
    testing::drain(&redrive).await;
    assert_eq!(service.calls(), ["1", "2"], "in their order");
    let found = testing::fate(&redrive, "orders", "1").await;
    let modes: Vec<_> = found.history.as_ref().unwrap().records().map(|record| record.mode.clone()).collect();
    assert_eq!((found.state, modes), (State::Done, vec!["live".to_owned(), Mode::Redrive.to_string()]));
    // Its identity was kept throughout.
    let again = redrive.publish(Event::new("orders", "1").key("k").payload(*b"1")).await.unwrap();
    assert!(matches!(again, Published::Duplicate(_)), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn letters_of_one_cause_are_one_group_and_say_what_became_of_their_redrive() {
    let service = Service::default();
    service.breaks(&["m-1", "m-2", "m-3"]);
    let redrive = started(&service).await;
    publish(&redrive, "mails", None, &["m-1", "m-2", "m-3"]).await;
    testing::drain(&redrive).await;
    let groups = desk(&redrive).groups(GroupQuery::default()).await.unwrap();
    assert_eq!(groups.len(), 1);
    assert_eq!((groups[0].title.as_str(), groups[0].letters), ("text 404: no customer for #", 3));

    service.mend();
    service.breaks(&["m-1"]);
    let all = ["m-1", "m-2", "m-3"].into_iter().flat_map(mail).collect();
    desk(&redrive).redrive(all, How::default()).await.unwrap();
    testing::drain(&redrive).await;
    let group = desk(&redrive).groups(GroupQuery::default()).await.unwrap().remove(0);
    let redriven = group.redriven.unwrap();
    assert_eq!((group.letters, redriven.letters, redriven.failed), (1, 3, 1));
    let by_queue = GroupQuery { by: GroupBy::Queue, ..GroupQuery::default() };
    assert_eq!(desk(&redrive).groups(by_queue).await.unwrap()[0].title, "mails");
}

#[tokio::test(start_paused = true)]
async fn letters_are_found_by_what_is_known_of_them() {
    let service = Service::default();
    service.breaks(&["a", "b"]);
    let redrive = started(&service).await;
    publish(&redrive, "orders", Some("k"), &["a"]).await;
    publish(&redrive, "mails", None, &["b"]).await;
    testing::drain(&redrive).await;
    let find = async |filter: Filter| {
        let page = desk(&redrive).letters(filter, None).await.unwrap();
        page.events.iter().map(|(event, _)| event.id.clone()).collect::<Vec<_>>()
    };
    let text = |text: &str| Filter { text: Some(text.to_owned()), ..Filter::default() };
    assert_eq!(find(Filter::default()).await.len(), 2);
    assert_eq!(find(Filter::queue("mails")).await, ["b"]);
    assert_eq!(find(Filter { key: Some("k".to_owned()), ..Filter::default() }).await, ["a"]);
    assert_eq!(find(text("CUSTOMER FOR B")).await, ["b"]);
    assert!(find(text("nonsense")).await.is_empty());
    assert!(find(Filter { attempts_min: Some(2), ..Filter::default() }).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_edit_takes_the_place_of_the_original_and_resolves_it() {
    let service = Service::default();
    service.breaks(&["1"]);
    let redrive = started(&service).await;
    publish(&redrive, "orders", Some("k"), &["1", "2"]).await;
    testing::drain(&redrive).await;
    service.calls();
    let edit = Edit { id: "1-mended".to_owned(), payload: Some(b"mended".to_vec()), ..Edit::default() };
    let target = order("1").remove(0);
    let stale = EventRef { rev: Some(7), ..target.clone() };
    let refused = desk(&redrive).edit(stale, edit.clone()).await;
    assert!(matches!(refused, Err(DeskError::Refused(Refusal::Changed { .. }))), "{refused:?}");

    let done = desk(&redrive).edit(target.clone(), edit).await.unwrap();
    assert!(done.unsure, "it is unknown whether the first attempt had its effect");
    testing::drain(&redrive).await;
    assert_eq!(service.calls(), ["1-mended", "2"]);
    let original = testing::fate(&redrive, "orders", "1").await;
    assert_eq!((original.state, original.edited_into.as_deref()), (State::Discarded, Some("1-mended")));
    let restored = desk(&redrive).restore(vec![target]).await.unwrap();
    assert_eq!(restored.refused, [(0, Refusal::Edited { into: "1-mended".to_owned() })]);
}

#[tokio::test(start_paused = true)]
async fn what_is_discarded_can_be_restored_and_put_back() {
    let service = Service::default();
    service.breaks(&["1"]);
    let redrive = started(&service).await;
    publish(&redrive, "orders", Some("k"), &["1", "2"]).await;
    testing::drain(&redrive).await;
    desk(&redrive).discard(order("1")).await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!(service.calls(), ["1", "2"], "the key goes on");
    let found = testing::fate(&redrive, "orders", "1").await;
    assert!(found.state == State::Discarded && found.until.is_some(), "{found:?}");

    service.mend();
    desk(&redrive).restore(order("1")).await.unwrap();
    assert_eq!(testing::fate(&redrive, "orders", "1").await.state, State::Dead);
    let how = How::default();
    let refused = desk(&redrive).redrive(order("1"), how.clone()).await.unwrap();
    assert_eq!(refused.refused, [(0, Refusal::OutOfOrder)], "the second ran before it");
    desk(&redrive).redrive(order("1"), How { out_of_order: true, ..how }).await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!(service.calls(), ["1"]);
    assert_eq!(testing::fate(&redrive, "orders", "1").await.state, State::Done);
}

#[tokio::test(start_paused = true)]
async fn what_waits_can_be_killed_or_hurried() {
    let service = Service::default();
    let redrive = started(&service).await;
    let later = |id: &str| Event::new("mails", id).delay(crate::SECOND * 3600);
    redrive.publish(later("soon")).await.unwrap();
    redrive.publish(later("never")).await.unwrap();
    desk(&redrive).retry_now(mail("soon")).await.unwrap();
    desk(&redrive).kill(mail("never")).await.unwrap();
    redrive.idle().await;
    assert_eq!(service.calls(), ["soon"]);
    let dead = testing::expect_dead(&redrive, "mails", "never").await;
    assert_eq!(dead.reason.unwrap().as_str(), "killed");
}

#[tokio::test(start_paused = true)]
async fn everything_that_was_changed_is_in_the_audit() {
    let service = Service::default();
    service.breaks(&["1"]);
    let redrive = started(&service).await;
    publish(&redrive, "mails", None, &["1"]).await;
    testing::drain(&redrive).await;
    desk(&redrive).pause("mails", None).await.unwrap();
    desk(&redrive).redrive(mail("1"), How::default()).await.unwrap();
    desk(&redrive).redrive(mail("unknown"), How::default()).await.unwrap();
    let lines = desk(&redrive).audit(None, 0).await.unwrap();
    let said: Vec<_> = lines.iter().map(|line| (line.verb.as_str(), line.count)).collect();
    assert_eq!(said, [("redrive", 0), ("redrive", 1), ("pause", 1)]);
    assert!(lines.iter().all(|line| line.by.who == "ada" && line.by.from == "test"));
    let older = desk(&redrive).audit(Some(lines[1].number), 0).await.unwrap();
    assert_eq!(older.len(), 1);
    let mut file = Vec::new();
    assert_eq!(desk(&redrive).export_audit(&mut file).await.unwrap(), 3);
    let text = String::from_utf8(file).unwrap();
    let last = text.lines().last().unwrap();
    assert!(
        last.contains(r#""who":"ada","from":"test","verb":"pause","target":"queue mails","count":1"#),
        "{last}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_runs_is_neither_discarded_nor_killed() {
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let redrive = testing::memory();
    let waits = gate.clone();
    let handler = move |_| {
        let gate = waits.clone();
        async move { gate.acquire().await.unwrap().forget() }
    };
    redrive.queue("mails").handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    publish(&redrive, "mails", None, &["1"]).await;
    let running = redrive::EventQuery { state: Some(State::Running), ..redrive::EventQuery::default() };
    while desk(&redrive).list(running.clone()).await.unwrap().events.is_empty() {
        tokio::task::yield_now().await;
    }
    let is = State::Running;
    let mut targets = mail("nobody");
    targets.extend(mail("1"));
    let refused = desk(&redrive).discard(targets).await.unwrap().refused;
    assert_eq!(refused, [(0, Refusal::Unknown), (1, Refusal::State { is })]);
    assert_eq!(desk(&redrive).kill(mail("1")).await.unwrap().refused, [(0, Refusal::State { is })]);
    gate.add_permits(1);
    testing::drain(&redrive).await;
    assert_eq!(testing::fate(&redrive, "mails", "1").await.state, State::Done);
}

/// A publish and a redrive share a commit: the arrival of the first is outdated by the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_a_key_runs_at_a_time_whatever_shares_its_commit() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("sqlite:{}", folder.path().join("orders.db").display());
    let redrive = Redrive::open(&address).await.unwrap();
    let (service, running) = (Service::default(), Arc::new(Mutex::new((0, 0))));
    service.breaks(&["1"]);
    let gate = Arc::new(Semaphore::new(1));
    let (called, counted, held) = (service.clone(), running.clone(), gate.clone());
    let handler = move |it: Delivery| {
        let (called, counted, held) = (called.clone(), counted.clone(), held.clone());
        async move {
            {
                let (now, most) = &mut *counted.lock().unwrap();
                *now += 1;
                *most = (*most).max(*now);
            }
            let said = called.call(&it);
            // Another attempt may begin beside it here.
            let _let_go = held.acquire().await;
            counted.lock().unwrap().0 -= 1;
            said
        }
    };
    redrive.queue("orders").policy(patient()).ordered().handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    // One of several tenants, none of which is in memory.
    let of = |tenant: &str, id: &str| Event::new("orders", id).tenant(tenant).key("k");
    for event in [of("a", "other"), of("b", "other"), of("c", "1")] {
        redrive.publish(event).await.unwrap();
        redrive.idle().await;
    }
    assert_eq!(redrive.event("c", "orders", "1").await.unwrap().unwrap().state, State::Dead);
    service.mend();

    // From now on, an attempt that begins does not end before it is released.
    let closed = gate.acquire().await.unwrap();
    // While the writer is blocked, the next two calls share a commit: each is in its queue once it was polled.
    let (enter, mut entered) = tokio::sync::mpsc::unbounded_channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let mut slow = pin!(redrive.transact(move |_| {
        let _ = enter.send(());
        // Released when the test drops the other end.
        let _ = released.recv();
        Ok::<_, std::io::Error>(())
    }));
    assert!(poll!(&mut slow).is_pending());
    entered.recv().await.unwrap();
    let mut new = pin!(redrive.publish(of("c", "2")));
    assert!(poll!(&mut new).is_pending());
    let how = How { out_of_order: true, ..How::default() };
    let desk = desk(&redrive);
    let mut old = pin!(desk.redrive(vec![EventRef::new("c", "orders", "1")], how));
    assert!(poll!(&mut old).is_pending());
    drop(release);
    let (slow, new, old) = tokio::join!(slow, new, old);
    slow.unwrap();
    new.unwrap();
    assert_eq!(old.unwrap().changed, 1);
    // An event that was wrongly handed out begins, and stays.
    let running_now = EventQuery { state: Some(State::Running), ..EventQuery::default() };
    let now = loop {
        let now = redrive.events(running_now.clone()).await.unwrap().events;
        if !now.is_empty() {
            break now;
        }
        tokio::task::yield_now().await;
    };
    let now: Vec<_> = now.iter().map(|(event, _)| event.id.as_str()).collect();
    assert_eq!(now, ["1"], "the head of the key, and nothing else");
    drop(closed);
    testing::drain(&redrive).await;
    assert_eq!(running.lock().unwrap().1, 1, "{:?}", service.calls());
    redrive.shutdown(SECOND).await.unwrap();
}
