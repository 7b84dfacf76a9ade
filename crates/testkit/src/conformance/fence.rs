//! The fence: only the owner, and only what it knows of.

use redrive_core::entry::{Change, Entry, Grant, Load, Park, Settle, Settled};
use redrive_core::event::State;

use super::Subject;
use super::owner::{Owner, at, dead, mail, order, retry};

/// Every change that a settle can be.
fn changes() -> Vec<Change> {
    vec![
        Change::Done,
        Change::DoneWith { result: Some(b"late".to_vec()), attempts: 9, story: None },
        Change::Dropped { attempts: 9, story: None },
        Change::Expired { attempts: 9, story: None },
        Change::Again(retry(at(900))),
        dead(Park::Stay),
        Change::Strike,
        Change::GoOn,
    ]
}

/// Asserts that a settle of each kind is refused so, and changes nothing.
async fn refused<S: Subject>(owner: &Owner<S>, entry: &Entry, grant: Grant, rev: u32, how: &Settled) {
    let before = (owner.due(at(10)).await, owner.found(&entry.event).await);
    for change in changes() {
        let settle = Settle { grant, seq: entry.seq, rev, at: at(5), change: change.clone() };
        let settled = owner.store.settle(vec![settle]).await.unwrap().remove(0);
        assert_eq!(&settled, how, "{change:?}");
        assert_eq!((owner.due(at(10)).await, owner.found(&entry.event).await), before, "{change:?}");
    }
}

/// The answer of an attempt that somebody gave up on changes nothing.
pub async fn a_stale_rev_changes_nothing<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    owner.publish(order("2", "k"), at(0)).await;
    let first = owner.entry("1", at(0)).await;
    owner.settle_next(&first, at(2), Change::Again(retry(at(2)))).await;
    let second = owner.entry("1", at(2)).await;
    assert!(second.rev > first.rev);
    refused(&owner, &second, owner.grant(&second), first.rev, &Settled::Stale).await;
    refused(&owner, &second, owner.grant(&second), second.rev + 1, &Settled::Stale).await;
    assert_eq!(owner.settle_next(&second, at(3), Change::Done).await.as_deref(), Some("2"));
}

/// Whoever was replaced changes nothing, though nobody touched the event since.
pub async fn a_stale_epoch_changes_nothing<S: Subject>(subject: S) {
    let mut owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    owner.publish(order("2", "k"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    let zombie = owner.grant(&entry);
    owner.take().await;
    let entry = owner.entry("1", at(0)).await;
    let grant = owner.grant(&entry);
    assert!(grant.epoch > zombie.epoch && grant.incarnation == zombie.incarnation);
    refused(&owner, &entry, zombie, entry.rev, &Settled::Fenced).await;
    refused(&owner, &entry, Grant { epoch: grant.epoch + 1, ..grant }, entry.rev, &Settled::Fenced).await;
    assert_eq!(owner.settle_next(&entry, at(3), Change::Done).await.as_deref(), Some("2"));
}

/// A right from another life of the database changes nothing.
pub async fn another_incarnation_changes_nothing<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    let grant = owner.grant(&entry);
    let other = Grant { incarnation: grant.incarnation ^ 1, ..grant };
    refused(&owner, &entry, other, entry.rev, &Settled::Fenced).await;
}

/// The right to one shard is none to another.
pub async fn a_grant_is_for_its_own_shard<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    for taken in owner.taken.iter().filter(|taken| taken.grant.shard != entry.shard) {
        refused(&owner, &entry, taken.grant, entry.rev, &Settled::Fenced).await;
    }
}

/// A zombie loads nothing, notes nothing, and does not make its successor's shard a clean one.
pub async fn a_stale_epoch_owns_nothing<S: Subject>(subject: S) {
    let mut owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    let zombie = owner.grant(&entry);
    owner.take().await;
    let load = Load {
        grant: zombie,
        stream: entry.stream,
        until: at(9),
        live_max: 9,
        retry_max: 9,
        bytes_max: usize::MAX,
        except: vec![],
    };
    // Whether these are errors or say nothing is the store's choice.
    if let Ok(loaded) = owner.store.load(load).await {
        assert!(loaded.entries.is_empty(), "{loaded:?}");
    }
    let _ = owner.store.note(zombie, vec![entry.seq]).await;
    let _ = owner.store.release(zombie).await;
    let shard = usize::try_from(entry.shard).unwrap();
    let entry = owner.entry("1", at(0)).await;
    owner.settle_next(&entry, at(1), Change::Again(retry(at(1)))).await;
    owner.take().await;
    assert!(owner.taken[shard].unclean);
    assert_eq!(owner.suspects(), [""; 0]);
}

/// Whatever is written of an event, its rev is another one after.
pub async fn every_change_raises_the_rev<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    let mut entry = owner.entry("1", at(0)).await;
    for change in [Change::Strike, Change::Again(retry(at(1))), Change::Strike] {
        let settled = owner.settle(&entry, at(1), change).await;
        let Settled::Applied { rev, next: None } = settled else { panic!("{settled:?}") };
        assert!(rev > entry.rev);
        entry = owner.entry("1", at(1)).await;
        assert_eq!(entry.rev, rev);
    }
    let settled = owner.settle(&entry, at(2), dead(Park::Stay)).await;
    assert!(matches!(settled, Settled::Applied { rev, .. } if rev > entry.rev), "{settled:?}");
}

/// Each settle of a batch has its own answer, in its own place.
pub async fn a_refused_settle_is_refused_alone<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(mail(id), at(0)).await;
    }
    let due = owner.due(at(0)).await;
    let mut settles: Vec<_> = due.iter().map(|entry| owner.settling(entry, at(1), Change::Done)).collect();
    settles[1].rev += 7;
    settles.push(settles[0].clone());
    let answers = owner.store.settle(settles).await.unwrap();
    assert!(matches!(answers[0], Settled::Applied { .. }), "{answers:?}");
    assert_eq!(answers[1], Settled::Stale);
    assert!(matches!(answers[2], Settled::Applied { .. }), "{answers:?}");
    assert_eq!(answers[3], Settled::Stale, "the second of two like settles finds nothing");
    assert_eq!(owner.due_ids(at(10)).await, ["2"]);
    assert_eq!(owner.state(&mail("3")).await, State::Done);
}

/// A batch is written in its order: the next of a key can be settled behind the one before.
pub async fn a_batch_is_settled_in_its_order<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    let strike = owner.settling(&entry, at(1), Change::Strike);
    let done = Settle { rev: entry.rev + 1, change: Change::Done, ..strike.clone() };
    let answers = owner.store.settle(vec![strike, done]).await.unwrap();
    assert!(answers.iter().all(|settled| matches!(settled, Settled::Applied { .. })), "{answers:?}");
    assert_eq!(owner.state(&mail("1")).await, State::Done);
}
