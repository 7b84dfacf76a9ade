//! The work whose effects are counted: a shop.
//!
//! | queue | handler | what must hold however often the process dies |
//! |---|---|---|
//! | `orders` | in the store's transaction; publishes a mail in it | one row in `effect` each |
//! | `mails` | in the store's transaction | one row in `effect` each |
//! | `ledger` | the same, ordered by key | the rows of a key in `journal` are 0, 1, 2, … |
//! | `calls` | outside of it: a line in a file, ordered by key | each line once or more, never an earlier one after a later one |
//!
//! Some handlers fail the first time, after their effect. The publisher publishes the same ids in each life,
//! notes in a file what was acknowledged, and checks that nothing acknowledged before is accepted as new.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use redrive::engine::Transaction;
use redrive::{Delivery, Event, Failure, Published, Redrive, testing};
use rusqlite::Connection;
use tokio::task::JoinSet;

use crate::{SECOND, file, open, quick};

const ORDERS: usize = 40;
const KEYS: usize = 4;
/// In the ledger, and in the calls.
const PER_KEY: usize = 10;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS effect (queue TEXT NOT NULL, id TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS journal (line INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, n INTEGER);
    CREATE TABLE IF NOT EXISTS bulk (block BLOB)";

/// One life of the shop. A busy one fills the log first, so that it is written back.
pub(crate) async fn run(folder: &Path, busy: bool) {
    let redrive = open(folder).await;
    redrive.transact(|tx| tx.sqlite().unwrap().execute_batch(TABLES)).await.unwrap();
    if busy {
        fill_the_log(&redrive).await;
    }
    set_up(&redrive, folder).await;
    redrive.start().await.unwrap();
    let work = async {
        publish_all(&redrive, folder).await;
        testing::drain(&redrive).await;
    };
    tokio::select! {
        () = work => {}
        error = redrive.failed() => panic!("the store failed: {error}"),
    }
    assert!(redrive.shutdown(10 * SECOND).await.unwrap().all_ended);
}

/// More than the log may hold before it is written back, twice.
async fn fill_the_log(redrive: &Redrive) {
    for _ in 0..2 {
        let fill = |tx: &mut Transaction<'_>| {
            let table = tx.sqlite().unwrap();
            table.execute("DELETE FROM bulk", [])?;
            (0..17)
                .try_for_each(|_| table.execute("INSERT INTO bulk VALUES (zeroblob(1048576))", []).map(drop))
        };
        redrive.transact(fill).await.unwrap();
    }
}

/// Fails every third event the first time.
fn maybe_fail(delivery: &Delivery) -> Result<(), Failure> {
    let is_third = delivery.payload().first().is_some_and(|byte| byte % 3 == 0);
    if is_third && delivery.attempt() == 1 {
        return Err(Failure::transient(std::io::Error::other("not yet")));
    }
    Ok(())
}

fn count(tx: &mut Transaction<'_>, delivery: &Delivery) -> Result<(), Failure> {
    let row = (delivery.queue(), delivery.id());
    tx.sqlite().unwrap().execute("INSERT INTO effect VALUES (?1, ?2)", row)?;
    Ok(())
}

async fn set_up(redrive: &Redrive, folder: &Path) {
    let order = |tx: &mut Transaction<'_>, delivery: &Delivery| {
        count(tx, delivery)?;
        tx.publish(Event::new("mails", format!("mail-{}", delivery.id())).payload(delivery.payload()))?;
        maybe_fail(delivery)
    };
    redrive.queue("orders").policy(quick()).concurrency(4).handle_in(order).await.unwrap();
    redrive.queue("mails").policy(quick()).concurrency(4).handle_in(count).await.unwrap();

    let enter = |tx: &mut Transaction<'_>, delivery: &Delivery| {
        let row = (delivery.key(), delivery.payload()[0]);
        tx.sqlite().unwrap().execute("INSERT INTO journal (key, n) VALUES (?1, ?2)", row)?;
        maybe_fail(delivery)
    };
    redrive.queue("ledger").ordered().policy(quick()).concurrency(4).handle_in(enter).await.unwrap();

    let lines = Lines::append(folder, "calls.txt");
    let call = move |delivery: Delivery| {
        lines.add(&format!("{} {}", delivery.key().unwrap(), delivery.payload()[0]));
        std::future::ready(maybe_fail(&delivery))
    };
    redrive.queue("calls").ordered().policy(quick()).concurrency(4).handle(call).await.unwrap();
}

async fn publish_all(redrive: &Redrive, folder: &Path) {
    let counter = Arc::new(Counter {
        redrive: redrive.clone(),
        before: acknowledged(folder),
        lines: Lines::append(folder, "acknowledged.txt"),
    });
    let mut publishers = JoinSet::new();
    for part in 0..4 {
        let orders: Vec<Event> = (part * ORDERS / 4..(part + 1) * ORDERS / 4).map(order).collect();
        let counter = counter.clone();
        publishers.spawn(async move { counter.publish(orders).await });
    }
    // One after the other: an event acknowledged before the next begins runs before it.
    for (queue, key) in
        ["ledger", "calls"].into_iter().flat_map(|queue| (0..KEYS).map(move |key| (queue, key)))
    {
        let counter = counter.clone();
        publishers.spawn(async move {
            for n in 0..PER_KEY {
                counter.publish(vec![entry(queue, key, n)]).await;
            }
        });
    }
    while let Some(ended) = publishers.join_next().await {
        ended.unwrap();
    }
}

fn order(n: usize) -> Event {
    Event::new("orders", format!("order-{n}")).payload(vec![byte(n); 200])
}

fn entry(queue: &str, key: usize, n: usize) -> Event {
    Event::new(queue, format!("{key}-{n}")).key(format!("key-{key}")).payload([byte(n)])
}

fn byte(n: usize) -> u8 {
    u8::try_from(n).unwrap()
}

/// Publishes, and notes the acknowledged events.
struct Counter {
    redrive: Redrive,
    before: HashSet<String>,
    lines: Lines,
}

impl Counter {
    async fn publish(&self, events: Vec<Event>) {
        let names: Vec<String> = events.iter().map(name).collect();
        let answers = self.redrive.publish_all(events).await.unwrap();
        for (name, answer) in names.iter().zip(answers) {
            let is_new = matches!(answer.unwrap(), Published::Accepted(_));
            assert!(!is_new || !self.before.contains(name), "{name} was acknowledged, and is gone");
            self.lines.add(name);
        }
    }
}

fn name(event: &Event) -> String {
    format!("{}/{}", event.queue, event.id)
}

fn acknowledged(folder: &Path) -> HashSet<String> {
    let text = std::fs::read_to_string(folder.join("acknowledged.txt")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// A file that grows by lines; added lines outlive the process.
pub(crate) struct Lines(Mutex<File>);

impl Lines {
    pub(crate) fn append(folder: &Path, name: &str) -> Self {
        Self(Mutex::new(OpenOptions::new().create(true).append(true).open(folder.join(name)).unwrap()))
    }

    pub(crate) fn add(&self, line: &str) {
        // In one write, so that a death leaves no half of a line.
        self.0.lock().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// Checks everything that must hold when the shop has closed for good.
pub(crate) fn check(folder: &Path) {
    let orders = (0..ORDERS).map(order);
    let entries = |queue| (0..KEYS).flat_map(move |key| (0..PER_KEY).map(move |n| entry(queue, key, n)));
    let published: HashSet<String> =
        orders.chain(entries("ledger")).chain(entries("calls")).map(|event| name(&event)).collect();
    assert_eq!(acknowledged(folder), published, "what was acknowledged");

    let db = Connection::open(file(folder)).unwrap();
    let number = |sql: &str| db.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap() as usize;
    let integrity: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(integrity, "ok");
    assert_eq!(number("SELECT count(*) FROM redrive_fresh"), 0, "events that are ready");
    assert_eq!(number("SELECT count(*) FROM redrive_tracked"), 0, "events that wait, or are dead");
    assert_eq!(number("SELECT count(*) FROM redrive_dedupe"), published.len() + ORDERS, "receipts");

    let mut expected = BTreeMap::new();
    for n in 0..ORDERS {
        expected.insert(format!("orders/order-{n}"), 1);
        expected.insert(format!("mails/mail-order-{n}"), 1);
    }
    let mut select = db.prepare("SELECT queue || '/' || id, count(*) FROM effect GROUP BY 1").unwrap();
    let effects = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!(effects.collect::<Result<BTreeMap<String, u32>, _>>().unwrap(), expected, "effects");

    let mut select = db.prepare("SELECT key, n FROM journal ORDER BY line").unwrap();
    let journal = select.query_map([], |row| Ok((row.get(0)?, row.get::<_, u8>(1)?.into()))).unwrap();
    for (key, lines) in by_key(journal.map(Result::unwrap)) {
        assert_eq!(lines, (0..PER_KEY).collect::<Vec<_>>(), "the journal of {key}");
    }

    let calls = std::fs::read_to_string(folder.join("calls.txt")).unwrap();
    let calls = calls.lines().map(|line| line.split_once(' ').unwrap());
    for (key, lines) in by_key(calls.map(|(key, n)| (key.to_owned(), n.parse().unwrap()))) {
        assert!(lines.is_sorted(), "the calls of {key} go back: {lines:?}");
        let mut once = lines;
        once.dedup();
        assert_eq!(once, (0..PER_KEY).collect::<Vec<_>>(), "the calls of {key}");
    }
}

fn by_key(lines: impl Iterator<Item = (String, usize)>) -> BTreeMap<String, Vec<usize>> {
    let mut all: BTreeMap<String, Vec<usize>> = (0..KEYS).map(|key| (format!("key-{key}"), vec![])).collect();
    for (key, n) in lines {
        all.entry(key).or_default().push(n);
    }
    all
}
