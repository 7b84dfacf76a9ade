//! A desk: a connection in a transaction, and what is known within it.
//!
//! Every verb that writes is one transaction at a desk of its own; many of them run side by side, in as many processes
//! as there are. What keeps them apart:
//!
//! | who | holds | until |
//! |---|---|---|
//! | a publisher | its receipts' places in the unique index | its commit |
//! | an owner | the rows that it settles, and last the shard row, `FOR SHARE`, if the epoch is still its own | its commit |
//! | anybody else who changes events | first the shard rows, `FOR NO KEY UPDATE`, in their order | its commit |
//!
//! So an owner that was replaced commits nothing, an order and a settle of the same shard never commit side by side, and
//! publishers wait for nobody but for those of the same identity.
//!
//! A desk has a connection of its own ([`Desk`]), or one that was lent by somebody who is in the middle of a transaction
//! and ends it ([`super::lent`]): what a publisher and a completion do is the same at both.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use redrive_core::entry::{Entry, Grant, StreamId};
use redrive_core::event::identity;
use redrive_core::{Event, Moment};
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row, SqlStr};

use super::faults::{Fault, Step};
use super::heads::Keys;
use super::ledger::Ledger;
use super::office::Office;
use super::receipt::Receipt;
use super::rows::Stream;
use super::rules::Rules;
use crate::store::{By, Keep, QueueSpec};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::numbers::{bits, column, nanos, signed, to_duration};

/// Queues with these names.
pub(super) const READ_SPECS: &str = "SELECT name, ordered, remembered, horizon, pull, keep_time, keep_count \
                                     FROM redrive.queue WHERE name = ANY($1)";

/// All rows of a statement.
macro_rules! rows {
    ($desk:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        ::sqlx::query($desk.sql($sql)).persistent($desk.keeps())$(.bind($bind))*.fetch_all(&mut *$desk.conn).await
    };
}
pub(super) use rows;

/// The first row of a statement, if there is one.
macro_rules! maybe {
    ($desk:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        ::sqlx::query($desk.sql($sql)).persistent($desk.keeps())$(.bind($bind))*.fetch_optional(&mut *$desk.conn).await
    };
}
pub(super) use maybe;

/// The first column of the one row of a statement.
macro_rules! one {
    ($desk:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        ::sqlx::query_scalar($desk.sql($sql)).persistent($desk.keeps())$(.bind($bind))*.fetch_one(&mut *$desk.conn).await
    };
}
pub(super) use one;

/// How many rows a statement changed.
macro_rules! run {
    ($desk:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        ::sqlx::query($desk.sql($sql)).persistent($desk.keeps())$(.bind($bind))*
            .execute(&mut *$desk.conn)
            .await
            .map(|done| done.rows_affected())
    };
}
pub(super) use run;

/// What a desk is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    /// Looking: everything is seen as of one commit.
    Looking,
    /// Writing.
    Writing,
}

/// Whose connection it is.
pub(super) enum Line<'c> {
    /// The store's.
    Own(PoolConnection<Postgres>),
    /// Somebody else's, who ends the transaction.
    Lent(&'c mut PgConnection),
}

impl Deref for Line<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match self {
            Self::Own(conn) => conn,
            Self::Lent(conn) => conn,
        }
    }
}

impl DerefMut for Line<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Own(conn) => conn,
            Self::Lent(conn) => conn,
        }
    }
}

/// A desk with a connection of its own.
pub(super) type Desk = DeskAt<'static>;

/// A connection in a transaction.
pub(super) struct DeskAt<'c> {
    pub(super) conn: Line<'c>,
    pub(super) office: Arc<Office>,
    /// Whether rows that are read are to be changed.
    pub(super) writes: bool,
    /// What became runnable in this transaction.
    pub(super) arrived: Vec<Entry>,
    /// Streams in which something became runnable that is not in `arrived`.
    pub(super) missed: BTreeMap<StreamId, Arc<Stream>>,
    /// Keys that nobody seemed to follow in when they were freed: looked at again after the commit.
    pub(super) freed: Keys,
    /// Whether an order took something out of an owner's hands.
    pub(super) recall: bool,
    /// What is counted in this transaction.
    pub(super) ledger: Ledger,
    pub(super) rules: Option<Arc<Rules>>,
    /// The grants under which something was changed: checked again at the end.
    pub(super) grants: BTreeMap<u32, Grant>,
    /// The number of this transaction, where all that others want to know of it is told.
    pub(super) number: Option<u64>,
    /// A receipt that need not be remembered any more, met at a desk whose connection was lent.
    pub(super) over: Option<Receipt>,
    /// Whether somebody's work is done in this transaction.
    pub(super) has_work: bool,
    specs: HashMap<String, Option<Arc<QueueSpec>>>,
    pub(super) is_open: bool,
    /// What is said after the end of the transaction: whoever uses the connection next finds it as it was opened.
    pub(super) tidies: &'static str,
}

/// What somebody else's work may have left in a session. Plans stay: they are ours.
const TIDIES: &str = "; RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; SELECT pg_advisory_unlock_all()";

impl Desk {
    /// Begins a transaction.
    pub(super) async fn begin(office: &Arc<Office>, what: For) -> Step<Self> {
        let conn = office.pool.acquire().await?;
        let mut desk = Self::at(Line::Own(conn), office, what);
        desk.is_open = true;
        match what {
            For::Looking => desk.say("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?,
            // One way for all three: no session has to be remembered, so a pooler may be in between.
            For::Writing => {
                let begin = AssertSqlSafe(office.begin.clone());
                sqlx::raw_sql(begin).execute(&mut *desk.conn).await?;
            }
        }
        Ok(desk)
    }

    /// Does what is left before a commit: counts, and then the fence, last of all.
    pub(super) async fn finish(&mut self) -> Step<()> {
        self.write_counts().await?;
        self.fence().await
    }

    /// Makes a queue known.
    pub(super) async fn declare(&mut self, spec: &QueueSpec, by: By) -> sqlx::Result<()> {
        let Keep { time, count } = spec.keep;
        run!(
            self,
            "INSERT INTO redrive.queue (name, ordered, remembered, horizon, pull, keep_time, keep_count) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (name) DO UPDATE SET ordered = $2, remembered = $3, \
             horizon = $4, pull = $5, keep_time = $6, keep_count = $7 WHERE $8",
            &spec.name,
            i64::from(spec.ordered),
            column(nanos(spec.window)),
            column(nanos(spec.horizon)),
            i64::from(spec.pull),
            time.map(|time| column(nanos(time))),
            count.map(column),
            by == By::Runner
        )
        .map(drop)
    }
}

impl<'c> DeskAt<'c> {
    /// A desk in somebody else's transaction.
    pub(super) fn lent(conn: &'c mut PgConnection, office: &Arc<Office>) -> Self {
        Self::at(Line::Lent(conn), office, For::Writing)
    }

    fn at(conn: Line<'c>, office: &Arc<Office>, what: For) -> Self {
        Self {
            conn,
            office: Arc::clone(office),
            writes: what == For::Writing,
            arrived: Vec::new(),
            missed: BTreeMap::new(),
            freed: Keys::new(),
            recall: false,
            ledger: Ledger::default(),
            rules: None,
            grants: BTreeMap::new(),
            number: None,
            over: None,
            has_work: false,
            specs: HashMap::new(),
            is_open: false,
            tidies: "",
        }
    }

    /// Whether somebody else ends the transaction.
    pub(super) fn is_lent(&self) -> bool {
        matches!(self.conn, Line::Lent(_))
    }

    /// Whether others do something in the same transaction.
    pub(super) fn is_shared(&self) -> bool {
        self.has_work || self.is_lent()
    }

    async fn say(&mut self, what: &'static str) -> sqlx::Result<()> {
        sqlx::raw_sql(what).execute(&mut *self.conn).await.map(drop)
    }

    /// Waits for others' locks only shortly, for the rest of this transaction.
    pub(super) async fn wait_shortly(&mut self) -> sqlx::Result<()> {
        self.say("SET LOCAL lock_timeout = '100ms'").await
    }

    /// A statement, with the name of our schema.
    pub(super) fn sql(&self, written: &'static str) -> SqlStr {
        self.office.schema.sql(written)
    }

    /// Whether a statement is prepared for later: behind a pooler the next one has another session.
    pub(super) fn keeps(&self) -> bool {
        !self.office.pooled
    }

    /// Commits. Where this fails, [`super::faults::kind`] tells whether it may have happened.
    pub(super) async fn commit(&mut self) -> sqlx::Result<()> {
        let committed = self.say("COMMIT").await;
        self.is_open = committed.is_err();
        committed
    }

    /// Somebody else's statements are about to be said. Behind a pooler the session is another one afterwards, and its
    /// owner's affair.
    pub(super) fn is_worked_at(&mut self) {
        self.tidies = if self.office.pooled { "" } else { TIDIES };
    }

    /// Rolls back. A connection that cannot even do that is thrown away.
    pub(super) async fn roll_back(&mut self) {
        let _ = self.try_to_roll_back().await;
    }

    /// The same; whether the connection is still there.
    pub(super) async fn try_to_roll_back(&mut self) -> bool {
        let tidies = std::mem::take(&mut self.tidies);
        let rolled_back = match tidies {
            "" => self.say("ROLLBACK").await,
            tidies => {
                let say = AssertSqlSafe(format!("ROLLBACK{tidies}"));
                sqlx::raw_sql(say).execute(&mut *self.conn).await.map(drop)
            }
        };
        self.is_open = rolled_back.is_err();
        !self.is_open
    }

    /// Makes sure that every shard in which something was changed has still the same owner, and keeps it so until the
    /// commit.
    async fn fence(&mut self) -> Step<()> {
        if self.grants.is_empty() {
            return Ok(());
        }
        let grants = std::mem::take(&mut self.grants);
        let ids: Vec<i64> = grants.keys().map(|shard| i64::from(*shard)).collect();
        let epochs: Vec<i64> = grants.values().map(|grant| signed(grant.epoch)).collect();
        let lives: Vec<i64> = grants.values().map(|grant| signed(grant.incarnation)).collect();
        let held = rows!(
            self,
            "SELECT shard.id FROM redrive.shard JOIN unnest($1::bigint[], $2::bigint[], $3::bigint[]) \
             AS own (id, epoch, incarnation) ON shard.id = own.id AND shard.epoch = own.epoch \
             AND shard.incarnation = own.incarnation WHERE shard.owner IS NOT NULL ORDER BY shard.id \
             FOR SHARE OF shard",
            ids,
            epochs,
            lives
        )?;
        if held.len() == grants.len() { Ok(()) } else { Err(Fault::Lost) }
    }

    /// Whether this is the grant of the present owner, as far as can be seen now. What is changed in its right is
    /// fenced at the end.
    pub(super) async fn is_current(&mut self, grant: Grant) -> sqlx::Result<bool> {
        let found = maybe!(
            self,
            "SELECT 1 FROM redrive.shard WHERE id = $1 AND epoch = $2 AND incarnation = $3 AND owner IS NOT NULL",
            i64::from(grant.shard),
            signed(grant.epoch),
            signed(grant.incarnation)
        )?;
        Ok(found.is_some())
    }

    /// Locks shards, for somebody who changes events and does not own them: all, in their order.
    pub(super) async fn lock_shards(&mut self) -> sqlx::Result<()> {
        rows!(self, "SELECT id FROM redrive.shard ORDER BY id FOR NO KEY UPDATE").map(drop)
    }

    /// Whether this writes in an owner's right: nobody else has to find what it writes.
    pub(super) fn is_owner(&self) -> bool {
        !self.grants.is_empty()
    }

    pub(super) fn shard_of(&self, event: &Event) -> u32 {
        identity::shard(event, self.office.shards)
    }

    /// How long an identity of a queue is remembered after its end.
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
            self.office.remember(&spec);
            self.specs.insert(name, Some(spec));
        }
        Ok(())
    }

    /// Something became runnable that is not told one by one.
    pub(super) fn miss(&mut self, stream: &Arc<Stream>) {
        self.missed.entry(stream.id).or_insert_with(|| Arc::clone(stream));
    }

    /// Takes note of a moment that somebody told.
    pub(super) fn see(&self, at: Moment) {
        self.office.seen.see(at);
    }
}

impl Drop for DeskAt<'_> {
    /// A connection in the middle of a transaction is nobody else's to use.
    fn drop(&mut self) {
        if let Line::Own(conn) = &mut self.conn
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
        keep: Keep {
            time: row.maybe_number(5).ok().flatten().map(to_duration),
            count: row.maybe_number(6).ok().flatten().map(bits),
        },
    })
}
