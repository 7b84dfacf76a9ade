//! Opening: the connections, the tables, and a row for this process.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::sync::{Notify, RwLock};

use super::aside::AtHand;
use super::at_once::Newness;
use super::faults::{Kind, kind, said};
use super::forget::Cursor;
use super::lent::Home;
use super::moving;
use super::names::Names;
use super::nodes;
use super::office::Office;
use super::once::Numbers;
use super::places::Places;
use super::schema::{Schema, Step};
use super::settings::Settings;
use super::telling::{Own, Tellings};
use super::url::{self, Place};
use super::writer::LOCKED;
use crate::error::StoreError;
use crate::stores::shared::numbers::signed;
use crate::stores::shared::rules::Seen;

/// How many connections are for what must not wait for a desk: one that listens, one for heartbeats, and one more.
const SIDE: u32 = 3;
/// How long one is waited for that is aside: then one of the desks' will do.
const ASIDE: Duration = Duration::from_secs(1);
/// How long to wait before a server is asked again that could not be reached.
const CONNECT_AGAIN: Duration = Duration::from_millis(200);

/// Opens a database, and brings its tables up to date.
pub(super) async fn open(
    address: &str,
    settings: &Settings,
    steps: &'static [Step],
) -> Result<(Office, PgConnectOptions), StoreError> {
    let Place { options, pooled, shown } = url::read(address)?;
    let pooled = pooled || settings.pooled;
    let options = if pooled { options.statement_cache_capacity(0) } else { options };
    let place = format!("{shown}, schema {}", settings.schema);
    let failed = |error| explain(&place, error);
    settings.check().map_err(|why| StoreError::Open { path: place.clone().into(), why, source: None })?;
    let schema = Schema::new(&settings.schema, steps);
    let mut conn = connect(&options, settings.patience).await.map_err(failed)?;
    let shards = schema.migrate(&mut conn, settings).await.map_err(failed)?.shards(&place)?;
    let tenure = nodes::enrol(&mut conn, &schema, settings).await.map_err(failed)?;
    // In a transaction, so that a pooler may be in between.
    let mut tx = conn.begin().await.map_err(failed)?;
    let home = Home::of(&mut tx, &schema, false).await.map_err(failed)?;
    tx.commit().await.map_err(failed)?;
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
        at_hand: Arc::new(AtHand::of(desks)),
        side,
        schema,
        place,
        home,
        pooled,
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
        places: Places::default(),
        newness: Newness::default(),
        tellings: Tellings::default(),
        own: Own::default(),
        watcher: Mutex::default(),
        cursor: Mutex::new(Cursor::default()),
        served: Mutex::new(HashMap::new()),
        relieved: Mutex::new(HashMap::new()),
        specs: Mutex::default(),
        causes: Mutex::new(HashMap::new()),
        has_company: AtomicBool::new(true),
        hint: Notify::new(),
        is_closed: AtomicBool::new(false),
        beating: tokio::sync::Mutex::default(),
        gate: Arc::new(RwLock::new(())),
    };
    Ok((office, options))
}

/// Connects, in time. A server that is about to start is waited for.
async fn connect(options: &PgConnectOptions, patience: Duration) -> sqlx::Result<PgConnection> {
    let until = tokio::time::Instant::now() + patience;
    let mut last = None;
    loop {
        match tokio::time::timeout_at(until, options.connect()).await {
            Ok(Ok(conn)) => return Ok(conn),
            Ok(Err(error)) if kind(&error) == Kind::Busy => last = Some(error),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(last.unwrap_or(sqlx::Error::PoolTimedOut)),
        }
        tokio::time::sleep(CONNECT_AGAIN).await;
    }
}

fn untrusted(cause: &dyn std::fmt::Display) -> String {
    format!(
        "no TLS that is to be trusted: {cause}; sslrootcert names the file of the authority that signed the server's \
         certificate, which is for one host"
    )
}

/// What is wrong, and what to do about it.
pub(super) fn explain(place: &str, error: sqlx::Error) -> StoreError {
    let code = error.as_database_error().and_then(|said| said.code()).map(std::borrow::Cow::into_owned);
    let why = match (&error, code.as_deref()) {
        (_, Some("28P01")) => {
            "the user or the password is wrong; it is in the URL, in PGPASSWORD or in the file that \
                               PGPASSFILE names"
                .to_owned()
        }
        (_, Some("28000")) => format!(
            "{}; pg_hba.conf does not let this user in from here, or not without TLS (sslmode=require)",
            said(&error)
        ),
        (_, Some("3D000")) => "there is no such database; create it first, with `createdb`".to_owned(),
        (_, Some("42501")) => {
            format!("{}; let this user create a schema in it, or create it first", said(&error))
        }
        (_, Some("53300")) => format!(
            "{}; raise max_connections, give each process fewer connections, or put PgBouncer in between",
            said(&error)
        ),
        (_, Some(moving::CODE)) => {
            error.as_database_error().map(|said| said.message().to_owned()).unwrap_or_default()
        }
        (_, Some(LOCKED)) => {
            "its tables are to be changed, and somebody's transaction that is open is in the way; end it (see \
             pg_stat_activity), and open this again"
                .to_owned()
        }
        (_, Some("57P03")) => format!("{}; try again when it has started", said(&error)),
        (_, Some("25006")) => format!("{}; it is a standby: name the primary", said(&error)),
        (_, Some("26000" | "42P05")) => said(&error),
        (sqlx::Error::Io(cause), _) if cause.kind() == std::io::ErrorKind::InvalidData => untrusted(cause),
        (sqlx::Error::Tls(cause), _) => untrusted(cause),
        (sqlx::Error::Io(cause), _) => format!("it cannot be reached: {cause}"),
        (sqlx::Error::PoolTimedOut, _) => "it does not answer".to_owned(),
        _ => said(&error),
    };
    // That of a store that was moved says it all, and would be told again with each cause.
    let is_said = code.as_deref() == Some(moving::CODE);
    let source = if is_said { None } else { Some(Arc::new(error) as crate::error::Cause) };
    StoreError::Open { path: place.into(), why, source }
}
