//! Operators' commands. Each command is one commit with its line in the audit, even if all of it is refused: the
//! attempt is worth recording.

use redrive_core::Moment;
#[cfg(feature = "sqlite")]
use redrive_core::ledger::Resolution;
use redrive_core::triage::{ActiveRule, Rule};

use super::Step;
use super::act::{act, locate};
use super::contract::Rows;
use super::edit::{edit, import};
use super::jobs::{start, turn};
use super::rules::{lift_rule, set_rule};
use crate::operate::{
    AuditEntry, CommandResult, EventAction, EventRef, OperatorAction, OperatorCommand, Refusal,
    check_targets, refused,
};
use crate::stores::shared::tracked::RedrivenBy;

/// How many bytes a command writes, roughly, and how many events it changes.
#[cfg(feature = "sqlite")]
pub(in crate::stores) fn weight(what: &OperatorAction) -> (usize, usize) {
    match what {
        OperatorAction::Events(targets, _) => (targets.len() * 256, targets.len()),
        OperatorAction::Edit(_, edited) => (edited.event.payload.len(), 1),
        OperatorAction::Import(letters) => {
            (letters.iter().map(|letter| letter.event.payload.len() + 512).sum(), letters.len())
        }
        OperatorAction::Resolve { resolution: Resolution::Completed(reply), .. } => {
            (reply.body.as_ref().map_or(0, Vec::len) + 512, 1)
        }
        _ => (0, 1),
    }
}

/// Carries out a command.
pub(in crate::stores) async fn operate<R: Rows>(
    tx: &mut R,
    order: &OperatorCommand,
) -> Step<CommandResult, R> {
    let OperatorCommand { by, at, what } = order;
    if matches!(what, OperatorAction::Import(_)) {
        tx.check_room().await?;
    }
    if !matches!(what, OperatorAction::Note { .. } | OperatorAction::Resolve { .. }) {
        tx.lock_shards().await?;
    }
    tx.advance_clock(*at);
    let recalled_before = std::mem::take(tx.recall());
    let number = tx.next_audit_number().await?;
    let redriven_by = RedrivenBy::Order(number);
    let done = match what {
        OperatorAction::Events(targets, act) => act_on_all(tx, targets, act, redriven_by, *at).await?,
        OperatorAction::Edit(target, edited) => {
            edit(tx, target, edited, redriven_by, *at).await?.unwrap_or_else(refused)
        }
        OperatorAction::SkipHead { queue, tenant, key } => changed(skip_head(tx, queue, tenant, key).await?),
        OperatorAction::Unpark { queue, tenant, key } => changed(unpark(tx, queue, tenant, key).await?),
        OperatorAction::Set { rule, until, why } => {
            let (rule, who, why) = (rule.clone(), by.who.clone(), why.clone());
            let control = ActiveRule { rule, since: *at, until: *until, who, why };
            changed(set_rule(tx, &control).await?.map(|()| 1))
        }
        OperatorAction::Lift(rule) => match lift_rule(tx, rule).await? {
            true => changed(Ok(1)),
            false => refused(Refusal::NoRule),
        },
        OperatorAction::Start(plan) => match start(tx, plan, by, *at).await? {
            Ok(job) => CommandResult { changed: 1, job: Some(job), ..CommandResult::default() },
            Err(refusal) => refused(refusal),
        },
        OperatorAction::Turn(id, to, why) => changed(turn(tx, *id, *to, why, *at).await?.map(|()| 1)),
        OperatorAction::Import(letters) => import(tx, letters, *at).await?,
        OperatorAction::Resolve { scope, resolution, .. } => {
            changed(tx.resolve(scope, resolution, *at).await?.map(|()| 1))
        }
        OperatorAction::Note { count, .. } => changed(Ok(*count)),
    };
    let letters = match what.job().or(done.job) {
        Some(id) => tx.job(id).await?.map(|job| job.letters()),
        None => None,
    };
    tx.write_audit_line(number, by, *at, &AuditEntry::of(what, &done, letters)).await?;
    note_recall(tx, recalled_before).await?;
    Ok(done)
}

/// Counts this command among those that owners must be notified of, if it took events from them.
pub(super) async fn note_recall<R: Rows>(tx: &mut R, recalled_before: bool) -> Step<(), R> {
    if *tx.recall() {
        tx.raise_version().await?;
    }
    *tx.recall() |= recalled_before;
    Ok(())
}

async fn act_on_all<R: Rows>(
    tx: &mut R,
    targets: &[EventRef],
    what: &EventAction,
    by: RedrivenBy,
    at: Moment,
) -> Step<CommandResult, R> {
    if let Err(refusal) = check_targets(targets) {
        return Ok(refused(refusal));
    }
    let mut done = CommandResult::default();
    for (index, target) in targets.iter().enumerate() {
        let acted = match locate(tx, target).await? {
            Ok(located) => act(tx, located, what, by, at).await?,
            Err(refusal) => Err(refusal),
        };
        match acted {
            Ok(()) => done.changed += 1,
            Err(refusal) => done.refused.push((index, refusal)),
        }
    }
    Ok(done)
}

/// Unblocks a key behind the dead letter at its head.
async fn skip_head<R: Rows>(
    tx: &mut R,
    queue: &str,
    tenant: &str,
    key: &str,
) -> Step<Result<u64, Refusal>, R> {
    let Some(stream) = tx.find_stream(queue, tenant).await? else { return Ok(Err(Refusal::NotParked)) };
    let Some(dead) = tx.parking_head(&stream, key).await? else { return Ok(Err(Refusal::NotParked)) };
    tx.unblock(&stream, dead).await?;
    Ok(Ok(1))
}

/// Unblocks a key: all of its dead letters, and the rule that parks it.
async fn unpark<R: Rows>(tx: &mut R, queue: &str, tenant: &str, key: &str) -> Step<Result<u64, Refusal>, R> {
    let (of_queue, of_tenant, of_key) = (queue.to_owned(), tenant.to_owned(), key.to_owned());
    let rule = Rule::ParkKey { queue: of_queue, tenant: of_tenant, key: of_key };
    let mut changed = u64::from(lift_rule(tx, &rule).await?);
    if let Some(stream) = tx.find_stream(queue, tenant).await? {
        for dead in tx.parked_letters(&stream, key).await? {
            tx.unblock(&stream, dead).await?;
            changed += 1;
        }
    }
    Ok(if changed == 0 { Err(Refusal::NotParked) } else { Ok(changed) })
}

fn changed(done: Result<u64, Refusal>) -> CommandResult {
    match done {
        Ok(changed) => CommandResult { changed, ..CommandResult::default() },
        Err(refusal) => refused(refusal),
    }
}
