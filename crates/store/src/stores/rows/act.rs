//! A command on one event.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::queue_entry::ParkFollowers;
use redrive_core::triage::RedriveOptions;

use super::contract::{EventRows, Rows};
use super::rules::check_route;
use super::{Fault, Step};
use crate::operate::{EventAction, EventRef, Refusal};
use crate::stores::shared::acts::Located;
use crate::stores::shared::dedupe::{DedupeRecord, End};
use crate::stores::shared::group::RedriveOutcome;
use crate::stores::shared::rows::Stream;
use crate::stores::shared::tracked::{RedrivenBy, RowState, TrackedEvent};

/// Turns an error of one event into a refusal, so that the rest of the command is still done. A damaged row is such an
/// error.
pub(in crate::stores) fn or_refused<T, E>(step: Result<T, Fault<E>>) -> Result<Result<T, Refusal>, Fault<E>> {
    match step {
        Ok(got) => Ok(Ok(got)),
        Err(Fault::Refused(error)) => Ok(Err(Refusal::Senseless(error.to_string()))),
        Err(fault) => Err(fault),
    }
}

/// The event that a command names, if it has not ended.
pub(in crate::stores) async fn locate<R: Rows>(
    tx: &mut R,
    target: &EventRef,
) -> Step<Result<Located, Refusal>, R> {
    let Some(stream) = tx.find_stream(&target.queue, &target.tenant).await? else {
        return Ok(Err(Refusal::Unknown));
    };
    let record = match or_refused(tx.dedupe_record(stream.id, &target.id).await)? {
        Ok(Some(record)) => record,
        Ok(None) => return Ok(Err(Refusal::Unknown)),
        Err(refusal) => return Ok(Err(refusal)),
    };
    if let Some(into) = record.end.as_ref().and_then(|end| end.became.clone()) {
        return Ok(Err(Refusal::Edited { into }));
    }
    match or_refused(event_of(tx, &record, &stream).await)? {
        Ok(event) => Ok(Located::of(event, record, stream, target.rev)),
        Err(refusal) => Ok(Err(refusal)),
    }
}

/// The event of a dedupe record, and whether it never ran. `None` if it has ended, or an edit gave its seq to another.
pub(in crate::stores) async fn event_of<R: EventRows>(
    tx: &mut R,
    record: &DedupeRecord,
    stream: &Stream,
) -> Step<Option<(TrackedEvent, bool)>, R> {
    let event = match tx.fresh_row(record.seq, stream).await? {
        Some(row) => Some((TrackedEvent::fresh(row, RowState::Waiting), true)),
        None => tx.tracked_row(record.seq, stream).await?.map(|event| (event, false)),
    };
    Ok(event.filter(|(event, _)| event.row.event.id == record.id))
}

/// Applies an action to an event.
pub(in crate::stores) async fn act<R: Rows>(
    tx: &mut R,
    located: Located,
    act: &EventAction,
    by: RedrivenBy,
    at: Moment,
) -> Step<Result<(), Refusal>, R> {
    let state = located.event.state;
    match act {
        EventAction::Redrive(how) if state.is_dead() => {
            if let Err(refusal) = check_redrive(tx, &located.event, how, at).await? {
                return Ok(Err(refusal));
            }
            redrive(tx, located.event, &located.stream, how, by, at).await?;
        }
        EventAction::Discard if state != RowState::Discarded => {
            discard(tx, located.event, located.was_fresh, &located.stream, at).await?;
        }
        EventAction::Restore if state == RowState::Discarded && located.record.until >= at => {
            restore(tx, located, at).await?;
        }
        EventAction::Kill if state.is_alive() => kill(tx, located, at).await?,
        EventAction::RetryNow if state.is_alive() && state != RowState::Leased => {
            retry_now(tx, located, at).await?;
        }
        _ => return Ok(Err(Refusal::State { is: tx.state_of(&located.event, &located.stream).await? })),
    }
    Ok(Ok(()))
}

/// Whether a dead letter may be redriven.
pub(in crate::stores) async fn check_redrive<R: Rows>(
    tx: &mut R,
    event: &TrackedEvent,
    redrive: &RedriveOptions,
    at: Moment,
) -> Step<Result<(), Refusal>, R> {
    if let Some(to) = &redrive.to
        && let Err(refusal) = check_route(tx, &event.row.event.queue, to).await?
    {
        return Ok(Err(refusal));
    }
    Ok(event.check_redrive(redrive, at))
}

/// Redrives a dead letter. It keeps its identity, its seq and its attempt history.
pub(in crate::stores) async fn redrive<R: Rows>(
    tx: &mut R,
    mut event: TrackedEvent,
    stream: &Arc<Stream>,
    redrive: &RedriveOptions,
    by: RedrivenBy,
    at: Moment,
) -> Step<(), R> {
    event.progress = event.redriven(redrive, at);
    count_redriven(tx, &mut event, stream, by, at).await?;
    tx.revive(event, false, stream).await
}

/// Counts a dead letter as redriven, and marks it so.
pub(super) async fn count_redriven<R: Rows>(
    tx: &mut R,
    event: &mut TrackedEvent,
    stream: &Stream,
    by: RedrivenBy,
    at: Moment,
) -> Step<(), R> {
    tx.uncount_death(stream.id, event.cause, event.state == RowState::DeadHolding).await?;
    tx.count_redrive(stream.id, event.cause, by, at).await?;
    event.mark_redriven(by);
    Ok(())
}

/// Discards an event, so that it can be restored for a time. Its attempt history stays with it, not on the dedupe
/// record.
pub(in crate::stores) async fn discard<R: Rows>(
    tx: &mut R,
    mut event: TrackedEvent,
    was_fresh: bool,
    stream: &Arc<Stream>,
    at: Moment,
) -> Step<(), R> {
    let was = event.state;
    event.take_away(at);
    if was.is_dead() {
        tx.uncount_death(stream.id, event.cause, was == RowState::DeadHolding).await?;
    } else {
        *tx.recall() = true;
    }
    tx.charge(event.redriven_by.take(), RedriveOutcome::Other).await?;
    let end = End::discarded(event.progress.attempts, at);
    stamp(tx, stream, &event.row.event.id, at, Some(end)).await?;
    event.discard();
    tx.write_tracked(&event, was_fresh).await?;
    if let Some(key) = event.row.key().filter(|_| was != RowState::DeadPassed) {
        tx.go_on(stream, key, event.row.seq).await?;
    }
    Ok(())
}

/// Writes on a dedupe record how its event ended, and extends it if necessary. A damaged record stays damaged: a
/// caller that asks for it learns so.
pub(in crate::stores) async fn stamp<R: EventRows>(
    tx: &mut R,
    stream: &Stream,
    id: &str,
    at: Moment,
    end: Option<End>,
) -> Step<(), R> {
    let window = tx.spec(&stream.queue).await?.map(|spec| spec.window).unwrap_or_default();
    if let Ok(Some(mut record)) = or_refused(tx.dedupe_record(stream.id, id).await)? {
        record.until = record.until.max(at + window);
        record.end = end;
        tx.update_dedupe_record(&record).await?;
    }
    Ok(())
}

async fn restore<R: Rows>(tx: &mut R, located: Located, at: Moment) -> Step<(), R> {
    let Located { mut event, mut record, stream, .. } = located;
    record.end = None;
    tx.update_dedupe_record(&record).await?;
    event.restore(at);
    tx.bury(event, false, ParkFollowers::No, &stream).await.map(drop)
}

async fn kill<R: Rows>(tx: &mut R, located: Located, at: Moment) -> Step<(), R> {
    let Located { mut event, was_fresh, stream, .. } = located;
    event.kill(at);
    *tx.recall() = true;
    tx.bury(event, was_fresh, ParkFollowers::No, &stream).await.map(drop)
}

async fn retry_now<R: Rows>(tx: &mut R, located: Located, at: Moment) -> Step<(), R> {
    let Located { mut event, was_fresh, stream, .. } = located;
    if event.progress.due <= at {
        return Ok(());
    }
    event.make_due(at);
    tx.write_tracked(&event, was_fresh).await?;
    tx.announce_if_head(event, &stream).await
}
