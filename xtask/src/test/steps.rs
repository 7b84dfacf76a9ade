//! What `cargo xtask test` runs, in order.

use std::process::Command;

use anyhow::{Context, bail};

use crate::process;
use crate::workspace::Workspace;

/// Commands under one name, or why they cannot be given.
pub(super) struct Step {
    pub(super) name: &'static str,
    /// Whether tests must run in it; that none did, by a mistyped filter or `cfg`, is then a failure.
    pub(super) tests: bool,
    pub(super) commands: anyhow::Result<Vec<Command>>,
}

/// Packages whose features each stand alone: the ones users pick features from.
const PACKAGES_BY_FEATURE: [&str; 3] = ["redrive", "redrive-http", "redrive-store"];

/// The whole run.
pub(super) fn all(workspace: &Workspace, no_install: bool) -> Vec<Step> {
    vec![
        tests(workspace, &[]),
        doctests(workspace),
        Step { name: "loom", tests: true, commands: loom(workspace) },
        Step { name: "features", tests: false, commands: features(workspace) },
        docs(workspace),
        schemathesis(no_install),
    ]
}

/// Unit and integration tests: all, or the files of a filter's name, or the tests whose name has it in them.
pub(super) fn tests(workspace: &Workspace, filters: &[String]) -> Step {
    let words = "test --workspace --all-features --no-fail-fast";
    let is_file = |filter: &String| {
        workspace.packages.iter().any(|package| package.targets_of("test").contains(&filter.as_str()))
    };
    let (files, names): (Vec<_>, Vec<_>) = filters.iter().partition(|filter| is_file(filter));
    let mut commands = Vec::new();
    if !files.is_empty() {
        let mut command = cargo(workspace, words);
        files.iter().for_each(|file| {
            command.args(["--test", file]);
        });
        commands.push(command);
    }
    if files.is_empty() || !names.is_empty() {
        // Not `--all-targets`, which would run the benchmarks.
        let mut command = cargo(workspace, &format!("{words} --lib --bins --tests --examples"));
        if !names.is_empty() {
            command.arg("--").args(names);
        }
        commands.push(command);
    }
    Step { name: "tests", tests: true, commands: Ok(commands) }
}

fn doctests(workspace: &Workspace) -> Step {
    let command = cargo(workspace, "test --workspace --all-features --no-fail-fast --doc");
    Step { name: "doctests", tests: true, commands: Ok(vec![command]) }
}

/// The concurrent parts of core under every interleaving.
fn loom(workspace: &Workspace) -> anyhow::Result<Vec<Command>> {
    if !workspace.package("redrive-core")?.targets_of("test").contains(&"loom") {
        bail!("redrive-core has no test `loom`; its model belongs in crates/core/tests/loom.rs");
    }
    // Optimised, as the model runs each case thousands of times. A folder of its own, as other flags would
    // otherwise throw away what the steps before have built.
    let mut command = cargo(workspace, "test -p redrive-core --release --test loom");
    command.arg("--target-dir").arg(workspace.target.join("loom"));
    process::add_flags(&mut command, "RUSTFLAGS", "--cfg loom");
    Ok(vec![command])
}

/// No feature, then each by itself: with all of them on, one that leans on another unsaid still compiles.
fn features(workspace: &Workspace) -> anyhow::Result<Vec<Command>> {
    let mut commands = Vec::new();
    for name in PACKAGES_BY_FEATURE {
        let check = || cargo(workspace, &format!("check -p {name} --no-default-features"));
        commands.push(check());
        for feature in workspace.package(name)?.features.keys() {
            let mut command = check();
            command.args(["--features", feature]);
            commands.push(command);
        }
    }
    Ok(commands)
}

fn docs(workspace: &Workspace) -> Step {
    let mut command = cargo(workspace, "doc --workspace --all-features --no-deps");
    process::add_flags(&mut command, "RUSTDOCFLAGS", "-D warnings");
    Step { name: "docs", tests: false, commands: Ok(vec![command]) }
}

/// The server against its own description: this program once more, with fewer requests than by hand.
fn schemathesis(no_install: bool) -> Step {
    let command = || -> anyhow::Result<Vec<Command>> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.args(["schemathesis", "--examples", "20"]);
        if no_install {
            command.arg("--no-install");
        }
        Ok(vec![command])
    };
    Step { name: "schemathesis", tests: false, commands: command() }
}

fn cargo(workspace: &Workspace, words: &str) -> Command {
    let mut command = process::cargo();
    command.current_dir(&workspace.root).args(words.split(' '));
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Package;

    fn workspace(packages: Vec<Package>) -> Workspace {
        Workspace { root: ".".into(), target: "target".into(), packages }
    }

    fn package(name: &str, features: &[&str]) -> Package {
        let features = features.iter().map(|feature| ((*feature).to_owned(), Vec::new())).collect();
        Package { name: name.to_owned(), features, ..Package::default() }
    }

    #[test]
    fn each_feature_is_checked_alone() {
        let none: &[&str] = &[];
        let packages =
            [("redrive", &["sqlite", "postgres"][..]), ("redrive-http", none), ("redrive-store", none)];
        let packages = packages.into_iter().map(|(name, features)| package(name, features)).collect();
        let commands = features(&workspace(packages)).unwrap();
        let lines: Vec<_> = commands.iter().map(process::describe).collect();
        let expected = [
            "cargo check -p redrive --no-default-features",
            "cargo check -p redrive --no-default-features --features postgres",
            "cargo check -p redrive --no-default-features --features sqlite",
            "cargo check -p redrive-http --no-default-features",
            "cargo check -p redrive-store --no-default-features",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_missing_loom_model_is_an_error() {
        let error = loom(&workspace(vec![package("redrive-core", &[])])).unwrap_err();
        assert!(error.to_string().contains("crates/core/tests/loom.rs"), "{error}");
    }

    #[test]
    fn a_filter_that_is_a_files_name_runs_that_file() {
        let step = tests(&Workspace::load().unwrap(), &["nesting".to_owned()]);
        let lines: Vec<_> = step.commands.unwrap().iter().map(process::describe).collect();
        assert_eq!(lines, ["cargo test --workspace --all-features --no-fail-fast --test nesting"]);
    }

    #[test]
    fn filters_are_passed_to_the_tests() {
        let step = tests(&workspace(Vec::new()), &["replay".to_owned(), "lease".to_owned()]);
        let line = process::describe(&step.commands.unwrap()[0]);
        assert!(line.ends_with("--examples -- replay lease"), "{line}");
    }
}
