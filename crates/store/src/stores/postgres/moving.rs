//! A database as one side of a move.
//!
//! The state of the move is in a table of its own, and triggers on all tables refuse every write: of a source, and of
//! an unfinished target, to which only the session of the move may write. A process that opens a store inserts a row
//! in `node`, so it is refused as well. Creating a trigger waits for running writers; only then the move checks
//! whether a server runs, and whether a target is empty, so no writer can come in between.
//!
//! Of two moves with a common side the second is refused, by an advisory lock of the session.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::queue_entry::{Seq, StreamId};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, Row as _};
use tokio::runtime::{Builder, Runtime};

use super::events::fresh::Stream;
use super::faults::{broken, rolled_back};
use super::open::explain;
use super::open::schema::{STEPS, Schema};
use super::open::settings::PostgresSettings;
use super::open::url::{self, DatabaseUrl};
use super::publish::fast::says;
use super::writer::LOCKED;
use crate::error::StoreError;
use crate::moving::MoveError;
use crate::sql::Value;
use crate::stores::shared::moving::row::Row;
use crate::stores::shared::moving::table::{Form, Table};
use crate::stores::shared::moving::{Counters, Cursors, EPOCH_LEAP, Mark, Role, Side, Values, not_empty};
use crate::stores::shared::numbers::{bits, column};

mod put;

/// The code of the error that says that a store was moved.
pub(super) const CODE: &str = "RDMOV";

/// The variable of a session that may write to a target.
const MOVER: &str = "redrive_move.is_mover";

/// How long to wait for another move to release a side.
const ALONE: Duration = Duration::from_secs(1);

/// How long to wait for the database's answer.
const CONNECT: Duration = Duration::from_secs(10);

/// A database that a move holds exclusively.
pub(in crate::stores) struct PgMover {
    runtime: Runtime,
    conn: PgConnection,
    schema: Schema,
    place: String,
    shards: u32,
}

impl PgMover {
    pub(in crate::stores) fn open(
        address: &str,
        settings: &PostgresSettings,
        role: Role,
    ) -> Result<Self, MoveError> {
        let DatabaseUrl { options, shown, .. } = url::read(address)?;
        let place = format!("{shown}, schema {}", settings.schema);
        settings.check().map_err(|why| StoreError::Open { path: place.clone().into(), why, source: None })?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| broken(format!("cannot start a thread: {error}")))?;
        let schema = Schema::new(&settings.schema, STEPS);
        let failed = |error| explain(&place, error);
        let connect = async { tokio::time::timeout(CONNECT, options.connect()).await };
        let mut conn = match runtime.block_on(connect) {
            Ok(conn) => conn.map_err(failed)?,
            Err(_) => {
                let why =
                    format!("no answer for {} s; check that it can be reached from here", CONNECT.as_secs());
                return Err(StoreError::Open { path: place.into(), why, source: None }.into());
            }
        };
        let found = runtime.block_on(schema.migrate(&mut conn, settings)).map_err(failed)?;
        // A table or a column that this program does not know would be left behind.
        let shards = found.shards_of_all(&place)?;
        let mut side = Self { runtime, conn, schema, place, shards };
        side.have_alone()?;
        if role == Role::Into {
            side.say(&format!("SET {MOVER} = 'yes'"))?;
        }
        Ok(side)
    }

    /// Makes sure that no other move holds it. A move that has just ended may still have a session.
    fn have_alone(&mut self) -> Result<(), MoveError> {
        let name = quoted(&format!("redrive move {}", self.schema.name()));
        let wait = ALONE.as_millis();
        let lock = format!(
            "SET lock_timeout = {wait}; SELECT pg_advisory_lock(hashtextextended({name}, 8462018)); RESET lock_timeout"
        );
        let locked = self.runtime.block_on(sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut self.conn));
        match locked {
            Ok(_) => Ok(()),
            Err(error) if says(&error, LOCKED) => {
                Err(MoveError::Refused(format!("another `redrive move` is running on {}", self.place)))
            }
            Err(error) => Err(rolled_back(error).into()),
        }
    }

    /// A statement of ours, with the name of the schema in place of `redrive.`. All text inserted into it comes from
    /// here.
    fn sql(&self, written: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(written.replace("redrive.", &format!("{}.", self.schema.name())))
    }

    /// Runs several statements in one transaction.
    fn say(&mut self, written: &str) -> Result<(), StoreError> {
        let sql = self.sql(&format!("BEGIN; {written}; COMMIT"));
        let said = self.runtime.block_on(sqlx::raw_sql(sql).execute(&mut self.conn));
        if said.is_err() {
            let _ = self.runtime.block_on(sqlx::raw_sql("ROLLBACK").execute(&mut self.conn));
        }
        said.map(drop).map_err(rolled_back)
    }

    fn number(&mut self, written: &str) -> Result<i64, StoreError> {
        let sql = self.sql(written);
        let found = sqlx::query_scalar(sql).persistent(false).fetch_one(&mut self.conn);
        self.runtime.block_on(found).map_err(rolled_back)
    }

    fn is_there(&mut self, table: &str) -> Result<bool, StoreError> {
        let name = format!("{}.{table}", self.schema.name());
        let found =
            sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL").bind(name).fetch_one(&mut self.conn);
        self.runtime.block_on(found).map_err(rolled_back)
    }

    /// Records a move, and creates triggers that refuse writes to all tables. If a server runs, or the target is not
    /// empty, that is an error, and nothing is recorded.
    fn close(&mut self, role: Role, mark: &Mark, why: &str, more: &str) -> Result<(), MoveError> {
        let triggers: String = self
            .tables()?
            .iter()
            .map(|table| {
                format!(
                    "CREATE TRIGGER moved BEFORE INSERT OR UPDATE OR DELETE ON redrive.{table} \
                     FOR EACH STATEMENT EXECUTE FUNCTION redrive.moved();\n"
                )
            })
            .collect();
        let (why, place) = (quoted(why), quoted(&mark.place));
        let (role, id, life, code) = (role.as_str(), quoted(&mark.id), mark.life, CODE);
        self.say(&format!(
            "CREATE TABLE IF NOT EXISTS redrive.moving (role TEXT PRIMARY KEY, id TEXT NOT NULL, place TEXT NOT NULL, \
             life BIGINT NOT NULL, done BOOLEAN NOT NULL);\n\
             INSERT INTO redrive.moving (role, id, place, life, done) VALUES ('{role}', {id}, {place}, {life}, false) \
             ON CONFLICT (role) DO UPDATE SET id = EXCLUDED.id, place = EXCLUDED.place, life = EXCLUDED.life, done = false;\n\
             CREATE OR REPLACE FUNCTION redrive.moved() RETURNS trigger LANGUAGE plpgsql AS $moved$ BEGIN \
             IF '{role}' = 'from' OR current_setting('{MOVER}', true) IS DISTINCT FROM 'yes' THEN \
             RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = {why}; END IF; RETURN NULL; END $moved$;\n\
             {triggers}{more}\
             DO $running$ BEGIN IF EXISTS (SELECT 1 FROM redrive.node WHERE until > clock_timestamp()) THEN \
             RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = 'a server runs on it'; END IF; END $running$"
        ))
        .map_err(|error| match error {
            StoreError::Broken { what, .. } if what.contains("a server runs on it") => {
                MoveError::Refused(format!("a server runs on {}; stop it first", self.place))
            }
            error => MoveError::Store(error),
        })
    }

    /// Allows writes again.
    fn open_up(&mut self, more: &str) -> Result<(), StoreError> {
        // The triggers go with the function that they call.
        self.say(&format!("DROP FUNCTION IF EXISTS redrive.moved() CASCADE; {more}"))
    }

    /// The tables of the schema, without those of the move itself.
    fn tables(&mut self) -> Result<Vec<String>, StoreError> {
        let select = "SELECT tablename::text FROM pg_tables WHERE schemaname = $1 AND tablename NOT LIKE 'moving%' \
                      ORDER BY tablename";
        let found = sqlx::query_scalar(select).bind(self.schema.name()).fetch_all(&mut self.conn);
        self.runtime.block_on(found).map_err(rolled_back)
    }
}

/// A text as a literal. Texts inserted into statements here are addresses and numbers of moves.
fn quoted(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''").replace('\0', ""))
}

impl Side for PgMover {
    fn place(&self) -> String {
        format!("postgres {}", self.place)
    }

    fn shards(&self) -> u32 {
        self.shards
    }

    fn refuses_zero(&self) -> bool {
        true
    }

    fn mark(&mut self, role: Role) -> Result<Option<Mark>, StoreError> {
        if !self.is_there("moving")? {
            return Ok(None);
        }
        let sql = self.sql("SELECT id, place, life, done FROM redrive.moving WHERE role = $1");
        let found = sqlx::query(sql).bind(role.as_str()).fetch_optional(&mut self.conn);
        let found = self.runtime.block_on(found).map_err(rolled_back)?;
        let read = |row: sqlx::postgres::PgRow| {
            let (id, place) = (row.try_get(0)?, row.try_get(1)?);
            Ok(Mark { id, place, life: row.try_get(2)?, is_done: row.try_get(3)? })
        };
        found.map(read).transpose().map_err(rolled_back)
    }

    fn life(&mut self) -> Result<i64, StoreError> {
        self.number("SELECT min(incarnation) FROM redrive.shard")
    }

    fn fence(&mut self, mark: &Mark) -> Result<(), MoveError> {
        let why = format!(
            "it was moved, or is being moved, to {}; open that store, or use this one again with `redrive move --undo`",
            mark.place
        );
        self.close(Role::From, mark, &why, "")
    }

    fn leave(&mut self) -> Result<(), StoreError> {
        self.say("UPDATE redrive.moving SET done = true WHERE role = 'from'")
    }

    fn free(&mut self) -> Result<(), StoreError> {
        self.open_up("DELETE FROM redrive.moving WHERE role = 'from'")
    }

    fn counters(&mut self) -> Result<Counters, StoreError> {
        let last =
            |name: &str| format!("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM redrive.{name}");
        let unclean = self.number("SELECT count(*) FROM redrive.shard WHERE owner IS NOT NULL")? > 0;
        let noted = self.sql(
            "SELECT seqs FROM redrive.note JOIN redrive.shard ON shard.id = note.shard AND shard.epoch = note.epoch \
             WHERE shard.owner IS NOT NULL",
        );
        let noted = sqlx::query_scalar(noted).fetch_all(&mut self.conn);
        let noted: Vec<Vec<i64>> = self.runtime.block_on(noted).map_err(rolled_back)?;
        Ok(Counters {
            epoch: self.number("SELECT max(epoch) FROM redrive.shard")?,
            place: self.number(&last("place"))?,
            deaths: self.number(&last("death"))?,
            orders: self.number("SELECT orders FROM redrive.meta")?,
            lines: self.number(&last("line"))?,
            jobs: self.number(&last("job_number"))?,
            unclean: unclean.then(|| noted.into_iter().flatten().map(|seq| Seq(bits(seq))).collect()),
        })
    }

    fn others(&mut self) -> Result<Vec<String>, StoreError> {
        // The schema is the store's alone.
        Ok(Vec::new())
    }

    fn begin(&mut self, mark: &Mark, tables: &[Table]) -> Result<(), MoveError> {
        let check: String = tables.iter().map(empty_or_not).collect();
        let more = format!(
            "CREATE TABLE redrive.moving_table (name TEXT PRIMARY KEY, cursor TEXT NOT NULL);\n\
             DO $empty$ BEGIN {check} END $empty$;\n"
        );
        let why = format!(
            "a move of {} into it is not finished; run the same `redrive move` again to continue",
            mark.place
        );
        self.close(Role::Into, mark, &why, &more).map_err(|error| match &error {
            MoveError::Store(StoreError::Broken { what, .. }) => {
                let full = tables.iter().find(|table| what.contains(&full(table)));
                full.map_or(error, |table| not_empty(&self.place(), table.name))
            }
            _ => error,
        })
    }

    fn empty(&mut self, mark: &Mark, tables: &[Table]) -> Result<(), StoreError> {
        let id = quoted(&mark.id);
        let all: Vec<String> = tables.iter().map(|table| format!("redrive.{}", table.postgres)).collect();
        self.say(&format!(
            "DO $sure$ BEGIN IF NOT EXISTS (SELECT 1 FROM redrive.moving WHERE role = 'into' AND id = {id} AND NOT done) \
             THEN RAISE EXCEPTION 'it is not what was to be emptied'; END IF; END $sure$;\n\
             ALTER TABLE redrive.audit DISABLE TRIGGER audit_stays;\n\
             TRUNCATE redrive.fresh, {};\n\
             ALTER TABLE redrive.audit ENABLE TRIGGER audit_stays;\n\
             DROP TABLE redrive.moving_table;\n\
             DELETE FROM redrive.moving WHERE role = 'into';\n\
             DROP FUNCTION redrive.moved() CASCADE",
            all.join(", ")
        ))
    }

    fn cursors(&mut self) -> Result<Cursors, StoreError> {
        let sql = self.sql("SELECT name, cursor FROM redrive.moving_table");
        let found = sqlx::query_as(sql).fetch_all(&mut self.conn);
        let found: Vec<(String, String)> = self.runtime.block_on(found).map_err(rolled_back)?;
        Ok(found.into_iter().collect())
    }

    fn put(&mut self, table: &Table, rows: Vec<Row>, cursor: &str) -> Result<(), StoreError> {
        let schema = self.schema.name();
        let putting = async {
            let mut tx = self.conn.begin().await?;
            put::rows(&mut tx, schema, table, rows).await?;
            put::cursor(&mut tx, schema, table, cursor).await?;
            tx.commit().await
        };
        self.runtime.block_on(putting).map_err(rolled_back)
    }

    fn count_on(&mut self, counters: &Counters) -> Result<(), StoreError> {
        let Counters { epoch, place, deaths, orders, lines, jobs, unclean } = counters;
        let epoch = epoch + EPOCH_LEAP;
        // A sequence that was never drawn from is at 1, and not called.
        let set = |name: &str, last: &i64| {
            format!("SELECT setval('redrive.{name}', greatest({last}, 1), {last} > 0);\n")
        };
        let mut all = [("place", place), ("death", deaths), ("line", lines), ("job_number", jobs)]
            .map(|(name, last)| set(name, last))
            .concat();
        all.push_str(&format!(
            "SELECT setval(pg_get_serial_sequence('redrive.stream', 'id'), greatest(max(id), 1), max(id) IS NOT NULL) \
             FROM redrive.stream;\n\
             UPDATE redrive.meta SET orders = {orders};\n\
             UPDATE redrive.shard SET epoch = {epoch}, owner = NULL;\n\
             DELETE FROM redrive.note"
        ));
        if let Some(noted) = unclean {
            all.push_str(&format!(";\n{}", died(noted, epoch)));
        }
        self.say(&all)
    }

    fn done(&mut self) -> Result<(), StoreError> {
        self.open_up(
            "DROP TABLE redrive.moving_table; UPDATE redrive.moving SET done = true WHERE role = 'into'",
        )
    }

    fn count(&mut self, table: &Table) -> Result<u64, StoreError> {
        let select = match table.form {
            Form::Event => {
                "SELECT (SELECT count(*) FROM redrive.fresh) + (SELECT count(*) FROM redrive.tracked)"
                    .to_owned()
            }
            _ => format!("SELECT count(*) FROM redrive.{}", table.postgres),
        };
        self.number(&select).map(bits)
    }

    fn read(
        &mut self,
        table: &Table,
        after: Option<&[Value]>,
        most: usize,
    ) -> Result<Vec<Values>, StoreError> {
        let schema = self.schema.name();
        self.runtime.block_on(put::read(&mut self.conn, schema, table, after, most)).map_err(rolled_back)
    }

    fn stream(&mut self, id: StreamId) -> Result<Option<Arc<Stream>>, StoreError> {
        let sql = self.sql("SELECT queue, tenant FROM redrive.stream WHERE id = $1");
        let found = sqlx::query_as(sql).bind(i64::from(id.0)).fetch_optional(&mut self.conn);
        let found: Option<(String, String)> = self.runtime.block_on(found).map_err(rolled_back)?;
        Ok(found.map(|(queue, tenant)| Arc::new(Stream { id, queue, tenant })))
    }
}

/// The refusal of a target with rows in a table.
fn full(table: &Table) -> String {
    format!("there are {} in it", table.name)
}

/// Refuses a target with something in a table.
fn empty_or_not(table: &Table) -> String {
    let fresh = if table.form == Form::Event { "EXISTS (SELECT 1 FROM redrive.fresh) OR " } else { "" };
    format!(
        "IF {fresh}EXISTS (SELECT 1 FROM redrive.{}) THEN RAISE EXCEPTION USING ERRCODE = '{CODE}', MESSAGE = '{}'; END IF; ",
        table.postgres,
        full(table)
    )
}

/// The remains of an owner that died: the next owner uses the crash guard, with these notes.
fn died(noted: &[Seq], epoch: i64) -> String {
    let seqs: Vec<String> = noted.iter().map(|seq| column(seq.0).to_string()).collect();
    format!(
        "UPDATE redrive.shard SET owner = 0;\n\
         INSERT INTO redrive.note (shard, epoch, seqs) SELECT shard, {epoch}, array_agg(seq) \
         FROM (SELECT shard, seq FROM redrive.fresh UNION ALL SELECT shard, seq FROM redrive.tracked) event \
         WHERE seq = ANY(ARRAY[{}]::bigint[]) GROUP BY shard",
        seqs.join(", ")
    )
}
