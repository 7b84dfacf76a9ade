//! `cargo xtask dist`: the release archive, and its checksum.
//!
//! `redrive-VERSION-TARGET.tar.gz` has the program, its manual (README and docs), every setting with its default, and
//! the licences, also those of the dependencies that are compiled in. `SHA256SUMS` beside it is for `sha256sum -c`.
//! The same commit and compiler give the same bytes: names are sorted, times are those of the commit, owners are zero.
//!
//! The program is that of `cargo build --release`: stripped of debug info, with the names of functions that a trace
//! needs. `tar`, `gzip` and `sha256sum` do the rest, so that this crate needs no further dependencies.

mod archive;
mod licences;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};

use crate::process;
use crate::workspace::Workspace;
use archive::Archive;

/// Files of the repository that are packed, beside `docs/`.
const FILES: [&str; 5] = ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "README.md", "SECURITY.md"];
/// The largest program that is shipped, in bytes. 40 MB is what users were promised.
const PROGRAM_MAX: u64 = 40_000_000;

/// What to pack.
pub(crate) struct Options {
    /// Where the archive goes; `target/dist` by default.
    pub(crate) out: Option<PathBuf>,
    /// A program that is built already.
    pub(crate) program: Option<PathBuf>,
}

/// Builds the program, packs it, and tries what was packed.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => build(workspace)?,
    };
    let size = program.metadata().with_context(|| format!("there is no {}", program.display()))?.len();
    ensure!(
        size <= PROGRAM_MAX,
        "{} has {size} bytes, more than {PROGRAM_MAX}; is its debug info stripped?",
        program.display()
    );
    let out = options.out.clone().unwrap_or_else(|| workspace.target.join("dist"));
    let name = format!("redrive-{}-{}", version(&program)?, host()?);
    let mut archive = Archive::new(&out, &name, commit_time(workspace))?;
    archive.program("redrive", &program)?;
    archive.text("redrive.toml", &said(Command::new(&program).args(["config", "--default"]))?)?;
    archive.text("THIRD-PARTY-LICENCES", &licences::collect(workspace)?)?;
    for file in FILES {
        archive.file(file, &workspace.root.join(file))?;
    }
    archive.folder("docs", &workspace.root.join("docs"))?;
    let packed = archive.pack()?;
    try_out(&packed, &name)?;
    println!("{}", packed.display());
    println!("{}", out.join(archive::SUMS).display());
    Ok(ExitCode::SUCCESS)
}

fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let mut command = process::cargo();
    command.current_dir(&workspace.root);
    command.args(["build", "--release", "--locked", "--package", "redrive-server", "--bin", "redrive"]);
    let status = command.status().context("cannot run cargo build")?;
    ensure!(status.success(), "cargo build failed: {status}");
    Ok(workspace.target.join("release/redrive"))
}

/// Unpacks the archive and runs its program: what cannot be unpacked or started is not shipped.
fn try_out(packed: &Path, name: &str) -> anyhow::Result<()> {
    let folder = packed.with_extension("unpacked");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    said(Command::new("tar").arg("-xzf").arg(packed).arg("-C").arg(&folder))?;
    let version = said(Command::new(folder.join(name).join("redrive")).arg("--version"))?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    eprintln!("dist: packed and tried {}", version.trim());
    Ok(())
}

/// The version as the program says it: `redrive 0.1.0`.
fn version(program: &Path) -> anyhow::Result<String> {
    let line = said(Command::new(program).arg("--version"))?;
    let version = line.split_whitespace().nth(1).map(str::to_owned);
    version.with_context(|| format!("{} says no version: {line}", program.display()))
}

/// The target that cargo builds for: `x86_64-unknown-linux-gnu`.
fn host() -> anyhow::Result<String> {
    let line = said(Command::new("rustc").arg("-vV"))?;
    let host = line.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned);
    host.with_context(|| format!("rustc names no host: {line}"))
}

/// When the commit was made, in seconds since 1970; 0 outside of a repository.
fn commit_time(workspace: &Workspace) -> u64 {
    let mut git = Command::new("git");
    git.current_dir(&workspace.root).args(["log", "-1", "--format=%ct"]);
    said(&mut git).ok().and_then(|time| time.trim().parse().ok()).unwrap_or(0)
}

/// The stdout of a command that has to succeed.
fn said(command: &mut Command) -> anyhow::Result<String> {
    let line = process::describe(command);
    let output = command.output().with_context(|| format!("cannot run `{line}`"))?;
    ensure!(
        output.status.success(),
        "`{line}` failed: {}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed no text"))
}
