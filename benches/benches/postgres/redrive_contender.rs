//! Our side: Redrive's engine over its store in PostgreSQL, with everything as it ships.
//!
//! - Life cycles, one by one: `callers` tasks, each of which publishes one event, and the next one when its handler
//!   has run. With several nodes each has its share of the callers, and the node that runs an event wakes its caller.
//! - Life cycles, in bulk: a task for each node that publishes as many in one call as were handled since its last.
//! - With `--waiting`: so many were published before, and the clock runs from the start of the engine to the last
//!   commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use redrive::engine::{OpenOptions, Redrive};
use redrive::{Delivery, Event};
use redrive_benches::turn::{self, Outcome, Publisher};
use redrive_store::Postgres;
use redrive_store::postgres::PostgresSettings;
use sqlx::{Connection, PgConnection};
use tokio::sync::{Notify, Semaphore};

use crate::Fallible;
use crate::progress_reader::{ProgressReader, outcome};
use crate::turn_args::TurnArgs;

/// As it is called on the command line.
pub(crate) const NAME: &str = "ours";

/// The queue that all events go through.
pub(crate) const QUEUE: &str = "events";

/// What counts those that may run and are not done.
const LEFT: &str = "SELECT count(*) FROM redrive.fresh";

/// How long those under way have at the end.
const GRACE: Duration = Duration::from_secs(5);

/// How many are published in a call where there is no hurry.
const BATCH: usize = 1_000;

/// The callers that wait for a handler.
struct Waiting {
    callers: Vec<Notify>,
    room: Vec<Semaphore>,
    handled: AtomicU64,
    bulk: bool,
    first: u64,
}

impl Waiting {
    fn handled(&self, delivery: &Delivery) {
        self.handled.fetch_add(1, Relaxed);
        let number = number(delivery).saturating_sub(self.first);
        let place = |many: usize| usize::try_from(number).unwrap_or_default() % many;
        if self.bulk {
            self.room[place(self.room.len())].add_permits(1);
        } else {
            self.callers[place(self.callers.len())].notify_one();
        }
    }
}

/// Measures one turn.
pub(crate) async fn measure(told: &TurnArgs) -> Fallible<Outcome> {
    let waiting = Arc::new(Waiting {
        callers: (0..told.turn.callers).map(|_| Notify::new()).collect(),
        room: (0..told.nodes).map(|_| Semaphore::new(told.turn.callers / told.nodes)).collect(),
        handled: AtomicU64::new(0),
        bulk: told.turn.publisher == Publisher::Bulk,
        first: told.first,
    });
    let mut nodes = Vec::new();
    for number in 0..told.nodes {
        let mut settings = PostgresSettings::default();
        settings.name = format!("node {number}");
        let store = Arc::new(Postgres::open(&told.url, settings).await?);
        let redrive = OpenOptions::new().over(store);
        // A queue is set up in the same way, however many run it.
        let at_once = u32::try_from(told.turn.callers)?;
        let woken = waiting.clone();
        let handler = move |delivery: Delivery| {
            woken.handled(&delivery);
            std::future::ready(())
        };
        redrive.queue(QUEUE).concurrency(at_once).handle(handler).await?;
        nodes.push(redrive);
    }
    match told.waiting {
        Some(count) => drain(told, &nodes[0], &waiting, count).await,
        None => life(told, &nodes, &waiting).await,
    }
}

async fn life(told: &TurnArgs, nodes: &[Redrive], waiting: &Arc<Waiting>) -> Fallible<Outcome> {
    for node in nodes {
        node.start().await?;
    }
    until_shared(told).await?;
    let published = Arc::new(AtomicU64::new(0));
    if waiting.bulk {
        for (at, node) in nodes.iter().enumerate() {
            let (waiting, count, node) = (waiting.clone(), published.clone(), node.clone());
            let events = events(told.first, at, nodes.len());
            tokio::spawn(async move { publish_in_bulk(&node, &waiting.room[at], &count, events).await });
        }
    } else {
        for caller in 0..waiting.callers.len() {
            let (waiting, count) = (waiting.clone(), published.clone());
            let node = nodes[caller % nodes.len()].clone();
            let events = events(told.first, caller, waiting.callers.len());
            tokio::spawn(async move {
                for event in events {
                    node.publish(event).await?;
                    count.fetch_add(1, Relaxed);
                    waiting.callers[caller].notified().await;
                }
                Fallible::Ok(())
            });
        }
    }
    let mut gauge = ProgressReader::open(told, LEFT).await?;
    let outcome = gauge.between(told, || published.load(Relaxed)).await;
    // The next user of the database need not wait until these leases expire.
    for node in nodes {
        node.shutdown(GRACE).await?;
    }
    outcome
}

/// Returns when every node has its shards.
async fn until_shared(told: &TurnArgs) -> Fallible<()> {
    let mut conn = PgConnection::connect(&told.url).await?;
    let owners = "SELECT count(DISTINCT owner) FROM redrive.shard JOIN redrive.node ON node.id = owner \
                  AND until > clock_timestamp() HAVING count(*) = (SELECT count(*) FROM redrive.shard)";
    let nodes = i64::try_from(told.nodes)?;
    while sqlx::query_scalar::<_, i64>(owners).fetch_optional(&mut conn).await? != Some(nodes) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Publishes as long as the program runs, or until something fails.
async fn publish_in_bulk(
    node: &Redrive,
    room: &Semaphore,
    published: &AtomicU64,
    mut events: impl Iterator<Item = Event> + Send,
) -> Fallible<()> {
    loop {
        let many = room.available_permits().max(1);
        room.acquire_many(u32::try_from(many)?).await?.forget();
        let answers = node.publish_all(events.by_ref().take(many)).await?;
        published.fetch_add(answers.len() as u64, Relaxed);
    }
}

/// From the start of the engine until all that waits is done.
async fn drain(told: &TurnArgs, node: &Redrive, waiting: &Waiting, count: u64) -> Fallible<Outcome> {
    let mut events = events(told.first, 0, 1).take(usize::try_from(count)?);
    loop {
        let batch: Vec<Event> = events.by_ref().take(BATCH).collect();
        if batch.is_empty() {
            break;
        }
        for published in node.publish_all(batch).await? {
            published?;
        }
    }
    let mut gauge = ProgressReader::open(told, LEFT).await?;
    let settings = gauge.settings().await?;
    let before = gauge.look().await?;
    node.start().await?;
    while waiting.handled.load(Relaxed) < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    node.idle().await;
    let after = gauge.look().await?;
    if (before.left, after.left) != (count, 0) {
        return Err(format!("{} of {count} waited, and {} are left", before.left, after.left).into());
    }
    Ok(outcome(before, after, count, count, settings))
}

/// The events of one caller; their numbers differ from those of all others.
fn events(first: u64, one: usize, of: usize) -> impl Iterator<Item = Event> + Send {
    let numbers = (first + one as u64..).step_by(of);
    numbers.map(|number| Event::new(QUEUE, turn::id(number)).payload(turn::payload(number)))
}

fn number(delivery: &Delivery) -> u64 {
    let head = delivery.payload().get(..20).unwrap_or_default();
    std::str::from_utf8(head).ok().and_then(turn::number).unwrap_or_default()
}
