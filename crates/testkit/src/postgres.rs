//! A private PostgreSQL: started by a test, in a folder of its own, gone with the test.
//!
//! It listens on a socket in that folder, so two servers never want the same port. It cannot be left behind:
//! a shell holds it, and the test process holds the other end of the shell's input. However that process
//! ends, the input ends with it; the shell then stops the server and removes the folder.
//!
//! PostgreSQL does not run as root. If the test runs as root, the server runs as `postgres` or another
//! unprivileged user.
//!
//! Starting a server takes a second or two, so the tests of one process share one ([`Server::shared`]) and
//! have a schema each ([`a_name`]); tests that stop it or cut its connections have their own.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "test code: a panic is its way to fail")]

use std::io::{BufRead, BufReader, Result};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};

mod pooler;

mod proxy;

pub use pooler::Pooler;
pub use proxy::{Cut, Proxy, Weather};

/// Where Debian and Red Hat keep the programs that are not on the path.
const PLACES: [&str; 2] = ["/usr/lib/postgresql", "/usr/pgsql"];
/// The server's message when it is ready; its messages are in the locale C.
const READY: &str = "database system is ready to accept connections";
/// How many of its last lines are kept, to be shown if it does not start.
const LINES_KEPT: usize = 50;

/// Holds a server: `$1` is the folder, the rest is its command. It ends when the server does, or when its
/// input ends.
const HOLDER: &str = r#"
folder=$1; shift
exec 3<&0
"$@" </dev/null &
server=$!
( cat <&3 >/dev/null
  trap '' TERM
  kill -QUIT $server 2>/dev/null
  while kill -0 $server 2>/dev/null; do sleep 0.1; done
  rm -rf "$folder" ) &
watch=$!
wait $server
status=$?
kill $watch 2>/dev/null
wait $watch 2>/dev/null
exit $status
"#;

/// How durable the server's commits are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// Not at all: the fastest, for tests without crashes.
    Fast,
    /// As in production.
    Synced,
}

/// How the server is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Rolls back transactions and writes everything.
    Fast,
    /// As if it had crashed: the next start recovers.
    Immediate,
}

/// A PostgreSQL server.
#[derive(Debug)]
pub struct Server {
    folder: PathBuf,
    programs: PathBuf,
    user: Option<User>,
    disk: Disk,
    settings: Vec<String>,
    life: Option<(Child, ChildStdin)>,
}

/// The user that runs the server, if the test runs as root.
#[derive(Debug, Clone)]
struct User {
    name: String,
    uid: u32,
    gid: u32,
}

impl Server {
    /// Makes a server and starts it.
    ///
    /// # Errors
    /// If there is no PostgreSQL here, or it does not start: with its last lines.
    pub fn start(disk: Disk) -> Result<Self> {
        Self::start_with(disk, &[])
    }

    /// The same with additional settings, as `name=value`.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_with(disk: Disk, settings: &[&str]) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("redrive-pg-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        let is_root = folder.metadata()?.uid() == 0;
        let user = if is_root { Some(unprivileged()?) } else { None };
        if let Some(user) = &user {
            chown(&folder, Some(user.uid), Some(user.gid))?;
        }
        let mut server = Self { folder, programs: programs()?, user, disk, settings: Vec::new(), life: None };
        server.settings.extend(settings.iter().map(|setting| (*setting).to_owned()));
        let made = server
            .command("initdb")
            .args(["--username=redrive", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"])
            .arg("--pgdata")
            .arg(server.data())
            .output()?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr).into_owned();
            return Err(std::io::Error::other(format!("initdb failed: {said}")));
        }
        server.start_again()?;
        Ok(server)
    }

    /// The server that all tests of this process share. Not synced: nothing of it survives the process.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<Server> = LazyLock::new(|| Server::start(Disk::Fast).unwrap());
        &SHARED
    }

    /// Its URL, for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://redrive@localhost/postgres?host={}", self.folder.display())
    }

    /// Starts it after it was stopped; returns when it can be used.
    ///
    /// # Errors
    /// If it does not start: with its last lines.
    pub fn start_again(&mut self) -> Result<()> {
        let onoff = if self.disk == Disk::Fast { "off" } else { "on" };
        let mut holder = self.command_of(Path::new("sh"));
        holder.args(["-c", HOLDER, "sh"]).arg(&self.folder).arg(self.programs.join("postgres"));
        holder.arg("-D").arg(self.data()).arg("-k").arg(&self.folder);
        let usual = [
            "listen_addresses=".to_owned(),
            "max_connections=200".to_owned(),
            "shared_buffers=64MB".to_owned(),
            format!("fsync={onoff}"),
            format!("full_page_writes={onoff}"),
            format!("synchronous_commit={onoff}"),
        ];
        for setting in usual.iter().chain(&self.settings) {
            holder.arg("-c").arg(setting);
        }
        // A signal to the test's process group must not end the shell that cleans up.
        holder.process_group(0);
        let mut child = holder.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let (input, talk) = (child.stdin.take().unwrap(), child.stderr.take().unwrap());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let kept = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(talk).lines().map_while(Result::ok) {
                if line.contains(READY) {
                    let _ = ready.send(());
                }
                let mut kept = kept.lock().unwrap();
                kept.push(line);
                if kept.len() > LINES_KEPT {
                    kept.remove(0);
                }
            }
        });
        // The reader ends with the server, and `ready` with the reader.
        if is_ready.recv().is_err() {
            let said = lines.lock().unwrap().join("\n");
            return Err(std::io::Error::other(format!("PostgreSQL did not start:\n{said}")));
        }
        self.life = Some((child, input));
        Ok(())
    }

    /// Stops it; returns when it is gone.
    ///
    /// # Errors
    /// If the signal could not be sent.
    pub fn stop(&mut self, how: Stop) -> Result<()> {
        let Some((mut child, _input)) = self.life.take() else { return Ok(()) };
        let how = if how == Stop::Fast { "fast" } else { "immediate" };
        let mut stop = self.command("pg_ctl");
        stop.args(["stop", "--silent", "--mode", how, "--pgdata"]).arg(self.data());
        let told = stop.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        child.wait()?;
        if told.success() { Ok(()) } else { Err(std::io::Error::other(format!("pg_ctl stop: {told}"))) }
    }

    /// Writes a file into its folder that only the server may read; returns its path.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn give(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        if let Some(user) = &self.user {
            chown(&path, Some(user.uid), Some(user.gid))?;
        }
        Ok(path)
    }

    /// Stops it, and starts it with more settings.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn restart_with(&mut self, settings: &[&str]) -> Result<()> {
        self.settings.extend(settings.iter().map(|setting| (*setting).to_owned()));
        self.stop(Stop::Fast)?;
        self.start_again()
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn command(&self, program: &str) -> Command {
        self.command_of(&self.programs.join(program))
    }

    fn command_of(&self, program: &Path) -> Command {
        let mut command = match &self.user {
            None => Command::new(program),
            Some(user) => {
                let mut command = Command::new("runuser");
                command.args(["-u", &user.name, "--"]).arg(program);
                command
            }
        };
        command.current_dir(&self.folder).env_remove("PGDATA").env("LC_ALL", "C");
        // Settings in the user's environment must not apply here.
        for variable in ["PGPORT", "PGHOST", "PGOPTIONS", "PGSERVICE"] {
            command.env_remove(variable);
        }
        command
    }
}

impl Drop for Server {
    /// Stops it immediately, and removes its folder.
    fn drop(&mut self) {
        if let Some((mut child, input)) = self.life.take() {
            drop(input);
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A port that is free now.
///
/// # Errors
/// If there is none.
pub fn a_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// A name that no other test of this process has, for a schema or a database.
#[must_use]
pub fn a_name(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{what}_{}", COUNT.fetch_add(1, Relaxed))
}

/// The folder of the newest server's programs.
fn programs() -> Result<PathBuf> {
    let has = |folder: &PathBuf| folder.join("initdb").exists();
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(folder) = std::env::split_paths(&path).find(has) {
        // If it is a link, the other programs are where it leads to.
        let program = std::fs::canonicalize(folder.join("initdb"))?;
        return Ok(program.parent().map_or(folder, Path::to_owned));
    }
    let versions = PLACES.iter().filter_map(|place| std::fs::read_dir(place).ok()).flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|version| {
            let number = version.file_name().to_str()?.parse().ok()?;
            Some((number, version.path().join("bin"))).filter(|(_, folder)| has(folder))
        })
        .collect();
    found.sort();
    let newest = found.pop().map(|(_, folder)| folder);
    newest.ok_or_else(|| std::io::Error::other("there is no PostgreSQL here; run `cargo xtask install`"))
}

/// A user other than root.
fn unprivileged() -> Result<User> {
    let users = std::fs::read_to_string("/etc/passwd")?;
    let named = |wanted: &str| {
        users.lines().find_map(|line| {
            let mut parts = line.split(':');
            let name = parts.next().filter(|name| *name == wanted)?.to_owned();
            let (uid, gid) = (parts.nth(1)?.parse().ok()?, parts.next()?.parse().ok()?);
            Some(User { name, uid, gid })
        })
    };
    let user = named("postgres").or_else(|| named("nobody"));
    user.ok_or_else(|| std::io::Error::other("root may not run PostgreSQL, and there is no other user"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_can_be_stopped_and_started_and_leaves_nothing() {
        let mut server = Server::start(Disk::Fast).unwrap();
        let folder = server.folder.clone();
        let answers = |server: &Server| {
            let mut ask = server.command("psql");
            ask.args(["-U", "redrive", "-d", "postgres", "-h"]).arg(&server.folder).args(["-c", "SELECT 1"]);
            let said = ask.output().unwrap();
            if said.status.success() {
                Ok(())
            } else {
                Err(String::from_utf8_lossy(&said.stderr).into_owned())
            }
        };
        answers(&server).unwrap();
        for how in [Stop::Immediate, Stop::Fast] {
            server.stop(how).unwrap();
            answers(&server).unwrap_err();
            server.start_again().unwrap();
            answers(&server).unwrap();
        }
        drop(server);
        assert!(!folder.exists());
    }

    #[test]
    fn a_server_ends_with_whoever_started_it() {
        let mut server = Server::start(Disk::Fast).unwrap();
        let folder = server.folder.clone();
        let (mut child, input) = server.life.take().unwrap();
        // Like the death of this process, which does not call `Drop`.
        std::mem::forget(server);
        drop(input);
        child.wait().unwrap();
        assert!(!folder.exists());
    }
}
