//! Pauses, quarantines and reroutes.

use redrive::engine::desk::DeskError;
use redrive::event::State;
use redrive::store::operate::Refusal;
use redrive::triage::{Filter, RedriveOptions as How, Rule};
use redrive::{Event, EventQuery, testing};

use crate::{SECOND, Service, desk, mail, mails, order, orders, publish, started};

#[tokio::test(start_paused = true)]
async fn a_paused_queue_starts_nothing_until_its_time_is_over() {
    let service = Service::default();
    let redrive = started(&service).await;
    desk(&redrive).pause("mails", Some(60 * SECOND)).await.unwrap();
    publish(&redrive, "mails", None, &["1"]).await;
    publish(&redrive, "orders", None, &["2"]).await;
    redrive.idle().await;
    assert_eq!(service.calls(), ["2"]);
    tokio::time::sleep(59 * SECOND).await;
    assert!(service.calls().is_empty());
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(service.calls(), ["1"]);
    let lifted = desk(&redrive).resume("mails").await;
    assert!(matches!(lifted, Err(DeskError::Refused(Refusal::NoRule))), "{lifted:?}");
}

#[tokio::test(start_paused = true)]
async fn retries_can_be_paused_alone() {
    let service = Service::default();
    service.breaks(&["1"]);
    let redrive = started(&service).await;
    publish(&redrive, "mails", None, &["1"]).await;
    testing::drain(&redrive).await;
    service.calls();
    desk(&redrive).pause_retries("mails", None).await.unwrap();
    desk(&redrive).redrive(mail("1"), How::default()).await.unwrap();
    publish(&redrive, "mails", None, &["2"]).await;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(service.calls(), ["2"]);
    desk(&redrive).resume("mails").await.unwrap();
    redrive.idle().await;
    assert_eq!(service.calls(), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn a_quarantined_key_keeps_its_events_in_order() {
    let service = Service::default();
    let redrive = started(&service).await;
    let rule =
        || Rule::QuarantineKey { queue: "orders".to_owned(), tenant: String::new(), key: "k".to_owned() };
    desk(&redrive).set(rule(), None, "the customer complains").await.unwrap();
    publish(&redrive, "orders", Some("k"), &["1", "2"]).await;
    publish(&redrive, "orders", Some("other"), &["3"]).await;
    redrive.idle().await;
    assert_eq!(service.calls(), ["3"]);
    let query = EventQuery { state: Some(State::Quarantined), ..EventQuery::default() };
    assert_eq!(desk(&redrive).list(query).await.unwrap().events.len(), 2);
    assert_eq!(desk(&redrive).rules().await.unwrap().list[0].why, "the customer complains");
    desk(&redrive).lift(rule()).await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!(service.calls(), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn a_quarantined_tenant_waits_and_the_others_go_on() {
    let service = Service::default();
    let redrive = started(&service).await;
    let rule = || Rule::QuarantineTenant { queue: None, tenant: "loud".to_owned() };
    desk(&redrive).set(rule(), None, "").await.unwrap();
    for (tenant, id) in [("loud", "1"), ("quiet", "2")] {
        redrive.publish(Event::new("mails", id).tenant(tenant)).await.unwrap();
    }
    redrive.idle().await;
    assert_eq!(service.calls(), ["2"]);
    let filter = Filter { tenant: Some("loud".to_owned()), ..Filter::default() };
    let query = EventQuery { filter, state: Some(State::Quarantined), ..EventQuery::default() };
    assert_eq!(desk(&redrive).list(query).await.unwrap().events.len(), 1);
    desk(&redrive).lift(rule()).await.unwrap();
    redrive.idle().await;
    assert_eq!(service.calls(), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn a_parked_key_is_unparked_or_loses_its_head() {
    let service = Service::default();
    service.breaks(&["1"]);
    let redrive = started(&service).await;
    publish(&redrive, "orders", Some("k"), &["1", "2"]).await;
    testing::drain(&redrive).await;
    assert_eq!(service.calls(), ["1"]);
    desk(&redrive).skip_head("orders", "", "k").await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!(service.calls(), ["2"]);
    let again = desk(&redrive).skip_head("orders", "", "k").await;
    assert!(matches!(again, Err(DeskError::Refused(Refusal::NotParked))), "{again:?}");

    let park = Rule::ParkKey { queue: "orders".to_owned(), tenant: String::new(), key: "k".to_owned() };
    desk(&redrive).set(park, None, "").await.unwrap();
    publish(&redrive, "orders", Some("k"), &["3"]).await;
    redrive.idle().await;
    assert_eq!(testing::fate(&redrive, "orders", "3").await.state, State::Parked);
    desk(&redrive).unpark("orders", "", "k").await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!(service.calls(), ["3"]);
}

#[tokio::test(start_paused = true)]
async fn a_reroute_changes_the_handler_and_nothing_else() {
    let (old, new) = (Service::default(), Service::default());
    old.breaks(&["1", "2"]);
    let redrive = testing::memory();
    orders(&redrive, &old).await;
    mails(&redrive, &new).await;
    redrive.start().await.unwrap();
    publish(&redrive, "orders", Some("k"), &["1", "2"]).await;
    testing::drain(&redrive).await;
    let rule = || Rule::Reroute { queue: "orders".to_owned(), to: "mails".to_owned() };
    let itself = Rule::Reroute { queue: "orders".to_owned(), to: "orders".to_owned() };
    let long = Rule::QuarantineTenant { queue: None, tenant: "t".repeat(1000) };
    for senseless in [itself, long] {
        let refused = desk(&redrive).set(senseless, None, "").await;
        assert!(matches!(refused, Err(DeskError::Refused(Refusal::Senseless(_)))), "{refused:?}");
    }
    let nowhere = Rule::Reroute { queue: "orders".to_owned(), to: "nowhere".to_owned() };
    let refused = desk(&redrive).set(nowhere, None, "").await;
    assert!(matches!(refused, Err(DeskError::Refused(Refusal::NoQueue { .. }))), "{refused:?}");

    desk(&redrive).set(rule(), None, "").await.unwrap();
    // A paused handler runs nothing for other queues either.
    desk(&redrive).pause("mails", None).await.unwrap();
    desk(&redrive).redrive(order("1"), How::default()).await.unwrap();
    redrive.idle().await;
    assert!(new.calls().is_empty());
    desk(&redrive).resume("mails").await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!(new.calls(), ["1", "2"], "in the order of their own key");
    desk(&redrive).lift(rule()).await.unwrap();
    // One dead letter alone, with a route of its own.
    publish(&redrive, "orders", Some("k"), &["3"]).await;
    old.breaks(&["4"]);
    publish(&redrive, "orders", Some("k"), &["4"]).await;
    testing::drain(&redrive).await;
    let to = How { to: Some("mails".to_owned()), ..How::default() };
    desk(&redrive).redrive(order("4"), to).await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!((old.calls(), new.calls()), (vec!["1".into(), "3".into(), "4".into()], vec!["4".to_owned()]));
    assert_eq!(testing::fate(&redrive, "orders", "4").await.state, State::Done);
}

#[tokio::test(start_paused = true)]
async fn rules_outlast_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("sqlite:{}", folder.path().join("orders.db").display());
    let service = Service::default();
    for run in 0..2 {
        let redrive = redrive::Redrive::open(&address).await.unwrap();
        mails(&redrive, &service).await;
        if run == 0 {
            desk(&redrive).pause("mails", None).await.unwrap();
            publish(&redrive, "mails", None, &["1"]).await;
        }
        redrive.start().await.unwrap();
        redrive.idle().await;
        assert!(service.calls().is_empty());
        if run == 1 {
            desk(&redrive).resume("mails").await.unwrap();
            redrive.idle().await;
            assert_eq!(service.calls(), ["1"]);
        }
        redrive.shutdown(SECOND).await.unwrap();
    }
}
