//! graphile_worker under the load of the bench of PostgreSQL: `rival-graphile --work life … --url …` measures one turn
//! and prints its outcome.
//!
//! - As it ships: every default of its worker.
//! - As its own bench has it (`benches/perf_test.rs`): 500 at once, looks every 5 ms, completions gathered for 5 ms, a
//!   local queue of 5,000, and 100 connections.
//!
//! Jobs are added in bulk, as many in one call as were handled since the last; with `--waiting` so many were added
//! before, which is what its own bench does, and the clock runs until none is left, or for half a minute.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext, WorkerOptions,
    WorkerUtils,
};
use redrive_benches::turn::{self, Outcome, Setup, Turn, WARM_UP, value};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection, Row};
use tokio::sync::Semaphore;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const SCHEMA: &str = "graphile_worker";

/// Connections, as its own bench has them.
const CONNECTIONS: u32 = 100;

/// How long it has for what waits. As it ships, it takes up what it is told of, and little of what is there already.
const LONGEST: Duration = Duration::from_secs(30);

/// Jobs in a call where there is no hurry.
const BATCH: u64 = 5_000;

#[derive(Debug, Serialize, Deserialize)]
struct Event {
    data: String,
}

/// What handlers tell.
#[derive(Debug, Clone)]
struct Handled(Arc<Load>);

#[derive(Debug)]
struct Load {
    room: Semaphore,
    handled: AtomicU64,
    published: AtomicU64,
}

impl TaskHandler for Event {
    const IDENTIFIER: &'static str = "event";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(Handled(load)) = ctx.get_ext::<Handled>() {
            load.handled.fetch_add(1, Relaxed);
            load.room.add_permits(1);
        }
        Ok::<(), String>(())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match measure().await {
        Ok(outcome) => {
            println!("{}", outcome.to_line());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure() -> Result<Outcome, Failure> {
    let args: Vec<String> = std::env::args().collect();
    let (turn, url) = (Turn::from_args(&args)?, value(&args, "--url")?);
    let waiting = value(&args, "--waiting").ok().map(str::parse::<u64>).transpose()?;
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
    let database: graphile_worker::Database = pool.into();
    let utils = WorkerUtils::new(database.clone(), SCHEMA);
    utils.migrate().await?;
    let load = Arc::new(Load {
        room: Semaphore::new(turn.callers),
        handled: AtomicU64::new(0),
        published: AtomicU64::new(0),
    });
    let mut options = WorkerOptions::default()
        .database(database)
        .schema(SCHEMA)
        .add_extension(Handled(load.clone()))
        .define_job::<Event>();
    let mut said = "its defaults";
    if turn.setup == Setup::Full {
        said = "500 at once, poll 5 ms, completions 5 ms, local queue 5000";
        options = options
            .concurrency(500)
            .poll_interval(Duration::from_millis(5))
            .complete_job_batch_delay(Duration::from_millis(5))
            .local_queue(LocalQueueConfig::default().with_size(5000));
    }
    if let Some(count) = waiting {
        for first in (0..count).step_by(usize::try_from(BATCH)?) {
            add(&utils, first..count.min(first + BATCH)).await?;
        }
    }
    let worker = options.init().await?;
    let mut gauge = Gauge(PgConnection::connect(url).await?);
    let before = gauge.look().await?;
    tokio::spawn(async move {
        // It has no reason to end.
        let ended = worker.run().await;
        eprintln!("graphile_worker: the worker ended: {ended:?}");
        std::process::exit(1);
    });
    let settings = gauge.settings(said).await?;
    let Some(count) = waiting else {
        tokio::spawn(publish(utils, load.clone()));
        tokio::time::sleep(WARM_UP).await;
        let (before, earlier) = (gauge.look().await?, load.published.load(Relaxed));
        tokio::time::sleep(turn.time).await;
        let (after, later) = (gauge.look().await?, load.published.load(Relaxed));
        let done = (later + before.left).saturating_sub(earlier + after.left);
        return Ok(outcome(before, after, done, done + later - earlier, settings));
    };
    let began = Instant::now();
    let mut after = gauge.look().await?;
    while after.left > 0 && began.elapsed() < LONGEST {
        // Reading the backlog takes time from the workers.
        let is_handled = load.handled.load(Relaxed) >= count;
        tokio::time::sleep(Duration::from_millis(if is_handled { 1 } else { 20 })).await;
        if is_handled || began.elapsed() >= LONGEST {
            after = gauge.look().await?;
        }
    }
    let done = count - after.left;
    let settings = if done == count { settings } else { format!("{settings}; {} not done by then", after.left) };
    Ok(outcome(before, after, done, done, settings))
}

/// Publishes as long as the program runs.
async fn publish(utils: WorkerUtils, load: Arc<Load>) {
    let mut next = 0;
    loop {
        let many = load.room.available_permits().max(1);
        let Ok(taken) = load.room.acquire_many(u32::try_from(many).unwrap_or(1)).await else { return };
        taken.forget();
        let many = many as u64;
        if let Err(error) = add(&utils, next..next + many).await {
            eprintln!("graphile_worker: {error}");
            std::process::exit(1);
        }
        next += many;
        load.published.fetch_add(many, Relaxed);
    }
}

async fn add(utils: &WorkerUtils, numbers: std::ops::Range<u64>) -> Result<(), Failure> {
    let jobs: Vec<RawJobSpec> = numbers
        .map(|number| RawJobSpec {
            identifier: Event::IDENTIFIER.to_owned(),
            payload: serde_json::json!({ "data": turn::payload(number) }),
            spec: JobSpec::default(),
        })
        .collect();
    utils.add_raw_jobs(&jobs).await?;
    Ok(())
}

struct Gauge(PgConnection);

#[derive(Clone, Copy)]
struct Look {
    at: f64,
    transactions: u64,
    left: u64,
}

impl Gauge {
    async fn look(&mut self) -> Result<Look, Failure> {
        let look = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, \
                    (SELECT count(*) FROM graphile_worker._private_jobs)";
        let row = sqlx::query(look).fetch_one(&mut self.0).await?;
        let number = |at| row.try_get::<i64, _>(at).map(i64::unsigned_abs);
        Ok(Look { at: turn::now(), transactions: number(0)?, left: number(1)? })
    }

    async fn settings(&mut self, said: &str) -> Result<String, Failure> {
        let ask = "SELECT 'fsync=' || current_setting('fsync') || ', synchronous_commit=' \
                   || current_setting('synchronous_commit')";
        let settings: String = sqlx::query_scalar(ask).fetch_one(&mut self.0).await?;
        Ok(format!("{settings}; {said}"))
    }
}

fn outcome(before: Look, after: Look, done: u64, writes: u64, settings: String) -> Outcome {
    let transactions = (after.transactions - before.transactions).max(1);
    Outcome { done, from: before.at, to: after.at, transactions, writes, p50_us: None, settings }
}
