//! Events that operators write: a dead letter with another payload, and imported dead letters.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::event::Fingerprint;
use redrive_core::queue_entry::{ParkFollowers, StreamId};

use super::Step;
use super::act::{count_redriven, locate, or_refused, stamp};
use super::contract::Rows;
use crate::operate::{CommandResult, EditedEvent, EventRef, ImportedLetter, Refusal, refused};
use crate::stores::shared::dedupe::End;
use crate::stores::shared::rows::EventRow;
use crate::stores::shared::tracked::{RedrivenBy, TrackedEvent};

/// How many dead letters one command may import: one commit writes them all.
const LETTERS_MAX: usize = 10_000;

/// Redrives a dead letter as another event with the same seq.
pub(super) async fn edit<R: Rows>(
    tx: &mut R,
    target: &EventRef,
    edited: &EditedEvent,
    by: RedrivenBy,
    at: Moment,
) -> Step<Result<CommandResult, Refusal>, R> {
    let located = match locate(tx, target).await? {
        Ok(located) => located,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if !located.event.state.is_dead() {
        return Ok(Err(Refusal::State { is: tx.state_of(&located.event, &located.stream).await? }));
    }
    let (mut tracked, stream) = (located.event, located.stream);
    let original = Arc::clone(&tracked.row.event);
    let mut event = (*edited.event).clone();
    event.tenant.clone_from(&original.tenant);
    event.queue.clone_from(&original.queue);
    event.key.clone_from(&original.key);
    if let Err(error) = event.check() {
        return Ok(Err(Refusal::Senseless(error.to_string())));
    }
    if is_taken(tx, stream.id, &event.id, at).await? {
        return Ok(Err(Refusal::IdTaken { id: event.id }));
    }
    if tracked.is_passed() && !edited.out_of_order {
        return Ok(Err(Refusal::OutOfOrder));
    }

    let spec = tx.spec(&stream.queue).await?.unwrap_or_default();
    let dedupe_ok_until = at + spec.horizon;
    let times = (at, dedupe_ok_until + spec.window);
    let (fingerprint, seq) = (Fingerprint::of(&event), tracked.row.seq);
    // Another process may have published this id since it was looked up.
    if !tx.insert_dedupe_record((stream.id, &event.id), fingerprint, seq, times).await? {
        return Ok(Err(Refusal::IdTaken { id: event.id }));
    }
    let is_unsure = tracked.progress.history.as_ref().is_some_and(|history| history.is_unsure());
    let end = End::edited(&tracked.progress, event.id.clone(), at);
    stamp(tx, &stream, &original.id, at, Some(end)).await?;

    tracked.progress = tracked.edited(at);
    count_redriven(tx, &mut tracked, &stream, by, at).await?;
    // The event stays in the shard of the original, whatever its own id hashes to.
    let EventRow { ordered, shard, .. } = tracked.row;
    tracked.row = EventRow { seq, event: Arc::new(event), ordered, published: at, dedupe_ok_until, shard };
    tx.delete_tracked(seq).await?;
    tx.insert_tracked(&tracked).await?;
    tx.revive(tracked, false, &stream).await?;
    let unsure = if is_unsure { vec![0] } else { Vec::new() };
    Ok(Ok(CommandResult { changed: 1, unsure, ..CommandResult::default() }))
}

/// Whether an identity is still remembered. A dedupe record whose time has passed is deleted.
async fn is_taken<R: Rows>(tx: &mut R, stream: StreamId, id: &str, at: Moment) -> Step<bool, R> {
    let record = match or_refused(tx.dedupe_record(stream, id).await)? {
        Ok(Some(record)) => record,
        Ok(None) => return Ok(false),
        // A damaged record does not say which event it belongs to.
        Err(_) => return Ok(true),
    };
    if record.until >= at || !tx.is_over(&record).await? {
        return Ok(true);
    }
    tx.delete_dedupe_record(&record).await?;
    Ok(false)
}

/// Imports dead letters. They block no key.
pub(super) async fn import<R: Rows>(
    tx: &mut R,
    letters: &[ImportedLetter],
    at: Moment,
) -> Step<CommandResult, R> {
    if letters.len() > LETTERS_MAX {
        let what = format!("at most {LETTERS_MAX} dead letters are imported at once; send them in parts");
        return Ok(refused(Refusal::Senseless(what)));
    }
    let mut done = CommandResult::default();
    for (index, letter) in letters.iter().enumerate() {
        match import_one(tx, letter, at).await? {
            Ok(()) => done.changed += 1,
            Err(refusal) => done.refused.push((index, refusal)),
        }
    }
    Ok(done)
}

async fn import_one<R: Rows>(
    tx: &mut R,
    letter: &ImportedLetter,
    at: Moment,
) -> Step<Result<(), Refusal>, R> {
    let event = &letter.event;
    if let Err(error) = event.check() {
        return Ok(Err(Refusal::Senseless(error.to_string())));
    }
    let Some(spec) = tx.spec(&event.queue).await? else {
        return Ok(Err(Refusal::NoQueue { queue: event.queue.clone() }));
    };
    let stream = match or_refused(tx.open_stream(&event.queue, &event.tenant).await)? {
        Ok(stream) => stream,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if is_taken(tx, stream.id, &event.id, at).await? {
        return Ok(Err(Refusal::IdTaken { id: event.id.clone() }));
    }
    let dedupe_ok_until = at + spec.horizon;
    let (seq, times) = (tx.new_seq(&stream).await?, (letter.published, dedupe_ok_until + spec.window));
    if !tx.insert_dedupe_record((stream.id, &event.id), letter.fingerprint, seq, times).await? {
        return Ok(Err(Refusal::IdTaken { id: event.id.clone() }));
    }
    let (ordered, shard) = (spec.ordered && event.key.is_some(), tx.shard_of(event));
    let published = letter.published;
    let row = EventRow { seq, event: Arc::clone(event), ordered, published, dedupe_ok_until, shard };
    let tracked = TrackedEvent::imported(row, letter);
    tx.insert_tracked(&tracked).await?;
    tx.bury(tracked, false, ParkFollowers::No, &stream).await?;
    Ok(Ok(()))
}
