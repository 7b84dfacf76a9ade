//! Compare and set under contention and lost answers: no update is lost, none happens twice, and what cannot be known
//! is said.
#![cfg(all(feature = "sqlite", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::cas::postgres::PgVersionedRow;
use redrive::cas::sqlite::SqliteVersionedRow;
use redrive::cas::{
    Cas, CasError, CasFailure, CasPromise, CasSettings, CasStored, CasTarget, VersionColumn, Versions,
    blocking,
};
use redrive::postgres::sqlx::postgres::PgPoolOptions;
use redrive::postgres::sqlx::{self, Executor, PgPool};
use redrive::rusqlite::Connection;
use redrive::{Fault, RandomSource, SeededRandom};
use redrive_testkit::postgres::{Server, a_name};

const WRITERS: u64 = 100;
const EACH: u64 = 100;

/// A value in memory. A write without a version overwrites blindly.
#[derive(Debug, Default)]
struct Cell {
    value: u64,
    version: u64,
    operations: std::collections::HashSet<String>,
}

#[derive(Clone)]
struct Memory {
    cell: Arc<Mutex<Cell>>,
    remembers: bool,
    blind: bool,
}

impl CasTarget for Memory {
    type Value = u64;
    type Version = u64;
    type Error = Infallible;

    fn promise(&self) -> CasPromise {
        CasPromise { versions: Versions::Monotonic, remembers: self.remembers }
    }

    async fn load(&mut self) -> Result<(u64, u64), CasFailure<Infallible>> {
        let seen = {
            let cell = self.cell.lock().unwrap();
            (cell.value, cell.version)
        };
        // Other writers run between the load and the store.
        tokio::task::yield_now().await;
        Ok(seen)
    }

    async fn store(
        &mut self,
        seen: &u64,
        value: &u64,
        operation: &str,
    ) -> Result<CasStored, CasFailure<Infallible>> {
        let mut cell = self.cell.lock().unwrap();
        if self.remembers && cell.operations.contains(operation) {
            return Ok(CasStored::Already);
        }
        if cell.version != *seen && !self.blind {
            return Ok(CasStored::Conflict);
        }
        cell.value = *value;
        cell.version += 1;
        cell.operations.insert(operation.to_owned());
        Ok(CasStored::Written)
    }
}

/// Loses the answers of a target: one in twenty before it applies, one in twenty after.
struct Lossy<T> {
    target: T,
    random: SeededRandom,
}

enum Loss {
    Before,
    After,
    None,
}

impl<T> Lossy<T> {
    fn new(target: T, seed: u64) -> Self {
        Self { target, random: SeededRandom::new(seed) }
    }

    fn draw(&mut self) -> Loss {
        match self.random.roll() % 20 {
            0 => Loss::Before,
            1 => Loss::After,
            _ => Loss::None,
        }
    }
}

#[derive(Debug)]
struct Lost;

fn lost() -> CasFailure<Lost> {
    CasFailure { error: Lost, fault: Fault::transient() }
}

fn of<E: std::fmt::Debug>(failure: CasFailure<E>) -> CasFailure<Lost> {
    CasFailure { error: Lost, fault: failure.fault }
}

impl<T: CasTarget + Send> CasTarget for Lossy<T>
where
    T::Value: Send + Sync,
    T::Version: Send + Sync,
    T::Error: std::fmt::Debug + Send,
{
    type Value = T::Value;
    type Version = T::Version;
    type Error = Lost;

    fn promise(&self) -> CasPromise {
        self.target.promise()
    }

    async fn load(&mut self) -> Result<(T::Value, T::Version), CasFailure<Lost>> {
        self.target.load().await.map_err(of)
    }

    async fn store(
        &mut self,
        seen: &T::Version,
        value: &T::Value,
        operation: &str,
    ) -> Result<CasStored, CasFailure<Lost>> {
        match self.draw() {
            Loss::Before => Err(lost()),
            Loss::After => {
                let _ = self.target.store(seen, value, operation).await;
                Err(lost())
            }
            Loss::None => self.target.store(seen, value, operation).await.map_err(of),
        }
    }
}

impl<T: blocking::CasTarget> blocking::CasTarget for Lossy<T>
where
    T::Error: std::fmt::Debug,
{
    type Value = T::Value;
    type Version = T::Version;
    type Error = Lost;

    fn promise(&self) -> CasPromise {
        self.target.promise()
    }

    fn load(&mut self) -> Result<(T::Value, T::Version), CasFailure<Lost>> {
        self.target.load().map_err(of)
    }

    fn store(
        &mut self,
        seen: &T::Version,
        value: &T::Value,
        operation: &str,
    ) -> Result<CasStored, CasFailure<Lost>> {
        match self.draw() {
            Loss::Before => Err(lost()),
            Loss::After => {
                let _ = self.target.store(seen, value, operation);
                Err(lost())
            }
            Loss::None => self.target.store(seen, value, operation).map_err(of),
        }
    }
}

/// What became of the increments.
#[derive(Debug, Default)]
struct Tally {
    applied: AtomicU64,
    unknown: AtomicU64,
    not_applied: AtomicU64,
}

impl Tally {
    fn count<V, E>(&self, ended: &Result<V, CasError<E>>) {
        let counter = match ended {
            Ok(_) => &self.applied,
            Err(CasError::Unknown { .. }) => &self.unknown,
            Err(_) => &self.not_applied,
        };
        counter.fetch_add(1, Relaxed);
    }

    fn all(&self) -> (u64, u64, u64) {
        (self.applied.load(Relaxed), self.unknown.load(Relaxed), self.not_applied.load(Relaxed))
    }
}

fn patient() -> CasSettings {
    CasSettings { attempts: 2_000, ..CasSettings::default() }
}

/// 100 writers, 100 increments each, on one value in memory; the time is paused, so waits cost none.
async fn increments(remembers: bool, blind: bool) -> (u64, Arc<Tally>) {
    let memory = Memory { cell: Arc::default(), remembers, blind };
    let tally = Arc::new(Tally::default());
    let writers = (0..WRITERS).map(|writer| {
        let (tally, mut target) = (tally.clone(), Lossy::new(memory.clone(), writer));
        tokio::spawn(async move {
            for n in 0..EACH {
                let cas = Cas::new(format!("{writer}/{n}")).settings(patient());
                tally.count(&cas.change(&mut target, |value| value + 1).await);
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let value = memory.cell.lock().unwrap().value;
    (value, tally)
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_increments_are_ten_thousand_where_operations_are_remembered() {
    let (value, tally) = increments(true, false).await;
    assert_eq!((value, tally.all()), (WRITERS * EACH, (WRITERS * EACH, 0, 0)));
}

#[tokio::test(start_paused = true)]
async fn increments_that_cannot_be_told_are_said_to_be_unknown() {
    let (value, tally) = increments(false, false).await;
    let (applied, unknown, not_applied) = tally.all();
    println!("{applied} applied, {unknown} unknown, {not_applied} not applied; the value is {value}");
    assert_eq!(applied + unknown + not_applied, WRITERS * EACH);
    assert!((applied..=applied + unknown).contains(&value), "{value} of {applied} and {unknown}");
    assert!(unknown > 0 && value > applied, "some of the unknown ones were applied, and some were not");
}

#[tokio::test(start_paused = true)]
async fn blind_overwrites_lose_updates() {
    let (value, tally) = increments(false, true).await;
    let (applied, ..) = tally.all();
    println!("{applied} writers were told that they succeeded; the value is {value}");
    assert!(value < applied, "{value} of {applied}");
}

fn columns() -> VersionColumn {
    VersionColumn::new("stock", "article", "pieces", "version").unwrap()
}

const TABLE: &str = "CREATE TABLE stock (article TEXT PRIMARY KEY, pieces BIGINT, version BIGINT NOT NULL)";

fn opened(folder: &tempfile::TempDir) -> Connection {
    let file = Connection::open(folder.path().join("shop.db")).unwrap();
    file.pragma_update(None, "journal_mode", "wal").unwrap();
    file.pragma_update(None, "synchronous", "off").unwrap();
    file.busy_timeout(Duration::from_secs(60)).unwrap();
    file
}

#[test]
fn a_row_in_sqlite_counts_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = opened(&folder);
    file.execute_batch(TABLE).unwrap();
    redrive::cas::sqlite::create(&file).unwrap();
    SqliteVersionedRow::<_, i64>::new(&mut file, columns(), "teapot").insert(0).unwrap();
    let tally = Tally::default();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (tally, mut file) = (&tally, opened(&folder));
            scope.spawn(move || {
                let row = SqliteVersionedRow::<_, i64>::new(&mut file, columns(), "teapot");
                let mut row = Lossy::new(row, writer);
                for n in 0..50 {
                    let cas = Cas::new(format!("{writer}/{n}")).settings(patient());
                    tally.count(&cas.change_blocking(&mut row, |pieces| pieces + 1));
                }
            });
        }
    });
    let pieces: i64 = file.query_row("SELECT pieces FROM stock", [], |row| row.get(0)).unwrap();
    assert_eq!((pieces, tally.all()), (200, (200, 0, 0)));
    assert_eq!(redrive::cas::sqlite::forget(&file, Duration::from_secs(3600)).unwrap(), 0);
}

async fn database() -> PgPool {
    let schema = a_name("cas");
    let name = schema.clone();
    let pool = PgPoolOptions::new()
        .max_connections(6)
        .after_connect(move |conn, _| {
            let path = format!("CREATE SCHEMA IF NOT EXISTS {name}; SET search_path TO {name}");
            Box::pin(async move { conn.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(path))).await.map(drop) })
        })
        .connect(&Server::shared().url())
        .await
        .unwrap();
    pool.execute(TABLE).await.unwrap();
    redrive::cas::postgres::create(&pool).await.unwrap();
    pool
}

#[tokio::test]
async fn a_row_in_postgres_counts_exactly() {
    let pool = database().await;
    let row = PgVersionedRow::<_, i64>::new(pool.clone(), columns(), "teapot".to_owned());
    row.insert(0).await.unwrap();
    let tally = Arc::new(Tally::default());
    let writers = (0..5).map(|writer| {
        let (tally, mut row) = (tally.clone(), Lossy::new(row.clone(), writer));
        tokio::spawn(async move {
            for n in 0..20 {
                let cas = Cas::new(format!("{writer}/{n}")).settings(patient());
                tally.count(&cas.change(&mut row, |pieces| pieces + 1).await);
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let pieces: i64 = sqlx::query_scalar("SELECT pieces FROM stock").fetch_one(&pool).await.unwrap();
    assert_eq!((pieces, tally.all()), (100, (100, 0, 0)));
    assert_eq!(redrive::cas::postgres::forget(&pool, Duration::ZERO).await.unwrap(), 100);
}

#[tokio::test]
async fn a_version_that_restarts_lets_a_sleeping_writer_in_and_one_that_does_not_keeps_it_out() {
    let pool = database().await;
    let mut row = PgVersionedRow::<_, i64>::new(pool.clone(), columns(), "teapot".to_owned()).forgetting();
    let delete = "DELETE FROM stock";
    let again = "INSERT INTO stock VALUES ('teapot', 100, 1)";

    // Shown: versions that count within the row start again with it.
    pool.execute("INSERT INTO stock VALUES ('teapot', 7, 1)").await.unwrap();
    let (seven, version) = row.load().await.unwrap();
    pool.execute(delete).await.unwrap();
    pool.execute(again).await.unwrap();
    let stored = row.store(&version, &(seven - 1), "sleeper").await.unwrap();
    assert_eq!(stored, CasStored::Written, "six pieces, of a row that had a hundred");

    // Refused: versions from one sequence never return.
    pool.execute(delete).await.unwrap();
    row.insert(7).await.unwrap();
    let (seven, version) = row.load().await.unwrap();
    pool.execute(delete).await.unwrap();
    row.insert(100).await.unwrap();
    assert_eq!(row.store(&version, &(seven - 1), "sleeper").await.unwrap(), CasStored::Conflict);

    // Where versions may return, a lost answer is unknown at once: nothing that follows proves anything.
    let mut lossy = Lossy::new(row.opaque(), 0);
    lossy.random =
        SeededRandom::new((0..).find(|seed| SeededRandom::new(*seed).roll().is_multiple_of(20)).unwrap());
    let ended = Cas::new("restock").change(&mut lossy, |pieces| pieces + 1).await;
    assert!(matches!(ended, Err(CasError::Unknown { attempts: 1, .. })), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn the_bound_and_the_callers_own_refusal_end_it() {
    let cell = Arc::new(Mutex::new(Cell { value: 0, ..Cell::default() }));
    let mut memory = Memory { cell: cell.clone(), remembers: true, blind: false };
    let declined = Cas::new("a").change_if(&mut memory, |pieces| pieces.checked_sub(1)).await;
    assert!(matches!(declined, Err(CasError::Declined)), "{declined:?}");
    let few = CasSettings { attempts: 3, ..CasSettings::default() };
    let busy = Cas::new("b").settings(few);
    let ended = busy
        .change(&mut memory, |value| {
            cell.lock().unwrap().version += 1;
            value + 1
        })
        .await;
    assert!(matches!(ended, Err(CasError::GaveUp { attempts: 3, .. })), "{ended:?}");
    assert!(ended.unwrap_err().to_string().starts_with("gave up after 3 attempts, nothing is written"));
}
