//! The whole run: which files there are, and what is done with each.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redrive_benches::conditions::{self, Conditions};
use redrive_benches::turn::value;
use serde_json::Value;

use crate::life_cycles::NUMBERS;
use crate::report;
use crate::subprocess::Part;

/// The default number of waiting events.
const EVENTS: u64 = 5_000_000;

/// And with `--small`.
const EVENTS_SMALL: u64 = 100_000;

/// Due in a second, and for how many seconds.
pub(crate) const DUE: (u64, u64) = (5_000, 10);

/// What the reader asked for.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) events: u64,
    pub(crate) rounds: u64,
    pub(crate) time: Duration,
    folder: PathBuf,
}

impl Options {
    fn read(args: &[String]) -> Result<Self, String> {
        let is_said = |word: &str| args.iter().any(|arg| arg == word);
        let number = |word, otherwise: u64| match value(args, word) {
            Ok(text) => text.parse().map_err(|error| format!("{word} {text}: {error}")),
            Err(_) if is_said(word) => Err(format!("{word} wants a value")),
            Err(_) => Ok(otherwise),
        };
        let events = number("--events", if is_said("--small") { EVENTS_SMALL } else { EVENTS })?;
        Ok(Self {
            // With fewer there is nothing in the smallest file.
            events: events.max(10_000),
            rounds: number("--rounds", 5)?.clamp(1, 100),
            time: Duration::from_secs(number("--seconds", 2)?.clamp(1, 60)),
            // Not the system's folder for passing files: that may be memory.
            folder: value(args, "--folder")
                .map_or_else(|_| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from),
        })
    }

    /// How many wait in each of three files: 10 thousand, 1 million and 5 million.
    pub(crate) fn sizes(&self) -> [u64; 3] {
        [self.events / 500, self.events / 5, self.events]
    }

    /// How many dead letters there are.
    pub(crate) fn letters(&self) -> u64 {
        self.events / 5
    }
}

/// Everything that was measured.
pub(crate) struct Run {
    pub(crate) options: Options,
    pub(crate) conditions: Conditions,
    /// What others did on this machine before the start, and what it and they did at the end.
    pub(crate) load: [Option<f64>; 2],
    pub(crate) took: Duration,
    /// Round by round, a turn for each size.
    pub(crate) life: Vec<[Value; 3]>,
    /// After a clean stop, and after a kill.
    pub(crate) reopened: Vec<[Value; 2]>,
    pub(crate) due: Vec<Value>,
    pub(crate) pages: Vec<Value>,
    pub(crate) put_back: Value,
}

/// Runs all parts and prints what came of them.
pub(crate) fn all(args: &[String]) -> Result<(), String> {
    let options = Options::read(args)?;
    let fault = |error| format!("{}: {error}", options.folder.display());
    std::fs::create_dir_all(&options.folder).map_err(fault)?;
    let base = tempfile::tempdir_in(&options.folder).map_err(fault)?;
    let (load, began) = (conditions::load(), Instant::now());

    let files = fill(&options, base.path())?;
    let life = life(&options, &files)?;
    let mut run = Run {
        conditions: Conditions::here(),
        load: [load, None],
        took: Duration::ZERO,
        life,
        reopened: reopen(&options, &files[2])?,
        due: due(&options, &files[2])?,
        pages: Vec::new(),
        put_back: Value::Null,
        options,
    };
    for file in files {
        forget(&file);
    }
    (run.pages, run.put_back) = letters(&run.options, base.path())?;
    (run.load[1], run.took) = (conditions::load(), began.elapsed());
    report::report(&run);
    Ok(())
}

/// Three files with more and more that wait. Each is a copy of the one before, filled further.
fn fill(options: &Options, base: &Path) -> Result<[PathBuf; 3], String> {
    let files = ["few.db", "many.db", "all.db"].map(|name| base.join(name));
    let mut from = 0;
    for (at, to) in options.sizes().into_iter().enumerate() {
        eprintln!("bench: a file with {to} events that wait for a far retry");
        if at > 0 {
            std::fs::copy(&files[at - 1], &files[at]).map_err(|error| format!("cannot copy: {error}"))?;
        }
        ask("fill-waiting", &files[at], &[("from", from), ("to", to)])?;
        from = to;
    }
    Ok(files)
}

fn life(options: &Options, files: &[PathBuf; 3]) -> Result<Vec<[Value; 3]>, String> {
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        eprintln!("bench: life cycles, round {round} of {}", options.rounds);
        let mut turns = [Value::Null, Value::Null, Value::Null];
        for turn in 0..files.len() {
            // Another contender starts every round, so that none always follows the same neighbour.
            let at = (turn + usize::try_from(round).unwrap_or_default()) % files.len();
            turns[at] = one_life(options, &files[at], round, false)?;
        }
        rounds.push(turns);
    }
    Ok(rounds)
}

fn one_life(options: &Options, file: &Path, round: u64, killed: bool) -> Result<Value, String> {
    let millis = u64::try_from(options.time.as_millis()).unwrap_or(u64::MAX);
    ask("life", file, &[("first", round * NUMBERS), ("millis", millis), ("killed", u64::from(killed))])
}

fn reopen(options: &Options, file: &Path) -> Result<Vec<[Value; 2]>, String> {
    let mut rounds = Vec::new();
    for round in 1..=options.rounds.min(3) {
        eprintln!("bench: opening it again");
        let clean = ask("reopen", file, &[])?;
        one_life(options, file, 100 + round, true)?;
        rounds.push([clean, ask("reopen", file, &[])?]);
    }
    Ok(rounds)
}

fn due(options: &Options, file: &Path) -> Result<Vec<Value>, String> {
    let (rate, seconds) = DUE;
    let turn = |round: u64| {
        eprintln!("bench: {rate} due a second, for {seconds} s");
        ask("due", file, &[("first", (200 + round) * NUMBERS), ("rate", rate), ("seconds", seconds)])
    };
    (1..=options.rounds.min(3)).map(turn).collect()
}

fn letters(options: &Options, base: &Path) -> Result<(Vec<Value>, Value), String> {
    let (file, letters) = (base.join("dead.db"), options.letters());
    eprintln!("bench: a file with {letters} dead letters");
    ask("fill-dead", &file, &[("to", letters)])?;
    eprintln!("bench: pages of them");
    let pages = (0..options.rounds).map(|_| ask("pages", &file, &[])).collect::<Result<_, _>>()?;
    eprintln!("bench: putting all of them back");
    let put_back = ask("put-back", &file, &[("letters", letters)])?;
    Ok((pages, put_back))
}

fn ask(name: &str, file: &Path, numbers: &[(&str, u64)]) -> Result<Value, String> {
    Part { name, file, numbers }.run()
}

/// Makes room on the disk; what cannot be removed now goes with the folder.
fn forget(file: &Path) {
    for end in ["", "-wal", "-shm"] {
        let mut name = file.as_os_str().to_owned();
        name.push(end);
        let _ = std::fs::remove_file(PathBuf::from(name));
    }
}
