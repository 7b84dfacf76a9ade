//! Forged NOTIFY: a role that may do nothing but connect to the database sends notifications on the channel of two nodes,
//! ten thousand a second: announcements of nodes, hints in the name of each node, and rubbish. They change nothing: shards
//! keep their owners, events of other callers arrive in time and once, and the database keeps no backlog of
//! notifications, which would make commits that notify fail once it is full.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive_testkit::postgres::{Disk, Server, a_name};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::campaign::Program;
use crate::stage::{in_time, scaled};
use crate::upstream::{Upstream, answer};

/// Notifications a second.
fn rate() -> usize {
    scaled(2_000, 10_000)
}

/// The share of the database's room for notifications that may be in use: 2 or 8 MiB of 8 GiB.
fn backlog_max() -> f64 {
    scaled(0.000_25, 0.001)
}

/// How long a flood goes on if it is not ended, in batches of 10 ms: a backend outlives its client.
const BATCHES_MAX: usize = 12_000;

/// `psql` as a role.
fn psql(server: &Server, role: &str, sql: &str) -> Command {
    let url = server.url().replace("redrive@", &format!("{role}@"));
    let mut command = Command::new("psql");
    command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "-v", "ON_ERROR_STOP=1"]);
    command.arg(url).args(["-c", sql]).kill_on_drop(true);
    command
}

/// What the owner of the database reads.
async fn ask(server: &Server, sql: &str) -> String {
    let output =
        in_time(psql(server, "redrive", sql).output()).await.expect("psql is needed: `cargo xtask install`");
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// How much of the database's room for notifications is in use.
async fn backlog(server: &Server) -> f64 {
    ask(server, "SELECT pg_notification_queue_usage()").await.parse().expect("a share")
}

/// Sends notifications as a role, at the rate. One in ten is as long as can be.
fn flood(server: &Server, role: &str, channel: &str, nodes: &[String]) -> Child {
    let forged = nodes.iter().map(|node| format!("PERFORM pg_notify('{channel}', '{node}');"));
    let forged: String = forged.collect();
    let batch = rate() / 100;
    let sql = format!(
        "DO $$ DECLARE began timestamptz := clock_timestamp(); BEGIN FOR round IN 1..{BATCHES_MAX} LOOP \
           FOR i IN 1..{} LOOP \
             PERFORM pg_notify('{channel}', round || '-' || i || repeat('x', CASE i % 10 WHEN 0 THEN 7900 ELSE 0 END)); \
           END LOOP; \
           PERFORM pg_notify('{channel}', 'nodes'); PERFORM pg_notify('{channel}', ''); {forged} \
           COMMIT; \
           PERFORM pg_sleep(greatest(0, extract(epoch FROM \
             began + round * interval '10 ms' - clock_timestamp()))); \
         END LOOP; END $$",
        batch.saturating_sub(2 + nodes.len())
    );
    psql(server, role, &sql).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().expect("psql is needed")
}

/// When each event was received, and how often.
type Received = Arc<Mutex<HashMap<String, Vec<Instant>>>>;

struct Stage {
    nodes: Vec<Program>,
    received: Received,
    schema: String,
    _receiver: Upstream,
    _folders: Vec<TempDir>,
}

impl Stage {
    /// Two nodes of one store, which send the events of a queue to a receiver.
    async fn open() -> Self {
        let (received, schema) = (Received::default(), a_name("forged"));
        let kept = received.clone();
        let receiver = Upstream::answering(move |asked| {
            let id = asked.header("redrive-id").unwrap_or_default();
            kept.lock().expect("no panic").entry(id).or_default().push(Instant::now());
            answer("200 OK", "", "")
        });
        let receiver = receiver.await;
        let (mut nodes, mut folders) = (Vec::new(), Vec::new());
        for node in ["a", "b"] {
            let folder = tempfile::tempdir().expect("a folder");
            let settings = format!(
                "push.allow = [\"127.0.0.0/8\"]\n[store]\naddress = \"{}\"\nschema = \"{schema}\"\nshards = 8\n\
                 node = \"{node}\"\n[queues.orders.push]\nurl = \"http://{}/\"\n",
                Server::shared().url(),
                receiver.address
            );
            std::fs::write(folder.path().join("redrive.toml"), settings).expect("settings");
            nodes.push(Program::start(folder.path()).await);
            folders.push(folder);
        }
        let stage = Self { nodes, received, schema, _receiver: receiver, _folders: folders };
        stage.shared_by(2).await;
        stage
    }

    /// Waits until so many nodes own the shards among them, and returns which owns which since when.
    async fn shared_by(&self, nodes: usize) -> String {
        let schema = &self.schema;
        let sql = format!(
            "SELECT count(DISTINCT owner) FILTER (WHERE owner > 0) || '/' || count(*) FILTER (WHERE owner > 0) || ' ' || \
             string_agg(id || ':' || coalesce(owner, 0) || ':' || epoch, ',' ORDER BY id) FROM {schema}.shard"
        );
        in_time(async {
            loop {
                let shards = ask(Server::shared(), &sql).await;
                if shards.starts_with(&format!("{nodes}/8 ")) {
                    break shards;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await
    }

    /// Publishes at the first node for so long, with keys, so that events run wherever their shard is; returns how long
    /// each took to arrive, in order.
    async fn publish(&self, name: &str, time: Duration) -> Vec<Duration> {
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let url = self.nodes[0].url("/v1/queues/orders/events");
        let (began, mut times) = (Instant::now(), Vec::new());
        while began.elapsed() < time {
            let id = format!("{name}-{}", times.len());
            let asked = Instant::now();
            let sent = client.post(&url).json(&json!({ "id": id, "key": id })).send();
            assert_eq!(in_time(sent).await.expect("an answer").status(), 202);
            let arrived = in_time(async {
                loop {
                    if let Some(at) = self.received.lock().expect("no panic").get(&id) {
                        break at[0];
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
            times.push(arrived.await - asked);
        }
        times.sort_unstable();
        times
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_notifications_change_nothing_and_hold_up_no_event() {
    let (server, stage) = (Server::shared(), Stage::open().await);
    let (mallory, channel) = (a_name("mallory"), format!("redrive_{}", stage.schema));
    ask(server, &format!("CREATE ROLE {mallory} LOGIN")).await;
    let ids = ask(server, &format!("SELECT id FROM {}.node ORDER BY id", stage.schema)).await;
    let ids: Vec<String> = ids.lines().map(str::to_owned).collect();
    let owners = stage.shared_by(2).await;
    let time = scaled(Duration::from_secs(3), Duration::from_secs(30));
    let quiet = stage.publish("quiet", time / 2).await;
    let mut flooding = flood(server, &mallory, &channel, &ids);
    let times = stage.publish("flooded", time).await;
    let p99 = times[times.len() * 99 / 100];
    // While it goes on: a node that reads more slowly than it comes never catches up.
    let used = in_time(async {
        loop {
            let used = backlog(server).await;
            if used < backlog_max() {
                break used;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let used = used.await;
    assert_eq!(flooding.try_wait().expect("a process"), None, "the flood went on");
    println!(
        "forged NOTIFY at {} Hz: {} events, p99 {p99:?} ({:?} without), {used} of the room for notifications",
        rate(),
        times.len(),
        quiet[quiet.len() * 99 / 100]
    );
    assert_eq!(stage.shared_by(2).await, owners, "no shard changed its owner");
    assert!(p99 < Duration::from_secs(scaled(5, 1)), "{p99:?}");
    // What nodes tell each other is still heard: one leaves, and the other has all shards.
    stage.nodes[1].signal(Signal::TERM);
    stage.shared_by(1).await;
    flooding.kill().await.expect("it ends");
    let received = stage.received.lock().expect("no panic");
    let twice = received.iter().filter(|(_, times)| times.len() > 1).count();
    assert_eq!((received.len(), twice), (quiet.len() + times.len(), 0), "each event arrived once");
}

/// The control: a listener that reads more slowly than the flood comes makes the database keep it.
#[tokio::test(flavor = "multi_thread")]
async fn control_a_listener_that_does_not_read_makes_the_database_keep_all() {
    // A server of its own: all databases of a server have one room for notifications.
    let server = &Server::start(Disk::Fast).expect("a server");
    let (mallory, channel) = (a_name("mallory"), a_name("deaf"));
    ask(server, &format!("CREATE ROLE {mallory} LOGIN")).await;
    let deaf = format!("LISTEN {channel}");
    let mut deaf = psql(server, "redrive", &deaf).args(["-c", "SELECT pg_sleep(600)"]).spawn().expect("psql");
    let mut flooding = flood(server, &mallory, &channel, &[]);
    in_time(async {
        while backlog(server).await < backlog_max() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    flooding.kill().await.expect("it ends");
    deaf.kill().await.expect("it ends");
}
