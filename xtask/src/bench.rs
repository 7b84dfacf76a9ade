//! `cargo xtask bench`: runs one benchmark and holds it to its targets.
//!
//! A benchmark prints a table for people, a `target` line for each promise, and one line `figures {json}`
//! that we keep from the reader and write where `--json` says.

mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};

use crate::process;
use crate::workspace::Workspace;
use report::Report;

const PACKAGE: &str = "redrive-benches";

/// What to run, and what to do with the outcome.
pub(crate) struct Options {
    pub(crate) name: String,
    pub(crate) check: bool,
    pub(crate) json: Option<PathBuf>,
    pub(crate) args: Vec<String>,
}

/// Runs the benchmark and shows its table as it comes.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    known(&options.name, &workspace.package(PACKAGE)?.targets_of("bench"))?;
    options.json.as_deref().map_or(Ok(()), writable)?;

    let report = measure(workspace, options)?;
    ensure!(
        !report.targets.is_empty(),
        "bench {} printed no `target` line, so it promises nothing",
        options.name
    );
    if let Some(file) = &options.json {
        let figures = report.figures.as_ref().context("the benchmark printed no `figures` line to write")?;
        fs::write(file, format!("{figures:#}\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(if options.check && report.falls_short() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn known(name: &str, benches: &[&str]) -> anyhow::Result<()> {
    ensure!(benches.contains(&name), "no bench is called `{name}`; known: {}", benches.join(", "));
    Ok(())
}

/// Fails before the measuring rather than after it.
fn writable(file: &Path) -> anyhow::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        ensure!(folder.is_dir(), "cannot write {}: no folder {}", file.display(), folder.display());
    }
    Ok(())
}

fn measure(workspace: &Workspace, options: &Options) -> anyhow::Result<Report> {
    let mut command = process::cargo();
    command.current_dir(&workspace.root).args(["bench", "-p", PACKAGE, "--bench", &options.name]);
    command.arg("--").args(&options.args);

    let mut report = Report::default();
    let mut broken = None;
    let status = process::stream(&mut command, |line| match report.read(line) {
        Ok(true) => println!("{line}"),
        Ok(false) => {}
        Err(error) => broken = broken.take().or(Some(error)),
    })
    .context("cannot run cargo bench")?;
    if !status.success() {
        bail!("bench {} failed: {status}", options.name);
    }
    for target in report.targets.iter().filter(|target| !target.met) {
        eprintln!("short: {target}");
    }
    broken.map_or(Ok(report), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_lists_the_known_ones() {
        assert!(known("retry", &["claim", "retry"]).is_ok());
        let error = known("retries", &["claim", "retry"]).unwrap_err().to_string();
        assert_eq!(error, "no bench is called `retries`; known: claim, retry");
    }

    #[test]
    fn a_missing_folder_is_found_before_the_run() {
        assert!(writable(Path::new("figures.json")).is_ok());
        assert!(writable(Path::new("no-such-folder/figures.json")).is_err());
    }
}
