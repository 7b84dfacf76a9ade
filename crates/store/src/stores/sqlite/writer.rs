//! The writer: one thread, one connection, one commit for all waiting calls.
//!
//! A commit costs a sync of the disk, whether it has one event or a hundred. So the writer takes all calls that
//! arrived while it was busy, and commits them together; when it is idle it does not wait, so a lone call is not
//! slowed down. The price: calls that share a commit share its failure, and its duration.
//!
//! After an I/O error at COMMIT the contents of the disk are unknown, and a read would not tell: every call of the
//! group gets [`StoreError::Unknown`], and the store does nothing more until it is opened again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::wal::CheckpointMode;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use super::faults::{Fault, Health, Kind, Step, kind, rolled_back, told};
use super::publish::batch::PublishCall;
use super::reader::Readers;
use crate::error::StoreError;
use crate::store::{Arrivals, PendingReplies, Watcher};
use queue::{Queue, Waiting};
use stats::CommitStats;
use tx::WriterTx;

pub(super) mod queue;

pub(super) mod tx;

pub(super) mod clock_mark;

pub(super) mod stats;

pub(super) mod disk;

pub(super) mod crash;

/// How much may wait for the writer, in KiB: some seconds' worth of writing on a slow disk. Every call counts as at
/// least one.
pub(super) const QUEUED_KIB_MAX: u32 = 32 << 10;
/// How many calls share a commit at most. With more, the first ones wait for the last ones longer than a
/// sync takes.
const GROUP_MAX: usize = 1024;
/// From how many calls on the watcher answers a group. For fewer, the detour costs more than it saves.
const GROUP_LARGE: usize = 8;
/// How many KiB share a commit at most: a quarter of the page cache.
const GROUP_KIB_MAX: u32 = 8 << 10;
/// How many pages the log may have before it is written back: 16 MiB, which an opening reads quickly.
const LOG_PAGES_MAX: i32 = 4000;
/// How many more pages are allowed each time a reader prevents the write-back.
const LOG_PAGES_MORE: i32 = 1000;
/// How long the watcher has to answer the callers of a commit; then the writer does.
const OWED: Duration = Duration::from_millis(20);
/// How long the writer waits before it checks whether another process wrote something.
const TICK: Duration = Duration::from_millis(200);

/// A call that takes part in a commit.
pub(super) trait GroupMember: Send {
    /// Whether it needs a commit of its own.
    fn is_alone(&self) -> bool {
        false
    }

    /// How many events it writes.
    fn events(&self) -> usize {
        1
    }

    /// The call, if it publishes: waiting publishes are stored together.
    fn publishing(&mut self) -> Option<&mut PublishCall> {
        None
    }

    /// Runs its part; again after a rollback.
    fn run(&mut self, tx: &mut WriterTx, has_company: bool) -> Step<()>;

    /// Whether it has an answer that no commit changes, and need not run again.
    fn is_answered(&self) -> bool {
        false
    }

    /// Runs after the commit.
    fn committed(&mut self, _: &mut WriterTx) {}

    /// Answers the caller.
    fn answer(self: Box<Self>, fate: CommitOutcome);
}

/// The outcome of a commit.
#[derive(Debug)]
pub(super) enum CommitOutcome {
    Committed,
    /// A constraint of the user's own tables forbade it, and the call was alone in the commit.
    Forbidden(rusqlite::Error),
    Failed(StoreError),
}

/// A call: a step of a transaction, and its answer.
pub(super) struct Call<T, F> {
    pub(super) alone: bool,
    pub(super) events: usize,
    pub(super) run: F,
    pub(super) committed: fn(&mut WriterTx, &mut T),
    pub(super) got: Option<Result<T, StoreError>>,
    pub(super) tell: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&mut WriterTx) -> Step<T> + Send> GroupMember for Call<T, F> {
    fn is_alone(&self) -> bool {
        self.alone
    }

    fn events(&self) -> usize {
        self.events
    }

    fn run(&mut self, tx: &mut WriterTx, _: bool) -> Step<()> {
        self.got = Some(match (self.run)(tx) {
            Ok(got) => Ok(got),
            Err(Fault::Refused(error)) => Err(error),
            Err(fault) => return Err(fault),
        });
        Ok(())
    }

    fn committed(&mut self, tx: &mut WriterTx) {
        if let Some(Ok(got)) = &mut self.got {
            (self.committed)(tx, got);
        }
    }

    fn answer(self: Box<Self>, fate: CommitOutcome) {
        let answer = match fate {
            CommitOutcome::Committed => self.got.unwrap_or(Err(StoreError::Closed)),
            CommitOutcome::Forbidden(error) => Err(rolled_back(error)),
            CommitOutcome::Failed(error) => Err(error),
        };
        let _ = self.tell.send(answer);
    }
}

/// The queue of calls, each with its weight in KiB.
pub(super) type Calls = Queue<(Box<dyn GroupMember>, u32)>;

/// The writer's thread.
pub(super) struct Writer {
    pub(super) tx: WriterTx,
    pub(super) calls: Arc<Calls>,
    pub(super) health: Arc<Health>,
    pub(super) watcher: Arc<Mutex<Option<Watcher>>>,
    pub(super) readers: Readers,
    pub(super) stats: Arc<CommitStats>,
    /// How many pages the log has.
    pub(super) log_pages: Arc<AtomicI32>,
    pub(super) log_pages_max: i32,
    /// When the watcher was last given the names of streams to load.
    pub(super) named: Option<Instant>,
    /// Answers that the watcher has to give, and since when.
    pub(super) owed: VecDeque<(Instant, OwedAnswers)>,
    pub(super) ended: watch::Sender<bool>,
}

impl Writer {
    /// Writes until the queue is closed and empty.
    pub(super) fn run(mut self) {
        self.log_pages_max = LOG_PAGES_MAX;
        let mut waiting = VecDeque::new();
        loop {
            let patience = if self.owed.is_empty() { TICK } else { OWED };
            let patience = if waiting.is_empty() { patience } else { Duration::ZERO };
            let is_open = self.calls.take_all(&mut waiting, patience);
            self.give_what_is_owed();
            if !is_open {
                break;
            }
            if waiting.is_empty() {
                self.look_around();
            } else {
                let group = next_group(&mut waiting);
                self.write(group);
            }
        }
        self.end();
    }

    /// Writes a group, in one commit if possible.
    fn write(&mut self, mut group: Vec<Box<dyn GroupMember>>) {
        if let Err(error) = self.health.check() {
            return answer(group, || CommitOutcome::Failed(error.clone()));
        }
        match self.commit(&mut group) {
            Ok(took) => {
                self.stats.count(group.iter().map(|member| member.events()).sum(), took);
                for member in &mut group {
                    member.committed(&mut self.tx);
                }
                self.recover();
                crash::point("before-answer");
                // A caller that has its answer can rely on the watcher having been notified first.
                self.tell(group);
                self.write_log_back();
            }
            Err(Failure::Spoiled(error)) => self.write_one_by_one(group, error),
            Err(Failure::All(error)) => answer(group, || CommitOutcome::Failed(error.clone())),
        }
    }

    /// One call spoiled the commit of all, and it is unknown which one: each gets a commit of its own.
    fn write_one_by_one(&mut self, mut group: Vec<Box<dyn GroupMember>>, error: Option<rusqlite::Error>) {
        if group.len() == 1 {
            let mut fate = match error {
                Some(error) => Some(CommitOutcome::Forbidden(error)),
                None => Some(CommitOutcome::Failed(StoreError::Passing {
                    what: "the work of a transaction ended it".to_owned(),
                    source: None,
                })),
            };
            return answer(group, || fate.take().unwrap_or(CommitOutcome::Committed));
        }
        for member in group.drain(..) {
            if member.is_answered() {
                member.answer(CommitOutcome::Committed);
            } else {
                self.write(vec![member]);
            }
        }
    }

    /// Commits; returns how long the commit itself took.
    fn commit(&mut self, group: &mut [Box<dyn GroupMember>]) -> Result<Duration, Failure> {
        let has_company = group.len() > 1;
        if let Err(error) = self.tx.begin() {
            return Err(self.fail(error));
        }
        let mut done = 0;
        while done < group.len() {
            match self.run_next(&mut group[done..], has_company) {
                Ok(more) => done += more,
                Err(Fault::Sql(error)) => return Err(self.fail(error)),
                // One member's own refusal must not be the others'.
                Err(Fault::Refused(_)) if has_company => return Err(self.roll_back(Failure::Spoiled(None))),
                Err(Fault::Refused(error)) => return Err(self.roll_back(Failure::All(error))),
                Err(Fault::Void) => return Err(self.roll_back(Failure::Spoiled(None))),
            }
        }
        crash::point("after-work");
        if let Err(error) = self.tx.write_numbers() {
            return Err(self.fail(error));
        }
        crash::point("before-commit");
        if self.tx.struck {
            crash::point("strike-before-commit");
        }
        let began = Instant::now();
        if let Err(error) = self.tx.commit() {
            return Err(self.fail_commit(error));
        }
        let took = began.elapsed();
        crash::point("after-commit");
        if self.tx.struck {
            crash::point("strike-after-commit");
        }
        Ok(took)
    }

    /// Runs the next of these, and returns how many that were.
    fn run_next(&mut self, members: &mut [Box<dyn GroupMember>], has_company: bool) -> Step<usize> {
        match self.tx.publish_together(members)? {
            0 => members[0].run(&mut self.tx, has_company).map(|()| 1),
            together => Ok(together),
        }
    }

    /// A statement failed before the commit: nothing is written.
    fn fail(&mut self, error: rusqlite::Error) -> Failure {
        if kind(&error) == Kind::Disk {
            self.health.poison(&told(&error));
        }
        let error = self.health.check().err().unwrap_or_else(|| rolled_back(error));
        self.roll_back(Failure::All(error))
    }

    fn fail_commit(&mut self, error: rusqlite::Error) -> Failure {
        match kind(&error) {
            Kind::Passing => self.roll_back(Failure::All(rolled_back(error))),
            Kind::Constraint => self.roll_back(Failure::Spoiled(Some(error))),
            Kind::Disk | Kind::Other => {
                let what = told(&error);
                self.health.poison(&what);
                self.roll_back(Failure::All(StoreError::Unknown { what }))
            }
        }
    }

    fn roll_back(&mut self, failure: Failure) -> Failure {
        if let Err(error) = self.tx.roll_back() {
            self.health.poison(&told(&error));
        }
        failure
    }

    /// Notifies the watcher of runnable events, then answers the callers. The watcher answers a large group, from
    /// within its runtime.
    fn tell(&mut self, group: Vec<Box<dyn GroupMember>>) {
        // The next commit is about as large, and growing step by step copies everything each time.
        let room = Vec::with_capacity(self.tx.arrived.len());
        let entries = std::mem::replace(&mut self.tx.arrived, room);
        // Naming the streams reads them all, so a busy writer does it no more often than an idle one.
        let is_time = self.named.is_none_or(|named| named.elapsed() >= TICK);
        let streams = if self.tx.foreign && is_time { self.tx.streams_in_use().ok() } else { None };
        let missed = streams.is_some();
        let recall = std::mem::take(&mut self.tx.recall);
        let few = group.len() < GROUP_LARGE;
        if entries.is_empty() && !missed && !recall && few {
            return answer(group, || CommitOutcome::Committed);
        }
        // If the streams could not be read, the next check reports them.
        if missed {
            self.tx.foreign = false;
            self.named = Some(Instant::now());
        }
        let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(watcher) = watcher else { return answer(group, || CommitOutcome::Committed) };
        let (now, later) = if few { (group, Vec::new()) } else { (Vec::new(), group) };
        let mut answers = PendingReplies::default();
        if !few {
            let owed = OwedAnswers::new(later);
            self.owed.push_back((Instant::now(), owed.clone()));
            answers = PendingReplies::new(move || owed.give());
        }
        let streams = streams.unwrap_or_default();
        let arrivals = Arrivals { entries, missed, recall, streams, answers };
        // A watcher that panics must not take the writer with it.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| watcher(arrivals)));
        answer(now, || CommitOutcome::Committed);
    }

    /// Answers in the watcher's place: a watcher whose runtime hangs must not keep all callers waiting.
    fn give_what_is_owed(&mut self) {
        while let Some((since, owed)) = self.owed.front() {
            if !owed.is_given() && since.elapsed() < OWED {
                return;
            }
            owed.give();
            self.owed.pop_front();
        }
    }

    /// Checks whether another process wrote something.
    fn look_around(&mut self) {
        // An error shows itself again at the next commit.
        if !self.health.is_poisoned() && self.tx.look_around().is_ok() {
            self.tell(Vec::new());
        }
    }

    /// After the file was taken over from an owner that died: visible data may not be on the disk yet, so the log is
    /// written back and synced before any call is answered.
    fn recover(&mut self) {
        if std::mem::take(&mut self.tx.to_recover)
            && let Err(error) = self.tx.conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE)
            && kind(&error) == Kind::Disk
        {
            self.health.poison(&told(&error));
        }
    }

    /// Writes the log back to the database when it has grown. SQLite would do that by itself, but it would not report
    /// a failed sync.
    fn write_log_back(&mut self) {
        if self.log_pages.load(Relaxed) < self.log_pages_max {
            return;
        }
        crash::point("before-checkpoint");
        match self.tx.conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) {
            // All of it: the next commit restarts the log.
            Ok((log, written)) if log == written => self.log_pages_max = LOG_PAGES_MAX,
            Ok((log, _)) => self.log_pages_max = log.max(LOG_PAGES_MAX) + LOG_PAGES_MORE,
            Err(error) if kind(&error) == Kind::Disk => self.health.poison(&error.to_string()),
            Err(_) => self.log_pages_max += LOG_PAGES_MORE,
        }
        crash::point("after-checkpoint");
    }

    /// Closes the files.
    fn end(self) {
        let Self { tx, health, readers, watcher, ended, owed, .. } = self;
        owed.iter().for_each(|(_, owed)| owed.give());
        // The watcher may hold the store itself.
        drop(watcher.lock().unwrap_or_else(PoisonError::into_inner).take());
        readers.end();
        if !health.is_poisoned() && tx.ownership.is_tracked() {
            // The next opening writes back what cannot be written back now.
            let _ = tx.conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE);
        }
        let WriterTx { conn, mut ownership, .. } = tx;
        drop(conn);
        ownership.let_go();
        let _ = ended.send(true);
    }
}

/// A group that waits for its answers, from the watcher or from the writer.
#[derive(Clone)]
pub(super) struct OwedAnswers(Arc<Mutex<Vec<Box<dyn GroupMember>>>>);

impl OwedAnswers {
    fn new(group: Vec<Box<dyn GroupMember>>) -> Self {
        Self(Arc::new(Mutex::new(group)))
    }

    fn group(&self) -> std::sync::MutexGuard<'_, Vec<Box<dyn GroupMember>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_given(&self) -> bool {
        self.group().is_empty()
    }

    fn give(&self) {
        let group = std::mem::take(&mut *self.group());
        answer(group, || CommitOutcome::Committed);
    }
}

/// Why a commit did not happen.
enum Failure {
    /// For a reason that all calls share.
    All(StoreError),
    /// For a reason that may be one member's.
    Spoiled(Option<rusqlite::Error>),
}

fn answer(group: Vec<Box<dyn GroupMember>>, mut fate: impl FnMut() -> CommitOutcome) {
    for member in group {
        member.answer(fate());
    }
}

/// The calls that share the next commit.
fn next_group(waiting: &mut VecDeque<Waiting<(Box<dyn GroupMember>, u32)>>) -> Vec<Box<dyn GroupMember>> {
    let mut group: Vec<Box<dyn GroupMember>> = Vec::new();
    let mut kib = 0_u32;
    // Returned together, because each return takes a lock.
    let mut room: Option<OwnedSemaphorePermit> = None;
    while let Some(next) = waiting.front() {
        let (member, weight) = &next.call;
        let fits =
            group.len() < GROUP_MAX && kib.saturating_add(*weight) <= GROUP_KIB_MAX && !member.is_alone();
        if !group.is_empty() && !fits {
            break;
        }
        let is_alone = member.is_alone();
        kib = kib.saturating_add(*weight);
        if let Some(Waiting { call: (member, _), room: its }) = waiting.pop_front() {
            group.push(member);
            match &mut room {
                Some(room) => room.merge(its),
                None => room = Some(its),
            }
        }
        if is_alone {
            break;
        }
    }
    group
}
