//! `cargo xtask schemathesis`: the server's responses against its own description.
//!
//! Schemathesis generates requests from the OpenAPI document, valid ones and invalid ones. Each response must be
//! documented, with the documented body, and never a 5xx except 503. It comes from PyPI into its own environment
//! below the target folder, always in the same version, because another one finds other things.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::{fs, thread};

use anyhow::{Context, bail, ensure};

use crate::process;
use crate::workspace::Workspace;

/// The installed version.
const VERSION: &str = "4.32.5";
/// The checks of each response.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,unsupported_method";
/// A server with short waits and every feature enabled. Small limits are reached sooner.
const SETTINGS: &str = "[server]\nlisten = \"127.0.0.1:0\"\nwait_max = \"20ms\"\nbody_time = \"2s\"\nedit = true\n\
                        [observe]\nlog = \"warn,redrive_server::cli=info\"\n[secrets]\nkey_file = \"key\"\n[ledger]\nkey_files = [\"key\"]\n\
                        [store]\naddress = \"sqlite:redrive.db\"\n[queues.jobs.pull]\n[queues.held.pull]\n";
/// Existing names; generated ones would lead nowhere. Actions that block a queue use another one, or nothing could be
/// leased any more.
const PARAMETERS: &str = "[parameters]\nqueue = \"jobs\"\nid = \"1\"\nname = \"signing\"\n\
                          [[operations]]\ninclude-path-regex = \"^/v1/queues/[^/]*/(pause|resume|reroute)$\"\n\
                          parameters = { queue = \"held\" }\n";
/// A dead letter for all actions, and the first version of a secret.
const FIRST: [(&str, &str, &str); 3] = [
    ("POST", "/v1/queues/jobs/events", "{\"id\":\"1\",\"key\":\"k\",\"payload\":{}}"),
    ("POST", "/v1/queues/jobs/events/1/kill", ""),
    ("PUT", "/v1/secrets/signing", ""),
];

/// What to run.
pub(crate) struct Options {
    /// Generated requests per operation.
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
    // Each run starts empty, or a seed would not reproduce.
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", folder.display()));
        }
        _ => {}
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let write = |name: &str, text: &str| -> anyhow::Result<PathBuf> {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    };
    let settings = write("redrive.toml", SETTINGS)?;
    let parameters = write("schemathesis.toml", PARAMETERS)?;
    let server = Server::start(workspace, &settings)?;
    for (method, path, body) in FIRST {
        server.ask(method, path, body)?;
    }
    let mut command = Command::new(program);
    command.current_dir(&folder).arg("--config-file").arg(parameters);
    command.args(["run", &format!("{}/openapi.json", server.url), "--checks", CHECKS]);
    // Nothing persists between runs: the seed alone reproduces a failure.
    command.args(["--generation-database", "none", "--seed", &options.seed.to_string()]);
    command.args(["--max-examples", &options.examples.to_string()]);
    // It listens on loopback, which needs no proxy.
    command.env("no_proxy", "*").env("NO_PROXY", "*");
    let status = command.status().context("cannot run schemathesis")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The program; installed first if missing.
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
        let folder = settings.parent().context("the settings are in no folder")?;
        let program = workspace.target.join("debug/redrive");
        finish(Command::new(&program).current_dir(folder).args(["secret", "key", "key"]))?;
        let mut command = Command::new(program);
        command.current_dir(folder).args(["serve", "--config"]).arg(settings).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start the server")?;
        let Some(stderr) = child.stderr.take() else { bail!("the server's stderr is not there") };
        let mut server = Self { child, url: String::new() };
        let mut lines = BufReader::new(stderr).lines();
        for line in lines.by_ref() {
            let line = line.context("cannot read what the server says")?;
            eprintln!("{line}");
            // As in the log, whose format the server chooses.
            if let Some((_, rest)) = line.split_once("listening on ") {
                let end =
                    rest.find(|c: char| c == '"' || c == ',' || c.is_whitespace()).unwrap_or(rest.len());
                rest[..end].clone_into(&mut server.url);
                break;
            }
        }
        ensure!(!server.url.is_empty(), "the server did not start");
        // Later output would fill the pipe and block the server.
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Ok(server)
    }

    /// Asks for something that has to succeed.
    fn ask(&self, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).with_context(|| format!("cannot reach {address}"))?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 2"), "{method} {path}: {answer}");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
