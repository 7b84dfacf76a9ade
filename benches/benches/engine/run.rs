//! The whole run: which races there are, and with how much time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redrive_benches::conditions::{self, Conditions};
use redrive_benches::syncs;
use redrive_benches::turn::{Publisher, Setup, Work, value};

use crate::contender::{Batch, Contender};
use crate::race::{Plan, Race};
use crate::report::Waits;
use crate::rivals::Rival;
use crate::{disk, redrive_contender, report};

/// Events in flight, where that is not what is varied.
const IN_FLIGHT: usize = 1_000;

/// Callers that publish at once.
const PUBLISHERS: [usize; 3] = [1, 16, 256];

/// The raw line's batches, as long as there is none of ours to follow.
const BATCHES: [usize; 3] = [16, 128, 1_000];

/// How long syncs of the disk are measured in every round.
const SYNCS: Duration = Duration::from_millis(500);

/// A load from which on figures say more of the neighbours than of the contenders. Seen on two cores: beside
/// builds that made a load of four, the median sync took 4 ms, where it took 0.14 ms on the quiet machine.
const BUSY: f64 = 1.0;

/// What the reader asked for.
struct Options {
    plan: Plan,
    rivals: bool,
    folder: PathBuf,
}

impl Options {
    fn read(args: &[String]) -> Result<Self, String> {
        let number = |word, otherwise: f64| match value(args, word) {
            Ok(text) => text.parse::<f64>().map_err(|error| format!("{word} {text}: {error}")),
            Err(_) if args.iter().any(|arg| arg == word) => Err(format!("{word} wants a value")),
            Err(_) => Ok(otherwise),
        };
        let rounds = number("--rounds", 5.0)?.clamp(1.0, 100.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 100")]
        let rounds = rounds as usize;
        let time = Duration::from_secs_f64(number("--seconds", 1.0)?.clamp(0.1, 60.0));
        Ok(Self {
            plan: Plan { rounds, time },
            rivals: !args.iter().any(|arg| arg == "--no-rivals"),
            // Not the system's folder for passing files: that may be memory.
            folder: value(args, "--folder")
                .map_or_else(|_| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from),
        })
    }
}

/// Runs all races and prints what came of them.
pub(crate) fn all(args: &[String]) -> Result<(), String> {
    let options = Options::read(args)?;
    let fault = |error| format!("{}: {error}", options.folder.display());
    std::fs::create_dir_all(&options.folder).map_err(fault)?;
    let base = tempfile::tempdir_in(&options.folder).map_err(fault)?;
    if options.rivals {
        Rival::ALL.iter().try_for_each(|rival| rival.build())?;
    }
    if !syncs::can_be_counted() {
        eprintln!("bench: no strace here, so syncs are not counted; apt-get install strace");
    }

    let load = conditions::load();
    if load.is_some_and(|load| load > BUSY) {
        eprintln!("bench: this machine is busy, and syncs then take many times as long; see `load`");
    }

    let started = Instant::now();
    let races = races(options.rivals);
    let mut figures = Vec::new();
    for race in &races {
        figures.push((race, race.run(options.plan, base.path())?));
    }
    let waits = idle(options.plan, base.path())?;
    report::report(&report::Run {
        conditions: Conditions::here(),
        load,
        file_system: disk::file_system(base.path()),
        plan: options.plan,
        took: started.elapsed(),
        races: figures,
        waits,
    });
    Ok(())
}

fn races(rivals: bool) -> Vec<Race> {
    use Publisher::{Bulk, Each};
    use Rival::{Apalis, Effectum};
    let with = |publishers: &[Publisher], theirs: &[Contender]| {
        let ours =
            publishers.iter().flat_map(|it| [Contender::Ours(*it), Contender::Raw(Batch::AsOurs(*it))]);
        let alone = BATCHES.map(|it| Contender::Raw(Batch::Of(it)));
        let ours: Vec<Contender> = if redrive_contender::HERE { ours.collect() } else { alone.into() };
        let theirs: &[Contender] = if rivals { theirs } else { &[] };
        [&ours, theirs].concat()
    };
    let theirs = [
        Contender::Rival(Apalis, Setup::Shipped, Each),
        Contender::Rival(Apalis, Setup::Full, Each),
        Contender::Rival(Apalis, Setup::Full, Bulk),
        Contender::Rival(Effectum, Setup::Shipped, Each),
        Contender::Rival(Effectum, Setup::Full, Each),
        Contender::Rival(Effectum, Setup::Full, Bulk),
    ];
    let life = Race {
        title: format!("Life cycles: publish, empty handler, acknowledged; {IN_FLIGHT} in flight"),
        work: Work::Life,
        callers: IN_FLIGHT,
        field: with(&[Each, Bulk], &theirs),
    };
    let publish = PUBLISHERS.map(|callers| Race {
        title: format!("Publish alone; callers: {callers}"),
        work: Work::Publish,
        callers,
        field: with(
            &[Each],
            &[Contender::Rival(Apalis, Setup::Full, Each), Contender::Rival(Effectum, Setup::Full, Each)],
        ),
    });
    [life].into_iter().chain(publish).collect()
}

/// What one sync takes and what one event takes, in turns.
fn idle(plan: Plan, base: &Path) -> Result<Vec<Waits>, String> {
    eprintln!("bench: one event at a time");
    let mut waits = Vec::new();
    for _ in 0..plan.rounds {
        let sync = disk::sync_p50_us(base, SYNCS).map_err(|error| format!("{}: {error}", base.display()))?;
        let ours = Contender::Ours(Publisher::Each).turn(Work::Idle, 1, 1, plan.time);
        let event = if redrive_contender::HERE { ours.run(base)?.p50_us } else { None };
        waits.push(Waits { sync, event });
    }
    Ok(waits)
}
