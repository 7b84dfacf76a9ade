//! The options, and what they ask for.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::time::Duration;

/// How many seeds are run by default.
const SEEDS: u64 = 10_000;
/// How many seeds each planted bug may take.
const SEEDS_FOR_A_FLAW: u64 = 100_000;
/// How many steps long the paths of the exhaustive search are.
const DEPTH: usize = 8;
/// How long a failing seed is shrunk.
const SHRINK_SECONDS: u64 = 60;
/// Where shrunk runs are kept.
const KEEP: &str = "target/sim";
/// Random starts have at most this many bits, so that they can be typed.
const START_BITS: u32 = 48;

const KNOWN: &str = "--seeds, --from, --random-start, --stop, --seed, --no-shrink, --shrink-seconds, --keep, --replay, \
                     --planted, --exhaustive and --depth";

/// The task that the options ask for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Run many seeds.
    Seeds(Campaign),
    /// Run one seed, and shrink it if it fails.
    Seed { seed: u64, shrink: Option<Shrink> },
    /// Run the choices in a file.
    Replay(PathBuf),
    /// Plant bugs one by one.
    Planted { seeds_max: u64 },
    /// Go through every order of messages in a small scope.
    Exhaustive { depth: usize },
}

/// Which seeds to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Campaign {
    pub(crate) from: u64,
    pub(crate) seeds: u64,
    /// Whether to stop at the first failure.
    pub(crate) stop: bool,
}

/// How to shrink a failing seed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shrink {
    pub(crate) time: Duration,
    /// The folder that the choices are written to.
    pub(crate) keep: PathBuf,
}

#[derive(Debug, Default)]
struct Options {
    seeds: Option<u64>,
    from: Option<u64>,
    stop: bool,
    seed: Option<u64>,
    no_shrink: bool,
    shrink_seconds: Option<u64>,
    keep: Option<PathBuf>,
    replay: Option<PathBuf>,
    planted: bool,
    exhaustive: bool,
    depth: Option<u64>,
}

/// Reads the options.
pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Task, String> {
    let mut words = words.into_iter();
    let mut options = Options::default();
    while let Some(word) = words.next() {
        let mut next = |what: &str| words.next().ok_or_else(|| format!("{word} needs {what}"));
        let number =
            |next: String| next.parse::<u64>().map_err(|_| format!("{word} needs a number, not `{next}`"));
        match word.as_str() {
            "--seeds" => options.seeds = Some(next("a number").and_then(number)?),
            "--from" => {
                let next = next("a number or `random`")?;
                options.from = Some(if next == "random" { random_start() } else { number(next)? });
            }
            "--random-start" => options.from = Some(random_start()),
            "--stop" => options.stop = true,
            "--exhaustive" => options.exhaustive = true,
            "--depth" => options.depth = Some(next("a number").and_then(number)?),
            "--seed" => options.seed = Some(next("a number").and_then(number)?),
            "--no-shrink" => options.no_shrink = true,
            "--shrink-seconds" => options.shrink_seconds = Some(next("a number").and_then(number)?),
            "--keep" => options.keep = Some(next("a folder")?.into()),
            "--replay" => options.replay = Some(next("a file")?.into()),
            "--planted" => options.planted = true,
            _ => return Err(format!("`{word}` is not an option; the options are {KNOWN}")),
        }
    }
    options.task()
}

impl Options {
    fn task(self) -> Result<Task, String> {
        let alone = [
            ("--seed", self.seed.is_some()),
            ("--replay", self.replay.is_some()),
            ("--planted", self.planted),
            ("--exhaustive", self.exhaustive),
            ("--from", self.from.is_some()),
        ];
        let mut alone = alone.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name);
        if let (Some(one), Some(other)) = (alone.next(), alone.next()) {
            return Err(format!("{one} and {other} exclude each other"));
        }
        if self.seeds.is_some() && (self.seed.is_some() || self.replay.is_some()) {
            return Err("--seeds goes with neither --seed nor --replay".to_owned());
        }
        if let Some(seed) = self.seed {
            let shrink = Shrink {
                time: Duration::from_secs(self.shrink_seconds.unwrap_or(SHRINK_SECONDS)),
                keep: self.keep.unwrap_or_else(|| KEEP.into()),
            };
            return Ok(Task::Seed { seed, shrink: Some(shrink).filter(|_| !self.no_shrink) });
        }
        if let Some(file) = self.replay {
            return Ok(Task::Replay(file));
        }
        if self.exhaustive {
            let depth = self.depth.and_then(|depth| usize::try_from(depth).ok()).unwrap_or(DEPTH);
            return Ok(Task::Exhaustive { depth });
        }
        if self.depth.is_some() {
            return Err("--depth goes with --exhaustive".to_owned());
        }
        if self.planted {
            return Ok(Task::Planted { seeds_max: self.seeds.unwrap_or(SEEDS_FOR_A_FLAW) });
        }
        let (from, seeds) = (self.from.unwrap_or(0), self.seeds.unwrap_or(SEEDS));
        Ok(Task::Seeds(Campaign { from, seeds, stop: self.stop }))
    }
}

fn random_start() -> u64 {
    RandomState::new().hash_one("start") >> (u64::BITS - START_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Task, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_say_what_is_to_be_done() {
        let shrink = |seconds| Shrink { time: Duration::from_secs(seconds), keep: "target/sim".into() };
        let cases = [
            ("", Task::Seeds(Campaign { from: 0, seeds: 10_000, stop: false })),
            ("--seeds 5 --from 7 --stop", Task::Seeds(Campaign { from: 7, seeds: 5, stop: true })),
            ("--seed 9", Task::Seed { seed: 9, shrink: Some(shrink(60)) }),
            ("--seed 9 --shrink-seconds 3", Task::Seed { seed: 9, shrink: Some(shrink(3)) }),
            ("--seed 9 --no-shrink", Task::Seed { seed: 9, shrink: None }),
            ("--replay file", Task::Replay("file".into())),
            ("--planted --seeds 4", Task::Planted { seeds_max: 4 }),
            ("--exhaustive", Task::Exhaustive { depth: 8 }),
            ("--exhaustive --depth 5", Task::Exhaustive { depth: 5 }),
        ];
        for (line, expected) in cases {
            assert_eq!(parsed(line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_what_to_do() {
        let cases = [
            ("--seads 5", "`--seads` is not an option; the options are --seeds, --from"),
            ("--seeds", "--seeds needs a number"),
            ("--seeds many", "--seeds needs a number, not `many`"),
            ("--from", "--from needs a number or `random`"),
            ("--seed -1", "--seed needs a number, not `-1`"),
            ("--replay", "--replay needs a file"),
            ("--seed 1 --replay file", "--seed and --replay exclude each other"),
            ("--seed 1 --seeds 2", "--seeds goes with neither --seed nor --replay"),
        ];
        for (line, expected) in cases {
            let error = parsed(line).unwrap_err();
            assert!(error.starts_with(expected), "{line}: {error}");
        }
    }

    #[test]
    fn random_starts_differ() {
        assert_ne!(parsed("--random-start"), parsed("--from random"));
    }
}
