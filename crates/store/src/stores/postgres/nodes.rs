//! The processes that share the database: a row each, with a lease by the database's clock.
//!
//! A process renews its lease four times per lease, over a connection of its own: if that connection hangs or is cut,
//! the process opens another one, and waits for no pool. Each renewal returns the database's time. A process that
//! hands shards back, joins or leaves notifies the others after the commit; a lost notification is made up for by
//! looking.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::queue_entry::FencingToken;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Row as _};

use super::database::arrivals::channel;
use super::database::{Database, TxFuture, autocommit, jittered};
use super::faults::{Kind, Step, kind};
use super::open::schema::Schema;
use super::open::settings::PostgresSettings;
use super::tx::{OwnTx, run};
use crate::error::StoreError;
use crate::nodes::{Node, NodeId, NodeLease, NodeList, RenewalSent, ShardRow, beat_every};
use crate::stores::shared::numbers::{bits, signed, to_duration, to_moment};

pub(super) mod take;

/// The payload of a notification about nodes. Others name the process that wrote something.
pub(super) const NODES: &str = "nodes";
/// The owner of a shard that was handed back, but not as clean: no process has this number.
const NO_OWNER: i64 = 0;
/// How long to wait before a failed heartbeat is tried again.
const AGAIN: Duration = Duration::from_millis(50);

/// The database's clock, in nanoseconds since 1970.
macro_rules! clock {
    () => {
        "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"
    };
}

/// Inserts a row for this process.
pub(super) async fn enrol(
    conn: &mut PgConnection,
    schema: &Schema,
    settings: &PostgresSettings,
) -> sqlx::Result<NodeLease> {
    let enrol = concat!(
        "INSERT INTO redrive.node (name, until) VALUES ($1, clock_timestamp() + make_interval(secs => $2)) \
         RETURNING id, ",
        clock!()
    );
    let asked = RenewalSent::now();
    let query = sqlx::query(schema.sql(enrol)).bind(&settings.name).bind(settings.lease.as_secs_f64());
    // In a transaction, so that a pooler may be in between.
    let mut tx = conn.begin().await?;
    let row = query.persistent(false).fetch_one(&mut *tx).await?;
    tx.commit().await?;
    let (id, at) = (NodeId(bits(row.try_get(0)?)), to_moment(row.try_get(1)?));
    Ok(NodeLease::new(id, settings.name.clone(), settings.lease, asked, at))
}

/// Renews the lease of this process as long as the store is open; after a resignation it only reads the time.
pub(super) async fn beat(db: Arc<Database>, options: PgConnectOptions) {
    let every = beat_every(db.lease);
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut line = None;
    loop {
        ticks.tick().await;
        // A process that leaves waits for this renewal: it must not arrive afterwards.
        let _beating = db.beating.lock().await;
        if db.check().is_err() {
            return;
        }
        // If none arrives, another process takes over.
        if tokio::time::timeout(every, beat_once(&db, &options, &mut line)).await.is_err() {
            line = None;
        }
    }
}

/// Tries until the database has confirmed it.
async fn beat_once(db: &Database, options: &PgConnectOptions, line: &mut Option<PgConnection>) {
    loop {
        let beaten = match line {
            Some(conn) => db.renew(conn).await,
            None => match options.connect().await {
                Ok(conn) => db.renew(line.insert(conn)).await,
                // All side connections are in use: one of the pool will do.
                Err(error) if kind(&error) == Kind::Busy => db.renew_by(&db.pool).await,
                Err(error) => Err(error),
            },
        };
        if beaten.is_ok() || db.check().is_err() {
            return;
        }
        *line = None;
        tokio::time::sleep(jittered(AGAIN)).await;
    }
}

impl Database {
    /// Renews the lease of this process; inserts its row again if it was deleted after a long silence.
    async fn renew(&self, conn: &mut PgConnection) -> sqlx::Result<()> {
        if self.node_lease.has_resigned() {
            return self.ask_time(conn).await;
        }
        let beat = concat!(
            "INSERT INTO redrive.node (id, name, runs, until) OVERRIDING SYSTEM VALUE \
             VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4)) \
             ON CONFLICT (id) DO UPDATE SET until = greatest(node.until, EXCLUDED.until), \
             runs = EXCLUDED.runs RETURNING ",
            clock!()
        );
        let asked = RenewalSent::now();
        let query = sqlx::query(self.schema.sql(beat)).bind(self.node).bind(self.node_lease.name());
        let query = query.bind(self.node_lease.runs()).bind(self.lease.as_secs_f64());
        let rows = self.alone_on(conn, query).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        self.node_lease.renewed(asked, to_moment(row.try_get(0)?));
        Ok(())
    }

    async fn ask_time(&self, conn: &mut PgConnection) -> sqlx::Result<()> {
        let rows = self.alone_on(conn, sqlx::query(self.schema.sql(concat!("SELECT ", clock!())))).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        self.node_lease.told(to_moment(row.try_get(0)?));
        Ok(())
    }

    /// The same over a connection of a pool.
    async fn renew_by(&self, pool: &PgPool) -> sqlx::Result<()> {
        let mut conn = pool.acquire().await?;
        self.renew(&mut conn).await
    }

    /// Says whether this process runs handlers.
    pub(super) async fn enlist(&self, runs: bool) -> Result<(), StoreError> {
        self.node_lease.set_runs(runs);
        self.renew_by(&self.side).await.map_err(autocommit)?;
        self.stir_others().await;
        Ok(())
    }

    /// All processes, and the owners of the shards: one statement, hence as of one commit.
    pub(super) async fn nodes(&self) -> Result<NodeList, StoreError> {
        let look = concat!(
            "SELECT 0 AS kind, id, name, runs, (extract(epoch FROM since) * 1000000000)::bigint, \
             greatest(0, (extract(epoch FROM until - clock_timestamp()) * 1000000000)::bigint) FROM redrive.node \
             UNION ALL SELECT 1, id, '', owner IS NOT NULL, epoch, coalesce(owner, 0) FROM redrive.shard \
             UNION ALL SELECT 2, 0, '', false, ",
            clock!(),
            ", 0 ORDER BY kind, id"
        );
        let look = sqlx::query(self.schema.sql(look));
        let found = self.alone(&self.side, look).await.map_err(autocommit)?;
        let (mut list, mut shards, mut at) = (Vec::new(), Vec::new(), self.node_lease.time());
        for row in found {
            let number = |column| row.try_get::<i64, _>(column).map_err(autocommit);
            let (first, second) = (number(4)?, number(5)?);
            let is_so: bool = row.try_get(3).map_err(autocommit)?;
            match row.try_get::<i32, _>(0).map_err(autocommit)? {
                0 => list.push(Node {
                    id: NodeId(bits(number(1)?)),
                    name: row.try_get(2).map_err(autocommit)?,
                    since: to_moment(first),
                    left: to_duration(second),
                    runs: is_so,
                }),
                1 => {
                    shards
                        .push(ShardRow { owner: is_so.then_some(NodeId(bits(second))), epoch: bits(first) });
                }
                _ => at = to_moment(first),
            }
        }
        Ok(NodeList { me: self.node_lease.me(), at, list, shards })
    }

    /// Deletes processes that own nothing and have not renewed their lease for a long time.
    pub(super) async fn forget_nodes(&self) -> Result<(), StoreError> {
        let forget = "DELETE FROM redrive.node WHERE until < clock_timestamp() - interval '1 h' \
                      AND NOT EXISTS (SELECT 1 FROM redrive.shard WHERE owner = node.id)";
        self.alone(&self.side, sqlx::query(self.schema.sql(forget))).await.map(drop).map_err(autocommit)
    }

    /// Announces that this process is about to end: other processes need not wait for its shards.
    pub(super) async fn leave(&self) -> Result<(), StoreError> {
        let leave = "WITH owned AS (SELECT EXISTS (SELECT 1 FROM redrive.shard WHERE owner = $1) AS has), \
                     gone AS (DELETE FROM redrive.node USING owned WHERE id = $1 AND NOT has) \
                     UPDATE redrive.node SET until = clock_timestamp() FROM owned WHERE id = $1 AND has";
        let _beating = self.beating.lock().await;
        let query = sqlx::query(self.schema.sql(leave)).bind(self.node);
        self.alone(&self.side, query).await.map_err(autocommit)?;
        self.stir_others().await;
        Ok(())
    }

    /// Hands a shard back, and notifies the other processes. If it is not clean, the next owner treats running
    /// attempts as suspect.
    pub(super) async fn give_back(
        self: &Arc<Self>,
        token: FencingToken,
        clean: bool,
    ) -> Result<(), StoreError> {
        self.write(move |tx| -> TxFuture<'_, ()> {
            Box::pin(async move { if clean { tx.release(token).await } else { tx.abandon(token).await } })
        })
        .await?;
        self.stir_others().await;
        Ok(())
    }

    /// Notifies the others that shards may have changed owners. A lost hint is made up for by their next look.
    pub(super) async fn stir_others(&self) {
        let notify = sqlx::query("SELECT pg_notify($1, $2)").bind(channel(self)).bind(NODES);
        drop(self.alone(&self.side, notify).await);
    }
}

impl OwnTx {
    /// Hands a shard back; the next owner uses the crash guard.
    pub(super) async fn abandon(&mut self, token: FencingToken) -> Step<()> {
        let abandoned = run!(
            self,
            "UPDATE redrive.shard SET owner = $4 WHERE id = $1 AND epoch = $2 AND incarnation = $3 \
             AND owner IS NOT NULL",
            i64::from(token.shard),
            signed(token.epoch),
            signed(token.incarnation),
            NO_OWNER
        )?;
        if abandoned == 1 { Ok(()) } else { Err(self.db.not_owner(token.shard).into()) }
    }
}
