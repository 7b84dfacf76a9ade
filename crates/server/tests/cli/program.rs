//! The program, run to its end.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use serde_json::Value;

use crate::test_server::TestServer;

/// What a run said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    fn of(output: Output, talk: &str) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let err = format!("{talk}{}", text(output.stderr));
        Self { code: output.status.code(), out: text(output.stdout), err }
    }

    /// Its data, as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The words of each line of a table.
    pub(crate) fn rows(&self) -> Vec<Vec<&str>> {
        self.out.lines().map(|line| line.split_whitespace().collect()).collect()
    }

    /// It did what it was told.
    pub(crate) fn fine(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }
}

/// The program with its arguments in a folder, with nothing in the environment that is ours but this.
fn command(folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("REDRIVE_") {
            command.env_remove(name);
        }
    }
    // Without a configuration it would ask whatever listens on the default port.
    let is_configured = folder.join("redrive.toml").exists() || args.contains(&"--config");
    if !is_configured && !args.contains(&"serve") && !args.contains(&"gateway") {
        command.env("REDRIVE_SERVER_LISTEN", "127.0.0.1:1");
    }
    command.args(args).envs(variables.iter().copied()).env("USER", "ada").current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A run to its end. It is on a thread of its own: the server that is asked runs on this one.
pub(crate) async fn run(folder: &Path, args: &[&str], variables: &[(&str, &str)], stdin: &str) -> Said {
    let (mut command, stdin) = (command(folder, args, variables), stdin.to_owned());
    let running = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().expect("the program starts");
        let mut input = child.stdin.take().expect("a stdin");
        // One that does not read it has nothing against it.
        let _ = input.write_all(stdin.as_bytes());
        drop(input);
        Said::of(child.wait_with_output().expect("it ends"), "")
    });
    running.await.expect("it ran")
}

/// The program, while it runs.
pub(crate) struct Running {
    child: Child,
    talk: BufReader<ChildStderr>,
    said: String,
}

impl Running {
    pub(crate) fn start(folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = command(folder, args, variables).spawn().expect("the program starts");
        let talk = BufReader::new(child.stderr.take().expect("a stderr"));
        Self { child, talk, said: String::new() }
    }

    /// Returns when it has said a line with this in it, or nothing more.
    pub(crate) fn hear(&mut self, sign: &str) {
        while self.talk.read_line(&mut self.said).expect("talk") > 0 && !self.said.contains(sign) {}
    }

    /// Sends Ctrl-C.
    pub(crate) fn interrupt(&self) {
        let sent = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// It runs to its end.
    pub(crate) fn end(mut self) -> Said {
        self.talk.read_to_string(&mut self.said).expect("talk");
        Said::of(self.child.wait_with_output().expect("it ends"), &self.said)
    }
}

/// A run against a server that hears Ctrl-C once it has said a line that begins like this.
pub(crate) async fn interrupted(server: &TestServer, args: &[&str], sign: &str) -> Said {
    let mut running = Running::start(server.folder.path(), args, &[("REDRIVE_URL", &server.url(""))]);
    let sign = format!("redrive: {sign}");
    let running = tokio::task::spawn_blocking(move || {
        running.hear(&sign);
        running.interrupt();
        running.end()
    });
    running.await.expect("it ran")
}

/// A run against a server.
pub(crate) async fn ask(server: &TestServer, args: &[&str]) -> Said {
    run(server.folder.path(), args, &[("REDRIVE_URL", &server.url(""))], "").await
}
