//! Operators' commands, rules, and their results in words.

use redrive_core::triage::{ActiveRules, JobStrategy, RedriveOptions, Rule};
use redrive_store::StoreError;
use redrive_store::operate::{CommandResult, EventAction};

use super::list;
use crate::simulation::model::{Aim, Wish};

/// A command, after "an operator orders".
pub(in super::super) fn wish(wish: &Wish) -> String {
    match wish {
        Wish::Act(aims, act) => {
            let how = if let EventAction::Redrive(redrive) = act { redriven(redrive) } else { String::new() };
            format!("{} of {}{how}", act.word(), list(aims.iter().map(aimed)))
        }
        Wish::Edit { aim, into, out_of_order, .. } => {
            let order = if *out_of_order { ", out of order" } else { "" };
            format!("edit of {} into e{into}{order}", aimed(aim))
        }
        Wish::SkipHead(chain) => format!("skip of the head of key {chain}"),
        Wish::Unpark(chain) => format!("unpark of key {chain}"),
        Wish::Set { rule: of, until: Some(until) } => format!("{} until {until:?}", rule(of)),
        Wish::Set { rule: of, until: None } => rule(of),
        Wish::Lift(of) => format!("the end of: {}", rule(of)),
        Wish::Start(plan) => {
            let of = if plan.filter.queue.is_some() || plan.filter.key.is_some() { "some" } else { "all" };
            format!("a job: {} of {of} dead letters{}", plan.act.word(), paced(&plan.strategy))
        }
        Wish::Turn(job, state) => format!("that {job:?} is {}", state.as_str()),
    }
}

fn redriven(redrive: &RedriveOptions) -> String {
    let to = redrive.to.as_ref().map(|to| format!(", to queue {to}")).unwrap_or_default();
    let attempts = if redrive.keep_attempts { ", attempts kept" } else { "" };
    let order = if redrive.out_of_order { ", out of order" } else { "" };
    format!("{to}{attempts}{order}")
}

fn paced(strategy: &JobStrategy) -> String {
    let rate = strategy.rate.map(|rate| format!(", {rate} a second")).unwrap_or_default();
    let canary = strategy.canary.map(|canary| format!(", {canary} of them first")).unwrap_or_default();
    let stop = strategy.stop_at.map(|share| format!(", until a share of {share} fails")).unwrap_or_default();
    format!("{rate}{canary}{stop}")
}

fn aimed(aim: &Aim) -> String {
    let rev = aim.rev.map(|rev| format!(" rev {rev}")).unwrap_or_default();
    format!("e{}{rev}", aim.intent)
}

fn rule(rule: &Rule) -> String {
    match rule {
        Rule::Pause { queue } => format!("pause of queue {queue}"),
        Rule::PauseRetries { queue } => format!("pause of the retries of queue {queue}"),
        Rule::QuarantineTenant { queue, tenant } => {
            let queue = queue.as_ref().map(|queue| format!(" in queue {queue}")).unwrap_or_default();
            format!("quarantine of tenant \"{tenant}\"{queue}")
        }
        Rule::QuarantineKey { queue, tenant, key } => {
            format!("quarantine of key {key} of tenant \"{tenant}\" in queue {queue}")
        }
        Rule::ParkKey { queue, tenant, key } => {
            format!("park of key {key} of tenant \"{tenant}\" in queue {queue}")
        }
        Rule::Reroute { queue, to } => format!("reroute of queue {queue} to {to}"),
    }
}

/// All rules in force.
pub(in super::super) fn rules(controls: &ActiveRules) -> String {
    let rules = list(controls.list.iter().map(|control| match control.until {
        Some(until) => format!("{} until {until:?}", rule(&control.rule)),
        None => rule(&control.rule),
    }));
    format!("{rules} (version {})", controls.version)
}

/// The result of a command.
pub(in super::super) fn operated(answer: &Result<CommandResult, StoreError>) -> String {
    match answer {
        Ok(done) => {
            let job = done.job.map(|job| format!(", {job:?}")).unwrap_or_default();
            let refused: Vec<String> =
                done.refused.iter().map(|(_, refusal)| format!(", refused: {refusal}")).collect();
            format!("{} changed{job}{}", done.changed, refused.concat())
        }
        Err(error) => error.to_string(),
    }
}
