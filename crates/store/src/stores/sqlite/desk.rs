//! The writer's desk: its connection, and what it knows within a transaction.
//!
//! Queues and the next number of each stream are kept in memory between transactions. They hold as long as
//! nobody else writes to the file, which SQLite tells at the beginning of a transaction (`data_version`), and
//! as long as nothing is rolled back. The numbers are written back once a transaction. The same goes for the
//! [ledger](super::ledger) and the [rules](super::rules).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Entry, Grant, StreamId};
use rusqlite::{Connection, OptionalExtension, params};

use super::crash;
use super::disk::Disk;
use super::faults::{Step, broken};
use super::forget::Cursor;
use super::guard::Guard;
use super::ledger::Ledger;
use super::lock::Ownership;
use super::names::{Names, Seen};
use super::notes::Notes;
use super::numbers::{COUNT_MAX, STREAMS_MAX, bits, column, nanos, to_duration};
use super::rows::Stream;
use super::rules::Rules;
use crate::store::{By, Keep, QueueSpec};

/// How many streams are kept in memory; with more, all are read again.
const STREAMS_KEPT_MAX: usize = 10_000;

/// The writer's desk.
pub(super) struct Desk {
    pub(super) conn: Connection,
    pub(super) path: PathBuf,
    pub(super) guard: Arc<Guard>,
    pub(super) disk: Disk,
    pub(super) ownership: Ownership,
    pub(super) notes: Arc<Notes>,
    pub(super) names: Names,
    pub(super) seen: Arc<Seen>,
    pub(super) cursor: Cursor,
    /// What became runnable in this transaction.
    pub(super) arrived: Vec<Entry>,
    /// Whether somebody else wrote to the file and nobody was told yet.
    pub(super) foreign: bool,
    /// Whether an order took something out of the owner's hands, and nobody was told yet.
    pub(super) recall: bool,
    /// Deaths, groups and jobs, as far as they were needed.
    pub(super) ledger: Ledger,
    /// The rules that hold, as they were read last.
    pub(super) rules: Option<Arc<Rules>>,
    /// The stream of a queue that was leased from last.
    pub(super) served: HashMap<String, StreamId>,
    /// Whether there is a strike in this transaction.
    pub(super) struck: bool,
    /// Whether the log is to be written back before anybody is answered.
    pub(super) to_recover: bool,
    version: Option<i64>,
    fence: Option<Fence>,
    queues: HashMap<String, Queue>,
    streams: Vec<Open>,
    changed: Vec<usize>,
    /// Where the last event was published to, in `streams`: mostly the next one goes there, too.
    latest: Option<(usize, Arc<QueueSpec>)>,
}

/// A queue, and where its tenants' streams are in [`Desk::streams`].
struct Queue {
    spec: Arc<QueueSpec>,
    tenants: HashMap<String, usize>,
}

/// A stream that is published to.
struct Open {
    stream: Arc<Stream>,
    next: u64,
    is_changed: bool,
}

/// Who owns the file.
#[derive(Debug, Clone, Copy)]
struct Fence {
    epoch: u64,
    incarnation: u64,
    owned: bool,
}

/// Where something is published to.
pub(super) struct Target {
    pub(super) spec: Arc<QueueSpec>,
    pub(super) stream: Arc<Stream>,
    /// The number that the next event gets.
    pub(super) next: u64,
    open: usize,
}

impl Desk {
    pub(super) fn new(
        (conn, guard): (Connection, Arc<Guard>),
        (path, disk): (PathBuf, Disk),
        (ownership, notes): (Ownership, Arc<Notes>),
        seen: Arc<Seen>,
    ) -> Self {
        Self {
            conn,
            path,
            guard,
            disk,
            ownership,
            notes,
            names: Names::default(),
            seen,
            cursor: Cursor::default(),
            arrived: Vec::new(),
            foreign: false,
            recall: false,
            ledger: Ledger::default(),
            rules: None,
            served: HashMap::new(),
            struck: false,
            to_recover: false,
            version: None,
            fence: None,
            queues: HashMap::new(),
            streams: Vec::new(),
            changed: Vec::new(),
            latest: None,
        }
    }

    /// Begins a transaction.
    pub(super) fn begin(&mut self) -> rusqlite::Result<()> {
        self.conn.execute_batch("BEGIN IMMEDIATE")?;
        self.fence = None;
        self.struck = false;
        self.recall = false;
        self.ledger.keep_small();
        self.look_around()?;
        if self.streams.len() > STREAMS_KEPT_MAX {
            self.forget_streams();
        }
        crash::point("after-begin");
        Ok(())
    }

    /// Finds out whether somebody else wrote to the file.
    pub(super) fn look_around(&mut self) -> rusqlite::Result<()> {
        let version = self.conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if self.version != Some(version) {
            self.foreign |= self.version.is_some();
            self.version = Some(version);
            self.forget_streams();
        }
        Ok(())
    }

    pub(super) fn commit(&mut self) -> rusqlite::Result<()> {
        self.conn.execute_batch("COMMIT")
    }

    /// Rolls everything back, if that was not done by SQLite itself.
    pub(super) fn roll_back(&mut self) -> rusqlite::Result<()> {
        self.forget_streams();
        self.names.forget();
        self.arrived.clear();
        self.fence = None;
        self.recall = false;
        if self.conn.is_autocommit() { Ok(()) } else { self.conn.execute_batch("ROLLBACK") }
    }

    /// What is in memory may not be what is in the file any more.
    pub(super) fn forget_streams(&mut self) {
        self.queues.clear();
        self.streams.clear();
        self.changed.clear();
        self.ledger = Ledger::default();
        self.rules = None;
        self.latest = None;
    }

    /// Writes the numbers back that were given in this transaction.
    pub(super) fn write_numbers(&mut self) -> rusqlite::Result<()> {
        for open in self.changed.drain(..) {
            let Open { stream, next, is_changed } = &mut self.streams[open];
            *is_changed = false;
            self.conn
                .prepare_cached("UPDATE redrive_stream SET next = ?2 WHERE id = ?1")?
                .execute(params![stream.id.0, column(*next)])?;
        }
        self.ledger.write(&self.conn)
    }

    /// Whether this is the grant of the present owner.
    pub(super) fn is_current(&mut self, grant: Grant) -> rusqlite::Result<bool> {
        let fence = match self.fence {
            Some(fence) => fence,
            None => *self.fence.insert(read_fence(&self.conn)?),
        };
        Ok(fence.is(grant))
    }

    /// The owner changes in this transaction.
    pub(super) fn forget_fence(&mut self) {
        self.fence = None;
    }

    /// The queue and the stream that something is published to. None where nobody declared the queue.
    pub(super) fn target(&mut self, queue: &str, tenant: &str) -> Step<Option<Target>> {
        let (open, spec) = match &self.latest {
            Some((open, spec)) if self.streams[*open].stream.is(queue, tenant) => (*open, Arc::clone(spec)),
            _ => {
                let Some(known) = self.queue(queue)? else { return Ok(None) };
                let spec = Arc::clone(&known.spec);
                let open = match known.tenants.get(tenant) {
                    Some(open) => *open,
                    None => self.open_stream(queue, tenant)?,
                };
                self.latest = Some((open, Arc::clone(&spec)));
                (open, spec)
            }
        };
        let Open { stream, next, .. } = &self.streams[open];
        if *next >= COUNT_MAX {
            return Err(broken(format!("the queue `{queue}` has no numbers left for this tenant")).into());
        }
        Ok(Some(Target { spec, stream: Arc::clone(stream), next: *next, open }))
    }

    /// So many numbers of this target are given away.
    pub(super) fn used(&mut self, target: &Target, count: u64) {
        let open = &mut self.streams[target.open];
        open.next = target.next + count;
        if count > 0 && !open.is_changed {
            open.is_changed = true;
            self.changed.push(target.open);
        }
    }

    /// How long an identity of a queue is remembered after its end.
    pub(super) fn window(&mut self, queue: &str) -> rusqlite::Result<std::time::Duration> {
        Ok(self.queue(queue)?.map(|queue| queue.spec.window).unwrap_or_default())
    }

    /// A queue as it was declared.
    pub(super) fn spec(&mut self, queue: &str) -> rusqlite::Result<Option<Arc<QueueSpec>>> {
        Ok(self.queue(queue)?.map(|queue| Arc::clone(&queue.spec)))
    }

    fn queue(&mut self, name: &str) -> rusqlite::Result<Option<&Queue>> {
        if !self.queues.contains_key(name) {
            let Some(spec) = read_spec(&self.conn, name)? else { return Ok(None) };
            self.queues.insert(name.to_owned(), Queue { spec: Arc::new(spec), tenants: HashMap::new() });
        }
        Ok(self.queues.get(name))
    }

    fn open_stream(&mut self, queue: &str, tenant: &str) -> Step<usize> {
        let there = self
            .conn
            .prepare_cached("SELECT id, next FROM redrive_stream WHERE queue = ?1 AND tenant = ?2")?
            .query_row([queue, tenant], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))
            .optional()?;
        let (id, next) = match there {
            Some((id, next)) => (id, bits(next)),
            None => {
                self.conn
                    .prepare_cached("INSERT INTO redrive_stream (queue, tenant, next) VALUES (?1, ?2, 1)")?
                    .execute([queue, tenant])?;
                let id = u32::try_from(self.conn.last_insert_rowid()).ok();
                let id = id.filter(|id| *id <= STREAMS_MAX);
                // Rolled back with everything else: a store with eight million streams is not in order.
                (id.ok_or_else(|| rusqlite::Error::IntegralValueOutOfRange(0, i64::MAX))?, 1)
            }
        };
        let (queue_name, tenant_name) = (queue.to_owned(), tenant.to_owned());
        let stream = Stream { id: StreamId(id), queue: queue_name, tenant: tenant_name };
        self.streams.push(Open { stream: Arc::new(stream), next, is_changed: false });
        let open = self.streams.len() - 1;
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.tenants.insert(tenant.to_owned(), open);
        }
        Ok(open)
    }

    /// Makes a queue known.
    pub(super) fn declare(&mut self, spec: &QueueSpec, by: By) -> Step<()> {
        let (window, horizon) = (column(nanos(spec.window)), column(nanos(spec.horizon)));
        let Keep { time, count } = spec.keep;
        self.conn
            .prepare_cached(
                "INSERT INTO redrive_queue (name, ordered, window, horizon, pull, keep_time, keep_count) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (name) DO UPDATE SET ordered = ?2, window = ?3, \
                 horizon = ?4, pull = ?5, keep_time = ?6, keep_count = ?7 WHERE ?8",
            )?
            .execute(params![
                spec.name,
                spec.ordered,
                window,
                horizon,
                spec.pull,
                time.map(|time| column(nanos(time))),
                count.map(column),
                by == By::Runner
            ])?;
        self.write_numbers()?;
        self.forget_streams();
        Ok(())
    }

    /// Takes note of a moment that somebody told.
    pub(super) fn see(&self, at: Moment) {
        self.seen.see(at);
    }
}

impl Fence {
    const fn is(self, grant: Grant) -> bool {
        self.owned && grant.shard == 0 && grant.epoch == self.epoch && grant.incarnation == self.incarnation
    }
}

/// Whether this is the grant of the present owner, as a reader sees it.
pub(super) fn is_current(conn: &Connection, grant: Grant) -> rusqlite::Result<bool> {
    Ok(read_fence(conn)?.is(grant))
}

fn read_fence(conn: &Connection) -> rusqlite::Result<Fence> {
    conn.prepare_cached("SELECT epoch, incarnation, clean FROM redrive_meta")?.query_row([], |row| {
        Ok(Fence { epoch: bits(row.get(0)?), incarnation: bits(row.get(1)?), owned: !row.get::<_, bool>(2)? })
    })
}

/// A queue as it was declared.
fn read_spec(conn: &Connection, name: &str) -> rusqlite::Result<Option<QueueSpec>> {
    conn.prepare_cached(
        "SELECT ordered, window, horizon, pull, keep_time, keep_count FROM redrive_queue WHERE name = ?1",
    )?
    .query_row([name], |row| {
        let keep = Keep {
            time: row.get::<_, Option<i64>>(4)?.map(to_duration),
            count: row.get::<_, Option<i64>>(5)?.map(bits),
        };
        Ok(QueueSpec {
            name: name.to_owned(),
            ordered: row.get(0)?,
            window: to_duration(row.get(1)?),
            horizon: to_duration(row.get(2)?),
            pull: row.get(3)?,
            keep,
        })
    })
    .optional()
}
