//! Work in the store's own domain: effect, inbox marker, publishes and settle in one commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redrive_core::Event;
use redrive_core::event::State;
use redrive_core::queue_entry::{EventChange, QueueEntry};
use redrive_store::{NewEvent, Published, Tx, TxOutcome, TxSettle};

use super::Subject;
use super::owner::{MAILS, Owner, Worked, at, history, id, mail, order, retry};

async fn one<S: Subject>(subject: S) -> (Owner<S>, QueueEntry) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    owner.publish(order("2", "k"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    (owner, entry)
}

/// Everything that work can do: an effect, a marker, a publish.
fn everything<S: Subject>(tx: &mut dyn Tx) {
    S::effect(tx, "charge");
    assert!(tx.mark("charge", "1", at(500)).unwrap());
    let published = tx.publish(NewEvent::at(mail("receipt"), at(1))).unwrap();
    assert!(matches!(published, Published::Accepted(_)), "{published:?}");
}

/// Asserts that nothing of the work is there, and that the event is unchanged.
async fn nothing_is_there<S: Subject>(owner: &Owner<S>, entry: &QueueEntry) {
    assert_eq!(owner.subject.effects().await, 0);
    assert!(owner.store.find("", MAILS, "receipt").await.unwrap().is_none());
    assert_eq!(&owner.entry("1", at(5)).await, entry);
    let unmarked = owner.transact(None, |tx| {
        assert!(tx.mark("charge", "1", at(500))?, "the marker is there");
        Err("looked enough".into())
    });
    assert!(matches!(unmarked.await, TxOutcome::Aborted(_)));
}

/// Effect, marker, publish and settle commit together, and the next event of the key is returned.
pub async fn work_and_settle_commit_together<S: Subject>(subject: S) {
    let (owner, entry) = one(subject).await;
    let claim = owner.claim(&entry, at(1));
    let done = owner.transact(Some(claim), |tx| {
        everything::<S>(tx);
        Ok(Some(b"charged".to_vec()))
    });
    let done = done.await;
    let TxOutcome::Committed { next } = done else { panic!("{done:?}") };
    assert_eq!(next.as_ref().map(id).as_deref(), Some("2"));
    let owner = owner.crash().await;
    assert_eq!(owner.subject.effects().await, 1);
    let found = owner.publish_again(order("1", "k"), at(2)).await;
    assert_eq!((found.state, found.attempts), (State::Done, 1));
    assert_eq!(found.result.as_deref(), Some(&b"charged"[..]));
    assert_eq!(owner.state(&mail("receipt")).await, State::Ready);
    assert_eq!(owner.due_ids(at(2)).await.len(), 2);
}

/// Events that the work publishes are announced when it is committed.
pub async fn what_work_publishes_is_told<S: Subject>(subject: S) {
    let (owner, _) = one(subject).await;
    let arrivals = owner.watch();
    let failed = owner.transact(None, |tx| {
        everything::<S>(tx);
        Err("no".into())
    });
    failed.await;
    let heard = |arrivals: &Vec<redrive_store::Arrivals>| {
        arrivals
            .iter()
            .any(|told| told.missed || told.entries.iter().any(|entry| entry.event.id == "receipt"))
    };
    assert!(
        !arrivals
            .lock()
            .unwrap()
            .iter()
            .any(|told| told.entries.iter().any(|entry| entry.event.id == "receipt"))
    );
    let done = owner.transact(None, |tx| {
        everything::<S>(tx);
        Ok(None)
    });
    assert!(matches!(done.await, TxOutcome::Committed { next: None }));
    assert!(heard(&arrivals.lock().unwrap()));
}

/// A success after failures keeps the attempt history of the claim.
pub async fn work_after_retries_keeps_its_story<S: Subject>(subject: S) {
    let (owner, entry) = one(subject).await;
    owner.settle_next(&entry, at(1), EventChange::Retry(retry(at(2)))).await;
    let entry = owner.entry("1", at(2)).await;
    let claim = TxSettle { history: Some(history("refused")), ..owner.claim(&entry, at(3)) };
    assert!(matches!(owner.transact(Some(claim), |_| Ok(None)).await, TxOutcome::Committed { .. }));
    let found = owner.found(&order("1", "k")).await;
    assert_eq!((found.state, found.attempts, found.ended), (State::Done, 2, Some(at(3))));
    assert_eq!((found.history, found.result), (Some(history("refused")), None));
}

/// Work that returns an error leaves nothing: no effect, no marker, no event, and its own event unchanged.
pub async fn failed_work_leaves_nothing<S: Subject>(subject: S) {
    let (owner, entry) = one(subject).await;
    let claim = owner.claim(&entry, at(1));
    let failed = owner.transact(Some(claim), |tx| {
        everything::<S>(tx);
        Err("no such account".into())
    });
    match failed.await {
        TxOutcome::Aborted(error) => assert_eq!(error.to_string(), "no such account"),
        other => panic!("{other:?}"),
    }
    nothing_is_there(&owner, &entry).await;
    let owner = owner.crash().await;
    nothing_is_there(&owner, &entry).await;
    owner.settle_next(&entry, at(2), EventChange::Done).await;
}

/// Work that panics leaves nothing, and the store continues.
pub async fn a_panicking_work_leaves_nothing<S: Subject>(subject: S) {
    let (owner, entry) = one(subject).await;
    let claim = owner.claim(&entry, at(1));
    let panicked = owner.transact(Some(claim), |tx| -> Worked {
        everything::<S>(tx);
        panic!("on purpose: a test of panics")
    });
    match panicked.await {
        TxOutcome::Panicked(message) => assert!(message.contains("on purpose"), "{message}"),
        other => panic!("{other:?}"),
    }
    nothing_is_there(&owner, &entry).await;
    owner.settle_next(&entry, at(2), EventChange::Done).await;
}

/// Work does not run for an event that was changed since, nor for one that another owner has.
pub async fn stale_claims_do_not_run<S: Subject>(subject: S) {
    let (mut owner, entry) = one(subject).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let work = || {
        let runs = Arc::clone(&runs);
        move |tx: &mut dyn Tx| -> Worked {
            runs.fetch_add(1, Ordering::Relaxed);
            everything::<S>(tx);
            Ok(None)
        }
    };
    let claim = TxSettle { rev: entry.rev + 1, ..owner.claim(&entry, at(1)) };
    assert!(matches!(owner.transact(Some(claim), work()).await, TxOutcome::Stale));
    let zombie = owner.claim(&entry, at(1));
    owner.take().await;
    assert!(matches!(owner.transact(Some(zombie), work()).await, TxOutcome::Fenced));
    nothing_is_there(&owner, &entry).await;

    let claim = owner.claim(&entry, at(1));
    owner.settle_next(&entry, at(1), EventChange::Done).await;
    assert!(matches!(owner.transact(Some(claim), work()).await, TxOutcome::Stale));
    assert_eq!((runs.load(Ordering::Relaxed), owner.subject.effects().await), (0, 0));
}

/// A claim that is used twice takes effect once.
pub async fn one_claim_takes_effect_once<S: Subject>(subject: S) {
    let (owner, entry) = one(subject).await;
    let claim = owner.claim(&entry, at(1));
    let effect = |tx: &mut dyn Tx| -> Worked {
        S::effect(tx, "charge");
        Ok(None)
    };
    assert!(matches!(owner.transact(Some(claim.clone()), effect).await, TxOutcome::Committed { .. }));
    assert!(matches!(owner.transact(Some(claim), effect).await, TxOutcome::Stale));
    assert_eq!(owner.subject.effects().await, 1);
}

/// Program data commits with its work, is found by a prefix of its name, and survives a crash.
pub async fn what_a_program_keeps_commits_with_its_work<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let keep = |tx: &mut dyn Tx| -> Worked {
        for (name, bytes) in
            [("keys/b", &b"two"[..]), ("keys/a", b"one"), ("keyring", b"none"), ("keys/c", b"")]
        {
            tx.keep(name, Some(bytes))?;
        }
        tx.keep("keys/a", Some(b"\0\xff"))?;
        tx.keep("keys/b", None)?;
        tx.keep("keys/nobody", None)?;
        Ok(None)
    };
    owner.transact(None, keep).await;
    let spoil = |tx: &mut dyn Tx| -> Worked {
        tx.keep("keys/a", None)?;
        tx.keep("keys/%", Some(b"more"))?;
        assert_eq!(tx.kept("keys/")?.len(), 2, "what it did itself it sees");
        Err("no".into())
    };
    assert!(matches!(owner.transact(None, spoil).await, TxOutcome::Aborted(_)));
    let owner = owner.crash().await;
    let look = |tx: &mut dyn Tx| -> Worked {
        let kept = tx.kept("keys/")?;
        assert_eq!(kept, [("keys/a".to_owned(), b"\0\xff".to_vec()), ("keys/c".to_owned(), Vec::new())]);
        assert!(tx.kept("keys/%")?.is_empty() && tx.kept("nothing")?.is_empty());
        Ok(None)
    };
    assert!(matches!(owner.transact(None, look).await, TxOutcome::Committed { .. }));
}

/// A marker is set once for each handler and id, also over a crash.
pub async fn a_marker_is_set_once<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let effect = |handler: &'static str, id: &'static str| {
        move |tx: &mut dyn Tx| -> Worked {
            if tx.mark(handler, id, at(500))? {
                S::effect(tx, &format!("{handler} {id}"));
                assert!(!tx.mark(handler, id, at(500))?, "it is set within the transaction, too");
            }
            Ok(None)
        }
    };
    for (handler, id) in [("charge", "1"), ("charge", "1"), ("charge", "2"), ("mail", "1")] {
        owner.transact(None, effect(handler, id)).await;
    }
    let owner = owner.crash().await;
    owner.transact(None, effect("charge", "1")).await;
    assert_eq!(owner.subject.effects().await, 3);
}

/// A marker is kept until its time, and removed some time after.
pub async fn a_marker_is_forgotten_in_time<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let effect = |until| {
        move |tx: &mut dyn Tx| -> Worked {
            if tx.mark("charge", "1", until)? {
                S::effect(tx, &format!("charge {until:?}"));
            }
            Ok(None)
        }
    };
    owner.transact(None, effect(at(500))).await;
    owner.store.forget(at(499)).await.unwrap();
    owner.transact(None, effect(at(500))).await;
    assert_eq!(owner.subject.effects().await, 1);
    assert_eq!(owner.store.forget(at(501)).await.unwrap(), 1);
    owner.transact(None, effect(at(900))).await;
    assert_eq!(owner.subject.effects().await, 2);
}

/// A refused publish does not spoil work that continues without it.
pub async fn work_may_go_on_after_a_refused_publish<S: Subject>(subject: S) {
    let (owner, entry) = one(subject).await;
    let claim = owner.claim(&entry, at(1));
    let done = owner.transact(Some(claim), |tx| {
        assert!(tx.publish(NewEvent::at(Event::new("nowhere", "1"), at(1))).is_err());
        assert!(tx.publish(NewEvent::at(order("2", "k").payload(*b"other"), at(1))).is_err());
        let again = tx.publish(NewEvent::at(order("2", "k"), at(1)))?;
        assert!(matches!(again, Published::Duplicate(_)), "{again:?}");
        S::effect(tx, "charge");
        Ok(None)
    });
    assert!(matches!(done.await, TxOutcome::Committed { .. }));
    assert_eq!(owner.subject.effects().await, 1);
}
