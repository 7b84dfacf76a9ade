//! The load: somebody who publishes, over a line that nobody cuts, until told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use redrive::engine::{Options, Redrive};
use redrive::store::postgres::sqlx::{self, Connection, PgConnection};
use redrive::{Event, Published};
use redrive_testkit::postgres::Server;
use tokio::task::JoinHandle;

use crate::node;

/// How many keys there are.
const KEYS: u64 = 16;
/// How long to wait after each batch: some hundred events a second, so that there is always something under way.
const PAUSE: Duration = Duration::from_millis(40);

/// Somebody who publishes.
pub(crate) struct Load {
    is_over: Arc<AtomicBool>,
    publishing: JoinHandle<Vec<String>>,
}

impl Load {
    /// Stops; gives the names of all that was accepted, with their queues.
    pub(crate) async fn stop(self) -> Vec<String> {
        self.is_over.store(true, Relaxed);
        self.publishing.await.unwrap()
    }
}

/// Makes the tables, and begins.
pub(crate) async fn start(server: &Server) -> Load {
    let mut conn = PgConnection::connect(&server.url()).await.unwrap();
    sqlx::raw_sql(node::TABLES).execute(&mut conn).await.unwrap();
    let redrive = Options::new().postgres(node::settings("load")).open(&server.url()).await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let publishing = tokio::spawn(publish(redrive, Arc::clone(&is_over)));
    Load { is_over, publishing }
}

async fn publish(redrive: Redrive, is_over: Arc<AtomicBool>) -> Vec<String> {
    let mut published = Vec::new();
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
        let events: Vec<Event> = orders.into_iter().chain(call).collect();
        let names: Vec<String> = events.iter().map(|event| format!("{}/{}", event.queue, event.id)).collect();
        for (answer, name) in redrive.publish_all(events).await.unwrap().into_iter().zip(names) {
            assert!(matches!(answer.unwrap(), Published::Accepted(_)), "{name} is new");
            published.push(name);
        }
        tokio::time::sleep(PAUSE).await;
    }
    redrive.shutdown(Duration::ZERO).await.unwrap();
    published
}
