//! One seed: its figures if it holds, its shortest trace if it fails.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use redrive_testkit::simulation::{self, Choices, Failure, RunStats, Shrunk};

use crate::options::Shrink;

/// Runs a seed, and shrinks it if it fails. Without shrinking every step is printed.
pub(crate) fn seed(seed: u64, shrink: Option<&Shrink>) -> ExitCode {
    let Some(shrink) = shrink else { return told(simulation::trace(seed)) };
    let what = match simulation::try_run(seed) {
        Ok(figures) => {
            println!("{figures}\nseed {seed} holds");
            return ExitCode::SUCCESS;
        }
        Err(what) => what,
    };
    eprintln!("seed {seed}: {what}\nshrinking it, for at most {} s", shrink.time.as_secs());
    let began = Instant::now();
    let Some(shrunk) = simulation::shrink(seed, shrink.time) else {
        println!("seed {seed}: {what}; but not when it was run again");
        return ExitCode::FAILURE;
    };
    println!("{}\n", shrunk.failure);
    println!("before     {}", shrunk.before);
    println!("shrunk to  {}", shrunk.after);
    let end = if shrunk.is_shortest { "nothing more can be removed" } else { "the time was over" };
    println!("by {} runs in {:.1} s; {end}", shrunk.runs, began.elapsed().as_secs_f64());
    match keep(&shrunk, &shrink.keep) {
        Ok(file) => println!("run it again with `cargo xtask sim --replay {}`", file.display()),
        Err(error) => eprintln!("error: cannot keep its choices in {}: {error}", shrink.keep.display()),
    }
    println!("print every step of the whole run with `cargo xtask sim --seed {seed} --no-shrink`");
    ExitCode::FAILURE
}

/// Runs the choices in a file, and prints every step.
pub(crate) fn replay(file: &Path) -> ExitCode {
    let read = std::fs::read_to_string(file).map_err(|error| error.to_string());
    let choices = read.and_then(|text| text.parse::<Choices>().map_err(|error| error.to_string()));
    match choices {
        Ok(choices) => told(simulation::replay(&choices)),
        Err(error) => {
            eprintln!("error: cannot read {}: {error}", file.display());
            ExitCode::from(2)
        }
    }
}

fn told(ran: Result<(RunStats, Vec<String>), Box<Failure>>) -> ExitCode {
    match ran {
        Ok((figures, steps)) => {
            steps.iter().for_each(|step| println!("{step}"));
            println!("\n{figures}\nit holds");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn keep(shrunk: &Shrunk, folder: &Path) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let file = folder.join(format!("seed-{}.choices", shrunk.choices.seed));
    let what = shrunk.failure.what.replace('\n', " ");
    std::fs::write(&file, format!("# {what}\n{}", shrunk.choices))?;
    Ok(file)
}
