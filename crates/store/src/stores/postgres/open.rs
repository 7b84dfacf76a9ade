//! Opening: the connections, the tables, and a row for this process.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{Notify, RwLock};

use super::faults::said;
use super::forget::Cursor;
use super::lent::Home;
use super::moving;
use super::names::Names;
use super::nodes;
use super::office::Office;
use super::once::Numbers;
use super::schema::Schema;
use super::settings::Settings;
use super::telling::{Own, Tellings};
use crate::error::StoreError;
use crate::stores::shared::numbers::signed;
use crate::stores::shared::rules::Seen;

/// How many connections are for what must not wait for a desk: one that listens, one for heartbeats, and one more.
const SIDE: u32 = 3;
/// How long one is waited for that is aside: then one of the desks' will do.
const ASIDE: Duration = Duration::from_secs(1);
/// How many prepared statements a connection keeps: all of ours.
const STATEMENTS_KEPT: usize = 256;

/// Opens a database, and brings its tables up to date.
pub(super) async fn open(url: &str, settings: &Settings) -> Result<(Office, PgConnectOptions), StoreError> {
    let options = parse(url)?;
    let place = place(&options, settings);
    let failed = |error| explain(&place, error);
    settings.check().map_err(|why| StoreError::Open { path: place.clone().into(), why, source: None })?;
    let schema = Schema::new(&settings.schema);
    let mut conn = options.connect().await.map_err(failed)?;
    let shards = schema.migrate(&mut conn, settings).await.map_err(failed)?.shards(&place)?;
    let tenure = nodes::enrol(&mut conn, &schema, settings).await.map_err(failed)?;
    let home = Home::of(&mut conn, &schema).await.map_err(failed)?;
    conn.close().await.map_err(failed)?;

    // A connection that broke while nobody used it is found out by its BEGIN, and replaced: no look before each use.
    let pool = |most: u32, wait: Duration| {
        PgPoolOptions::new().max_connections(most).acquire_timeout(wait).test_before_acquire(false)
    };
    let side = pool(SIDE - 1, ASIDE).connect_lazy_with(options.clone());
    let desks = settings.connections.saturating_sub(SIDE).max(2);
    let pool = pool(desks, settings.patience).connect_lazy_with(options.clone());
    let begin = format!(
        "BEGIN; SET LOCAL idle_in_transaction_session_timeout = {}; SET LOCAL lock_timeout = {}",
        (settings.lease / 3).as_millis(),
        settings.lock_wait.as_millis()
    );
    let office = Office {
        pool,
        side,
        schema,
        place,
        home,
        begin,
        lease: settings.lease,
        patience: settings.patience,
        lock_wait: settings.lock_wait,
        shards,
        node: signed(tenure.me().0),
        tenure: Arc::new(tenure),
        seen: Seen::default(),
        names: Names::default(),
        numbers: Numbers::default(),
        tellings: Tellings::default(),
        own: Own::default(),
        watcher: Mutex::default(),
        cursor: Mutex::new(Cursor::default()),
        served: Mutex::new(HashMap::new()),
        specs: Mutex::default(),
        causes: Mutex::new(HashMap::new()),
        hint: Notify::new(),
        is_closed: AtomicBool::new(false),
        gate: Arc::new(RwLock::new(())),
    };
    Ok((office, options))
}

/// Reads the URL. What it does not say is from the `PG…` variables.
pub(super) fn parse(url: &str) -> Result<PgConnectOptions, StoreError> {
    let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| {
        // The URL may have a password in it, so it is not repeated.
        let why = format!("its URL is not one of a PostgreSQL database: {error}");
        StoreError::Open { path: "the database".into(), why, source: None }
    })?;
    Ok(options
        .application_name("redrive")
        .statement_cache_capacity(STATEMENTS_KEPT)
        .disable_statement_logging())
}

/// Where the database is, without what is secret.
pub(super) fn place(options: &PgConnectOptions, settings: &Settings) -> String {
    let database = options.get_database().unwrap_or(options.get_username());
    format!("{}:{}/{database}, schema {}", options.get_host(), options.get_port(), settings.schema)
}

pub(super) fn explain(place: &str, error: sqlx::Error) -> StoreError {
    let why = match &error {
        sqlx::Error::Database(database) => match database.code().as_deref() {
            Some("28P01" | "28000") => "the user or the password is wrong".to_owned(),
            Some("3D000") => "there is no such database; create it first".to_owned(),
            Some("42501") => {
                format!("{}; let this user create a schema in it, or create it first", said(&error))
            }
            Some(moving::CODE) => database.message().to_owned(),
            _ => said(&error),
        },
        sqlx::Error::Io(cause) => format!("it cannot be reached: {cause}"),
        error => error.to_string(),
    };
    StoreError::Open { path: place.into(), why, source: Some(Arc::new(error)) }
}
