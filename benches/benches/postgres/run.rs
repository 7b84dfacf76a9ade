//! The whole run: which races there are, and with how much time.

use std::time::{Duration, Instant};

use redrive_benches::conditions::{self, Conditions};
use redrive_benches::turn::{Outcome, Publisher, Setup, value};

use crate::contender::{self, Contender, IN_FLIGHT};
use crate::pg_server::PgServer;
use crate::race::{Figures, Plan, Race};
use crate::report;
use crate::rival;
use crate::turn_args::TurnArgs;

/// How many wait where all of them are to be done: a quarter of what the rival's own bench has.
const DRAINED: u64 = 50_000;

/// How many wait for a far retry beside what is measured; the last with room for 12 GB alone.
const WAITING: [u64; 3] = [10_000, 1_000_000, 10_000_000];

/// How many rows the queue of row locks fetches at once.
const FETCHES: [usize; 2] = [10, 100];

/// How much longer a turn with a transaction held open is: what vacuum could not clean has to gather first.
const HELD_TIMES: u32 = 5;

/// What the reader asked for.
struct Options {
    plan: Plan,
    rivals: bool,
    small: bool,
    /// The race to run, where not all are.
    only: Option<String>,
}

impl Options {
    fn read(args: &[String]) -> Result<Self, String> {
        let is_said = |word: &str| args.iter().any(|arg| arg == word);
        let number = |word: &str, otherwise: u32| match value(args, word) {
            Ok(text) => text.parse::<u32>().map_err(|error| format!("{word} {text}: {error}")),
            Err(_) if is_said(word) => Err(format!("{word} wants a value")),
            Err(_) => Ok(otherwise),
        };
        let rounds = number("--rounds", 5)?.clamp(1, 100);
        Ok(Self {
            plan: Plan {
                rounds: usize::try_from(rounds).unwrap_or(1),
                time: Duration::from_secs(number("--seconds", 2)?.clamp(1, 600).into()),
            },
            rivals: !is_said("--no-rivals"),
            small: is_said("--small"),
            only: value(args, "--only").ok().map(str::to_owned),
        })
    }

    fn wants(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }
}

/// Everything that was measured.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) life: Vec<Figures>,
    pub(crate) drained: Vec<Figures>,
    /// Without and with a transaction held open.
    pub(crate) held: Vec<Figures>,
    /// Beside more and more that wait.
    pub(crate) waiting: Vec<Figures>,
}

/// Runs all races and prints what came of them.
pub(crate) fn all(args: &[String]) -> Result<(), String> {
    let options = Options::read(args)?;
    if options.rivals && (options.wants("life") || options.wants("drained")) {
        rival::build()?;
    }
    let (load, began) = (conditions::load(), Instant::now());
    let place = PgServer::start().map_err(|error| error.to_string())?;
    let server = place.conditions().map_err(|error| error.to_string())?;
    let mut measured = Measured::default();
    if options.wants("life") {
        measured.life = life(options.rivals).run(options.plan, &place)?;
    }
    if options.wants("drained") {
        measured.drained = drained(options.rivals).run(options.plan, &place)?;
    }
    if options.wants("held") {
        measured.held = held(options.plan, &place)?;
    }
    if options.wants("waiting") {
        let depths = if options.small { &WAITING[..2] } else { &WAITING[..] };
        measured.waiting = waiting(options.plan, &place, depths)?;
    }
    drop(place);
    report::report(&report::Run {
        conditions: Conditions::here(),
        server,
        load,
        plan: options.plan,
        took: began.elapsed(),
        measured,
    });
    Ok(())
}

fn life(rivals: bool) -> Race {
    use Publisher::{Bulk, Each};
    let mut field: Vec<Contender> = [1, 3]
        .into_iter()
        .flat_map(|nodes| [Contender::Ours(Each, nodes), Contender::Raw(Each, nodes)])
        .collect();
    field.extend([Contender::Ours(Bulk, 1), Contender::Raw(Bulk, 1)]);
    field.extend(FETCHES.iter().map(|fetches| Contender::Plain(Each, *fetches)));
    field.extend(FETCHES.iter().map(|fetches| Contender::Plain(Bulk, *fetches)));
    if rivals {
        field.extend([Contender::Rival(Setup::Shipped), Contender::Rival(Setup::Full)]);
    }
    let title = format!("Life cycles: publish, empty handler, settled; {IN_FLIGHT} in flight");
    Race { title, waiting: None, field }
}

fn drained(rivals: bool) -> Race {
    let mut field = vec![Contender::Ours(Publisher::Bulk, 1)];
    if rivals {
        field.extend([Contender::Rival(Setup::Shipped), Contender::Rival(Setup::Full)]);
    }
    let title = format!("{DRAINED} that wait: from the start of the worker until all are done");
    Race { title, waiting: Some(DRAINED), field }
}

/// Longer turns, without and with a transaction that is held open in the same database.
fn held(plan: Plan, place: &PgServer) -> Result<Vec<Figures>, String> {
    eprintln!("bench: a transaction held open");
    let who = Contender::Ours(Publisher::Each, 1);
    let mut turns: [Vec<Outcome>; 2] = [Vec::new(), Vec::new()];
    for round in 0..plan.rounds {
        for at in [round % 2, (round + 1) % 2] {
            let fault = |error| format!("a transaction held open: {error}");
            let url = place.make("turn").map_err(fault)?;
            let open = if at == 1 { Some(place.hold_open(&url).map_err(fault)?) } else { None };
            let outcome = who.run(&TurnArgs { url, ..who.told(1, plan.time * HELD_TIMES) });
            drop(open);
            place.remove("turn").map_err(fault)?;
            turns[at].push(outcome?);
        }
    }
    let names = ["nothing held open", "a transaction held open"];
    Ok(names
        .iter()
        .zip(turns)
        .map(|(name, turns)| Figures::of_turns((*name).to_owned(), None, &turns))
        .collect())
}

/// Life cycles beside more and more that wait for a far retry, in the same queue.
fn waiting(plan: Plan, place: &PgServer, depths: &[u64]) -> Result<Vec<Figures>, String> {
    let mut urls = Vec::new();
    for depth in depths {
        eprintln!("bench: a database with {depth} that wait");
        let url = place.make(&format!("waiting_{depth}")).map_err(|error| error.to_string())?;
        contender::fill(&url, *depth)?;
        urls.push(url);
    }
    let who = Contender::Ours(Publisher::Each, 1);
    let mut turns: Vec<Vec<Outcome>> = depths.iter().map(|_| Vec::new()).collect();
    for round in 0..plan.rounds {
        eprintln!("bench: life cycles beside those, round {} of {}", round + 1, plan.rounds);
        for turn in 0..depths.len() {
            let at = (turn + round) % depths.len();
            let first = 1 + (round as u64 + 1) * 1_000_000_000;
            turns[at].push(who.run(&TurnArgs { url: urls[at].clone(), first, ..who.told(1, plan.time) })?);
        }
    }
    let named = depths.iter().zip(turns);
    Ok(named.map(|(depth, turns)| Figures::of_turns(format!("beside {depth}"), None, &turns)).collect())
}
