//! One process: runs the queues until its stdin ends.
//!
//! | queue | handler | what must hold |
//! |---|---|---|
//! | `orders` | in the database's transaction, ordered by key | one row in `effect` each, in the order of their key |
//! | `calls` | outside of it: says when it starts, over a line that nobody cuts | none starts under a lease that is over |
//! | `steps`, `jobs` | outside of it, ordered by key or not, and take their time | each is settled by its owner alone |

use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use redrive::engine::{Options, Timepiece, Transaction};
use redrive::prelude::*;
use redrive::store::postgres::Settings;
use redrive::store::postgres::sqlx::{self, PgPool};
use redrive::{Delivery, Event, Failure, Redrive};
use redrive_testkit::crash;

use crate::{LEASE, NODES};

/// The way to the database that may be cut, and one that is not.
const URL: &str = "REDRIVE_TEST_URL";
const DIRECT: &str = "REDRIVE_TEST_DIRECT";
const NAME: &str = "REDRIVE_TEST_NAME";
/// By how many seconds the clock of its machine is wrong.
const WRONG: &str = "REDRIVE_TEST_WRONG";
/// What a process says when it runs.
pub(crate) const READY: &str = "ready";
/// How long a call may take: less than a lease, so that none begins that would outlast it.
const CALL: Duration = Duration::from_millis(500);
/// Who needs longer than this to say that it starts was stopped in between.
const STOPPED: Duration = Duration::from_millis(400);

/// The tables of this test, in the database beside those of the store.
pub(crate) const TABLES: &str = "
    CREATE TABLE effect (place BIGSERIAL PRIMARY KEY, id TEXT NOT NULL, key TEXT NOT NULL, n BIGINT NOT NULL, node TEXT);
    CREATE TABLE started (id TEXT NOT NULL, node TEXT, is_late BOOLEAN NOT NULL, took BIGINT)";

/// The settings of all.
pub(crate) fn settings(name: &str) -> Settings {
    let mut settings = Settings::default();
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
        let options = Options::new().clock(Timepiece::wrong_by(wrong)).postgres(settings(&name));
        let redrive = options.open(&url).await.unwrap();
        set_up(&redrive, &direct, &name).await;
        // Whoever has published to a queue knows that it keeps no order, and settles in the shortest way.
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
    // One at a time, so that some wait in memory while another is under way.
    let calls = redrive.queue("calls").concurrency(1);
    calls.policy(policy().attempt_time(CALL).build().unwrap()).handle(call).await.unwrap();
    for queue in ["steps", "jobs"] {
        let slow = redrive.queue(queue).concurrency(12);
        let slow = if queue == "steps" { slow.ordered() } else { slow };
        slow.policy(policy().attempt_time(LEASE / 2).build().unwrap()).handle(take_time).await.unwrap();
    }
}

/// Takes its time, so that many are under way when a process is stopped or not heard; they are settled when it is woken,
/// or heard again, and by then they are under way at somebody else's. There is a way to settle for each: done in order,
/// done without, and to run again.
async fn take_time(step: Delivery) -> Result<(), Failure> {
    tokio::time::sleep(CALL).await;
    let is_even = step.id().bytes().last().is_some_and(|last| last % 2 == 0);
    if is_even && step.attempt() == 1 {
        return Err(Failure::transient(std::io::Error::other("not yet")));
    }
    Ok(())
}

/// Says that a call starts, and whether that was late: the event is gone, or its shard has another owner. Not counted
/// is one that stood still after it had begun.
async fn start_call(pool: PgPool, node: String, call: Delivery) -> Result<(), Failure> {
    let began = Instant::now();
    let insert = "INSERT INTO started (id, node, is_late) SELECT $1, $2, NOT EXISTS ( \
                  SELECT 1 FROM redrive.shard JOIN (SELECT seq, shard FROM redrive.live \
                  UNION ALL SELECT seq, shard FROM redrive.held) event ON event.shard = shard.id \
                  WHERE event.seq = $3 AND shard.epoch = $4) RETURNING is_late";
    let (epoch, seq) = call.token();
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
    // What is called takes its time, so that faults meet calls that are under way.
    tokio::time::sleep(CALL / 5).await;
    Ok(())
}
