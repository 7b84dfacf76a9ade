//! The writer: one thread, one connection, one commit for all that waits.
//!
//! A commit costs a sync of the disk, whether there is one event in it or a hundred. So the writer takes all
//! that came while it was busy, and commits it together; when it is idle it waits for nothing, so a lone call
//! is not slowed down. The price: who shares a commit shares its failure, and the time of it.
//!
//! After an I/O error at COMMIT nobody knows what is on the disk, and a look would not tell: everyone in the
//! group gets [`StoreError::Unknown`], and the store does nothing more until it is opened again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::wal::CheckpointMode;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use super::crash;
use super::desk::Desk;
use super::faults::{Fault, Health, Kind, Step, kind, rolled_back};
use super::queue::{Queue, Waiting};
use super::reader::Readers;
use super::together::Publishing;
use super::work::Work;
use crate::error::StoreError;
use crate::store::{Answers, Arrivals, Watcher};

/// How much may wait for the writer, in KiB: some seconds' worth of writing on a slow disk. Every call counts
/// as one at least.
pub(super) const QUEUED_KIB_MAX: u32 = 32 << 10;
/// How many calls share a commit at most. With more, the first ones wait for the last ones longer than a
/// sync takes.
const GROUP_MAX: usize = 1024;
/// From how many calls on a group is answered by the watcher. For fewer, the way through it costs more than it
/// saves.
const GROUP_LARGE: usize = 8;
/// How many KiB share a commit at most: a quarter of what fits in the page cache.
const GROUP_KIB_MAX: u32 = 8 << 10;
/// How many pages the log may have before it is written back: 16 MiB, which is read quickly at an opening.
const LOG_PAGES_MAX: i32 = 4000;
/// How many pages more it gets each time a reader keeps it from being written back.
const LOG_PAGES_MORE: i32 = 1000;
/// How long the watcher has to tell those who wait for a commit; then the writer does.
const OWED: Duration = Duration::from_millis(20);
/// How long the writer waits before it looks whether another process wrote something.
const TICK: Duration = Duration::from_millis(200);

/// Somebody who takes part in a commit.
pub(super) trait Member: Send {
    /// Whether it wants a commit of its own.
    fn is_alone(&self) -> bool {
        false
    }

    /// How many events it writes.
    fn events(&self) -> usize {
        1
    }

    /// The call, if it publishes: what waits to be published is kept together.
    fn publishing(&mut self) -> Option<&mut Publishing> {
        None
    }

    /// Does its part; again after a rollback.
    fn run(&mut self, desk: &mut Desk, has_company: bool) -> Step<()>;

    /// Whether it has an answer that no commit changes, and need not run again.
    fn is_answered(&self) -> bool {
        false
    }

    /// Does what is to be done after the commit.
    fn committed(&mut self, _: &mut Desk) {}

    /// Tells whoever called.
    fn answer(self: Box<Self>, fate: Fate);
}

/// What became of a commit.
#[derive(Debug)]
pub(super) enum Fate {
    Committed,
    /// A rule of the user's own tables forbade it, and there was nobody else in it.
    Forbidden(rusqlite::Error),
    Failed(StoreError),
}

/// A call that is a step of a transaction and its answer.
pub(super) struct Call<T, F> {
    pub(super) alone: bool,
    pub(super) events: usize,
    pub(super) run: F,
    pub(super) committed: fn(&mut Desk, &mut T),
    pub(super) got: Option<Result<T, StoreError>>,
    pub(super) tell: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&mut Desk) -> Step<T> + Send> Member for Call<T, F> {
    fn is_alone(&self) -> bool {
        self.alone
    }

    fn events(&self) -> usize {
        self.events
    }

    fn run(&mut self, desk: &mut Desk, _: bool) -> Step<()> {
        self.got = Some(match (self.run)(desk) {
            Ok(got) => Ok(got),
            Err(Fault::Refused(error)) => Err(error),
            Err(fault) => return Err(fault),
        });
        Ok(())
    }

    fn committed(&mut self, desk: &mut Desk) {
        if let Some(Ok(got)) = &mut self.got {
            (self.committed)(desk, got);
        }
    }

    fn answer(self: Box<Self>, fate: Fate) {
        let answer = match fate {
            Fate::Committed => self.got.unwrap_or(Err(StoreError::Closed)),
            Fate::Forbidden(error) => Err(rolled_back(error)),
            Fate::Failed(error) => Err(error),
        };
        let _ = self.tell.send(answer);
    }
}

/// What the writer waits for, with how much it weighs in KiB.
pub(super) type Calls = Queue<(Box<dyn Member>, u32)>;

/// The writer's thread.
pub(super) struct Writer {
    pub(super) desk: Desk,
    pub(super) calls: Arc<Calls>,
    pub(super) health: Arc<Health>,
    pub(super) watcher: Arc<Mutex<Option<Watcher>>>,
    pub(super) readers: Readers,
    pub(super) work: Arc<Work>,
    /// How many pages the log has.
    pub(super) log_pages: Arc<AtomicI32>,
    pub(super) log_pages_max: i32,
    /// When the watcher was told last which streams to look at.
    pub(super) named: Option<Instant>,
    /// Answers that the watcher is to give, and since when.
    pub(super) owed: VecDeque<(Instant, Owed)>,
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

    /// Writes a group, together if that can be done.
    fn write(&mut self, mut group: Vec<Box<dyn Member>>) {
        if let Err(error) = self.health.check() {
            return answer(group, || Fate::Failed(error.clone()));
        }
        match self.commit(&mut group) {
            Ok(took) => {
                self.work.count(group.iter().map(|member| member.events()).sum(), took);
                for member in &mut group {
                    member.committed(&mut self.desk);
                }
                self.recover();
                crash::point("before-answer");
                // Whoever has an answer knows that the watcher was told.
                self.tell(group);
                self.write_log_back();
            }
            Err(Failure::Spoiled(error)) => self.write_one_by_one(group, error),
            Err(Failure::All(error)) => answer(group, || Fate::Failed(error.clone())),
        }
    }

    /// Somebody spoiled the commit of all, and nobody knows who: each gets one of its own.
    fn write_one_by_one(&mut self, mut group: Vec<Box<dyn Member>>, error: Option<rusqlite::Error>) {
        if group.len() == 1 {
            let mut fate = match error {
                Some(error) => Some(Fate::Forbidden(error)),
                None => Some(Fate::Failed(StoreError::Passing {
                    what: "the work of a transaction ended it".to_owned(),
                    source: None,
                })),
            };
            return answer(group, || fate.take().unwrap_or(Fate::Committed));
        }
        for member in group.drain(..) {
            if member.is_answered() {
                member.answer(Fate::Committed);
            } else {
                self.write(vec![member]);
            }
        }
    }

    /// Commits; gives how long the commit itself took.
    fn commit(&mut self, group: &mut [Box<dyn Member>]) -> Result<Duration, Failure> {
        let has_company = group.len() > 1;
        if let Err(error) = self.desk.begin() {
            return Err(self.fail(error));
        }
        let mut done = 0;
        while done < group.len() {
            match self.run_next(&mut group[done..], has_company) {
                Ok(more) => done += more,
                Err(Fault::Sql(error)) => return Err(self.fail(error)),
                // What is one member's own must not be the others'.
                Err(Fault::Refused(_)) if has_company => return Err(self.roll_back(Failure::Spoiled(None))),
                Err(Fault::Refused(error)) => return Err(self.roll_back(Failure::All(error))),
                Err(Fault::Spoiled) => return Err(self.roll_back(Failure::Spoiled(None))),
            }
        }
        crash::point("after-work");
        if let Err(error) = self.desk.write_numbers() {
            return Err(self.fail(error));
        }
        crash::point("before-commit");
        if self.desk.struck {
            crash::point("strike-before-commit");
        }
        let began = Instant::now();
        if let Err(error) = self.desk.commit() {
            return Err(self.fail_commit(error));
        }
        let took = began.elapsed();
        crash::point("after-commit");
        if self.desk.struck {
            crash::point("strike-after-commit");
        }
        Ok(took)
    }

    /// Has the next of these do their part, and says how many that were.
    fn run_next(&mut self, members: &mut [Box<dyn Member>], has_company: bool) -> Step<usize> {
        match self.desk.publish_together(members)? {
            0 => members[0].run(&mut self.desk, has_company).map(|()| 1),
            together => Ok(together),
        }
    }

    /// A statement failed before the commit: it is certain that nothing is written.
    fn fail(&mut self, error: rusqlite::Error) -> Failure {
        if kind(&error) == Kind::Disk {
            self.health.poison(&error.to_string());
        }
        let error = self.health.check().err().unwrap_or_else(|| rolled_back(error));
        self.roll_back(Failure::All(error))
    }

    fn fail_commit(&mut self, error: rusqlite::Error) -> Failure {
        match kind(&error) {
            Kind::Passing => self.roll_back(Failure::All(rolled_back(error))),
            Kind::Constraint => self.roll_back(Failure::Spoiled(Some(error))),
            Kind::Disk | Kind::Other => {
                let what = error.to_string();
                self.health.poison(&what);
                self.roll_back(Failure::All(StoreError::Unknown { what }))
            }
        }
    }

    fn roll_back(&mut self, failure: Failure) -> Failure {
        if let Err(error) = self.desk.roll_back() {
            self.health.poison(&error.to_string());
        }
        failure
    }

    /// Tells the watcher what became runnable, then everyone who waited for it. A large group is told by the
    /// watcher, from within its runtime.
    fn tell(&mut self, group: Vec<Box<dyn Member>>) {
        // The next commit is about as large, and to grow step by step copies everything each time.
        let room = Vec::with_capacity(self.desk.arrived.len());
        let entries = std::mem::replace(&mut self.desk.arrived, room);
        // To name the streams reads them all, so a busy writer does it no more often than an idle one.
        let is_time = self.named.is_none_or(|named| named.elapsed() >= TICK);
        let streams = if self.desk.foreign && is_time { self.desk.streams_in_use().ok() } else { None };
        let missed = streams.is_some();
        let recall = std::mem::take(&mut self.desk.recall);
        let few = group.len() < GROUP_LARGE;
        if entries.is_empty() && !missed && !recall && few {
            return answer(group, || Fate::Committed);
        }
        // Where the streams could not be read, the next look around tells.
        if missed {
            self.desk.foreign = false;
            self.named = Some(Instant::now());
        }
        let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(watcher) = watcher else { return answer(group, || Fate::Committed) };
        let (now, later) = if few { (group, Vec::new()) } else { (Vec::new(), group) };
        let mut answers = Answers::default();
        if !few {
            let owed = Owed::new(later);
            self.owed.push_back((Instant::now(), owed.clone()));
            answers = Answers::new(move || owed.give());
        }
        let streams = streams.unwrap_or_default();
        let arrivals = Arrivals { entries, missed, recall, streams, answers };
        // A watcher that panics must not take the writer with it.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| watcher(arrivals)));
        answer(now, || Fate::Committed);
    }

    /// A watcher whose runtime stands still must not keep everybody waiting.
    fn give_what_is_owed(&mut self) {
        while let Some((since, owed)) = self.owed.front() {
            if !owed.is_given() && since.elapsed() < OWED {
                return;
            }
            owed.give();
            self.owed.pop_front();
        }
    }

    /// Finds out whether another process wrote something.
    fn look_around(&mut self) {
        // An error shows itself again at the next commit.
        if !self.health.is_poisoned() && self.desk.look_around().is_ok() {
            self.tell(Vec::new());
        }
    }

    /// After the file was taken from an owner that died: what is seen may not be on the disk yet, so all of it is
    /// written back and synced before anybody is answered.
    fn recover(&mut self) {
        if std::mem::take(&mut self.desk.to_recover)
            && let Err(error) = self.desk.conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE)
            && kind(&error) == Kind::Disk
        {
            self.health.poison(&error.to_string());
        }
    }

    /// Writes the log back to the database when it has grown. SQLite would do that by itself, but it would
    /// not tell when a sync failed.
    fn write_log_back(&mut self) {
        if self.log_pages.load(Relaxed) < self.log_pages_max {
            return;
        }
        crash::point("before-checkpoint");
        match self.desk.conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) {
            // All of it: the next commit begins the log anew.
            Ok((log, written)) if log == written => self.log_pages_max = LOG_PAGES_MAX,
            Ok((log, _)) => self.log_pages_max = log.max(LOG_PAGES_MAX) + LOG_PAGES_MORE,
            Err(error) if kind(&error) == Kind::Disk => self.health.poison(&error.to_string()),
            Err(_) => self.log_pages_max += LOG_PAGES_MORE,
        }
        crash::point("after-checkpoint");
    }

    /// Closes the files.
    fn end(self) {
        let Self { desk, health, readers, watcher, ended, owed, .. } = self;
        owed.iter().for_each(|(_, owed)| owed.give());
        // It may hold the store itself.
        drop(watcher.lock().unwrap_or_else(PoisonError::into_inner).take());
        readers.end();
        if !health.is_poisoned() && desk.ownership.is_held() {
            // What it cannot write back now is written back at the next opening.
            let _ = desk.conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE);
        }
        let Desk { conn, mut ownership, .. } = desk;
        drop(conn);
        ownership.let_go();
        let _ = ended.send(true);
    }
}

/// A group that waits to be told of its commit, by the watcher or by the writer.
#[derive(Clone)]
pub(super) struct Owed(Arc<Mutex<Vec<Box<dyn Member>>>>);

impl Owed {
    fn new(group: Vec<Box<dyn Member>>) -> Self {
        Self(Arc::new(Mutex::new(group)))
    }

    fn group(&self) -> std::sync::MutexGuard<'_, Vec<Box<dyn Member>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_given(&self) -> bool {
        self.group().is_empty()
    }

    fn give(&self) {
        let group = std::mem::take(&mut *self.group());
        answer(group, || Fate::Committed);
    }
}

/// Why a commit did not happen.
enum Failure {
    /// For a reason that is everybody's.
    All(StoreError),
    /// For a reason that may be one member's.
    Spoiled(Option<rusqlite::Error>),
}

fn answer(group: Vec<Box<dyn Member>>, mut fate: impl FnMut() -> Fate) {
    for member in group {
        member.answer(fate());
    }
}

/// The calls that share the next commit.
fn next_group(waiting: &mut VecDeque<Waiting<(Box<dyn Member>, u32)>>) -> Vec<Box<dyn Member>> {
    let mut group: Vec<Box<dyn Member>> = Vec::new();
    let mut kib = 0_u32;
    // Given back together, because each time takes a lock.
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
