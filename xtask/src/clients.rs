//! `cargo xtask clients`: SDKs and tools that others wrote, against the program.
//!
//! They come from their registries, always in the same versions, into a folder below the target folder. What they do is in
//! `clients/others`: scripts in the languages of the SDKs, and one that sets the stage and prints a table.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};

use crate::install::{self, Missing};
use crate::process;
use crate::workspace::Workspace;

/// The version of the generator in Go.
const OAPI_CODEGEN: &str = "v2.8.2";

/// Installs what is missing, builds the program, and runs the named campaigns, or all.
pub(crate) fn run(workspace: &Workspace, names: &[String]) -> anyhow::Result<ExitCode> {
    install::ensure(Missing::Install)?;
    let sources = workspace.root.join("clients/others");
    let tools = workspace.target.join("clients-of-others");
    fs::create_dir_all(tools.join("npm")).with_context(|| format!("cannot make {}", tools.display()))?;
    python(&sources, &tools)?;
    node(&sources, &tools)?;
    go(&sources, &tools)?;
    let mut build = process::cargo();
    build.current_dir(&workspace.root).args(["build", "--package", "redrive-server", "--bin", "redrive"]);
    finish(&mut build)?;
    let mut command = Command::new("python3");
    command.arg("-B").arg(sources.join("run.py")).args(names);
    command.env("CLIENTS_TOOLS", &tools).env("CLIENTS_PROGRAM", workspace.target.join("debug/redrive"));
    // Everything is on loopback, which needs no proxy.
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"] {
        command.env_remove(name);
    }
    let status = command.status().context("cannot run python3")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn python(sources: &Path, tools: &Path) -> anyhow::Result<()> {
    let list = sources.join("requirements.txt");
    installed(&list, &tools.join("py.installed"), || {
        finish(Command::new("python3").args(["-m", "venv"]).arg(tools.join("py")))?;
        finish(Command::new(tools.join("py/bin/pip")).args(["install", "--quiet", "-r"]).arg(&list))
    })
}

fn node(sources: &Path, tools: &Path) -> anyhow::Result<()> {
    let list = sources.join("package.json");
    installed(&list, &tools.join("npm.installed"), || {
        fs::copy(&list, tools.join("npm/package.json")).context("cannot copy package.json")?;
        let flags = ["install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"];
        finish(Command::new("npm").args(flags).current_dir(tools.join("npm")))
    })
}

fn go(sources: &Path, tools: &Path) -> anyhow::Result<()> {
    let program = tools.join("go-clients");
    installed(&sources.join("go/main.go"), &tools.join("go.installed"), || {
        let generator = format!("github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@{OAPI_CODEGEN}");
        finish(Command::new("go").args(["install", &generator]).env("GOBIN", tools.join("bin")))?;
        let mut build = Command::new("go");
        finish(build.args(["build", "-o"]).arg(&program).arg(".").current_dir(sources.join("go")))
    })
}

/// Installs unless the list is the one that was installed last.
fn installed(list: &Path, mark: &Path, install: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let wanted = fs::read_to_string(list).with_context(|| format!("cannot read {}", list.display()))?;
    if fs::read_to_string(mark).is_ok_and(|had| had == wanted) {
        return Ok(());
    }
    eprintln!("clients: installing what {} lists", list.display());
    install()?;
    fs::write(mark, wanted).with_context(|| format!("cannot write {}", mark.display()))
}

fn finish(command: &mut Command) -> anyhow::Result<()> {
    let line = process::describe(command);
    // Its progress is talk, and stdout is for data.
    let status =
        command.stdout(std::io::stderr()).status().with_context(|| format!("cannot run `{line}`"))?;
    ensure!(status.success(), "`{line}` failed: {status}");
    Ok(())
}
