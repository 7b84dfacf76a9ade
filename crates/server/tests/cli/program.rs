//! The program, run to its end.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::house::House;

/// What a run said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
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

/// A run in a folder of its own, with nothing in the environment that is ours but this.
pub(crate) async fn run(folder: &Path, args: &[&str], variables: &[(&str, &str)], stdin: &str) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("REDRIVE_") {
            command.env_remove(name);
        }
    }
    command.args(args).envs(variables.iter().copied()).env("USER", "ada").current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let stdin = stdin.to_owned();
    // On a thread of its own: the server that is asked runs on this one.
    let running = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().expect("the program starts");
        let mut input = child.stdin.take().expect("a stdin");
        // One that does not read it has nothing against it.
        let _ = input.write_all(stdin.as_bytes());
        drop(input);
        child.wait_with_output().expect("it ends")
    });
    let output = running.await.expect("it ran");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A run against a server.
pub(crate) async fn ask(house: &House, args: &[&str]) -> Said {
    run(house.folder.path(), args, &[("REDRIVE_URL", &house.url(""))], "").await
}
