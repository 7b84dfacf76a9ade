//! Opening: the connections, the tables, and a row for this process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::sync::RwLock;

use super::database::Database;
use super::database::arrival_notifier::Notifier;
use super::database::autocommit::AutocommitPool;
use super::database::cache::Cache;
use super::database::commit_ids::CommitIds;
use super::faults::{Kind, kind, said};
use super::moving;
use super::nodes;
use super::transact::caller_tx::DatabaseIdentity;
use super::writer::LOCKED;
use crate::error::StoreError;
use crate::stores::shared::numbers::signed;
use crate::stores::shared::rules::StoreClock;
use crate::stores::shared::user_statements::UserStatements;
use schema::{Schema, Step};
use settings::PostgresSettings;
use url::DatabaseUrl;

pub(super) mod settings;

pub(super) mod url;

pub(super) mod schema;

#[cfg(feature = "planted")]
pub(super) mod test_hooks;

/// How many connections are reserved for work that must not wait for a transaction: the listener, heartbeats, and one
/// more.
const SIDE: u32 = 3;
/// How long to wait for a side connection; after that, one of the pool for transactions will do.
const ASIDE: Duration = Duration::from_secs(1);
/// How long to wait before connecting again to an unreachable server.
const CONNECT_AGAIN: Duration = Duration::from_millis(200);

/// Opens a database, and brings its tables up to date.
pub(super) async fn open(
    address: &str,
    settings: &PostgresSettings,
    steps: &'static [Step],
) -> Result<(Database, PgConnectOptions), StoreError> {
    let DatabaseUrl { options, pooled, shown } = url::read(address)?;
    let pooled = pooled || settings.pooled;
    let options = if pooled { options.statement_cache_capacity(0) } else { options };
    let place = format!("{shown}, schema {}", settings.schema);
    let failed = |error| explain(&place, error);
    settings.check().map_err(|why| StoreError::Open { path: place.clone().into(), why, source: None })?;
    let schema = Schema::new(&settings.schema, steps);
    let mut conn = connect(&options, settings.patience).await.map_err(failed)?;
    let shards = schema.migrate(&mut conn, settings).await.map_err(failed)?.shards(&place)?;
    let node_lease = nodes::enrol(&mut conn, &schema, settings).await.map_err(failed)?;
    // In a transaction, so that a pooler may be in between.
    let mut tx = conn.begin().await.map_err(failed)?;
    let home = DatabaseIdentity::of(&mut tx, &schema, false).await.map_err(failed)?;
    tx.commit().await.map_err(failed)?;
    conn.close().await.map_err(failed)?;

    // A connection that broke while idle fails at its BEGIN, and is replaced: no ping before each use.
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
    let db = Database {
        pool,
        autocommit: Arc::new(AutocommitPool::of(desks)),
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
        node: signed(node_lease.me().0),
        node_lease: Arc::new(node_lease),
        clock: StoreClock::default(),
        user_statements: UserStatements::default(),
        commit_ids: CommitIds::default(),
        cache: Cache::default(),
        notifier: Notifier::default(),
        is_closed: AtomicBool::new(false),
        beating: tokio::sync::Mutex::default(),
        gate: Arc::new(RwLock::new(())),
    };
    Ok((db, options))
}

/// Connects, within a time limit. Waits for a server that is starting.
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
        "the TLS certificate is not trusted: {cause}; set sslrootcert to the file of the authority that signed it, and use the host name that it was issued for"
    )
}

/// An error of opening, with what to do about it.
pub(super) fn explain(place: &str, error: sqlx::Error) -> StoreError {
    let code = error.as_database_error().and_then(|said| said.code()).map(std::borrow::Cow::into_owned);
    let why = match (&error, code.as_deref()) {
        (_, Some("28P01")) => {
            "the user or the password is wrong; it comes from the URL, from PGPASSWORD or from the file that PGPASSFILE names"
                .to_owned()
        }
        (_, Some("28000")) => format!(
            "{}; pg_hba.conf does not let this user in from here, or not without TLS (sslmode=require)",
            said(&error)
        ),
        (_, Some("3D000")) => "there is no such database; create it first, with `createdb`".to_owned(),
        (_, Some("42501")) => {
            format!("{}; grant this user CREATE on the database, or create the schema first", said(&error))
        }
        (_, Some("53300")) => format!(
            "{}; raise max_connections, give each process fewer connections, or put PgBouncer in between",
            said(&error)
        ),
        (_, Some(moving::CODE)) => {
            error.as_database_error().map(|said| said.message().to_owned()).unwrap_or_default()
        }
        (_, Some(LOCKED)) => {
            "its tables must be changed, but an open transaction blocks that; end it (see pg_stat_activity), and open the store again"
                .to_owned()
        }
        (_, Some("57P03")) => format!("{}; try again when it has started", said(&error)),
        (_, Some("25006")) => format!("{}; it is a standby: name the primary", said(&error)),
        (_, Some("26000" | "42P05")) => said(&error),
        (sqlx::Error::Configuration(cause), _) if cause.is::<schema::ForeignSchema>() => cause.to_string(),
        (sqlx::Error::Io(cause), _) if cause.kind() == std::io::ErrorKind::InvalidData => untrusted(cause),
        (sqlx::Error::Tls(cause), _) => untrusted(cause),
        (sqlx::Error::Io(cause), _) => format!("it cannot be reached: {cause}"),
        (sqlx::Error::PoolTimedOut, _) => "it does not answer".to_owned(),
        _ => said(&error),
    };
    // The error of a moved store says everything already, and its causes would repeat it.
    let is_said = code.as_deref() == Some(moving::CODE) || matches!(error, sqlx::Error::Configuration(_));
    let source = if is_said { None } else { Some(Arc::new(error) as crate::error::StoreErrorSource) };
    StoreError::Open { path: place.into(), why, source }
}
