//! A transaction: its connection, and its state.
//!
//! Every call that writes is one transaction; many of them run concurrently, in any number of processes. Locks keep
//! them apart:
//!
//! | writer | holds | until |
//! |---|---|---|
//! | a publisher | the entries of its dedupe records in the unique index | its commit |
//! | an owner | the rows that it settles, and last the shard row, `FOR SHARE`, if the epoch is still its own | its commit |
//! | any other writer that changes events | first the shard rows, `FOR NO KEY UPDATE`, in their order | its commit |
//!
//! So an owner that was replaced commits nothing, a command and a settle of the same shard never commit side by side,
//! and publishers wait only for publishers of the same identity.
//!
//! A transaction has a connection of its own ([`OwnTx`]), or the connection of a caller that is in the middle of a
//! transaction and ends it ([`super::transact::caller_tx`]): a publish and a completion do the same in both.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use redrive_core::event::identity;
use redrive_core::queue_entry::{FencingToken, QueueEntry, StreamId};
use redrive_core::{Event, Moment};
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row, SqlStr};

use super::database::Database;
use super::events::dedupe::DedupeRecord;
use super::events::fresh::Stream;
use super::faults::{Fault, Step};
use super::keys::heads::Keys;
use super::operate::rules::Rules;
use super::operate::tallies::Tallies;
use crate::store::{DeadLetterRetention, DeclaredBy, QueueSpec};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::numbers::{bits, column, nanos, signed, to_duration};

/// Queues with these names.
pub(super) const READ_SPECS: &str = "SELECT name, ordered, dedupe_window, horizon, pull, keep_time, keep_count \
                                     FROM redrive.queue WHERE name = ANY($1)";

/// All rows of a statement.
macro_rules! rows {
    ($tx:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        ::sqlx::query($tx.sql($sql)).persistent($tx.keeps())$(.bind($bind))*.fetch_all(&mut *$tx.conn).await
    };
}
pub(super) use rows;

/// The first row of a statement, if there is one.
macro_rules! maybe {
    ($tx:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        ::sqlx::query($tx.sql($sql)).persistent($tx.keeps())$(.bind($bind))*.fetch_optional(&mut *$tx.conn).await
    };
}
pub(super) use maybe;

/// The first column of the one row of a statement.
macro_rules! one {
    ($tx:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        ::sqlx::query_scalar($tx.sql($sql)).persistent($tx.keeps())$(.bind($bind))*.fetch_one(&mut *$tx.conn).await
    };
}
pub(super) use one;

/// How many rows a statement changed.
macro_rules! run {
    ($tx:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        ::sqlx::query($tx.sql($sql)).persistent($tx.keeps())$(.bind($bind))*
            .execute(&mut *$tx.conn)
            .await
            .map(|done| done.rows_affected())
    };
}
pub(super) use run;

/// The purpose of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Reading: everything as of one commit.
    Read,
    /// Writing.
    Write,
}

/// Whose connection it is.
pub(super) enum TxConn<'c> {
    /// The store's.
    Own(PoolConnection<Postgres>),
    /// The caller's; the caller ends the transaction.
    Callers(&'c mut PgConnection),
}

impl Deref for TxConn<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match self {
            Self::Own(conn) => conn,
            Self::Callers(conn) => conn,
        }
    }
}

impl DerefMut for TxConn<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Own(conn) => conn,
            Self::Callers(conn) => conn,
        }
    }
}

/// A transaction with a connection of its own.
pub(super) type OwnTx = PgTx<'static>;

/// A connection in a transaction.
pub(super) struct PgTx<'c> {
    pub(super) conn: TxConn<'c>,
    pub(super) db: Arc<Database>,
    /// Whether rows that are read will be changed.
    pub(super) writes: bool,
    /// Events that became runnable in this transaction.
    pub(super) arrived: Vec<QueueEntry>,
    /// Streams with runnable events that are not in `arrived`.
    pub(super) missed: BTreeMap<StreamId, Arc<Stream>>,
    /// Keys without a visible successor when they were freed: looked at again after the commit.
    pub(super) freed: Keys,
    /// Whether a command took events from an owner.
    pub(super) recall: bool,
    /// The changes to counters in this transaction.
    pub(super) tallies: Tallies,
    pub(super) rules: Option<Arc<Rules>>,
    /// The fencing tokens of its changes: checked again at the end.
    pub(super) tokens: BTreeMap<u32, FencingToken>,
    /// The number of this transaction, if its notification is complete.
    pub(super) number: Option<u64>,
    /// An expired dedupe record, found in a transaction on a caller's connection.
    pub(super) over: Option<DedupeRecord>,
    /// Whether a caller's work runs in this transaction.
    pub(super) has_work: bool,
    specs: HashMap<String, Option<Arc<QueueSpec>>>,
    pub(super) is_open: bool,
    /// Statements after the end of the transaction: the next user of the connection finds it as it was opened.
    pub(super) reset_sql: &'static str,
}

/// Resets what a caller's work may have left in a session. Prepared plans stay: they are ours.
const RESET_SQL: &str =
    "; RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; SELECT pg_advisory_unlock_all()";

impl OwnTx {
    /// Begins a transaction.
    pub(super) async fn begin(db: &Arc<Database>, what: Access) -> Step<Self> {
        let conn = db.pool.acquire().await?;
        let mut tx = Self::at(TxConn::Own(conn), db, what);
        tx.is_open = true;
        match what {
            Access::Read => tx.say("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?,
            // One way for all three: no session has to be remembered, so a pooler may be in between.
            Access::Write => {
                let begin = AssertSqlSafe(db.begin.clone());
                sqlx::raw_sql(begin).execute(&mut *tx.conn).await?;
            }
        }
        Ok(tx)
    }

    /// The last steps before a commit: the counters, and then the fence.
    pub(super) async fn finish(&mut self) -> Step<()> {
        self.write_counts().await?;
        self.fence().await
    }

    /// Declares a queue.
    pub(super) async fn declare(&mut self, spec: &QueueSpec, by: DeclaredBy) -> sqlx::Result<()> {
        let DeadLetterRetention { time, count } = spec.keep;
        run!(
            self,
            "INSERT INTO redrive.queue (name, ordered, dedupe_window, horizon, pull, keep_time, keep_count) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (name) DO UPDATE SET ordered = $2, dedupe_window = $3, \
             horizon = $4, pull = $5, keep_time = $6, keep_count = $7 WHERE $8",
            &spec.name,
            i64::from(spec.ordered),
            column(nanos(spec.window)),
            column(nanos(spec.horizon)),
            i64::from(spec.pull),
            time.map(|time| column(nanos(time))),
            count.map(column),
            by == DeclaredBy::Runner
        )
        .map(drop)
    }
}

impl<'c> PgTx<'c> {
    /// A transaction on a caller's connection.
    pub(super) fn caller_tx(conn: &'c mut PgConnection, db: &Arc<Database>) -> Self {
        Self::at(TxConn::Callers(conn), db, Access::Write)
    }

    fn at(conn: TxConn<'c>, db: &Arc<Database>, what: Access) -> Self {
        Self {
            conn,
            db: Arc::clone(db),
            writes: what == Access::Write,
            arrived: Vec::new(),
            missed: BTreeMap::new(),
            freed: Keys::new(),
            recall: false,
            tallies: Tallies::default(),
            rules: None,
            tokens: BTreeMap::new(),
            number: None,
            over: None,
            has_work: false,
            specs: HashMap::new(),
            is_open: false,
            reset_sql: "",
        }
    }

    /// Whether the caller ends the transaction.
    pub(super) fn is_callers(&self) -> bool {
        matches!(self.conn, TxConn::Callers(_))
    }

    /// Whether a caller's work shares the transaction.
    pub(super) fn is_shared(&self) -> bool {
        self.has_work || self.is_callers()
    }

    async fn say(&mut self, what: &'static str) -> sqlx::Result<()> {
        sqlx::raw_sql(what).execute(&mut *self.conn).await.map(drop)
    }

    /// Waits only briefly for locks of others, for the rest of this transaction.
    pub(super) async fn wait_shortly(&mut self) -> sqlx::Result<()> {
        self.say("SET LOCAL lock_timeout = '100ms'").await
    }

    /// A statement, with the name of our schema.
    pub(super) fn sql(&self, written: &'static str) -> SqlStr {
        self.db.schema.sql(written)
    }

    /// Whether a statement stays prepared: behind a pooler the next one has another session.
    pub(super) fn keeps(&self) -> bool {
        !self.db.pooled
    }

    /// Commits. If this fails, [`super::faults::kind`] tells whether it may have happened.
    pub(super) async fn commit(&mut self) -> sqlx::Result<()> {
        let committed = self.say("COMMIT").await;
        self.is_open = committed.is_err();
        committed
    }

    /// A caller's statements are about to run. Behind a pooler the session is another one afterwards, and the pooler
    /// resets it.
    pub(super) fn is_worked_at(&mut self) {
        self.reset_sql = if self.db.pooled { "" } else { RESET_SQL };
    }

    /// Rolls back. A connection that cannot even do that is thrown away.
    pub(super) async fn roll_back(&mut self) {
        let _ = self.try_to_roll_back().await;
    }

    /// The same; returns whether the connection still works.
    pub(super) async fn try_to_roll_back(&mut self) -> bool {
        let reset_sql = std::mem::take(&mut self.reset_sql);
        let rolled_back = match reset_sql {
            "" => self.say("ROLLBACK").await,
            reset_sql => {
                let say = AssertSqlSafe(format!("ROLLBACK{reset_sql}"));
                sqlx::raw_sql(say).execute(&mut *self.conn).await.map(drop)
            }
        };
        self.is_open = rolled_back.is_err();
        !self.is_open
    }

    /// Makes sure that every shard with changes still has the same owner, and locks it until the commit.
    async fn fence(&mut self) -> Step<()> {
        if self.tokens.is_empty() {
            return Ok(());
        }
        let tokens = std::mem::take(&mut self.tokens);
        let ids: Vec<i64> = tokens.keys().map(|shard| i64::from(*shard)).collect();
        let epochs: Vec<i64> = tokens.values().map(|token| signed(token.epoch)).collect();
        let lives: Vec<i64> = tokens.values().map(|token| signed(token.incarnation)).collect();
        let tracked = rows!(
            self,
            "SELECT shard.id FROM redrive.shard JOIN unnest($1::bigint[], $2::bigint[], $3::bigint[]) \
             AS own (id, epoch, incarnation) ON shard.id = own.id AND shard.epoch = own.epoch \
             AND shard.incarnation = own.incarnation WHERE shard.owner IS NOT NULL ORDER BY shard.id \
             FOR SHARE OF shard",
            ids,
            epochs,
            lives
        )?;
        if tracked.len() == tokens.len() { Ok(()) } else { Err(Fault::Void) }
    }

    /// Whether this is the fencing token of the present owner, as far as this transaction sees. Its changes are fenced
    /// at the end.
    pub(super) async fn is_current(&mut self, token: FencingToken) -> sqlx::Result<bool> {
        let found = maybe!(
            self,
            "SELECT 1 FROM redrive.shard WHERE id = $1 AND epoch = $2 AND incarnation = $3 AND owner IS NOT NULL",
            i64::from(token.shard),
            signed(token.epoch),
            signed(token.incarnation)
        )?;
        Ok(found.is_some())
    }

    /// Locks all shards in their order, for a transaction that changes events and does not own them.
    pub(super) async fn lock_shards(&mut self) -> sqlx::Result<()> {
        rows!(self, "SELECT id FROM redrive.shard ORDER BY id FOR NO KEY UPDATE").map(drop)
    }

    /// Whether an owner writes: then no other process has to find its writes.
    pub(super) fn is_owner(&self) -> bool {
        !self.tokens.is_empty()
    }

    pub(super) fn shard_of(&self, event: &Event) -> u32 {
        identity::shard(event, self.db.shards)
    }

    /// How long a queue remembers an identity after its event's end.
    pub(super) async fn window(&mut self, queue: &str) -> sqlx::Result<Duration> {
        Ok(self.spec(queue).await?.map(|spec| spec.window).unwrap_or_default())
    }

    /// A queue as it was declared.
    pub(super) async fn spec(&mut self, queue: &str) -> sqlx::Result<Option<Arc<QueueSpec>>> {
        if !self.specs.contains_key(queue) {
            self.read_specs(&[queue.to_owned()]).await?;
        }
        Ok(self.specs.get(queue).cloned().flatten())
    }

    /// Reads queues, as they are declared now.
    pub(super) async fn read_specs(&mut self, queues: &[String]) -> sqlx::Result<()> {
        let found = rows!(self, READ_SPECS, queues)?;
        for queue in queues {
            self.specs.insert(queue.clone(), None);
        }
        for row in found {
            let spec = spec_of(&row)?;
            let name = spec.name.clone();
            let spec = Arc::new(spec);
            self.db.remember(&spec);
            self.specs.insert(name, Some(spec));
        }
        Ok(())
    }

    /// Events became runnable that are not announced one by one.
    pub(super) fn miss(&mut self, stream: &Arc<Stream>) {
        self.missed.entry(stream.id).or_insert_with(|| Arc::clone(stream));
    }

    /// Notes a moment that a caller passed in.
    pub(super) fn advance_clock(&self, at: Moment) {
        self.db.clock.advance(at);
    }
}

impl Drop for PgTx<'_> {
    /// A connection in the middle of a transaction is closed.
    fn drop(&mut self) {
        if let TxConn::Own(conn) = &mut self.conn
            && self.is_open
        {
            conn.close_on_drop();
        }
    }
}

/// A queue in a row of [`READ_SPECS`].
pub(super) fn spec_of(row: &PgRow) -> sqlx::Result<QueueSpec> {
    let number = |at| row.try_get::<i64, _>(at);
    Ok(QueueSpec {
        name: row.try_get(0)?,
        ordered: number(1)? != 0,
        window: to_duration(number(2)?),
        horizon: to_duration(number(3)?),
        pull: number(4)? != 0,
        keep: DeadLetterRetention {
            time: row.maybe_number(5).ok().flatten().map(to_duration),
            count: row.maybe_number(6).ok().flatten().map(bits),
        },
    })
}
