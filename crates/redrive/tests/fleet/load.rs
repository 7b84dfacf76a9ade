//! The load: a publisher with a connection that is never cut, until it is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use redrive::engine::{OpenOptions, Redrive};
use redrive::store::postgres::sqlx::{self, Connection, PgConnection};
use redrive::{Event, Published};
use redrive_testkit::postgres::Server;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::node;

/// How many keys there are.
const KEYS: u64 = 16;
/// The keys of slow events: so many that each key is done with one before the next arrives.
const STEP_KEYS: u64 = 64;
/// How often a batch is published: some hundred events a second, so that some attempt is always running.
const EVERY: Duration = Duration::from_millis(40);

/// A publisher.
pub(crate) struct Load {
    is_over: Arc<AtomicBool>,
    /// How many batches there were.
    batches: watch::Receiver<u64>,
    publishing: JoinHandle<Vec<String>>,
}

impl Load {
    /// Returns after this many more batches.
    pub(crate) async fn more(&mut self, count: u64) {
        let until = *self.batches.borrow_and_update() + count;
        self.batches.wait_for(|batches| *batches >= until).await.unwrap();
    }

    /// Stops; returns the names of all accepted events, with their queues.
    pub(crate) async fn stop(self) -> Vec<String> {
        self.is_over.store(true, Relaxed);
        self.publishing.await.unwrap()
    }
}

/// Creates the tables, and begins.
pub(crate) async fn start(server: &Server) -> Load {
    let mut conn = PgConnection::connect(&server.url()).await.unwrap();
    sqlx::raw_sql(node::TABLES).execute(&mut conn).await.unwrap();
    let redrive = OpenOptions::new().postgres(node::settings("load")).open(&server.url()).await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let (told, batches) = watch::channel(0);
    let publishing = tokio::spawn(publish(redrive, Arc::clone(&is_over), told));
    Load { is_over, batches, publishing }
}

async fn publish(redrive: Redrive, is_over: Arc<AtomicBool>, told: watch::Sender<u64>) -> Vec<String> {
    let mut published = Vec::new();
    let mut pace = tokio::time::interval(EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for n in 0_u64.. {
        if is_over.load(Relaxed) {
            break;
        }
        let (key, count) = (n % KEYS, n / KEYS);
        let orders = [key, (key + KEYS / 2) % KEYS].map(|key| {
            let key = format!("key{key}{}", if n % KEYS == key { "a" } else { "b" });
            Event::new("orders", format!("{key}-{count}")).key(key)
        });
        let call = (n % 2 == 0).then(|| Event::new("calls", n.to_string()));
        let steps = [
            Event::new("jobs", n.to_string()),
            Event::new("steps", n.to_string()).key((n % STEP_KEYS).to_string()),
        ];
        let events: Vec<Event> = orders.into_iter().chain(call).chain(steps).collect();
        let names: Vec<String> = events.iter().map(|event| format!("{}/{}", event.queue, event.id)).collect();
        for (answer, name) in redrive.publish_all(events).await.unwrap().into_iter().zip(names) {
            assert!(matches!(answer.unwrap(), Published::Accepted(_)), "{name} is new");
            published.push(name);
        }
        told.send_replace(n + 1);
        pace.tick().await;
    }
    redrive.shutdown(Duration::ZERO).await.unwrap();
    published
}
