//! The crash of an owner, and what the next owner knows about it.

use redrive_core::queue_entry::{EventChange, EventProgress, ParkFollowers};

use super::Subject;
use super::desk::out_of_order;
use super::owner::{MAILS, ORDERS, Owner, at, dead, mail, order, retry};

/// The first take of a shard has no crashed owner before it.
pub async fn a_first_take_is_clean<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    assert!(
        owner
            .taken
            .iter()
            .all(|taken| !taken.unclean && taken.suspects.is_empty() && taken.streams.is_empty())
    );
}

/// An owner that crashes leaves an unclean shard, with or without a dispatch note; every take raises the
/// epoch.
pub async fn a_death_leaves_an_unclean_shard<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let before: Vec<_> = owner.taken.iter().map(|taken| taken.token).collect();
    let owner = owner.crash().await;
    for (before, taken) in before.iter().zip(&owner.taken) {
        assert!(taken.unclean && taken.suspects.is_empty(), "{taken:?}");
        assert!(taken.token.epoch > before.epoch && taken.token.incarnation == before.incarnation);
    }
}

/// Events that were running when an owner with the crash guard on crashed are suspects until they are
/// settled.
pub async fn what_was_noted_is_suspect_after_an_unclean_end<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(mail(id).key("k"), at(0)).await;
    }
    let due = owner.due(at(0)).await;
    owner.store.note(owner.token(&due[0]), vec![due[0].seq, due[1].seq]).await.unwrap();
    let mut owner = owner.crash().await;
    for _ in 0..2 {
        assert_eq!(owner.suspects(), ["1", "2"]);
        let due = owner.due(at(0)).await;
        assert_eq!(due.iter().map(|entry| entry.progress.suspect).collect::<Vec<_>>(), [true, true, false]);
        let given = owner.taken.iter().flat_map(|taken| &taken.suspects);
        assert!(given.zip(&due).all(|(suspect, entry)| suspect == entry), "they are given as they are");
        owner.take().await;
    }
    let entry = owner.entry("1", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Done).await;
    let entry = owner.entry("2", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Retry(retry(at(5)))).await;
    assert_eq!(owner.crash().await.suspects(), [""; 0]);
}

/// An owner that stops cleanly leaves no suspects.
pub async fn a_clean_release_leaves_no_suspects<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    owner.store.note(owner.token(&entry), vec![entry.seq]).await.unwrap();
    owner.release().await;
    let owner = owner.crash().await;
    assert!(owner.taken.iter().all(|taken| !taken.unclean), "{:?}", owner.taken);
    assert_eq!(owner.suspects(), [""; 0]);
    assert!(!owner.entry("1", at(0)).await.progress.suspect);
}

/// Only the last dispatch note counts, and of it only events that still exist.
pub async fn the_last_note_counts<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3", "4"] {
        owner.publish(mail(id).key("k"), at(0)).await;
    }
    let due = owner.due(at(0)).await;
    let token = owner.token(&due[0]);
    owner.store.note(token, vec![due[0].seq]).await.unwrap();
    owner.store.note(token, due[1..].iter().map(|entry| entry.seq).collect()).await.unwrap();
    owner.settle_next(&due[1], at(1), EventChange::Done).await;
    owner.settle_next(&due[2], at(1), dead(ParkFollowers::No)).await;
    assert_eq!(owner.crash().await.suspects(), ["4"]);
}

/// A crash count survives the crash that it was written for.
pub async fn a_strike_outlives_the_death_it_foresaw<S: Subject>(subject: S) {
    let mut owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    for crash_count in 1..=3 {
        let entry = owner.entry("1", at(0)).await;
        owner.settle_next(&entry, at(1), EventChange::CountCrash).await;
        owner = owner.crash().await;
        assert_eq!(owner.suspects(), ["1"]);
        let entry = owner.entry("1", at(0)).await;
        let expected = EventProgress { crash_count, suspect: true, ..EventProgress::fresh(at(0)) };
        assert_eq!(entry.progress, expected);
    }
}

/// A crash does not count as an attempt.
pub async fn a_death_charges_no_attempt<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    owner.publish(mail("2"), at(0)).await;
    let before = owner.due(at(0)).await;
    let owner = owner.crash().await;
    assert_eq!(owner.due(at(0)).await, before);
}

/// The take of a shard returns the streams that have events in it.
pub async fn the_streams_of_a_shard_are_named<S: Subject>(subject: S) {
    let mut owner = Owner::of(subject).await;
    owner.publish(order("1", "k").tenant("a"), at(0)).await;
    owner.publish(mail("2"), at(0)).await;
    let due = owner.due(at(0)).await;
    owner.take().await;
    for (entry, queue, tenant) in [(&due[0], ORDERS, "a"), (&due[1], MAILS, "")] {
        let named = &owner.taken[usize::try_from(entry.shard).unwrap()].streams;
        let stream = (entry.stream, queue.to_owned(), tenant.to_owned());
        assert_eq!(named.iter().filter(|named| **named == stream).count(), 1, "{named:?} lacks {stream:?}");
    }
    assert_ne!(due[0].stream, due[1].stream);
}

/// A suspect that waits behind another event of its key is returned when its turn comes, and not before.
pub async fn a_suspect_behind_another_is_not_handed_out<S: Subject>(subject: S) {
    let owner = Owner::passed(subject).await;
    let running = owner.entry("2", at(2)).await;
    owner.store.note(owner.token(&running), vec![running.seq]).await.unwrap();
    owner.act(&order("1", "k"), out_of_order(), at(3)).await;
    let owner = owner.crash().await;
    assert_eq!(owner.suspects(), [""; 0], "the first is put back before it");
    let first = owner.entry("1", at(3)).await;
    assert_eq!(owner.settle_next(&first, at(4), EventChange::Done).await.as_deref(), Some("2"));
    assert!(owner.entry("2", at(4)).await.progress.suspect);
}
