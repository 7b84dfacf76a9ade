//! The driver of a library, made ready and run.

use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;

/// How long anything may take that has to happen, on a machine that does much else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    TypeScript,
    Go,
}

impl Language {
    /// The command that runs the driver. `None` if its tools are missing, which fails where `CI` is set.
    pub(crate) fn driver(self) -> Option<Vec<String>> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients");
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
        let text = |path: PathBuf| path.to_str().expect("a path in UTF-8").to_owned();
        let ready = match self {
            Self::Python => Ok(vec!["python3".to_owned(), text(sources.join("python/tests/driver.py"))]),
            Self::TypeScript => typescript(&sources.join("typescript"), &made.join("typescript"))
                .map(|()| vec!["node".to_owned(), text(made.join("typescript/test/driver.mjs"))]),
            Self::Go => {
                let program = text(made.join("go-driver"));
                run(Command::new("go")
                    .args(["build", "-o", &program, "./driver"])
                    .current_dir(sources.join("go")))
                .map(|()| vec![program])
            }
        };
        match ready {
            Ok(words) => Some(words),
            Err(error) if std::env::var_os("CI").is_none() => {
                eprintln!("{self:?} is not tested: {error}; `cargo xtask install` brings its tools");
                None
            }
            Err(error) => panic!("{self:?}: {error}"),
        }
    }
}

/// Compiles the library in a folder of its own, so that nothing is left beside its source.
fn typescript(source: &Path, made: &Path) -> Result<(), String> {
    for part in ["src", "test"] {
        std::fs::create_dir_all(made.join(part)).map_err(|error| error.to_string())?;
    }
    let listed = |folder: &str| std::fs::read_dir(source.join(folder)).expect("a folder of the library");
    let sources = ["src", "test"].into_iter().flat_map(|folder| {
        listed(folder)
            .map(move |entry| format!("{folder}/{}", entry.expect("an entry").file_name().display()))
    });
    for file in sources.chain(["package.json", "tsconfig.json"].map(str::to_owned)) {
        std::fs::copy(source.join(&file), made.join(&file)).map_err(|error| format!("{file}: {error}"))?;
    }
    if !made.join("node_modules/typescript/bin/tsc").exists() {
        let flags = ["install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"];
        run(Command::new("npm").args(flags).current_dir(made))?;
    }
    run(Command::new("node").arg("node_modules/typescript/bin/tsc").current_dir(made))
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("cannot run `{name}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("`{name}` failed: {}", String::from_utf8_lossy(&said)))
}

/// A driver that runs, and what it writes.
pub(crate) struct Driver {
    child: Child,
    stdin: Option<ChildStdin>,
    said: mpsc::UnboundedReceiver<Value>,
}

impl Driver {
    pub(crate) fn start(words: &[String], more: &[&str]) -> Self {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(more);
        // A proxy of the environment cannot reach this machine's own servers.
        for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"] {
            command.env_remove(name);
        }
        command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the driver starts");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
        let (tell, said) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = tell.send(serde_json::from_str(&line).unwrap_or(Value::String(line)));
            }
        });
        Self { child, stdin, said }
    }

    /// The next line; `None` once it has ended.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        tokio::time::timeout(PATIENCE, self.said.recv()).await.expect("it says nothing any more")
    }

    /// Asks, and has the answer.
    pub(crate) async fn ask(&mut self, line: &Value) -> Value {
        let stdin = self.stdin.as_mut().expect("it listens");
        writeln!(stdin, "{line}").expect("it is asked");
        stdin.flush().expect("it is asked");
        self.next().await.expect("it still runs")
    }

    /// Asks it to stop, as a supervisor does.
    pub(crate) fn terminate(&self) {
        let status =
            Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().expect("kill");
        assert!(status.success());
    }

    /// Whether it ended well, once it has.
    pub(crate) async fn ends(mut self) -> bool {
        drop(self.stdin.take());
        tokio::task::spawn_blocking(move || self.child.wait().expect("it ends").success())
            .await
            .expect("it is waited for")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Where a test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
