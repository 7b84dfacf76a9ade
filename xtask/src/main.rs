//! Redrive's own tasks, run as `cargo xtask TASK`.
//!
//! A Rust program rather than a folder of scripts, so that the checks have tests and a new machine needs
//! nothing but Rust. The price is its compile time ahead of everything else in CI, hence few dependencies.
//!
//! stdout is data (the summary, the violations, a bench's table), stderr is talk.

mod bench;
mod crash;
mod deny;
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
    /// Names what is missing, then installs its Debian package with apt-get, through sudo unless root. Does
    /// nothing when all is there.
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

    /// Check what the compiler does not: crate arrows, dead files, links, names
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

    /// Kill processes at random times for as long as you like, and count what they did
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

    /// Kill, freeze and cut off what programs rest on, and compare what all of them did
    ///
    /// Prints the seed, how far it is, and a table of the faults by kind. Exits 1 if anything happened twice, not at
    /// all, or was answered in two ways.
    Faults {
        /// Which campaign: booking, an API in two processes on one file; booking-postgres, the same on a database;
        /// nodes, three processes on one database; or postgres, a server that is stopped as if it had crashed
        name: String,
        /// How many faults at least; 10,000 where nothing is said, on a database 1,000, of nodes 200, of postgres 100
        #[arg(long, value_name = "N")]
        faults: Option<u64>,
        /// What the faults are chosen by
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },

    /// Ask the server what its own description says it can be asked, and compare the answers with it
    ///
    /// Installs schemathesis first if it is missing, into an environment below the target folder. Exits 1 for an
    /// answer that is not in the OpenAPI document, or a 5xx.
    Schemathesis {
        /// How many requests to make up for each operation
        #[arg(long, default_value_t = 50)]
        examples: u32,
        /// What they are made up from
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Fail when schemathesis is missing, rather than install it
        #[arg(long)]
        no_install: bool,
    },

    /// Simulate scheduler and store: seeds of dice against everything that must hold
    ///
    /// Prints what happened, in numbers, and seeds a second. A seed that fails is printed with its last steps,
    /// and the exit code is 1; the same seed fails again.
    Sim {
        /// How many seeds; 10,000 where nothing is said
        #[arg(long, value_name = "N")]
        seeds: Option<u64>,
        /// The first of them
        #[arg(long, value_name = "SEED")]
        from: Option<u64>,
        /// Run this one alone
        #[arg(long, conflicts_with_all = ["seeds", "from", "planted"])]
        seed: Option<u64>,
        /// Plant bugs one by one, and exit 1 unless each is found
        #[arg(long, conflicts_with = "from")]
        planted: bool,
    },

    /// Fuzz what reads keys and bodies, under libFuzzer
    ///
    /// Installs a nightly compiler and cargo-fuzz first if they are missing. What is found is kept in
    /// fuzz/artifacts; as a file in fuzz/seeds it is run by every `cargo xtask test`.
    Fuzz {
        /// Which target; all of them where nothing is said
        target: Option<String>,
        /// How long to run each
        #[arg(long, default_value_t = 300)]
        seconds: u32,
    },

    /// Check licences, sources and bans of all dependencies with cargo-deny
    ///
    /// Installs cargo-deny first if it is missing, which takes several minutes. The rules are in deny.toml.
    Deny,
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
        Task::Schemathesis { examples, seed, no_install } => {
            schemathesis::run(&workspace, &schemathesis::Options { examples, seed, no_install })
        }
        Task::Sim { seeds, from, seed, planted } => {
            sim::run(&workspace, &sim::Options { seeds, from, seed, planted })
        }
        Task::Fuzz { target, seconds } => fuzz::run(&workspace, &fuzz::Options { target, seconds }),
        Task::Deny => deny::run(&workspace),
    }
}
