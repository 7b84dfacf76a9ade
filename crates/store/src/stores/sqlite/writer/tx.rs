//! The writer's transaction: its connection, and its caches.
//!
//! Queues and the next number of each stream are cached between transactions. The cache is valid as long as no other
//! process writes to the file, which SQLite tells at the beginning of a transaction (`data_version`), and as long as
//! nothing is rolled back. The numbers are written back once a transaction. The same goes for the
//! [tallies](crate::stores::sqlite::operate::tallies) and the [rules](crate::stores::sqlite::operate::rules).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::queue_entry::{FencingToken, QueueEntry, StreamId};
use rusqlite::{Connection, OptionalExtension, params};

use super::crash;
use super::disk::Disk;
use crate::store::{DeadLetterRetention, DeclaredBy, QueueSpec};
use crate::stores::shared::numbers::{COUNT_MAX, STREAMS_MAX, bits, column, nanos, to_duration};
use crate::stores::shared::user_statements::UserStatements;
use crate::stores::sqlite::events::fresh::Stream;
use crate::stores::sqlite::events::stream_names::{StoreClock, StreamNames};
use crate::stores::sqlite::faults::{Step, broken};
use crate::stores::sqlite::forget::Cursor;
use crate::stores::sqlite::nodes::notes::InFlightNotes;
use crate::stores::sqlite::open::lock::Ownership;
use crate::stores::sqlite::operate::rules::Rules;
use crate::stores::sqlite::operate::tallies::Tallies;
use crate::stores::sqlite::transact::guard::Guard;

/// How many streams are cached; with more, all are read again.
const STREAMS_KEPT_MAX: usize = 10_000;

/// The writer's transaction.
pub(in crate::stores::sqlite) struct WriterTx {
    pub(in crate::stores::sqlite) conn: Connection,
    pub(in crate::stores::sqlite) path: PathBuf,
    pub(in crate::stores::sqlite) guard: Arc<Guard>,
    pub(in crate::stores::sqlite) disk: Disk,
    pub(in crate::stores::sqlite) ownership: Ownership,
    pub(in crate::stores::sqlite) notes: Arc<InFlightNotes>,
    pub(in crate::stores::sqlite) names: StreamNames,
    pub(in crate::stores::sqlite) clock: Arc<StoreClock>,
    /// The moment that the next process reads.
    pub(in crate::stores::sqlite) marked: Option<Moment>,
    /// The statements of the caller's own that stay prepared.
    pub(in crate::stores::sqlite) user_statements: UserStatements,
    pub(in crate::stores::sqlite) cursor: Cursor,
    /// Events that became runnable in this transaction.
    pub(in crate::stores::sqlite) arrived: Vec<QueueEntry>,
    /// Whether another process wrote to the file, and the watcher does not know yet.
    pub(in crate::stores::sqlite) foreign: bool,
    /// Whether a command took events from the owner, and the watcher does not know yet.
    pub(in crate::stores::sqlite) recall: bool,
    /// Deaths, groups and jobs that were needed so far.
    pub(in crate::stores::sqlite) tallies: Tallies,
    /// The active rules, as they were read last.
    pub(in crate::stores::sqlite) rules: Option<Arc<Rules>>,
    /// The stream of a queue that was leased from last.
    pub(in crate::stores::sqlite) served: HashMap<String, StreamId>,
    /// Whether this transaction counts a crash.
    pub(in crate::stores::sqlite) struck: bool,
    /// Whether the log must be written back before any call is answered.
    pub(in crate::stores::sqlite) to_recover: bool,
    version: Option<i64>,
    fence: Option<Fence>,
    queues: HashMap<String, Queue>,
    streams: Vec<Open>,
    changed: Vec<usize>,
    /// The last target of a publish, in `streams`: mostly the next event goes there, too.
    latest: Option<(usize, Arc<QueueSpec>)>,
}

/// A queue, and the positions of its tenants' streams in [`WriterTx::streams`].
struct Queue {
    spec: Arc<QueueSpec>,
    tenants: HashMap<String, usize>,
}

/// A stream with its next number.
struct Open {
    stream: Arc<Stream>,
    next: u64,
    is_changed: bool,
}

/// The owner of the file.
#[derive(Debug, Clone, Copy)]
struct Fence {
    epoch: u64,
    incarnation: u64,
    owned: bool,
}

/// The target of a publish.
pub(in crate::stores::sqlite) struct Target {
    pub(in crate::stores::sqlite) spec: Arc<QueueSpec>,
    pub(in crate::stores::sqlite) stream: Arc<Stream>,
    /// The number that the next event gets.
    pub(in crate::stores::sqlite) next: u64,
    open: usize,
}

impl WriterTx {
    pub(in crate::stores::sqlite) fn new(
        (conn, guard): (Connection, Arc<Guard>),
        (path, disk): (PathBuf, Disk),
        (ownership, notes): (Ownership, Arc<InFlightNotes>),
        clock: Arc<StoreClock>,
    ) -> Self {
        Self {
            conn,
            path,
            guard,
            disk,
            ownership,
            notes,
            names: StreamNames::default(),
            clock,
            cursor: Cursor::default(),
            arrived: Vec::new(),
            foreign: false,
            recall: false,
            tallies: Tallies::default(),
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
            marked: None,
            user_statements: UserStatements::default(),
        }
    }

    /// Begins a transaction.
    pub(in crate::stores::sqlite) fn begin(&mut self) -> rusqlite::Result<()> {
        self.conn.execute_batch("BEGIN IMMEDIATE")?;
        self.fence = None;
        self.struck = false;
        self.recall = false;
        self.tallies.keep_small();
        self.look_around()?;
        if self.streams.len() > STREAMS_KEPT_MAX {
            self.forget_streams();
        }
        crash::point("after-begin");
        Ok(())
    }

    /// Checks whether another process wrote to the file.
    pub(in crate::stores::sqlite) fn look_around(&mut self) -> rusqlite::Result<()> {
        let version = self.conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if self.version != Some(version) {
            self.foreign |= self.version.is_some();
            self.version = Some(version);
            self.forget_streams();
        }
        Ok(())
    }

    pub(in crate::stores::sqlite) fn commit(&mut self) -> rusqlite::Result<()> {
        self.conn.execute_batch("COMMIT")
    }

    /// Rolls everything back, if SQLite has not done so itself.
    pub(in crate::stores::sqlite) fn roll_back(&mut self) -> rusqlite::Result<()> {
        self.forget_streams();
        self.names.forget();
        self.arrived.clear();
        self.fence = None;
        self.recall = false;
        if self.conn.is_autocommit() { Ok(()) } else { self.conn.execute_batch("ROLLBACK") }
    }

    /// Clears the caches: they may differ from the file.
    pub(in crate::stores::sqlite) fn forget_streams(&mut self) {
        self.queues.clear();
        self.streams.clear();
        self.changed.clear();
        self.tallies = Tallies::default();
        self.rules = None;
        self.latest = None;
    }

    /// Writes back the numbers that were drawn in this transaction.
    pub(in crate::stores::sqlite) fn write_numbers(&mut self) -> rusqlite::Result<()> {
        for open in self.changed.drain(..) {
            let Open { stream, next, is_changed } = &mut self.streams[open];
            *is_changed = false;
            self.conn
                .prepare_cached("UPDATE redrive_stream SET next = ?2 WHERE id = ?1")?
                .execute(params![stream.id.0, column(*next)])?;
        }
        self.tallies.write(&self.conn)
    }

    /// Whether this is the fencing token of the present owner.
    pub(in crate::stores::sqlite) fn is_current(&mut self, token: FencingToken) -> rusqlite::Result<bool> {
        let fence = match self.fence {
            Some(fence) => fence,
            None => *self.fence.insert(read_fence(&self.conn)?),
        };
        Ok(fence.is(token))
    }

    /// The owner changes in this transaction.
    pub(in crate::stores::sqlite) fn forget_fence(&mut self) {
        self.fence = None;
    }

    /// The queue and the stream that an event is published to. `None` if the queue is not declared.
    pub(in crate::stores::sqlite) fn target(&mut self, queue: &str, tenant: &str) -> Step<Option<Target>> {
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

    /// Marks this many numbers of the target as used.
    pub(in crate::stores::sqlite) fn used(&mut self, target: &Target, count: u64) {
        let open = &mut self.streams[target.open];
        open.next = target.next + count;
        if count > 0 && !open.is_changed {
            open.is_changed = true;
            self.changed.push(target.open);
        }
    }

    /// How long a queue remembers an identity after its event's end.
    pub(in crate::stores::sqlite) fn window(&mut self, queue: &str) -> rusqlite::Result<std::time::Duration> {
        Ok(self.queue(queue)?.map(|queue| queue.spec.window).unwrap_or_default())
    }

    /// A queue as it was declared.
    pub(in crate::stores::sqlite) fn spec(
        &mut self,
        queue: &str,
    ) -> rusqlite::Result<Option<Arc<QueueSpec>>> {
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
                // Rolled back with everything else: a store with eight million streams is broken.
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

    /// Declares a queue.
    pub(in crate::stores::sqlite) fn declare(&mut self, spec: &QueueSpec, by: DeclaredBy) -> Step<()> {
        let (window, horizon) = (column(nanos(spec.window)), column(nanos(spec.horizon)));
        let DeadLetterRetention { time, count } = spec.keep;
        self.conn
            .prepare_cached(
                "INSERT INTO redrive_queue (name, ordered, dedupe_window, horizon, pull, keep_time, keep_count) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (name) DO UPDATE SET ordered = ?2, dedupe_window = ?3, \
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
                by == DeclaredBy::Runner
            ])?;
        self.write_numbers()?;
        self.forget_streams();
        Ok(())
    }

    /// Notes a moment that a caller passed in.
    pub(in crate::stores::sqlite) fn advance_clock(&self, at: Moment) {
        self.clock.advance(at);
    }
}

impl Fence {
    const fn is(self, token: FencingToken) -> bool {
        self.owned && token.shard == 0 && token.epoch == self.epoch && token.incarnation == self.incarnation
    }
}

/// Whether this is the fencing token of the present owner, as a reader sees it.
pub(in crate::stores::sqlite) fn is_current(
    conn: &Connection,
    token: FencingToken,
) -> rusqlite::Result<bool> {
    Ok(read_fence(conn)?.is(token))
}

fn read_fence(conn: &Connection) -> rusqlite::Result<Fence> {
    conn.prepare_cached("SELECT epoch, incarnation, clean FROM redrive_meta")?.query_row([], |row| {
        Ok(Fence { epoch: bits(row.get(0)?), incarnation: bits(row.get(1)?), owned: !row.get::<_, bool>(2)? })
    })
}

/// A queue as it was declared.
fn read_spec(conn: &Connection, name: &str) -> rusqlite::Result<Option<QueueSpec>> {
    conn.prepare_cached(
        "SELECT ordered, dedupe_window, horizon, pull, keep_time, keep_count FROM redrive_queue WHERE name = ?1",
    )?
    .query_row([name], |row| {
        let keep = DeadLetterRetention {
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
