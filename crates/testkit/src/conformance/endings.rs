//! What is known after each ending, and the reply to a publisher that repeats the identity.

use redrive_core::event::{DeadReason, Mode, State};
use redrive_core::queue_entry::{EventChange, EventProgress, ParkFollowers};

use super::Subject;
use super::owner::{HORIZON, Owner, WINDOW, at, dead, history, mail, retry, secs};

/// A publisher that repeats the identity gets the handler's result.
pub async fn a_result_is_given_to_who_publishes_again<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    let done = EventChange::DoneWith { result: Some(b"sent".to_vec()), attempts: 1, history: None };
    owner.settle_next(&entry, at(3), done).await;
    let owner = owner.crash().await;
    let found = owner.publish_again(mail("1"), at(4)).await;
    assert_eq!((found.state, found.attempts, found.ended), (State::Done, 1, Some(at(3))));
    assert_eq!(found.result.as_deref(), Some(&b"sent"[..]));
}

/// A success after failures keeps the attempt history.
pub async fn done_after_retries_keeps_its_story<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    let told = history("refused twice");
    let done = EventChange::DoneWith { result: None, attempts: 3, history: Some(told.clone()) };
    owner.settle_next(&entry, at(3), done).await;
    let found = owner.publish_again(mail("1"), at(4)).await;
    assert_eq!((found.state, found.attempts, found.ended), (State::Done, 3, Some(at(3))));
    assert_eq!((found.history, found.result, found.due), (Some(told), None, None));
}

/// A dropped event is remembered as dropped.
pub async fn a_dropped_event_is_remembered_as_dropped<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    owner
        .settle_next(
            &entry,
            at(3),
            EventChange::Dropped { attempts: 2, history: Some(history("not needed")) },
        )
        .await;
    let owner = owner.crash().await;
    assert!(owner.due(at(100)).await.is_empty());
    let found = owner.publish_again(mail("1"), at(4)).await;
    assert_eq!((found.state, found.attempts, found.ended), (State::Dropped, 2, Some(at(3))));
    assert_eq!(found.history, Some(history("not needed")));
}

/// An expired event is remembered as expired. The store does not check the time by itself.
pub async fn an_expired_event_is_remembered_as_expired<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let event = mail("1").expires_after(secs(10));
    owner.publish(event.clone(), at(0)).await;
    let entry = owner.entry("1", at(50)).await;
    assert_eq!(entry.expires, Some(at(10)));
    owner.settle_next(&entry, at(50), EventChange::Expired { attempts: 0, history: None }).await;
    assert!(owner.due(at(100)).await.is_empty());
    let found = owner.publish_again(event, at(60)).await;
    assert_eq!((found.state, found.attempts, found.ended), (State::Expired, 0, Some(at(50))));
}

/// A dead letter is found with its reason and its attempts, also after a crash.
pub async fn state_and_story_of_a_dead_letter_are_found<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    owner.settle_next(&entry, at(3), dead(ParkFollowers::No)).await;
    let owner = owner.crash().await;
    let found = owner.found(&mail("1")).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::AttemptsSpent)));
    assert_eq!((found.attempts, found.history, found.due), (1, Some(history("refused")), None));
}

/// A dead letter does not run again and is not forgotten: publishing it again returns it.
pub async fn a_dead_letter_stays_until_it_is_dealt_with<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let seq = owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    owner.settle_next(&entry, at(3), dead(ParkFollowers::No)).await;
    let later = at(10 * (HORIZON + WINDOW));
    owner.store.forget(later).await.unwrap();
    assert!(owner.due(later).await.is_empty());
    let found = owner.publish_again(mail("1"), later).await;
    assert_eq!((found.seq, found.state), (seq, State::Dead));
}

/// A retried event comes back with all the progress that was settled.
pub async fn progress_comes_back_as_it_was_settled<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    assert_eq!(entry.progress, EventProgress::fresh(at(0)));
    let progress =
        EventProgress { crash_count: 2, suspect: true, attempts: 4, mode: Mode::Redrive, ..retry(at(30)) };
    owner.settle_next(&entry, at(1), EventChange::Retry(progress.clone())).await;
    assert!(owner.due(at(29)).await.is_empty());
    let owner = owner.crash().await;
    let again = owner.entry("1", at(30)).await;
    assert_eq!(again.progress, progress);
    let found = owner.found(&mail("1")).await;
    assert_eq!((found.attempts, found.due, found.history), (4, Some(at(30)), progress.history));
}
