//! Publishing in SQL, from other programs, with an engine that handles the events.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use redrive::engine::{OpenOptions, Redrive};
use redrive::postgres::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use redrive::{Delivery, Failure};
use redrive_testkit::postgres::{Server, a_name};
use tokio::sync::mpsc;

/// The release of psycopg that is installed.
const PSYCOPG: &str = "3.3.8";
const PATIENCE: Duration = Duration::from_secs(60);

/// A database of its own, because the schema is called `redrive` there, and an engine that reports the events it
/// handles.
async fn engine() -> (Redrive, String, mpsc::UnboundedReceiver<(String, Vec<u8>)>) {
    let (server, name) = (Server::shared().url(), a_name("outbox"));
    let mut conn = PgConnection::connect(&server).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut conn).await.unwrap();
    let url = server.replace("/postgres?", &format!("/{name}?"));
    let redrive = OpenOptions::new().open(&url).await.unwrap();
    let (tell, told) = mpsc::unbounded_channel();
    let handler = move |delivery: Delivery| {
        let _ = tell.send((delivery.id().to_owned(), delivery.payload().to_vec()));
        async { Ok::<_, Failure>(()) }
    };
    redrive.queue("confirmations").ordered().handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    (redrive, url, told)
}

async fn hears(told: &mut mpsc::UnboundedReceiver<(String, Vec<u8>)>) -> (String, String) {
    let (id, payload) = tokio::time::timeout(PATIENCE, told.recv()).await.unwrap().unwrap();
    (id, String::from_utf8(payload).unwrap())
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn what_psql_publishes_is_handled_when_it_commits_and_never_when_it_does_not() {
    let (redrive, url, mut told) = engine().await;
    let psql = |sql: &str| {
        let mut command = Command::new("psql");
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "-v", "ON_ERROR_STOP=1"]);
        text(&command.arg(&url).args(["-c", sql]).output().expect("psql is needed: `cargo xtask install`"))
    };
    let undone = "BEGIN; SELECT redrive.publish('confirmations', 'undone', 'x'); ROLLBACK";
    assert_eq!(psql(undone).0, "accepted");
    let publish =
        "SELECT redrive.publish('confirmations', 'one', '{\"euro\": 17}', key => 'k', notify => true)";
    assert_eq!(psql(publish).0, "accepted");
    assert_eq!(hears(&mut told).await, ("one".to_owned(), "{\"euro\": 17}".to_owned()));
    redrive.idle().await;
    assert_eq!(psql(publish).0, "duplicate");
    let (_, refused) = psql("SELECT redrive.publish('confirmations', 'one', 'something else')");
    assert!(refused.contains("one intent, one id"), "{refused}");
    let (_, refused) = psql("SELECT redrive.publish('nowhere', 'one')");
    assert!(refused.contains("known are: confirmations"), "{refused}");
    assert_eq!(redrive.event("", "confirmations", "undone").await.unwrap(), None);
    redrive.shutdown(PATIENCE).await.unwrap();
}

/// A Python with psycopg, in an environment of its own below the target folder.
fn python() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("psycopg-{PSYCOPG}"));
    let program = folder.join("bin/python");
    let has_it = || Command::new(&program).args(["-c", "import psycopg"]).output();
    if !has_it().is_ok_and(|said| said.status.success()) {
        let make = Command::new("python3").args(["-m", "venv"]).arg(&folder).status();
        assert!(make.expect("python3 is needed: `cargo xtask install`").success());
        let package = format!("psycopg[binary]=={PSYCOPG}");
        let pip = Command::new(folder.join("bin/pip")).args(["install", "--quiet", &package]).status();
        assert!(pip.unwrap().success(), "{package} is needed");
    }
    program
}

#[tokio::test]
async fn what_python_publishes_commits_with_its_own_rows() {
    let (redrive, url, mut told) = engine().await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("CREATE TABLE booking (guest TEXT, cabin TEXT)").execute(&mut conn).await.unwrap();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python-outbox/outbox.py");
    let python = tokio::task::spawn_blocking(python).await.unwrap();
    let book = |guest: &str, cabin: &str| {
        let output = Command::new(&python).args([program, &url, guest, cabin]).output().unwrap();
        assert!(output.status.success(), "{:?}", text(&output));
        text(&output).0
    };
    assert_eq!(book("Nobody", "cabin-1"), "accepted", "and rolled back");
    assert_eq!(book("Ada", "cabin-1"), "accepted");
    assert_eq!(hears(&mut told).await.0, "cabin-1/Ada");
    assert_eq!(book("Ada", "cabin-1"), "duplicate");
    assert_eq!(book("Zoë \"Z\"", "cabin-2"), "accepted");
    let (id, payload) = hears(&mut told).await;
    assert_eq!(
        (id.as_str(), payload.as_str()),
        ("cabin-2/Zoë \"Z\"", r#"{"cabin": "cabin-2", "guest": "Zoë \"Z\""}"#)
    );
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM booking").fetch_one(&mut conn).await.unwrap();
    assert_eq!(rows, 2);
    assert_eq!(redrive.event("", "confirmations", "cabin-1/Nobody").await.unwrap(), None);
    redrive.shutdown(PATIENCE).await.unwrap();
}
