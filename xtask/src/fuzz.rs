//! `cargo xtask fuzz`: the fuzz targets under libFuzzer, for as long as one likes.
//!
//! `cargo xtask test` runs the same functions for some seconds, on any compiler (`crates/http/tests/fuzz`). Here
//! coverage guides the inputs, which needs a nightly compiler and cargo-fuzz; both are installed if missing.

use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};

use crate::workspace::Workspace;
use crate::{install, process};

/// The targets, as `fuzz/Cargo.toml` names them.
const TARGETS: [&str; 3] = ["key", "json", "fingerprint"];
/// The maximum length of an input: short ones find the bugs.
const LENGTH_MAX: u32 = 4096;

/// What to run.
pub(crate) struct Options {
    /// One of the targets, or all.
    pub(crate) target: Option<String>,
    /// How long to run each.
    pub(crate) seconds: u32,
}

/// Runs the targets one after another; stops at the first that fails.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let targets = chosen(options.target.as_deref())?;
    ensure_nightly()?;
    if !install::on_path("cargo-fuzz") {
        eprintln!("fuzz: cargo-fuzz is missing; installing it, which takes some minutes");
        finish(process::cargo().args(["install", "--locked", "cargo-fuzz"]))?;
    }
    for target in targets {
        // What libFuzzer finds worth keeping goes there, and only there.
        let corpus = workspace.root.join("fuzz/corpus").join(target);
        std::fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
        finish(fuzz(target, options.seconds).current_dir(&workspace.root))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn chosen(target: Option<&str>) -> anyhow::Result<Vec<&str>> {
    let Some(target) = target else { return Ok(TARGETS.to_vec()) };
    ensure!(TARGETS.contains(&target), "no fuzz target is called `{target}`; known: {}", TARGETS.join(", "));
    Ok(vec![target])
}

fn ensure_nightly() -> anyhow::Result<()> {
    let listed = Command::new("rustup").args(["toolchain", "list"]).output();
    let listed = listed.context("cannot run rustup, which a nightly compiler is had from")?;
    if String::from_utf8_lossy(&listed.stdout).lines().any(|line| line.starts_with("nightly")) {
        return Ok(());
    }
    eprintln!("fuzz: there is no nightly compiler; installing one");
    finish(Command::new("rustup").args(["toolchain", "install", "nightly", "--profile", "minimal"]))
}

fn fuzz(target: &str, seconds: u32) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz", "run", target]);
    command.args(["corpus", "seeds"].map(|folder| format!("fuzz/{folder}/{target}")));
    command.arg("--").arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={LENGTH_MAX}"));
    // This program's own compiler is not nightly.
    command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
    command
}

fn finish(command: &mut Command) -> anyhow::Result<()> {
    let line = process::describe(command);
    eprintln!("fuzz: {line}");
    let status = command.status().with_context(|| format!("cannot run `{line}`"))?;
    ensure!(status.success(), "`{line}` failed: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_target_lists_the_known_ones() {
        assert_eq!(chosen(None).unwrap(), TARGETS);
        assert_eq!(chosen(Some("json")).unwrap(), ["json"]);
        let error = chosen(Some("keys")).unwrap_err().to_string();
        assert_eq!(error, "no fuzz target is called `keys`; known: key, json, fingerprint");
    }

    #[test]
    fn seeds_are_read_and_only_the_corpus_is_written_to() {
        let line = process::describe(&fuzz("key", 60));
        let wanted = "rustup run nightly cargo fuzz run key fuzz/corpus/key fuzz/seeds/key -- \
                      -max_total_time=60 -max_len=4096";
        assert_eq!(line, wanted);
    }

    #[test]
    fn every_target_is_in_the_manifest_and_has_seeds() {
        let fuzz = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
        for target in TARGETS {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{target}.rs\"")), "{target}");
            assert!(fuzz.join("seeds").join(target).is_dir(), "{target}");
        }
        assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
    }
}
