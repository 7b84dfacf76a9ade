//! The processes, and their faults.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use redrive::engine::{OpenOptions, Redrive};
use redrive::store::nodes::NodeList;
use redrive_testkit::postgres::{Proxy, Server, Weather};
use rustix::process::{Pid, Signal, kill_process};

use crate::notices::Notices;
use crate::witness::known_as;
use crate::{GRACE, LEASE, NODES, node};

/// How long a process may take to start or to end, and shards to be even again, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// By how many seconds the clocks of the machines are wrong.
const WRONG: [i64; NODES] = [3600, -3600, 0];

/// How long a query takes at most on an idle machine. It waits for no lock, so any time beyond that the machine was
/// suspended or busy, and so was every other client of the database.
const QUICK: Duration = Duration::from_millis(100);

/// How long a takeover took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Took {
    pub(crate) took: Duration,
    /// For how long of it the machine was suspended or busy.
    pub(crate) stood: Duration,
}

/// A fault of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Killed by a signal that cannot be caught, and started again.
    Killed,
    /// Stopped for longer than its lease, and woken.
    Stopped,
    /// None of its messages arrives for longer than its lease; then they do.
    Hushed,
    /// Its connections are cut, and it cannot connect for longer than its lease.
    Torn,
    /// Asked to end, and started again.
    AskedToEnd,
}

impl Fault {
    pub(crate) const ALL: [Self; 5] =
        [Self::Killed, Self::Stopped, Self::Hushed, Self::Torn, Self::AskedToEnd];

    /// How long it may take until other processes own all shards. A process that ends hands its shards back, and
    /// announces it.
    pub(crate) fn bound(self) -> Duration {
        if self == Self::AskedToEnd { GRACE } else { LEASE + GRACE }
    }
}

/// The processes.
pub(crate) struct Fleet {
    direct: String,
    /// The engine that queries the owners.
    looker: Redrive,
    /// Signals changes: of heartbeats, and of owners.
    notices: Notices,
    nodes: Vec<Member>,
}

struct Member {
    name: String,
    /// By how many seconds the clock of its machine is wrong.
    wrong: i64,
    line: Proxy,
    life: Life,
}

struct Life {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Life {
    fn start(name: &str, wrong: i64, line: &Proxy, direct: &str) -> Self {
        let mut command = node::command(name, wrong, &known_as(name, &line.url()), direct);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == node::READY), "{name} did not start");
        // The child must not wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, stdin }
    }

    fn signal(&self, signal: Signal) {
        // Not reaped yet, so the pid is still its own.
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

impl Fleet {
    /// Starts all, and waits until each has its share.
    pub(crate) async fn start(server: &Server) -> Self {
        let direct = server.url();
        let looker = OpenOptions::new().postgres(node::settings("looker")).open(&direct).await.unwrap();
        let notices = Notices::of(server, "owners", &["node", "shard"]).await;
        let member = |number| {
            let (name, line) = (format!("node-{number}"), Proxy::start(server).unwrap());
            let wrong = WRONG[number];
            let life = Life::start(&name, wrong, &line, &direct);
            Member { name, wrong, line, life }
        };
        let mut fleet = Self { nodes: (0..NODES).map(member).collect(), looker, notices, direct };
        fleet.until_even().await;
        fleet
    }

    /// Injects a fault into one of them. Returns how long it took until other processes owned all of its shards. When
    /// this returns, all run again, and each has its share.
    pub(crate) async fn suffer(&mut self, victim: usize, fault: Fault) -> Took {
        let before = self.look().await;
        let name = self.nodes[victim].name.clone();
        let alive = |node: &&redrive::store::nodes::Node| node.name == name && node.is_alive();
        let id = before.list.iter().find(alive).unwrap().id;
        let Member { line, life, .. } = &mut self.nodes[victim];
        let mut began = Instant::now();
        match fault {
            Fault::Killed => life.signal(Signal::KILL),
            Fault::Stopped => life.signal(Signal::STOP),
            Fault::Hushed => line.turn(Weather::Hushed),
            Fault::Torn => line.turn(Weather::Torn),
            Fault::AskedToEnd => {
                drop(life.stdin.take());
                let status = life.child.wait().unwrap();
                assert!(status.success(), "{name} ended with {status}");
                began = Instant::now();
            }
        }
        let mut stood = Duration::ZERO;
        let took = loop {
            let asked = Instant::now();
            let nodes = self.look().await;
            stood += asked.elapsed().saturating_sub(QUICK);
            if nodes.owned_by(id) == 0 && nodes.shards.iter().all(|row| row.owner.is_some()) {
                break Took { took: began.elapsed(), stood };
            }
            let left = PATIENCE.saturating_sub(began.elapsed());
            self.notices.next(left, || format!("no process takes over from {name}: {nodes:?}")).await;
        };
        let Member { line, life, name, wrong } = &mut self.nodes[victim];
        match fault {
            Fault::Killed | Fault::AskedToEnd => *life = Life::start(name, *wrong, line, &self.direct),
            Fault::Stopped => life.signal(Signal::CONT),
            Fault::Hushed | Fault::Torn => line.turn(Weather::Fair),
        }
        self.until_even().await;
        assert!(
            self.nodes[victim].life.child.try_wait().unwrap().is_none(),
            "node {victim} ended after {fault:?}"
        );
        took
    }

    /// Ends all.
    pub(crate) async fn end(self) {
        for Member { name, mut life, .. } in self.nodes {
            drop(life.stdin.take());
            let status = life.child.wait().unwrap();
            assert!(status.success(), "{name} ended with {status}");
        }
        self.looker.shutdown(Duration::ZERO).await.unwrap();
    }

    async fn look(&self) -> NodeList {
        self.looker.nodes().await.unwrap().unwrap()
    }

    /// Waits until all live, and each has its share.
    async fn until_even(&mut self) {
        let began = Instant::now();
        loop {
            let nodes = self.look().await;
            let sharing = nodes.sharing();
            let share = nodes.shards.len() / NODES;
            if sharing.len() == NODES && sharing.iter().all(|id| nodes.owned_by(*id) == share) {
                return;
            }
            let left = PATIENCE.saturating_sub(began.elapsed());
            self.notices.next(left, || format!("shards are not shared out evenly: {nodes:?}")).await;
        }
    }
}
