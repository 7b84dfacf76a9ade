//! The programs that the tests need, and how to get them on Debian.
//!
//! A bare machine with Rust on it should run `cargo xtask test` without a page of instructions. To need one
//! more program, add a line to [`NEEDS`].

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

/// A program, its Debian packages, and its users.
struct Need {
    program: &'static str,
    packages: &'static [&'static str],
    why: &'static str,
}

const NEEDS: &[Need] = &[
    // The compiler alone would come without the C headers.
    Need { program: "cc", packages: &["gcc", "libc6-dev"], why: "C parts of dependencies, and linking" },
    // librdkafka's configure gives up without it, though we use only its C library.
    Need { program: "c++", packages: &["g++"], why: "librdkafka's build" },
    Need { program: "make", packages: &["make"], why: "librdkafka's build" },
    Need {
        program: "python3",
        packages: &["python3", "python3-venv"],
        why: "the worker in Python, an upstream of the gateway, and schemathesis",
    },
    Need { program: "node", packages: &["nodejs"], why: "the client library in TypeScript" },
    Need { program: "npm", packages: &["npm"], why: "its compiler" },
    Need { program: "go", packages: &["golang-go"], why: "the client library in Go" },
    Need { program: "curl", packages: &["curl"], why: "a third-party client of the gateway" },
    Need { program: "busybox", packages: &["busybox"], why: "a third-party upstream of the gateway" },
    // Nothing else makes a sync fail in an unmodified program.
    Need { program: "strace", packages: &["strace"], why: "tests of a disk that fails" },
    // Its other programs are not on the path; the tests find them.
    Need { program: "pg_ctlcluster", packages: &["postgresql"], why: "tests of the store in PostgreSQL" },
    Need { program: "pgbouncer", packages: &["pgbouncer"], why: "tests of that store behind a pooler" },
    Need { program: "java", packages: &["openjdk-17-jre-headless"], why: "Kafka, for tests of the broker" },
    Need { program: "mvn", packages: &["maven"], why: "fetching Kafka" },
];

mod kafka;

/// The advice for a missing program.
#[derive(Clone, Copy)]
pub(crate) enum Missing {
    /// Install it with apt-get.
    Install,
    /// Name it and fail.
    Refuse,
}

/// `cargo xtask install`.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    ensure(Missing::Install)?;
    eprintln!("install: all programs that the tests need are there");
    Ok(ExitCode::SUCCESS)
}

/// Returns once everything that the tests need is there. Without leave to install, Kafka may be missing: its tests say so.
pub(crate) fn ensure(policy: Missing) -> anyhow::Result<()> {
    programs(policy)?;
    match policy {
        Missing::Install => kafka::fetch(),
        Missing::Refuse => Ok(()),
    }
}

fn programs(policy: Missing) -> anyhow::Result<()> {
    let missing = missing(NEEDS, on_path);
    if missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        eprintln!("install: `{}` is missing, needed for {}", need.program, need.why);
    }
    match policy {
        Missing::Install if on_path("apt-get") => apt_install(&missing)?,
        Missing::Install => bail!("there is no apt-get here; {}", advice(&missing)),
        Missing::Refuse => bail!("--no-install was given; {}", advice(&missing)),
    }
    let missing = self::missing(NEEDS, on_path);
    if !missing.is_empty() {
        bail!("apt-get succeeded, yet programs are not on PATH; {}", advice(&missing));
    }
    Ok(())
}

fn missing(needs: &[Need], is_there: impl Fn(&str) -> bool) -> Vec<&Need> {
    needs.iter().filter(|need| !is_there(need.program)).collect()
}

fn advice(missing: &[&Need]) -> String {
    let each = missing
        .iter()
        .map(|need| format!("`{}` (Debian package {})", need.program, need.packages.join(", ")));
    format!("install {}", each.collect::<Vec<_>>().join(", "))
}

fn apt_install(missing: &[&Need]) -> anyhow::Result<()> {
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages).copied().collect();
    eprintln!("install: apt-get install {}", packages.join(" "));
    apt_get(&["update"])?;
    let install: &[&str] = &["install", "--yes", "--no-install-recommends"];
    apt_get(&[install, &packages].concat())
}

fn apt_get(words: &[&str]) -> anyhow::Result<()> {
    // As words of `env`, because sudo would drop a variable of ours.
    let apt_get = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"];
    let sudo: &[&str] = if is_root()? { &[] } else { &["sudo"] };
    let line = [sudo, &apt_get, words].concat();
    // apt-get's progress is talk, and stdout is for data.
    let status =
        Command::new(line[0]).args(&line[1..]).stdout(std::io::stderr()).status().with_context(|| {
            format!("cannot run `{}`; as root, run `apt-get {}`", line[0], words.join(" "))
        })?;
    if !status.success() {
        bail!("`{}` failed: {status}", line.join(" "));
    }
    Ok(())
}

fn is_root() -> anyhow::Result<bool> {
    let output = Command::new("id").arg("-u").output().context("cannot run `id -u`")?;
    Ok(output.stdout.trim_ascii() == b"0")
}

/// Whether a program of that name can be run.
pub(crate) fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    // Administrators' programs, which not everybody has on the path.
    find(env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]), program)
}

fn find(folders: impl IntoIterator<Item = PathBuf>, program: &str) -> bool {
    folders.into_iter().any(|folder| is_executable(&folder.join(program)))
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absent_programs_are_missing() {
        let missing = missing(NEEDS, |program| program != "make");
        let programs: Vec<_> = missing.iter().map(|need| need.program).collect();
        assert_eq!(programs, ["make"]);
    }

    #[test]
    fn advice_names_programs_and_packages() {
        let advice = advice(&missing(NEEDS, |program| program == "c++"));
        let expected = "install `cc` (Debian package gcc, libc6-dev), `make` (Debian package make), `python3` (Debian package python3, python3-venv), `node` (Debian package nodejs), `npm` (Debian package npm), `go` (Debian package golang-go), `curl` (Debian package curl), `busybox` (Debian package busybox), `strace` (Debian package strace), `pg_ctlcluster` (Debian package postgresql), `pgbouncer` (Debian package pgbouncer), `java` (Debian package openjdk-17-jre-headless), `mvn` (Debian package maven)";
        assert_eq!(advice, expected);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_cannot_be_run_is_no_program() {
        use std::fs::{self, Permissions};
        use std::os::unix::fs::PermissionsExt;

        let folder = env::temp_dir().join(format!("redrive-xtask-path-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (name, mode) in [("runs", 0o755), ("plain", 0o644)] {
            fs::write(folder.join(name), "").unwrap();
            fs::set_permissions(folder.join(name), Permissions::from_mode(mode)).unwrap();
        }
        let there = ["runs", "plain", "absent"].map(|name| find([folder.clone()], name));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(there, [true, false, false]);
    }
}
