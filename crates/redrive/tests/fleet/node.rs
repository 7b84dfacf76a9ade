//! One process: runs the queues until its stdin ends.
//!
//! | queue | handler | invariant |
//! |---|---|---|
//! | `orders` | in the database's transaction, ordered by key | one row in `effect` each, in the order of their key |
//! | `calls` | outside of it: reports its start, over a connection that is never cut | none starts under an expired lease |
//! | `steps`, `jobs` | outside of it, ordered by key or not, and take their time | each is settled by its owner alone |

use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use redrive::engine::{EventClock, OpenOptions, Transaction};
use redrive::prelude::*;
use redrive::store::postgres::PostgresSettings;
use redrive::store::postgres::sqlx::{self, PgPool};
use redrive::{Delivery, Event, Failure, Redrive};
use redrive_testkit::crash;

use crate::{LEASE, NODES};

/// The address of the database that may be cut, and one that is not.
const URL: &str = "REDRIVE_TEST_URL";
const DIRECT: &str = "REDRIVE_TEST_DIRECT";
const NAME: &str = "REDRIVE_TEST_NAME";
/// By how many seconds the clock of its machine is wrong.
const WRONG: &str = "REDRIVE_TEST_WRONG";
/// What a process prints when it runs.
pub(crate) const READY: &str = "ready";
/// How long a call may take: less than a lease, so that none begins that would outlast it.
const CALL: Duration = Duration::from_millis(500);
/// A process that needs longer than this to report its start was suspended in between.
const STOPPED: Duration = Duration::from_millis(400);

/// The tables of this test, in the database beside those of the store.
pub(crate) const TABLES: &str = "
    CREATE TABLE effect (place BIGSERIAL PRIMARY KEY, id TEXT NOT NULL, key TEXT NOT NULL, n BIGINT NOT NULL, node TEXT);
    CREATE TABLE started (id TEXT NOT NULL, node TEXT, is_late BOOLEAN NOT NULL, took BIGINT)";

/// The settings of all.
pub(crate) fn settings(name: &str) -> PostgresSettings {
    let mut settings = PostgresSettings::default();
    (settings.shards, settings.connections, settings.lease) = (4 * u32::try_from(NODES).unwrap(), 8, LEASE);
    name.clone_into(&mut settings.name);
    settings
}

/// The command that runs a process.
pub(crate) fn command(name: &str, wrong: i64, url: &str, direct: &str) -> Command {
    let mut command = crash::this_test("as_a_node");
    command.env(WRONG, wrong.to_string());
    command.env(URL, url).env(DIRECT, direct).env(NAME, name).env("RUST_BACKTRACE", "0");
    command
}

/// Runs, if this is such a process.
pub(crate) fn run() {
    let Ok(url) = std::env::var(URL) else { return };
    let (direct, name) = (std::env::var(DIRECT).unwrap(), std::env::var(NAME).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let wrong = std::env::var(WRONG).unwrap().parse().unwrap();
        let options = OpenOptions::new().clock(EventClock::wrong_by(wrong)).postgres(settings(&name));
        let redrive = options.open(&url).await.unwrap();
        set_up(&redrive, &direct, &name).await;
        // A process that has published to a queue knows that it keeps no order, and settles on the fast path.
        let first = Event::new("jobs", format!("{name}-{}", std::process::id()));
        redrive.publish(first).await.unwrap();
        redrive.start().await.unwrap();
        println!("\n{READY}");
        std::io::stdout().flush().unwrap();
        let told_to_end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        tokio::select! {
            _ = told_to_end => {}
            error = redrive.failed() => panic!("the engine stopped: {error}"),
        }
        redrive.shutdown(CALL * 4).await.unwrap();
    });
}

async fn set_up(redrive: &Redrive, direct: &str, name: &str) {
    let policy = || {
        let wait = Backoff::constant(Duration::from_millis(20));
        Policy::builder().attempts(200).backoff(wait).no_budget()
    };
    let node = name.to_owned();
    let order = move |tx: &mut Transaction<'_>, order: &Delivery| {
        let (key, n) = order.id().split_once('-').unwrap();
        let n: i64 = n.parse().unwrap();
        let insert = "INSERT INTO effect (id, key, n, node) VALUES ($1, $2, $3, $4)";
        let values = [order.id().into(), key.into(), n.into(), node.as_str().into()];
        tx.execute(insert, &values).map_err(Failure::transient)?;
        // Some fail the first time, after their effect.
        if n % 7 == 0 && order.attempt() == 1 {
            return Err(Failure::transient(std::io::Error::other("not yet")));
        }
        Ok(())
    };
    let orders = redrive.queue("orders").ordered().concurrency(8);
    orders.policy(policy().build().unwrap()).handle_in(order).await.unwrap();
    let pool = PgPool::connect_lazy(direct).unwrap();
    let node = name.to_owned();
    let call = move |call: Delivery| start_call(pool.clone(), node.clone(), call);
    // One at a time, so that some wait in memory while another runs.
    let calls = redrive.queue("calls").concurrency(1);
    calls.policy(policy().attempt_time(CALL).build().unwrap()).handle(call).await.unwrap();
    for queue in ["steps", "jobs"] {
        let slow = redrive.queue(queue).concurrency(12);
        let slow = if queue == "steps" { slow.ordered() } else { slow };
        slow.policy(policy().attempt_time(LEASE / 2).build().unwrap()).handle(take_time).await.unwrap();
    }
}

/// Takes its time, so that many attempts are running when a process is suspended or unreachable. It settles them when
/// it is back, and by then they run in another process. There is one for each way to settle: done in order, done
/// without order, and retried.
async fn take_time(step: Delivery) -> Result<(), Failure> {
    tokio::time::sleep(CALL).await;
    let is_even = step.id().bytes().last().is_some_and(|last| last % 2 == 0);
    if is_even && step.attempt() == 1 {
        return Err(Failure::transient(std::io::Error::other("not yet")));
    }
    Ok(())
}

/// Reports that a call starts, and whether that was late: the event is gone, or its shard has another owner. A call
/// that was suspended after it had begun does not count.
async fn start_call(pool: PgPool, node: String, call: Delivery) -> Result<(), Failure> {
    let began = Instant::now();
    let insert = "INSERT INTO started (id, node, is_late) SELECT $1, $2, NOT EXISTS ( \
                  SELECT 1 FROM redrive.shard JOIN (SELECT seq, shard FROM redrive.fresh \
                  UNION ALL SELECT seq, shard FROM redrive.tracked) event ON event.shard = shard.id \
                  WHERE event.seq = $3 AND shard.epoch = $4) RETURNING is_late";
    let (epoch, seq) = (call.fence().epoch, call.seq());
    let query = sqlx::query_scalar(insert).bind(call.id().to_owned()).bind(node.clone());
    let query = query.bind(i64::try_from(seq).unwrap()).bind(i64::try_from(epoch).unwrap());
    let is_late: bool = query.fetch_one(&pool).await.map_err(Failure::transient)?;
    if is_late && began.elapsed() < STOPPED {
        let tell = sqlx::query("UPDATE started SET took = $3 WHERE id = $1 AND node = $2 AND is_late");
        let millis = i64::try_from(began.elapsed().as_millis()).unwrap();
        tell.bind(call.id().to_owned())
            .bind(node)
            .bind(millis)
            .execute(&pool)
            .await
            .map_err(Failure::transient)?;
    }
    // The called service takes its time, so that faults meet running calls.
    tokio::time::sleep(CALL / 5).await;
    Ok(())
}
