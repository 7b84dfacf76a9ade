//! Dead letters by type and key, with more of them than the sample.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::event::{DeadReason, Fingerprint};
use redrive_core::triage::Operator;
use redrive_store::operate::{Group, GroupBy, GroupQuery, ImportedLetter, OperatorAction, OperatorCommand};
use redrive_store::{Sqlite, prelude::*};

mod sqlite_common;
use sqlite_common::{AT, TestStore};

async fn import(store: &Sqlite, events: impl Iterator<Item = Event>) {
    let letter = |event: Event| ImportedLetter {
        fingerprint: Fingerprint::of(&event),
        event: Arc::new(event),
        published: AT,
        died: AT,
        attempts: 1,
        reason: DeadReason::Permanent,
        history: None,
    };
    let what = OperatorAction::Import(events.map(letter).collect());
    let done =
        store.operate(OperatorCommand { by: Operator::new("ann", "a test"), at: AT, what }).await.unwrap();
    assert_eq!(done.refused, []);
}

async fn groups(store: &Sqlite, by: GroupBy, tenant: Option<&str>) -> Vec<Group> {
    let tenant = tenant.map(str::to_owned);
    store.groups(GroupQuery { by, tenant, ..GroupQuery::default() }).await.unwrap()
}

fn brief(groups: &[Group]) -> Vec<(&str, u64, Option<u64>)> {
    groups.iter().map(|group| (group.title.as_str(), group.letters, group.looked)).collect()
}

#[tokio::test]
async fn of_very_many_letters_each_stream_has_its_part() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let of = |tenant: &str, kind: &str, ids: std::ops::Range<u32>| {
        let event = Event::new("orders", "").tenant(tenant).key(kind).header("ce-type", kind);
        ids.map(move |id| Event { id: id.to_string(), ..event.clone() })
    };
    import(&store, of("large", "old", 0..7_000)).await;
    import(&store, of("large", "new", 7_000..15_000)).await;
    import(&store, of("small", "other", 0..5_000)).await;
    import(&store, of("tiny", "rare", 0..1)).await;
    for by in [GroupBy::Type, GroupBy::Key] {
        let all = groups(&store, by, None).await;
        // Half of each, the newest: 7,500, 2,500 and the one.
        let looked = Some(10_001);
        assert_eq!(brief(&all), [("new", 7_500, looked), ("other", 2_500, looked), ("rare", 1, looked)]);
        let few = groups(&store, by, Some("small")).await;
        assert_eq!(brief(&few), [("other", 5_000, None)], "all that are asked for");
    }
}

#[tokio::test]
async fn large_payloads_are_not_read_for_a_type_without_end() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    for n in 0..40 {
        let event = Event::new("orders", n.to_string()).key("k").header("ce-type", "large");
        import(&store, std::iter::once(event.payload(vec![0; 1 << 20]))).await;
    }
    assert_eq!(brief(&groups(&store, GroupBy::Type, None).await), [("large", 33, Some(33))]);
    assert_eq!(
        brief(&groups(&store, GroupBy::Key, None).await),
        [("k", 40, None)],
        "keys are before payloads"
    );
}

#[tokio::test]
async fn a_letter_whose_type_cannot_be_read_is_still_counted() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    import(&store, ["1", "2"].into_iter().map(|id| Event::new("orders", id).header("ce-type", "paid"))).await;
    assert_eq!(
        store_dir.raw().execute("UPDATE redrive_tracked SET extra = x'00' WHERE id = '1'", []).unwrap(),
        1
    );
    assert_eq!(brief(&groups(&store, GroupBy::Type, None).await), [("", 1, None), ("paid", 1, None)]);
}
