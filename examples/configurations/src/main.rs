//! Named configurations of retries: each provokes its signature failure with the guard off, and prevents it with the
//! guard on.
//!
//!     cargo run -p example-configurations -- list
//!     cargo run -p example-configurations -- run outbox --guard off
//!     cargo run -p example-configurations -- run --all
//!
//! A run starts the worker once for every crash point, kills it there, starts it again, and lets it finish. Off and on
//! share seed, schedule, crash points and checker. The effects are counted in a third process, the witness.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

mod life;

mod rows;

mod runner;

mod witness;

use life::{Guard, Life};

const USAGE: &str = "usage: configurations list
       configurations run NAME --guard off|on [--points N] [--seed S]
       configurations run --all [--points N] [--seed S]";

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("list") => rows::list(),
        Some("run") => return run(args.collect()),
        Some("witness") => return witness::serve(),
        Some("worker") => return worker(args.collect()),
        _ => bail!("{USAGE}"),
    }
    Ok(())
}

/// The value behind a flag.
fn flag(args: &[String], name: &str) -> Option<String> {
    let at = args.iter().position(|arg| arg == name)?;
    args.get(at + 1).cloned()
}

fn number(args: &[String], name: &str, default: u64) -> Result<u64> {
    flag(args, name).map_or(Ok(default), |text| text.parse().with_context(|| format!("{name} {text}")))
}

fn run(args: Vec<String>) -> Result<()> {
    let (points, seed) = (number(&args, "--points", 20)?, number(&args, "--seed", 1)?);
    let runner = runner::Runner::start(points, seed)?;
    if args.iter().any(|arg| arg == "--all") {
        return runner.all();
    }
    let name = args.first().filter(|name| !name.starts_with("--")).context(USAGE)?;
    let guard = flag(&args, "--guard").context(USAGE)?.parse()?;
    let row = rows::find(name)?;
    let failures = runner.failures(row, guard)?;
    println!("{name}, guard {guard}: {failures} failures in {points} crashes");
    Ok(())
}

fn worker(args: Vec<String>) -> Result<()> {
    let get = |name| flag(&args, name).with_context(|| format!("{name} is missing"));
    let life = Life::new(
        get("--guard")?.parse()?,
        PathBuf::from(get("--dir")?),
        get("--witness")?.parse()?,
        get("--run")?,
        number(&args, "--crash-at", u64::MAX)?,
        number(&args, "--seed", 1)?,
    );
    let row = rows::find(args.first().context(USAGE)?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(row.live(&life))
}

impl std::str::FromStr for Guard {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            other => bail!("--guard {other}: say off or on"),
        }
    }
}
