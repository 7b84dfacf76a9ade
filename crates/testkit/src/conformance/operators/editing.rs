//! Edits and imports: events that come from operators.

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::event::{Fingerprint, Mode, State};
use redrive_core::queue_entry::{EventChange, EventProgress, ParkFollowers, SettleResult};
use redrive_store::operate::{EditedEvent, EventAction, EventRef, ImportedLetter, OperatorAction, Refusal};

use crate::conformance::Subject;
use crate::conformance::desk::{REASON, edited, out_of_order, redrive, state, target};
use crate::conformance::owner::{HORIZON, MAILS, ORDERS, Owner, WINDOW, at, history, mail, order};

fn edit(original: &Event, into: Event) -> OperatorAction {
    OperatorAction::Edit(target(original), Box::new(edited(into)))
}

/// The edited event takes the place of the original, and the original's dedupe record points to it.
pub async fn an_edit_takes_the_place_of_the_original<S: Subject>(subject: S) {
    let owner = Owner::parked(subject).await;
    let before = owner.found(&order("1", "k")).await;
    let into = Event::new("whatever", "1-fixed").key("other").tenant("t").payload(*b"better");
    let done = owner.operate(edit(&order("1", "k"), into), at(5)).await;
    assert_eq!((done.changed, done.refused), (1, Vec::new()));
    assert_eq!(done.unsure, [0], "an attempt before may have had an effect");
    let owner = owner.crash().await;
    assert_eq!(owner.due_ids(at(5)).await, ["1-fixed"]);
    let entry = owner.entry("1-fixed", at(5)).await;
    assert_eq!((entry.seq, entry.rev > before.rev, entry.published), (before.seq, true, at(5)));
    assert_eq!(entry.progress, EventProgress { mode: Mode::Redrive, ..EventProgress::fresh(at(5)) });
    assert_eq!(*entry.event, order("1-fixed", "k").payload(*b"better"));
    let found = owner.publish_again(order("1", "k"), at(6)).await;
    assert_eq!((found.state, found.edited_into.as_deref()), (State::Discarded, Some("1-fixed")));
    assert_eq!((found.ended, found.attempts, found.history), (Some(at(5)), 1, Some(history("refused"))));
    let found = owner.publish_again(order("1-fixed", "k").payload(*b"better"), at(6)).await;
    assert_eq!((found.state, found.seq), (State::Ready, before.seq));
    assert_eq!(owner.settle_next(&entry, at(7), EventChange::Done).await.as_deref(), Some("2"));
    assert_eq!(owner.state(&order("1-fixed", "k")).await, State::Done);
    assert_eq!(owner.state(&order("1", "k")).await, State::Discarded);
}

/// An edited event continues as another event: nothing can be done to the original any more.
pub async fn an_edit_cannot_be_undone<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&mail("1"), at(0), ParkFollowers::No).await;
    owner.done(edit(&mail("1"), mail("2")), at(1)).await;
    for act in
        [EventAction::Restore, EventAction::Discard, EventAction::Kill, EventAction::RetryNow, redrive()]
    {
        let refusal = owner.act_refused(&mail("1"), act, at(2)).await;
        assert_eq!(refusal, Refusal::Edited { into: "2".to_owned() });
    }
    assert_eq!(
        owner.refused(edit(&mail("1"), mail("3")), at(2)).await,
        Refusal::Edited { into: "2".to_owned() }
    );
    assert_eq!(owner.due_ids(at(2)).await, ["2"]);
}

/// An edit names a dead letter in its current revision and a new id that is not in use.
pub async fn an_edit_that_cannot_be_is_refused<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&mail("1"), at(0), ParkFollowers::No).await;
    owner.publish(mail("2"), at(0)).await;
    let entry = owner.entry("2", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Done).await;
    for taken in ["1", "2"] {
        let refusal = owner.refused(edit(&mail("1"), mail(taken)), at(2)).await;
        assert_eq!(refusal, Refusal::IdTaken { id: taken.to_owned() });
    }
    let is = owner.found(&mail("1")).await.rev;
    let older = EventRef { rev: Some(is - 1), ..target(&mail("1")) };
    let older = OperatorAction::Edit(older, Box::new(edited(mail("3"))));
    assert_eq!(owner.refused(older, at(2)).await, Refusal::Changed { is });
    assert_eq!(owner.refused(edit(&mail("9"), mail("3")), at(2)).await, Refusal::Unknown);
    owner.act(&mail("1"), redrive(), at(3)).await;
    assert_eq!(owner.refused(edit(&mail("1"), mail("3")), at(4)).await, state(State::Ready));
    assert!(owner.store.find("", MAILS, "3").await.unwrap().is_none());
}

/// An edit respects the order of its key as a redrive does.
pub async fn an_edit_of_what_was_passed_is_out_of_order<S: Subject>(subject: S) {
    let owner = Owner::passed(subject).await;
    let into = |out_of_order| {
        let edited = EditedEvent { out_of_order, ..edited(order("1-fixed", "k")) };
        OperatorAction::Edit(target(&order("1", "k")), Box::new(edited))
    };
    assert_eq!(owner.refused(into(false), at(5)).await, Refusal::OutOfOrder);
    assert_eq!(owner.done(into(true), at(5)).await, 1);
    assert_eq!(owner.due_ids(at(5)).await, ["1-fixed"]);
    assert!(owner.entry("1-fixed", at(5)).await.progress.out_of_order);
}

/// Both identities are remembered as long as any other.
pub async fn an_edited_identity_is_remembered<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&mail("1"), at(0), ParkFollowers::No).await;
    let late = HORIZON + WINDOW;
    owner.done(edit(&mail("1"), mail("2")), at(late)).await;
    let entry = owner.entry("2", at(late)).await;
    owner.store.forget(at(late + WINDOW - 1)).await.unwrap();
    assert_eq!(owner.publish_again(mail("1"), at(late + 1)).await.state, State::Discarded);
    owner.store.forget(at(late + WINDOW + 1)).await.unwrap();
    assert!(owner.store.find("", MAILS, "1").await.unwrap().is_none());
    assert_eq!(owner.state(&mail("2")).await, State::Ready, "the place is another event's now");
    owner.settle_next(&entry, at(late + 2), EventChange::Done).await;
    owner.store.forget(at(late + HORIZON)).await.unwrap();
    assert_eq!(owner.state(&mail("2")).await, State::Done);
}

/// A settle for the original does not change the edited event.
pub async fn a_settle_of_the_original_is_stale_after_an_edit<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    owner.settle_next(&entry, at(1), crate::conformance::owner::dead(ParkFollowers::No)).await;
    let rev = owner.found(&mail("1")).await.rev;
    owner.done(edit(&mail("1"), mail("2")), at(2)).await;
    for rev in [entry.rev, rev] {
        let late = redrive_core::queue_entry::QueueEntry { rev, ..entry.clone() };
        assert_eq!(owner.settle(&late, at(3), EventChange::Done).await, SettleResult::Stale);
    }
    assert_eq!(owner.due_ids(at(3)).await, ["2"]);
}

fn letter(event: Event) -> ImportedLetter {
    ImportedLetter {
        fingerprint: Fingerprint::of(&event),
        event: Arc::new(event),
        published: at(10),
        died: at(20),
        attempts: 4,
        reason: REASON,
        history: Some(history("refused")),
    }
}

/// Imported dead letters keep their attempt histories, and park no key.
pub async fn letters_from_elsewhere_are_kept<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("2", "k"), at(0)).await;
    let letters = vec![letter(order("1", "k")), letter(order("2", "k")), letter(Event::new("nowhere", "3"))];
    let done = owner.operate(OperatorAction::Import(letters), at(100)).await;
    assert_eq!(done.changed, 1);
    let (taken, nowhere) =
        (Refusal::IdTaken { id: "2".to_owned() }, Refusal::NoQueue { queue: "nowhere".to_owned() });
    assert_eq!(done.refused, [(1, taken), (2, nowhere)]);
    let owner = owner.crash().await;
    assert_eq!(owner.due_ids(at(100)).await, ["2"]);
    let found = owner.publish_again(order("1", "k"), at(101)).await;
    assert_eq!((found.state, found.reason, found.holds), (State::Dead, Some(REASON), false));
    assert_eq!((found.published, found.ended, found.attempts), (at(10), Some(at(20)), 4));
    assert_eq!(found.history, Some(history("refused")));
    owner.act(&order("1", "k"), out_of_order(), at(102)).await;
    let entry = owner.entry("2", at(102)).await;
    assert_eq!(entry.event.queue, ORDERS);
    owner.settle_next(&entry, at(103), EventChange::Done).await;
    assert_eq!(owner.due_ids(at(103)).await, ["1"], "its place is after those that were there");
}
