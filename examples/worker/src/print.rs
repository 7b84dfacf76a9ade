//! The output.

use std::process::ExitCode;
use std::sync::Arc;

use redrive::desk::{AuditLine, Group, Job, JobPreview};
use redrive::{Event, EventStatus};

pub(crate) fn group(group: &Group) {
    println!("  {:>3}  {}", group.letters, group.title);
    if let Some(last) = group.redriven {
        println!("       last redrive: {} put back, {} failed again", last.letters, last.failed);
    }
}

pub(crate) fn letter((event, found): &(Arc<Event>, EventStatus)) {
    let reason = found.reason.map(|reason| reason.to_string()).unwrap_or_default();
    println!("\n{}/{} died ({reason}):", event.queue, event.id);
    for record in found.history.iter().flat_map(|history| history.records()) {
        let cause = record.cause.as_ref().map(|cause| format!(": {}", cause.message)).unwrap_or_default();
        let executed = record.executed.map(|it| format!(", executed: {}", it.as_str())).unwrap_or_default();
        println!("  attempt {} ({}) {}{executed}{cause}", record.attempt, record.mode, record.disposition);
    }
}

pub(crate) fn plan(plan: &JobPreview) {
    println!("  plan: {} letters, at least {:?}", plan.matching.letters, plan.time);
    plan.warnings.iter().for_each(|warning| println!("  mind: {warning}"));
}

pub(crate) fn job(job: &Job) {
    println!(
        "  job {} is {}: {} put back, {} done, {} failed again",
        job.id.0,
        job.state.as_str(),
        job.taken,
        job.done,
        job.failed
    );
}

pub(crate) fn audit(lines: &[AuditLine]) {
    println!("\nwho did what, the latest first:");
    for line in lines {
        println!("  {} from {}: {} {} ({})", line.by.who, line.by.from, line.verb, line.target, line.count);
    }
}

pub(crate) fn add_up(figures: &[(&str, u64, u64)]) -> ExitCode {
    println!();
    for (what, seen, expected) in figures {
        let word = if seen == expected { "ok   " } else { "WRONG" };
        println!("{word} {seen:>3} of {expected:>3}  {what}");
    }
    ExitCode::from(u8::from(figures.iter().any(|(_, seen, expected)| seen != expected)))
}
