//! The account: what happened, and whether it adds up.

use std::process::ExitCode;

use crate::archive::Seen;
use crate::pollers::SHARE;
use crate::readings::Size;
use crate::restarts::PipelineRun;
use crate::subscriber::Sink;

/// What everybody saw.
pub(crate) struct Facts<'a> {
    pub(crate) size: Size,
    pub(crate) seen: Seen,
    pub(crate) naive: Seen,
    pub(crate) naive_polls: u32,
    pub(crate) sink: &'a Sink,
    pub(crate) lives: Vec<PipelineRun>,
    pub(crate) dead: u64,
}

/// Prints it. Returns 1 if it does not add up.
pub(crate) fn settle(facts: &Facts<'_>) -> ExitCode {
    let Facts { size, seen, naive, naive_polls, sink, lives, dead } = facts;
    println!("what the archive saw            with a budget       naive");
    let row = |what: &str, ours: u32, theirs: u32| println!("  {what:<28}{ours:>15}{theirs:>12}");
    row("polls", seen.firsts, *naive_polls);
    row("requests", seen.firsts + seen.retries, naive.firsts + naive.retries);
    row("requests while it was down", seen.while_down, naive.while_down);
    row("requests while it said 429", seen.while_busy, naive.while_busy);

    println!("\nthe pipeline, killed         polls   retries      told     again   between stages");
    for (PipelineRun { killed, told, again, between, .. }, (polls, retries)) in
        lives.iter().zip(requests(lives))
    {
        let killed = killed.unwrap_or("(it came to its end)");
        println!("  {killed:<22}{polls:>10}{retries:>10}{told:>10}{again:>10}{between:>17}");
    }
    println!("  (told: went to the subscriber. again: came to the sink again, and was known)\n");

    let lines = lines(facts, sink.counted("observation-"), sink.counted("d1-"), *dead, *size);
    for (is_right, line) in &lines {
        println!("{} {line}", if *is_right { "ok   " } else { "WRONG" });
    }
    ExitCode::from(u8::from(lines.iter().any(|(is_right, _)| !is_right)))
}

/// Polls and retries of each life.
fn requests(lives: &[PipelineRun]) -> impl Iterator<Item = (u32, u32)> {
    let befores = std::iter::once(Seen::default()).chain(lives.iter().map(|life| life.seen));
    let requests = |(life, before): (&PipelineRun, Seen)| {
        (life.seen.firsts - before.firsts, life.seen.retries - before.retries)
    };
    lives.iter().zip(befores).map(requests)
}

/// What a budget allows for so many first attempts, if it starts empty. An attempt about to be sent at a kill has
/// earned its share but was not seen: at most one more.
fn allowed(firsts: u32) -> f64 {
    f64::from(firsts) * SHARE + 1.0
}

fn lines(
    Facts { seen, lives, .. }: &Facts<'_>,
    (observations, twice): (u32, u32),
    (means, means_twice): (u32, u32),
    dead: u64,
    size: Size,
) -> [(bool, String); 7] {
    let Seen { firsts, retries, .. } = seen;
    let kills = lives.iter().filter(|life| life.killed.is_some()).count();
    let is_within = requests(lives).all(|(firsts, retries)| f64::from(retries) <= allowed(firsts));
    let cut = lives.iter().filter(|life| life.killed.is_some() && life.between > 0).count();
    let again: u64 = lives.iter().map(|life| life.again).sum();
    let (good, all_means, poison) = (size.observations(), size.means(), size.poison());
    [
        (
            is_within,
            format!("{retries} retries for {firsts} polls: in no life more than the budget allows, a fifth"),
        ),
        (kills == 4 && cut > 0, format!("{kills} kills, {cut} of them with events between stages")),
        (again > 0, format!("{again} deliveries came again after a kill, and were known")),
        (observations == good, format!("{observations} of {good} observations reached the subscriber")),
        (means == all_means, format!("{means} of {all_means} means did")),
        (twice + means_twice == 0, format!("{} of them more than once", twice + means_twice)),
        (dead == u64::from(poison), format!("{dead} of {poison} unreadable records are dead letters")),
    ]
}
