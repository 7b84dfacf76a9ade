//! Two processes over one file: one runs the handlers, the other issues operators' commands, or wants to run them as
//! well.

use redrive::engine::StartError;
use redrive::event::State;
use redrive::store::StoreError;
use redrive::{AfterDead, Event, Redrive, testing};

use crate::{SECOND, Service, desk, mails, orders, publish};

async fn open(folder: &tempfile::TempDir) -> Redrive {
    let address = format!("sqlite:{}", folder.path().join("orders.db").display());
    Redrive::open(&address).await.unwrap()
}

#[tokio::test]
async fn who_cannot_run_a_queue_does_not_change_it() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::default();
    service.breaks(&["1"]);
    let owner = open(&folder).await;
    orders(&owner, &service).await;
    owner.start().await.unwrap();

    // A stand-by with other settings: no order, and no parking.
    let stand_by = open(&folder).await;
    stand_by.queue("orders").handle(|_| std::future::ready(())).await.unwrap();
    let refused = stand_by.start().await;
    assert!(matches!(refused, Err(StartError::Store(StoreError::NotOwner { .. }))), "{refused:?}");
    let worker = open(&folder).await;
    worker.queue("orders").pull().await.unwrap();
    let refused = worker.lease("orders", 1, SECOND).await.unwrap_err();
    assert!(refused.to_string().contains("cannot pull from"), "{refused}");

    publish(&owner, "orders", Some("k"), &["1", "2"]).await;
    testing::drain(&owner).await;
    assert_eq!(service.calls(), ["1"], "the second is parked, as the owner says");
    let other = service.clone();
    let park = stand_by.queue("refunds").after_dead(AfterDead::Park);
    park.handle(move |it| std::future::ready(other.call(&it))).await.unwrap();
    owner.shutdown(SECOND).await.unwrap();

    // Now it may, and its declaration counts.
    stand_by.start().await.unwrap();
    for id in ["3", "4"] {
        stand_by.publish(Event::new("orders", id).key("k")).await.unwrap();
    }
    testing::drain(&stand_by).await;
    assert_eq!(testing::fate(&stand_by, "orders", "4").await.state, State::Done);
    stand_by.shutdown(SECOND).await.unwrap();
}

#[tokio::test]
async fn a_pause_from_another_process_is_heeded() {
    let folder = tempfile::tempdir().unwrap();
    let (paused, other) = (Service::default(), Service::default());
    let owner = open(&folder).await;
    orders(&owner, &paused).await;
    mails(&owner, &other).await;
    owner.start().await.unwrap();
    let operator = open(&folder).await;
    desk(&operator).pause("orders", None).await.unwrap();
    // The owner learns of the pause with its next notification, which another queue causes.
    publish(&operator, "mails", None, &["before"]).await;
    other.until_called(1).await;
    publish(&operator, "orders", None, &["1"]).await;
    for (times, id) in [(2, "after"), (3, "long after")] {
        publish(&operator, "mails", None, &[id]).await;
        other.until_called(times).await;
    }
    assert!(paused.calls().is_empty());
    desk(&operator).resume("orders").await.unwrap();
    paused.until_called(1).await;
    assert_eq!(paused.calls(), ["1"]);
    owner.shutdown(SECOND).await.unwrap();
}
