//! The fencing token: only the owner may write, and only to the revision that it knows.

use redrive_core::event::State;
use redrive_core::queue_entry::{
    EventChange, FencingToken, LoadRequest, ParkFollowers, QueueEntry, SettleRequest, SettleResult,
};

use super::Subject;
use super::owner::{Owner, at, dead, mail, order, retry};

/// Every change that a settle can make.
fn changes() -> Vec<EventChange> {
    vec![
        EventChange::Done,
        EventChange::DoneWith { result: Some(b"late".to_vec()), attempts: 9, history: None },
        EventChange::Dropped { attempts: 9, history: None },
        EventChange::Expired { attempts: 9, history: None },
        EventChange::Retry(retry(at(900))),
        dead(ParkFollowers::UntilResolved),
        EventChange::CountCrash,
        EventChange::Unpark,
    ]
}

/// Asserts that a settle of each kind is refused like this, and changes nothing.
async fn refused<S: Subject>(
    owner: &Owner<S>,
    entry: &QueueEntry,
    token: FencingToken,
    rev: u32,
    how: &SettleResult,
) {
    let before = (owner.due(at(10)).await, owner.found(&entry.event).await);
    for change in changes() {
        let settle = SettleRequest { token, seq: entry.seq, rev, at: at(5), change: change.clone() };
        let settled = owner.store.settle(vec![settle]).await.unwrap().remove(0);
        assert_eq!(&settled, how, "{change:?}");
        assert_eq!((owner.due(at(10)).await, owner.found(&entry.event).await), before, "{change:?}");
    }
}

/// The settle of an attempt that was abandoned changes nothing.
pub async fn a_stale_rev_changes_nothing<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    owner.publish(order("2", "k"), at(0)).await;
    let first = owner.entry("1", at(0)).await;
    owner.settle_next(&first, at(2), EventChange::Retry(retry(at(2)))).await;
    let second = owner.entry("1", at(2)).await;
    assert!(second.rev > first.rev);
    refused(&owner, &second, owner.token(&second), first.rev, &SettleResult::Stale).await;
    refused(&owner, &second, owner.token(&second), second.rev + 1, &SettleResult::Stale).await;
    assert_eq!(owner.settle_next(&second, at(3), EventChange::Done).await.as_deref(), Some("2"));
}

/// An owner that was replaced changes nothing, although the event is unchanged since.
pub async fn a_stale_epoch_changes_nothing<S: Subject>(subject: S) {
    let mut owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    owner.publish(order("2", "k"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    let zombie = owner.token(&entry);
    owner.take().await;
    let entry = owner.entry("1", at(0)).await;
    let token = owner.token(&entry);
    assert!(token.epoch > zombie.epoch && token.incarnation == zombie.incarnation);
    refused(&owner, &entry, zombie, entry.rev, &SettleResult::Fenced).await;
    refused(
        &owner,
        &entry,
        FencingToken { epoch: token.epoch + 1, ..token },
        entry.rev,
        &SettleResult::Fenced,
    )
    .await;
    assert_eq!(owner.settle_next(&entry, at(3), EventChange::Done).await.as_deref(), Some("2"));
}

/// A fencing token from another incarnation of the database changes nothing.
pub async fn another_incarnation_changes_nothing<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    let token = owner.token(&entry);
    let other = FencingToken { incarnation: token.incarnation ^ 1, ..token };
    refused(&owner, &entry, other, entry.rev, &SettleResult::Fenced).await;
}

/// The fencing token of one shard is not valid for another.
pub async fn a_grant_is_for_its_own_shard<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    for taken in owner.taken.iter().filter(|taken| taken.token.shard != entry.shard) {
        refused(&owner, &entry, taken.token, entry.rev, &SettleResult::Fenced).await;
    }
}

/// A former owner loads nothing, notes nothing, and cannot release its successor's shard as clean.
pub async fn a_stale_epoch_owns_nothing<S: Subject>(subject: S) {
    let mut owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    let zombie = owner.token(&entry);
    owner.take().await;
    let load = LoadRequest {
        token: zombie,
        stream: entry.stream,
        until: at(9),
        live_max: 9,
        retry_max: 9,
        bytes_max: usize::MAX,
        except: vec![],
    };
    // The store may answer with an error or with nothing.
    if let Ok(loaded) = owner.store.load(load).await {
        assert!(loaded.entries.is_empty(), "{loaded:?}");
    }
    let _ = owner.store.note(zombie, vec![entry.seq]).await;
    let _ = owner.store.release(zombie).await;
    let shard = usize::try_from(entry.shard).unwrap();
    let entry = owner.entry("1", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Retry(retry(at(1)))).await;
    owner.take().await;
    assert!(owner.taken[shard].unclean);
    assert_eq!(owner.suspects(), [""; 0]);
}

/// Every change raises an event's revision.
pub async fn every_change_raises_the_rev<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    let mut entry = owner.entry("1", at(0)).await;
    for change in [EventChange::CountCrash, EventChange::Retry(retry(at(1))), EventChange::CountCrash] {
        let settled = owner.settle(&entry, at(1), change).await;
        let SettleResult::Applied { rev, next: None } = settled else { panic!("{settled:?}") };
        assert!(rev > entry.rev);
        entry = owner.entry("1", at(1)).await;
        assert_eq!(entry.rev, rev);
    }
    let settled = owner.settle(&entry, at(2), dead(ParkFollowers::UntilResolved)).await;
    assert!(matches!(settled, SettleResult::Applied { rev, .. } if rev > entry.rev), "{settled:?}");
}

/// Each settle of a batch has its own answer, at its own position.
pub async fn a_refused_settle_is_refused_alone<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(mail(id), at(0)).await;
    }
    let due = owner.due(at(0)).await;
    let mut settles: Vec<_> =
        due.iter().map(|entry| owner.settling(entry, at(1), EventChange::Done)).collect();
    settles[1].rev += 7;
    settles.push(settles[0].clone());
    let answers = owner.store.settle(settles).await.unwrap();
    assert!(matches!(answers[0], SettleResult::Applied { .. }), "{answers:?}");
    assert_eq!(answers[1], SettleResult::Stale);
    assert!(matches!(answers[2], SettleResult::Applied { .. }), "{answers:?}");
    assert_eq!(answers[3], SettleResult::Stale, "the second of two like settles finds nothing");
    assert_eq!(owner.due_ids(at(10)).await, ["2"]);
    assert_eq!(owner.state(&mail("3")).await, State::Done);
}

/// A batch is written in order: the next event of a key can be settled behind the one before.
pub async fn a_batch_is_settled_in_its_order<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    let crash = owner.settling(&entry, at(1), EventChange::CountCrash);
    let done = SettleRequest { rev: entry.rev + 1, change: EventChange::Done, ..crash.clone() };
    let answers = owner.store.settle(vec![crash, done]).await.unwrap();
    assert!(answers.iter().all(|settled| matches!(settled, SettleResult::Applied { .. })), "{answers:?}");
    assert_eq!(owner.state(&mail("1")).await, State::Done);
}
