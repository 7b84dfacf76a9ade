//! The processes that share the database: a row each, with a lease by the database's clock.
//!
//! A process says that it lives four times a lease, over a connection of its own: where that one hangs or is cut, it is
//! thrown away, and nobody's pool has to be waited for. Each time the database says what time it is, so that this
//! process knows too. Whoever gives shards back, joins or leaves tells the others so, once that is committed; what is
//! not heard is found by looking.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::entry::Grant;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Row as _};

use super::arrivals::channel;
use super::desk::{Desk, run};
use super::faults::{Kind, Step, kind};
use super::office::{Doing, Office, aside};
use super::schema::Schema;
use super::settings::Settings;
use crate::error::StoreError;
use crate::nodes::{Asked, Node, NodeId, Nodes, Row, Tenure, beat_every};
use crate::stores::shared::numbers::{bits, signed, to_duration, to_moment};

/// What a notice says where it is about nodes. Others name the process that wrote something.
pub(super) const NODES: &str = "nodes";
/// The owner of a shard that was given back, and not as clean: no process has this number.
const NOBODY: i64 = 0;
/// How long to wait before a heartbeat that failed is tried again.
const AGAIN: Duration = Duration::from_millis(50);

/// The database's clock, in nanoseconds since 1970.
macro_rules! clock {
    () => {
        "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"
    };
}

/// Makes a row for this process.
pub(super) async fn enrol(
    conn: &mut PgConnection,
    schema: &Schema,
    settings: &Settings,
) -> sqlx::Result<Tenure> {
    let enrol = concat!(
        "INSERT INTO redrive.node (name, until) VALUES ($1, clock_timestamp() + make_interval(secs => $2)) \
         RETURNING id, ",
        clock!()
    );
    let asked = Asked::now();
    let query = sqlx::query(schema.sql(enrol)).bind(&settings.name).bind(settings.lease.as_secs_f64());
    // In a transaction, so that a pooler may be in between.
    let mut tx = conn.begin().await?;
    let row = query.persistent(false).fetch_one(&mut *tx).await?;
    tx.commit().await?;
    let (id, at) = (NodeId(bits(row.try_get(0)?)), to_moment(row.try_get(1)?));
    Ok(Tenure::new(id, settings.name.clone(), settings.lease, asked, at))
}

/// Says that this process lives, for as long as the store is open; once that is not to be said any more, asks for the
/// time alone.
pub(super) async fn beat(office: Arc<Office>, options: PgConnectOptions) {
    let every = beat_every(office.lease);
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut line = None;
    loop {
        ticks.tick().await;
        // Who leaves waits for this one: it must not arrive afterwards.
        let _beating = office.beating.lock().await;
        if office.check().is_err() {
            return;
        }
        // Where none arrives, somebody else takes over.
        if tokio::time::timeout(every, beat_once(&office, &options, &mut line)).await.is_err() {
            line = None;
        }
    }
}

/// Tries until the database has heard of it.
async fn beat_once(office: &Office, options: &PgConnectOptions, line: &mut Option<PgConnection>) {
    loop {
        let beaten = match line {
            Some(conn) => office.renew(conn).await,
            None => match options.connect().await {
                Ok(conn) => office.renew(line.insert(conn)).await,
                // All connections that there may be are at desks: one of those will do.
                Err(error) if kind(&error) == Kind::Busy => office.renew_by(&office.pool).await,
                Err(error) => Err(error),
            },
        };
        if beaten.is_ok() || office.check().is_err() {
            return;
        }
        *line = None;
        tokio::time::sleep(AGAIN).await;
    }
}

impl Office {
    /// Says that this process lives; anew, where it was not heard of for so long that it was forgotten.
    async fn renew(&self, conn: &mut PgConnection) -> sqlx::Result<()> {
        if self.tenure.has_resigned() {
            return self.ask_time(conn).await;
        }
        let beat = concat!(
            "INSERT INTO redrive.node (id, name, runs, until) OVERRIDING SYSTEM VALUE \
             VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4)) \
             ON CONFLICT (id) DO UPDATE SET until = greatest(node.until, EXCLUDED.until), \
             runs = EXCLUDED.runs RETURNING ",
            clock!()
        );
        let asked = Asked::now();
        let query = sqlx::query(self.schema.sql(beat)).bind(self.node).bind(self.tenure.name());
        let query = query.bind(self.tenure.runs()).bind(self.lease.as_secs_f64());
        let rows = self.alone_on(conn, query).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        self.tenure.renewed(asked, to_moment(row.try_get(0)?));
        Ok(())
    }

    async fn ask_time(&self, conn: &mut PgConnection) -> sqlx::Result<()> {
        let rows = self.alone_on(conn, sqlx::query(self.schema.sql(concat!("SELECT ", clock!())))).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        self.tenure.told(to_moment(row.try_get(0)?));
        Ok(())
    }

    /// The same over a connection of a pool.
    async fn renew_by(&self, pool: &PgPool) -> sqlx::Result<()> {
        let mut conn = pool.acquire().await?;
        self.renew(&mut conn).await
    }

    /// Says whether this process runs handlers.
    pub(super) async fn enlist(&self, runs: bool) -> Result<(), StoreError> {
        self.tenure.set_runs(runs);
        self.renew_by(&self.side).await.map_err(aside)?;
        self.stir_others().await;
        Ok(())
    }

    /// All processes, and who owns what: one statement, hence as of one commit.
    pub(super) async fn nodes(&self) -> Result<Nodes, StoreError> {
        let look = concat!(
            "SELECT 0 AS kind, id, name, runs, (extract(epoch FROM since) * 1000000000)::bigint, \
             greatest(0, (extract(epoch FROM until - clock_timestamp()) * 1000000000)::bigint) FROM redrive.node \
             UNION ALL SELECT 1, id, '', owner IS NOT NULL, epoch, coalesce(owner, 0) FROM redrive.shard \
             UNION ALL SELECT 2, 0, '', false, ",
            clock!(),
            ", 0 ORDER BY kind, id"
        );
        let look = sqlx::query(self.schema.sql(look));
        let found = self.alone(&self.side, look).await.map_err(aside)?;
        let (mut list, mut shards, mut at) = (Vec::new(), Vec::new(), self.tenure.time());
        for row in found {
            let number = |column| row.try_get::<i64, _>(column).map_err(aside);
            let (first, second) = (number(4)?, number(5)?);
            let is_so: bool = row.try_get(3).map_err(aside)?;
            match row.try_get::<i32, _>(0).map_err(aside)? {
                0 => list.push(Node {
                    id: NodeId(bits(number(1)?)),
                    name: row.try_get(2).map_err(aside)?,
                    since: to_moment(first),
                    left: to_duration(second),
                    runs: is_so,
                }),
                1 => shards.push(Row { owner: is_so.then_some(NodeId(bits(second))), epoch: bits(first) }),
                _ => at = to_moment(first),
            }
        }
        Ok(Nodes { me: self.tenure.me(), at, list, shards })
    }

    /// Forgets processes that own nothing and were not heard of for a long time.
    pub(super) async fn forget_nodes(&self) -> Result<(), StoreError> {
        let forget = "DELETE FROM redrive.node WHERE until < clock_timestamp() - interval '1 h' \
                      AND NOT EXISTS (SELECT 1 FROM redrive.shard WHERE owner = node.id)";
        self.alone(&self.side, sqlx::query(self.schema.sql(forget))).await.map(drop).map_err(aside)
    }

    /// Says that this process is about to end: whoever wants its shards need not wait.
    pub(super) async fn leave(&self) -> Result<(), StoreError> {
        let leave = "WITH owned AS (SELECT EXISTS (SELECT 1 FROM redrive.shard WHERE owner = $1) AS has), \
                     gone AS (DELETE FROM redrive.node USING owned WHERE id = $1 AND NOT has) \
                     UPDATE redrive.node SET until = clock_timestamp() FROM owned WHERE id = $1 AND has";
        let _beating = self.beating.lock().await;
        let query = sqlx::query(self.schema.sql(leave)).bind(self.node);
        self.alone(&self.side, query).await.map_err(aside)?;
        self.stir_others().await;
        Ok(())
    }

    /// Gives a shard back, and tells whoever may want it. The next owner is to be careful where it is not clean.
    pub(super) async fn give_back(self: &Arc<Self>, grant: Grant, clean: bool) -> Result<(), StoreError> {
        self.write(move |desk| -> Doing<'_, ()> {
            Box::pin(async move { if clean { desk.release(grant).await } else { desk.abandon(grant).await } })
        })
        .await?;
        self.stir_others().await;
        Ok(())
    }

    /// Tells the others that somebody may own other shards than before. A hint that is lost is a look later.
    pub(super) async fn stir_others(&self) {
        let notify = sqlx::query("SELECT pg_notify($1, $2)").bind(channel(self)).bind(NODES);
        drop(self.alone(&self.side, notify).await);
    }
}

impl Desk {
    /// Gives a shard back; the next owner is to be careful.
    pub(super) async fn abandon(&mut self, grant: Grant) -> Step<()> {
        let abandoned = run!(
            self,
            "UPDATE redrive.shard SET owner = $4 WHERE id = $1 AND epoch = $2 AND incarnation = $3 \
             AND owner IS NOT NULL",
            i64::from(grant.shard),
            signed(grant.epoch),
            signed(grant.incarnation),
            NOBODY
        )?;
        if abandoned == 1 { Ok(()) } else { Err(self.office.not_owner(grant.shard).into()) }
    }
}
