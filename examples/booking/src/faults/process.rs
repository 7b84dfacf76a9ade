//! One process of a program: its planned end, and its address.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::{api, crash_points, program};

/// The signal that cannot be caught.
const SIGKILL: i32 = 9;
/// The variable of the store's own points, where Redrive is built with them.
const STORE_POINTS: &str = "REDRIVE_CRASH_AT";

/// Which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Api,
    Provider,
    Mailer,
}

/// How a program is started.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) role: Role,
    /// Its name, also of its log file.
    pub(crate) name: &'static str,
    pub(crate) folder: PathBuf,
    /// The address of the store, for the API.
    pub(crate) store: String,
    /// How long a run of the API has a key before it has to renew.
    pub(crate) lease: Duration,
    /// Where the API finds the provider and the email program.
    pub(crate) others: [String; 2],
}

/// A crash point, and how often the process passes it before it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) name: &'static str,
    pub(crate) time: u64,
    /// Whether it is a point of the store.
    pub(crate) in_store: bool,
}

/// The arguments of a process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PlannedEnd {
    pub(crate) dies_at: Option<Point>,
    pub(crate) stops_at: Option<Point>,
}

/// The output of a process.
pub(crate) type Said = Lines<BufReader<ChildStdout>>;

/// A process.
#[derive(Debug)]
pub(crate) struct AppProcess {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) said: Said,
    /// It ends when this does.
    _stdin: ChildStdin,
}

impl Setting {
    /// Starts a life.
    pub(crate) async fn start(&self, fate: PlannedEnd) -> anyhow::Result<Option<AppProcess>> {
        let mut command = Command::new(std::env::current_exe()?);
        match self.role {
            Role::Api => command.arg("api").arg(&self.store).args(&self.others),
            Role::Provider => command.arg("provider").arg(&self.folder),
            Role::Mailer => command.arg("mailer").arg(&self.folder),
        };
        command.env(api::LEASE, self.lease.as_millis().to_string());
        command.env_remove(crash_points::CRASH).env_remove(crash_points::STOP).env_remove(STORE_POINTS);
        for (point, variable) in [(fate.dies_at, crash_points::CRASH), (fate.stops_at, crash_points::STOP)] {
            if let Some(Point { name, time, in_store }) = point {
                command.env(if in_store { STORE_POINTS } else { variable }, format!("{name}:{time}"));
            }
        }
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log())?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut child = command.spawn().context("cannot start a program of ours")?;
        let stdin = child.stdin.take().context("its stdin")?;
        let mut said = BufReader::new(child.stdout.take().context("its stdout")?).lines();
        let mut line = said.next_line().await?.unwrap_or_default();
        // A process that owns the outbox from the start may reach its crash point before it listens.
        while line == crash_points::STOPPING {
            tokio::time::sleep(self.lease * 5 / 2).await;
            signal(&child, Signal::CONT);
            line = said.next_line().await?.unwrap_or_default();
        }
        let Some(address) = line.strip_prefix(program::LISTENING) else {
            // At a crash point before it listens.
            let status = child.wait().await?;
            if fate.dies_at.is_some() && is_killed(status) {
                return Ok(None);
            }
            bail!("{} did not start: {status}; see {}", self.name, self.log().display());
        };
        let address = address.parse().context("its address")?;
        Ok(Some(AppProcess { child, address, said, _stdin: stdin }))
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }
}

impl AppProcess {
    /// Stops it, as a debugger or a machine without memory does.
    pub(crate) fn stop(&self) {
        signal(&self.child, Signal::STOP);
    }

    /// Continues it.
    pub(crate) fn wake(&self) {
        signal(&self.child, Signal::CONT);
    }
}

fn signal(child: &Child, signal: Signal) {
    // Not reaped yet, so the pid is still its own.
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
        let _ = kill_process(pid, signal);
    }
}

/// Waits until a process says that it stops.
pub(crate) async fn stops(said: &mut Said) {
    while let Ok(Some(line)) = said.next_line().await {
        if line == crash_points::STOPPING {
            return;
        }
    }
    // It has ended, which others wait for.
    std::future::pending::<()>().await;
}

/// Whether it ended by the signal that cannot be caught.
pub(crate) fn is_killed(status: ExitStatus) -> bool {
    status.signal() == Some(SIGKILL)
}
