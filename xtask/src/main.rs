//! Redrive's own tasks, run as `cargo xtask TASK`.
//!
//! A Rust program rather than a folder of scripts, so that the checks have tests and a new machine needs
//! nothing but Rust. The price is its compile time ahead of everything else in CI, hence few dependencies.
//!
//! stdout is data (the summary, the violations, a bench's table), stderr is talk.

mod attack;
mod bench;
mod clients;
mod crash;
mod deny;
mod dist;
mod faults;
mod fuzz;
mod install;
mod process;
mod schemathesis;
mod sim;
mod test;
mod tidy;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use workspace::Workspace;

/// Redrive's own tasks
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install the programs that the tests need
    ///
    /// Names what is missing, then installs its Debian package with apt-get, through sudo unless root. Does nothing
    /// if all is there.
    Install,

    /// Run every test: unit, doc, loom, each feature alone, rustdoc
    ///
    /// A failing step does not stop the ones after it. The tests talk on stderr; stdout is a table of the
    /// steps, and last a line such as `120 passed, 0 failed, 2 skipped`. Exits 1 if any step failed.
    Test {
        /// Fail when a needed program is missing, rather than install it
        #[arg(long)]
        no_install: bool,
        /// Run only the unit and integration tests whose names contain one of these words
        #[arg(value_name = "FILTER")]
        filters: Vec<String>,
    },

    /// Check what the compiler does not: crate dependencies, names, texts, dead files, links
    ///
    /// Compiles nothing. Prints each violation on stdout as `path:line: what is wrong; what to do`, and exits
    /// 1 if there are any.
    Tidy,

    /// Run one benchmark of redrive-benches
    ///
    /// Prints the benchmark's table and its targets. A target that falls short fails the run only with
    /// --check.
    Bench {
        /// Which benchmark; a wrong name lists the known ones
        name: String,
        /// Exit 1 when a target falls short of its goal
        #[arg(long)]
        check: bool,
        /// Write the figures to FILE as JSON
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Passed on to the benchmark
        #[arg(last = true, value_name = "ARGS")]
        args: Vec<String>,
    },

    /// Kill processes at random times, and check their results
    ///
    /// The crash tests of `cargo xtask test`, with more rounds: ten kills each, then a check that every effect
    /// happened once and in order. A failure names its seed and keeps its files.
    Crash {
        /// How many rounds; a hundred take some minutes
        #[arg(long, default_value_t = 100)]
        rounds: u32,
        /// The seed of the first round; the next one has the next
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },

    /// Kill, freeze and cut off programs, and compare their results
    ///
    /// Prints the seed, how far it is, and a table of the faults by kind. Exits 1 if anything happened twice, not at
    /// all, or was answered in two ways.
    Faults {
        /// The campaign: booking, an API in two processes on one file; booking-postgres, the same on a database;
        /// nodes, three processes on one database; outage, a receiver that is down for an hour of simulated time; or
        /// postgres, a server that is stopped as if it had crashed
        name: String,
        /// Minimum number of faults; 10,000 by default, on a database 1,000, for nodes 200, for outage 1,000 hours, for postgres 100
        #[arg(long, value_name = "N")]
        faults: Option<u64>,
        /// The seed of the faults
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },

    /// Attack the program with hostile clients, on this machine alone
    ///
    /// Each campaign holds an attack and a control in which the defence is switched off and the attack must succeed.
    /// Without names, all run. Exits 1 if a defence did not hold, or a control did not notice.
    Attack {
        /// Which campaigns; a wrong name lists the known ones
        #[arg(value_name = "NAME")]
        names: Vec<String>,
        /// The short form that `cargo xtask test` runs, against the debug build
        #[arg(long)]
        short: bool,
    },

    /// Run SDKs and tools that others wrote against the program
    ///
    /// Installs them first, from their registries and in pinned versions, below the target folder. Prints a table of client
    /// and result, and exits 1 if one surprises.
    Clients {
        /// Which campaigns: webhooks, cloudevents, stripe, retries, generated; all by default
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },

    /// Compare the server's responses with its OpenAPI document
    ///
    /// Installs schemathesis first if it is missing, into an environment below the target folder. Exits 1 for a
    /// response that is not in the OpenAPI document, or a 5xx.
    Schemathesis {
        /// How many requests to make up for each operation
        #[arg(long, default_value_t = 50)]
        examples: u32,
        /// The seed of the requests
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Fail when schemathesis is missing, rather than install it
        #[arg(long)]
        no_install: bool,
    },

    /// Simulate scheduler and store, with crashes and lost answers, and check every promise
    ///
    /// A seed decides everything that happens in one run: processes, events, handlers, faults and the order of
    /// messages. The same seed always gives the same run. Without options, the first 10,000 seeds run on all cores.
    ///
    /// Many seeds (--seeds, --from, --random-start, --stop): prints what happened, the faults by kind, which pairs of
    /// messages no scheduler received one directly after the other, seeds a second, and every failing seed with what
    /// failed. A panic counts as a failure.
    ///
    /// One seed (--seed): a failing seed is shrunk. Steps, events, nodes, shards and faults are removed while the run
    /// still fails in the same way. The shortest trace is printed, and its choices are kept in a file for --replay.
    ///
    /// Planted bugs (--planted): each known bug is planted, and the simulation must find it.
    ///
    /// Exits 0 if everything holds, 1 if a seed failed or a planted bug was not found, 2 for wrong options.
    Sim(sim::Options),

    /// Fuzz what reads keys and bodies, under libFuzzer
    ///
    /// Installs a nightly compiler and cargo-fuzz first if they are missing. Findings are kept in fuzz/artifacts; as
    /// a file in fuzz/seeds a finding is run by every `cargo xtask test`.
    Fuzz {
        /// The target; all by default
        target: Option<String>,
        /// How long to run each
        #[arg(long, default_value_t = 300)]
        seconds: u32,
    },

    /// Build the release archive and its SHA-256 checksum
    ///
    /// Packs the program, README and docs, every setting with its default, and all licences as
    /// `redrive-VERSION-TARGET.tar.gz`, beside a file `SHA256SUMS`. Unpacks it again and runs the program. Prints both
    /// paths.
    Dist {
        /// Where to put them [default: target/dist]
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Pack this program, rather than build one
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
    },

    /// Check licences, sources and bans of all dependencies with cargo-deny
    ///
    /// Installs cargo-deny first if it is missing, which takes several minutes. The rules are in deny.toml.
    Deny {
        /// Check for known vulnerabilities too, with RustSec's database from the network
        #[arg(long)]
        advisories: bool,
        /// Use the database that is in $CARGO_HOME/advisory-dbs, without the network
        #[arg(long, requires = "advisories")]
        offline: bool,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::load()?;
    match task {
        Task::Install => install::run(),
        Task::Test { no_install, filters } => test::run(&workspace, no_install, &filters),
        Task::Tidy => tidy::run(&workspace),
        Task::Bench { name, check, json, args } => {
            bench::run(&workspace, &bench::Options { name, check, json, args })
        }
        Task::Crash { rounds, seed } => crash::run(&workspace, rounds, seed),
        Task::Faults { name, faults, seed } => {
            faults::run(&workspace, &faults::Options { name, faults, seed })
        }
        Task::Clients { names } => clients::run(&workspace, &names),
        Task::Attack { names, short } => attack::run(&workspace, &attack::Options { names, short }),
        Task::Schemathesis { examples, seed, no_install } => {
            schemathesis::run(&workspace, &schemathesis::Options { examples, seed, no_install })
        }
        Task::Sim(options) => sim::run(&workspace, &options),
        Task::Fuzz { target, seconds } => fuzz::run(&workspace, &fuzz::Options { target, seconds }),
        Task::Dist { out, program } => dist::run(&workspace, &dist::Options { out, program }),
        Task::Deny { advisories, offline } => deny::run(&workspace, advisories, offline),
    }
}
