//! A private Kafka: started by a test, on free ports and in a folder of its own, gone with the test.
//!
//! The server is Apache Kafka itself, one node in KRaft mode, run by `java` from jars that `cargo xtask install` fetches
//! once into a cache folder. A shell holds it, and the test process holds the other end of the shell's input: however that
//! process ends, the server ends too and its folder is removed.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "test code: a panic is its way to fail")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Error, Result};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// The versions that the tests run on.
pub const VERSIONS: [&str; 2] = ["3.9.2", "4.3.1"];
/// The server's message when it is ready.
const READY: &str = "Kafka Server started";
/// How many of its last lines are kept, to be shown if it does not start.
const LINES_KEPT: usize = 60;
/// How long a start may take on a loaded machine.
const START: Duration = Duration::from_secs(300);

/// Holds a server: `$1` is the folder, the rest is its command. It ends when the server does, or when its input ends.
const HOLDER: &str = r#"
folder=$1; shift
exec 3<&0
"$@" </dev/null &
server=$!
echo "pid $server"
( cat <&3 >/dev/null
  kill -9 $server 2>/dev/null
  while kill -0 $server 2>/dev/null; do sleep 0.1; done
  rm -rf "$folder" ) &
watch=$!
wait $server
status=$?
kill $watch 2>/dev/null
wait $watch 2>/dev/null
exit $status
"#;

/// A Kafka server.
#[derive(Debug)]
pub struct Kafka {
    folder: PathBuf,
    libs: PathBuf,
    port: u16,
    life: Mutex<Option<Life>>,
}

#[derive(Debug)]
struct Life {
    holder: Child,
    _input: ChildStdin,
    pid: u32,
}

/// The folder that holds the jars of each version.
#[must_use]
pub fn cache() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    cache.unwrap_or_else(home).join("redrive-kafka")
}

impl Kafka {
    /// The server of a version that the tests of this process share; `None` if its jars are not here, which is a failure
    /// with `CI=true`.
    #[must_use]
    pub fn shared(version: &str) -> Option<Arc<Self>> {
        static SHARED: LazyLock<Mutex<HashMap<String, Option<Arc<Kafka>>>>> = LazyLock::new(Mutex::default);
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shared.entry(version.to_owned()).or_insert_with(|| Self::start(version).map(Arc::new)).clone()
    }

    /// Starts a server; `None` if its jars are not here, which is a failure with `CI=true`.
    ///
    /// # Panics
    /// If it does not start: with its last lines.
    #[must_use]
    pub fn start(version: &str) -> Option<Self> {
        let libs = cache().join(version).join("libs");
        if !libs.join(format!("kafka_2.13-{version}.jar")).exists() {
            let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!is_ci, "Kafka {version} is not in {}; run `cargo xtask install`", cache().display());
            eprintln!("skipped: Kafka {version} is not here; run `cargo xtask install`");
            return None;
        }
        Some(Self::make(&libs, version).unwrap())
    }

    fn make(libs: &Path, version: &str) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("redrive-kafka-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        let (port, controller) = (free_port()?, free_port()?);
        std::fs::write(folder.join("server.properties"), properties(&folder, port, controller))?;
        let kafka = Self { folder, libs: libs.to_owned(), port, life: Mutex::default() };
        let id = "cmVkcml2ZS10ZXN0cy0wMQ";
        let formatted = kafka.java("kafka.tools.StorageTool", &["format", "-t", id, "-c"]).output()?;
        if !formatted.status.success() {
            let said = String::from_utf8_lossy(&formatted.stderr).into_owned();
            return Err(Error::other(format!("Kafka {version} cannot format its folder: {said}")));
        }
        kafka.start_again()?;
        Ok(kafka)
    }

    fn java(&self, class: &str, words: &[&str]) -> Command {
        let mut command = Command::new("java");
        command.args(self.words(class, words));
        command
    }

    fn words(&self, class: &str, words: &[&str]) -> Vec<String> {
        let mut all: Vec<String> =
            ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"].map(str::to_owned).into();
        all.push(format!("{}/*", self.libs.display()));
        all.push("-Dorg.slf4j.simpleLogger.defaultLogLevel=info".to_owned());
        all.push(class.to_owned());
        all.extend(words.iter().map(|word| (*word).to_owned()));
        all.push(self.folder.join("server.properties").display().to_string());
        all
    }

    /// Its address, for clients.
    #[must_use]
    pub fn servers(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts it after it was killed; returns when it can be used.
    ///
    /// # Errors
    /// If it does not start: with its last lines.
    pub fn start_again(&self) -> Result<()> {
        let mut holder = Command::new("sh");
        holder.args(["-c", HOLDER, "sh"]).arg(&self.folder).arg("java").args(self.words("kafka.Kafka", &[]));
        // A signal to the test's process group must not end the shell that cleans up.
        holder.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = holder.spawn()?;
        let input = child.stdin.take().unwrap();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (pid, its_pid) = std::sync::mpsc::channel();
        let streams: [Box<dyn std::io::Read + Send>; 2] = [Box::new(out), Box::new(err)];
        for stream in streams {
            let (kept, ready, pid) = (Arc::clone(&lines), ready.clone(), pid.clone());
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if line.contains(READY) {
                        let _ = ready.send(());
                    }
                    if let Some(number) = line.strip_prefix("pid ").and_then(|number| number.parse().ok()) {
                        let _ = pid.send(number);
                    }
                    let mut kept = kept.lock().unwrap();
                    kept.push(line);
                    if kept.len() > LINES_KEPT {
                        kept.remove(0);
                    }
                }
            });
        }
        drop(ready);
        if is_ready.recv_timeout(START).is_err() {
            let said = lines.lock().unwrap().join("\n");
            return Err(Error::other(format!("Kafka did not start:\n{said}")));
        }
        let pid = its_pid.recv_timeout(START).map_err(Error::other)?;
        *self.life.lock().unwrap() = Some(Life { holder: child, _input: input, pid });
        Ok(())
    }

    /// Kills it as a power cut would; its folder stays.
    pub fn kill(&self) {
        let Some(mut life) = self.life.lock().unwrap().take() else { return };
        let _ = Command::new("kill").args(["-9", &life.pid.to_string()]).status();
        // The shell sees the server's end before the end of its input, and leaves the folder alone.
        let _ = life.holder.wait();
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// One node that is broker and controller, quick to start and to come back.
fn properties(folder: &Path, port: u16, controller: u16) -> String {
    let logs = folder.join("logs");
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={logs}
num.partitions=1
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=200
auto.create.topics.enable=false
",
        logs = logs.display()
    )
}
