//! What campaigns against the real program share: `cargo xtask attack` runs them for longer than `cargo xtask test`.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// `full` under `cargo xtask attack`, `short` otherwise.
pub(crate) fn scaled<T>(short: T, full: T) -> T {
    if std::env::var("REDRIVE_ATTACK").is_ok_and(|length| length == "full") { full } else { short }
}

/// A server that runs; it ends when this is dropped.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Program {
    /// Starts `redrive serve` in a folder that has a `redrive.toml`.
    pub(crate) async fn start(folder: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REDRIVE_"));
        ours.for_each(|(name, _)| _ = command.env_remove(name));
        command.env("REDRIVE_OBSERVE_LOG_FORM", "text").args(["serve", "--listen", "127.0.0.1:0"]);
        command.current_dir(folder).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the program");
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let address = loop {
            let line = lines.next_line().await.expect("it talks").expect("it still runs");
            let named = line.split("http://").nth(1).and_then(|rest| rest.split(',').next());
            if let Some(address) = named.filter(|address| address.starts_with("127.0.0.1:")) {
                break address.trim().to_owned();
            }
        };
        // Read on, so that it is never held up by what it says.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { child, address }
    }

    /// The address of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let id = i32::try_from(self.child.id().expect("it runs")).expect("a process id");
        let id = rustix::process::Pid::from_raw(id).expect("a process id");
        rustix::process::kill_process(id, signal).expect("it is signalled");
    }
}
