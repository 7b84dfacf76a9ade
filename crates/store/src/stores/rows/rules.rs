//! Rules: pause, quarantine, park, reroute.

use redrive_core::triage::{ActiveRule, Rule};

use super::Step;
use super::contract::Rows;
use crate::operate::{self, Refusal};
use crate::stores::shared::rules::{RULES_MAX, queues};

/// Sets a rule.
pub(super) async fn set_rule<R: Rows>(tx: &mut R, control: &ActiveRule) -> Step<Result<(), Refusal>, R> {
    if control.until.is_some_and(|until| until <= control.since) {
        return Ok(Err(Refusal::Senseless("its end is in the past".to_owned())));
    }
    for queue in queues(&control.rule) {
        if tx.spec(queue).await?.is_none() {
            return Ok(Err(Refusal::NoQueue { queue: queue.to_owned() }));
        }
    }
    if let Some((queue, ..)) = control.rule.key()
        && tx.spec(queue).await?.is_some_and(|queue| !queue.ordered)
    {
        let what = format!("the queue {queue} is not ordered, so a key of it cannot be held back");
        return Ok(Err(Refusal::Senseless(what)));
    }
    if let Rule::Reroute { queue, to } = &control.rule
        && let Err(refusal) = check_route(tx, queue, to).await?
    {
        return Ok(Err(refusal));
    }
    let had = tx.rules().await?;
    let is_replaced = |old: &&ActiveRule| control.rule.replaces(&old.rule);
    let replaced: Vec<_> = had.controls.list.iter().filter(is_replaced).collect();
    if replaced.is_empty() && had.controls.list.len() >= RULES_MAX {
        return Ok(Err(Refusal::Senseless(format!("there are {RULES_MAX} rules; lift some first"))));
    }
    for old in replaced {
        tx.delete_rule(&old.rule).await?;
    }
    tx.insert_rule(control).await?;
    tx.forget_rules();
    *tx.recall() = true;
    if let Some((queue, tenant, key)) = control.rule.key()
        && let Some(stream) = tx.find_stream(queue, tenant).await?
    {
        tx.withhold(&stream, key).await?;
    }
    Ok(Ok(()))
}

/// Whether the handler of one queue may run events of another.
pub(super) async fn check_route<R: Rows>(tx: &mut R, queue: &str, to: &str) -> Step<Result<(), Refusal>, R> {
    let (from, into) = (tx.spec(queue).await?, tx.spec(to).await?);
    let (Some(from), Some(into)) = (&from, &into) else {
        let missing = if from.is_none() { queue } else { to };
        return Ok(Err(Refusal::NoQueue { queue: missing.to_owned() }));
    };
    Ok(operate::check_route((queue, from.pull), (to, into.pull)))
}

/// Lifts a rule. `false` if there was no such rule.
pub(super) async fn lift_rule<R: Rows>(tx: &mut R, rule: &Rule) -> Step<bool, R> {
    if !tx.delete_rule(rule).await? {
        return Ok(false);
    }
    tx.forget_rules();
    *tx.recall() = true;
    if let Some((queue, tenant, key)) = rule.key()
        && let Some(stream) = tx.find_stream(queue, tenant).await?
    {
        tx.hand_out(&stream, key).await?;
    }
    Ok(true)
}
