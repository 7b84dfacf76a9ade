//! Shared by the tests of moves: a store with everything in it, and all queries of a store.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redrive_core::event::State;
use redrive_core::queue_entry::{EventChange, LoadRequest, QueueEntry, SettleRequest, StreamId, TakenShard};
use redrive_core::triage::Filter;
use redrive_core::{Event, Moment, RandomSource, SeededRandom};
use redrive_store::ledger::LedgerQuery;
use redrive_store::moving::{
    self, MoveControl, MoveError, MoveOptions, MoveProgress, MoveReport, StoreLocation,
};
use redrive_store::operate::{GroupBy, GroupQuery};
use redrive_store::postgres::sqlx::{self, AssertSqlSafe, Connection as _, PgConnection};
use redrive_store::{
    DeclaredBy, EventQuery, NewEvent, Postgres, QueueSpec, Sqlite, Store, Tx, TxJob, postgres, sqlite,
};
use redrive_testkit::postgres::Server;

pub(crate) mod fill;

/// A moment, in seconds since some midnight.
pub(crate) fn at(secs: u64) -> Moment {
    Moment::from_nanos((1_800_000_000 + secs) * 1_000_000_000)
}

/// When all queries are made.
pub(crate) const NOW: u64 = 5_000;

/// A random source with the methods needed here.
pub(crate) struct Chance(SeededRandom);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SeededRandom::new(SeededRandom::new(seed).roll()))
    }

    /// A number below this one.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0.roll() % n.max(1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()].clone()
    }
}

pub(crate) fn open_file(path: &Path) -> Arc<dyn Store> {
    let mut settings = sqlite::SqliteSettings::default();
    settings.disk_least = 0;
    Arc::new(Sqlite::open(path, settings).unwrap())
}

pub(crate) async fn publish(store: &dyn Store, id: &str) -> Result<(), String> {
    let event = NewEvent::at(Event::new("orders", id), at(1));
    let published = store.publish(vec![event]).await.map_err(|error| error.to_string())?.remove(0);
    published.map(drop).map_err(|error| error.to_string())
}

/// A file with this many events in it, closed.
pub(crate) async fn file_with(path: &Path, events: usize) -> StoreLocation {
    let store = open_file(path);
    store
        .declare(QueueSpec { name: "orders".to_owned(), ..QueueSpec::default() }, DeclaredBy::Runner)
        .await
        .unwrap();
    for id in 1..=events {
        publish(&*store, &id.to_string()).await.unwrap();
    }
    store.close().await.unwrap();
    StoreLocation::File(path.to_owned())
}

pub(crate) fn settings(schema: &str) -> postgres::PostgresSettings {
    let mut settings = postgres::PostgresSettings::default();
    schema.clone_into(&mut settings.schema);
    settings.connections = 8;
    settings
}

pub(crate) async fn open_database(schema: &str) -> Arc<dyn Store> {
    Arc::new(Postgres::open(&Server::shared().url(), settings(schema)).await.unwrap())
}

/// Why a database cannot be opened.
pub(crate) async fn why_closed(schema: &str) -> String {
    Postgres::open(&Server::shared().url(), settings(schema)).await.unwrap_err().to_string()
}

pub(crate) fn database(schema: &str) -> StoreLocation {
    StoreLocation::Database(Server::shared().url(), settings(schema))
}

/// Runs a statement on the server; `redrive.` is the schema.
pub(crate) async fn say(schema: &str, sql: &str) -> Vec<sqlx::postgres::PgRow> {
    let mut conn = PgConnection::connect(&Server::shared().url()).await.unwrap();
    let sql = sql.replace("redrive.", &format!("{schema}."));
    sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut conn).await.unwrap()
}

/// Moves a store.
pub(crate) async fn run(
    from: &StoreLocation,
    to: &StoreLocation,
    options: MoveOptions,
) -> Result<MoveReport, MoveError> {
    run_while(from, to, options, |_| MoveControl::On).await
}

/// Moves a store until the callback stops it.
pub(crate) async fn run_while(
    from: &StoreLocation,
    to: &StoreLocation,
    options: MoveOptions,
    told: impl FnMut(&MoveProgress) -> MoveControl + Send + 'static,
) -> Result<MoveReport, MoveError> {
    let (from, to) = (from.clone(), to.clone());
    tokio::task::spawn_blocking(move || moving::run(&from, &to, &options, told)).await.unwrap()
}

/// A file with everything in it, closed, and the results of all queries.
pub(crate) async fn full_file(path: PathBuf, seed: u64) -> (StoreLocation, String) {
    let store = open_file(&path);
    let names = fill::fill(&store, seed).await;
    let asked = ask(&store, &names).await;
    store.close().await.unwrap();
    std::fs::write(path.with_extension("names"), names.join("\n")).unwrap();
    (StoreLocation::File(path), asked)
}

/// Copies the files of a store as they are: what a process that dies leaves behind.
pub(crate) fn copy_files(from: &Path, to: &Path) {
    for ending in ["", "-wal", "-notes"] {
        let named = |path: &Path| PathBuf::from(format!("{}{ending}", path.display()));
        if named(from).exists() {
            std::fs::copy(named(from), named(to)).unwrap();
        }
    }
}

/// The results of all queries of a store, as text.
pub(crate) async fn ask(store: &Arc<dyn Store>, names: &[String]) -> String {
    let mut said = String::new();
    let now = at(NOW);
    let mut say = |what: &str, is: &dyn std::fmt::Debug| writeln!(said, "{what}: {is:?}").unwrap();
    // It extends no lease, but makes the store see this moment.
    assert_eq!(store.extend(Vec::new(), now, now).await.unwrap(), []);
    let mut count = store.count(now).await.unwrap();
    count.sort_by(|a, b| (&a.queue, a.state.as_str()).cmp(&(&b.queue, b.state.as_str())));
    say("count", &count);
    let mut oldest = store.oldest_due(now).await.unwrap();
    oldest.sort();
    say("oldest", &oldest);
    for name in names {
        let [tenant, queue, id] = [0, 1, 2].map(|at| name.split('\t').nth(at).unwrap());
        say(name, &store.find(tenant, queue, id).await.unwrap());
    }
    for state in State::ALL.iter().copied().map(Some).chain([None]) {
        let mut after = None;
        loop {
            let query = EventQuery { state, after, limit: 7, ..EventQuery::default() };
            let Ok(listed) = store.list(query).await else {
                say("cannot be listed", &state);
                break;
            };
            say(&format!("list {state:?}"), &listed);
            after = listed.next;
            if after.is_none() {
                break;
            }
        }
    }
    for by in [GroupBy::Cause, GroupBy::Queue, GroupBy::Tenant, GroupBy::Type, GroupBy::Key] {
        let query = GroupQuery { by, limit: 50, ..GroupQuery::default() };
        say(&format!("groups by {by:?}"), &store.groups(query).await.unwrap());
    }
    say("matching", &store.matching(Filter::default()).await.unwrap());
    say("controls", &store.controls().await.unwrap());
    say("jobs", &store.jobs(None).await.unwrap());
    let mut before = None;
    loop {
        let lines = store.audit(before, 10).await.unwrap();
        say("audit", &lines);
        before = lines.last().map(|line| line.number);
        if lines.is_empty() {
            break;
        }
    }
    let records = store.records(LedgerQuery { limit: 1000, ..LedgerQuery::default() }, now).await.unwrap();
    say("records", &records);
    for (scope, _) in records.records {
        say("record", &store.record(scope, now).await.unwrap());
    }
    say("unknown", &store.unknown().await.unwrap());
    say("kept", &in_work(store, |tx| format!("{:?}", tx.kept("").unwrap())).await);
    let marks = |tx: &mut dyn Tx| {
        let marks: Vec<bool> =
            (0..40).map(|n| tx.mark("charger.v1", &format!("m{n}"), at(NOW)).unwrap()).collect();
        format!("{marks:?}")
    };
    say("marks", &in_work(store, marks).await);
    said
}

/// What work sees, which is rolled back.
async fn in_work(store: &Arc<dyn Store>, look: impl Fn(&mut dyn Tx) -> String + Send + 'static) -> String {
    let (tell, told) = std::sync::mpsc::channel();
    let work = move |tx: &mut dyn Tx| {
        tell.send(look(tx)).unwrap();
        Err("only to look".into())
    };
    let job = TxJob { work: Box::new(work), claim: None, time: Duration::from_secs(30), alone: true };
    store.transact(job).await.unwrap();
    told.recv().unwrap()
}

/// Takes all shards.
pub(crate) async fn take(store: &Arc<dyn Store>) -> Vec<TakenShard> {
    let mut taken = Vec::new();
    for shard in 0..store.shards() {
        taken.push(store.take(shard, at(NOW)).await.unwrap());
    }
    taken
}

/// The runnable events of all streams.
pub(crate) async fn due(store: &Arc<dyn Store>, taken: &[TakenShard], until: Moment) -> Vec<QueueEntry> {
    let mut due = Vec::new();
    for TakenShard { token, .. } in taken {
        for stream in 1..=12 {
            let load = LoadRequest {
                token: *token,
                stream: StreamId(stream),
                until,
                live_max: 1000,
                retry_max: 1000,
                bytes_max: usize::MAX,
                except: Vec::new(),
            };
            due.extend(store.load(load).await.unwrap().entries);
        }
    }
    due.sort_by_key(|entry| entry.seq);
    due
}

/// Runs every event to its successful end. Returns what ran, in order, by stream and key.
pub(crate) async fn run_all(store: &Arc<dyn Store>) -> Vec<String> {
    let taken = take(store).await;
    let mut ran = Vec::new();
    loop {
        let heads = due(store, &taken, at(1_000_000)).await;
        if heads.is_empty() {
            break;
        }
        for entry in heads {
            let TakenShard { token, .. } = taken[usize::try_from(entry.shard).unwrap()];
            let settle = SettleRequest {
                token,
                seq: entry.seq,
                rev: entry.rev,
                at: at(NOW + 1),
                change: EventChange::Done,
            };
            store.settle(vec![settle]).await.unwrap();
            let key = entry.event.key.clone().unwrap_or_default();
            ran.push((entry.stream, key, ran.len(), format!("{} {:?}", entry.event.id, entry.progress)));
        }
    }
    for TakenShard { token, .. } in taken {
        store.release(token).await.unwrap();
    }
    ran.sort_by(|a, b| (a.0, &a.1, a.2).cmp(&(b.0, &b.1, b.2)));
    ran.into_iter().map(|(stream, key, _, what)| format!("{stream:?} {key} {what}")).collect()
}
