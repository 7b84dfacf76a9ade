//! The final check: every published event is done once, in the order of its key, by its owner.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redrive::engine::OpenOptions;
use redrive::event::State;
use redrive::store::postgres::sqlx::{self, Connection, PgConnection};
use redrive_testkit::postgres::Server;

use crate::node;
use crate::notices::Notices;
use crate::witness::trespasses;

/// How long the remaining events may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until nothing is left, and compares; returns the figures.
pub(crate) async fn account(server: &Server, published: &[String]) -> String {
    let redrive = OpenOptions::new().postgres(node::settings("auditor")).open(&server.url()).await.unwrap();
    let mut notices = Notices::of(server, "events", &["fresh", "tracked"]).await;
    let began = Instant::now();
    let dead = loop {
        let counts = redrive.counts().await.unwrap();
        let of = |is: fn(State) -> bool| -> u64 {
            counts.iter().filter(|count| is(count.state)).map(|count| count.events).sum()
        };
        if of(|state| state != State::Dead) == 0 {
            break of(|state| state == State::Dead);
        }
        let left = PATIENCE.saturating_sub(began.elapsed());
        notices.next(left, || format!("something is left: {counts:?}")).await;
    };
    let mut done = 0;
    let mut dead_ids = Vec::new();
    for name in published {
        let (queue, id) = name.split_once('/').unwrap();
        match redrive.event("", queue, id).await.unwrap().map(|found| found.state) {
            Some(State::Done) => done += 1,
            Some(State::Dead) => dead_ids.push(name.clone()),
            other => panic!("{name} was accepted, and is {other:?}"),
        }
    }
    assert_eq!(done + dead, published.len() as u64, "published = done + dead; dead are {dead_ids:?}");
    let mut conn = PgConnection::connect(&server.url()).await.unwrap();
    let select = "SELECT id, key, n FROM effect ORDER BY place";
    let effects: Vec<(String, String, i64)> = sqlx::query_as(select).fetch_all(&mut conn).await.unwrap();
    let (mut times, mut last) = (BTreeMap::<&str, u32>::new(), BTreeMap::<&str, i64>::new());
    for (id, key, n) in &effects {
        *times.entry(id).or_default() += 1;
        if let Some(before) = last.insert(key, *n) {
            assert!(before < *n, "{id} had its effect after number {before} of its key");
        }
    }
    for name in published.iter().filter_map(|name| name.strip_prefix("orders/")) {
        let is_dead = dead_ids.iter().any(|dead| dead.ends_with(&format!("/{name}")));
        let expected = u32::from(!is_dead);
        assert_eq!(times.remove(name).unwrap_or_default(), expected, "effects of {name}");
    }
    assert!(times.is_empty(), "effects of nothing that was published: {times:?}");
    let (trespasses, count) = trespasses(&mut conn).await;
    assert_eq!(count, 0, "a replaced process changed something: {trespasses:#?}");
    let (late, stopped) = late(&mut conn).await;
    assert!(late.is_empty(), "calls that started under a lease that was over: {late:?}");
    redrive.shutdown(Duration::ZERO).await.unwrap();
    format!(
        "{:>6}  published\n{done:>6}  done\n{dead:>6}  dead\n{:>6}  effects\n{stopped:>6}  calls stood still while \
         another process took over",
        published.len(),
        effects.len()
    )
}

/// Calls that started late, and how many were suspended after they had begun.
async fn late(conn: &mut PgConnection) -> (Vec<(String, String, i64)>, i64) {
    let late = "SELECT id, node, took FROM started WHERE is_late AND took IS NOT NULL ORDER BY id";
    let stopped = "SELECT count(*) FROM started WHERE is_late AND took IS NULL";
    let late = sqlx::query_as(late).fetch_all(&mut *conn).await.unwrap();
    (late, sqlx::query_scalar(stopped).fetch_one(conn).await.unwrap())
}
