//! The account: what happened, and whether it adds up.

use std::process::ExitCode;

use crate::archive::Seen;
use crate::pipeline::Figures;
use crate::readings::{self, PAGES, STATIONS};
use crate::subscriber::Subscriber;

/// What everybody saw.
pub(crate) struct Facts<'a> {
    pub(crate) seen: Seen,
    pub(crate) naive: Seen,
    pub(crate) polls: u32,
    pub(crate) naive_polls: u32,
    pub(crate) share: f64,
    pub(crate) subscriber: &'a Subscriber,
    pub(crate) lives: Vec<Figures>,
    pub(crate) dead: u64,
}

/// Prints it. 1 where it does not add up.
pub(crate) fn settle(facts: &Facts<'_>) -> ExitCode {
    let Facts { seen, naive, polls, naive_polls, share, subscriber, lives, dead } = facts;
    println!("what the archive saw            with a budget       naive");
    let row = |what: &str, ours: u32, theirs: u32| println!("  {what:<28}{ours:>15}{theirs:>12}");
    row("polls", *polls, *naive_polls);
    row("requests", seen.firsts + seen.retries, naive.firsts + naive.retries);
    row("requests while it was down", seen.while_down, naive.while_down);
    row("requests while it said 429", seen.while_busy, naive.while_busy);
    println!("  (the polite ones began anew after the restart, and so polled more often)\n");

    println!("the pipeline                          life 1      life 2");
    let row = |what: &str, of: fn(&Figures) -> u64| {
        let values: Vec<String> = lives.iter().map(|life| format!("{:>12}", of(life))).collect();
        println!("  {what:<30}{}", values.concat());
    };
    row("went to the subscriber", |life| life.committed);
    row("came again and were known", |life| life.seen);
    if lives.first().is_some_and(|life| !life.is_clean) {
        println!("  (life 1 ended with attempts under way)");
    }
    println!();

    let allowed = f64::from(seen.firsts) * share;
    let good = readings::records() - readings::poison();
    let (observations, twice) = subscriber.counted("observation-");
    let (means, means_twice) = subscriber.counted("d1-");
    let lines = [
        (
            f64::from(seen.retries) <= allowed,
            format!(
                "{} retries, and the budget allows {allowed:.0} for {} first attempts",
                seen.retries, seen.firsts
            ),
        ),
        (
            observations == good as usize,
            format!("{observations} of {good} observations reached the subscriber"),
        ),
        (means == (STATIONS * PAGES) as usize, format!("{means} of {} means did", STATIONS * PAGES)),
        (twice + means_twice == 0, format!("{} of them more than once", twice + means_twice)),
        (
            *dead == u64::from(readings::poison()),
            format!("{dead} of {} records that nobody can read are dead letters", readings::poison()),
        ),
    ];
    for (is_right, line) in &lines {
        println!("{} {line}", if *is_right { "ok   " } else { "WRONG" });
    }
    ExitCode::from(u8::from(lines.iter().any(|(is_right, _)| !is_right)))
}
