//! `cargo xtask schemathesis`: what the server answers, against its own description.
//!
//! Schemathesis reads the OpenAPI document and makes requests up from it, right ones and wrong ones. Each answer has
//! to be one that the document has, with the body that it says, and never a 5xx but 503. It comes from PyPI into an
//! environment of its own below the target folder, and is always the same version, because another one finds other
//! things.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::{fs, thread};

use anyhow::{Context, bail, ensure};

use crate::process;
use crate::workspace::Workspace;

/// The version that is installed.
const VERSION: &str = "4.32.5";
/// What is checked of each answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,unsupported_method";
/// A server that forgets, and waits for nobody for long. Small bounds are reached sooner.
const SETTINGS: &str = "[server]\nlisten = \"127.0.0.1:0\"\nwait_max = \"20ms\"\nbody_time = \"2s\"\n\
                        [store]\naddress = \"memory:\"\n[queues.work.pull]\n";
/// The one queue that there is; a name that was made up would lead nowhere.
const PARAMETERS: &str = "[parameters]\nqueue = \"work\"\n";

/// What to run.
pub(crate) struct Options {
    /// Requests that are made up for each operation.
    pub(crate) examples: u32,
    /// The seed that they are made up from.
    pub(crate) seed: u64,
    /// Whether to fail rather than install what is missing.
    pub(crate) no_install: bool,
}

/// Installs it if it is missing, starts a server, and runs it against that.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let program = ensure(workspace, options.no_install)?;
    let folder = workspace.target.join("schemathesis");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let write = |name: &str, text: &str| -> anyhow::Result<PathBuf> {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    };
    let settings = write("redrive.toml", SETTINGS)?;
    let parameters = write("schemathesis.toml", PARAMETERS)?;
    let server = Server::start(workspace, &settings)?;
    let mut command = Command::new(program);
    command.current_dir(&folder).arg("--config-file").arg(parameters);
    command.args(["run", &format!("{}/openapi.json", server.url), "--checks", CHECKS]);
    // Nothing is remembered from one run to the next: a seed is all that it takes to see a failure again.
    command.args(["--generation-database", "none", "--seed", &options.seed.to_string()]);
    command.args(["--max-examples", &options.examples.to_string()]);
    // It answers on loopback, which is behind nobody's proxy.
    command.env("no_proxy", "*").env("NO_PROXY", "*");
    let status = command.status().context("cannot run schemathesis")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The program, which is installed first where it is missing.
fn ensure(workspace: &Workspace, no_install: bool) -> anyhow::Result<PathBuf> {
    let folder = workspace.target.join(format!("schemathesis-{VERSION}"));
    let program = folder.join("bin/schemathesis");
    if program.is_file() {
        return Ok(program);
    }
    ensure!(!no_install, "schemathesis is missing, and --no-install was given");
    eprintln!("schemathesis: installing version {VERSION} into {}", folder.display());
    finish(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .context("python3 and its venv are needed (Debian packages python3, python3-venv)")?;
    let package = format!("schemathesis=={VERSION}");
    finish(Command::new(folder.join("bin/pip")).args(["install", "--quiet", &package]))?;
    ensure!(program.is_file(), "{package} has no program {}", program.display());
    Ok(program)
}

fn finish(command: &mut Command) -> anyhow::Result<()> {
    let line = process::describe(command);
    // Its progress is talk, and stdout is for data.
    let status =
        command.stdout(std::io::stderr()).status().with_context(|| format!("cannot run `{line}`"))?;
    ensure!(status.success(), "`{line}` failed: {status}");
    Ok(())
}

/// A server that runs until this is dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(workspace: &Workspace, settings: &Path) -> anyhow::Result<Self> {
        let mut build = process::cargo();
        build.current_dir(&workspace.root).args(["build", "--package", "redrive-server", "--bin", "redrive"]);
        finish(&mut build)?;
        let mut command = Command::new(workspace.target.join("debug/redrive"));
        command.args(["serve", "--config"]).arg(settings).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start the server")?;
        let Some(stderr) = child.stderr.take() else { bail!("the server's stderr is not there") };
        let mut server = Self { child, url: String::new() };
        let mut lines = BufReader::new(stderr).lines();
        for line in lines.by_ref() {
            let line = line.context("cannot read what the server says")?;
            eprintln!("{line}");
            if let Some((_, rest)) = line.split_once("listening on ") {
                server.url = rest.split(',').next().unwrap_or_default().to_owned();
                break;
            }
        }
        ensure!(!server.url.is_empty(), "the server did not start");
        // What it says later would fill its pipe, and it would wait.
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
