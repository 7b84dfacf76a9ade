//! Group commit: one statement and one commit for all calls that arrived during the last ones.
//!
//! A commit costs a sync of the disk, whether it has one event or a hundred, and a statement costs the same before its
//! first row. So calls that arrive while a group is being written wait, and go together. A lone call does not wait. A
//! second group is written concurrently, on a connection of its own, if it is large, or if the first one takes long:
//! that may be waiting for a lock. Publishes and settles have a queue each, so that neither waits for the other.
//!
//! A write may have to wait for another transaction with the same identity, or for an event that another transaction
//! has locked. A group waits for that briefly, and is then split, so that only the blocked call waits on, and takes no
//! other call's turn. Written items are answered; for items that may have been written, the batch remembers the answer
//! they would have had ([`Batch`]). So a call never learns that it is a duplicate of itself, nor that nothing was
//! changed when something may have been.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_core::queue_entry::Seq;
use tokio::sync::{OwnedRwLockReadGuard, OwnedSemaphorePermit, RwLock, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::database::{Database, TxError, TxFuture};
use super::faults::{Fault, Step, broken, left_open, not_done};
use super::publish::fast::says;
use super::publish::slow::{Answer, Given};
use crate::error::{PublishError, StoreError};
use crate::store::NewEvent;
use batch::{Batch, BatchItem};

pub(super) mod batch;

/// How much may wait, in KiB: some seconds' worth of writing on a slow disk. Every call counts as at least one.
pub(super) const QUEUED_KIB_MAX: u32 = 32 << 10;
/// How many events share a commit at most.
const GROUP_MAX: usize = 2048;
/// How many KiB share a commit at most.
const GROUP_KIB_MAX: u32 = 8 << 10;
/// How many groups of a queue are written at once, at most.
pub(super) const GROUPS_AT_ONCE: usize = 2;
/// The size of a group that does not wait for the one being written: larger statements are hardly cheaper per event.
const MANY: usize = 256;
/// After how long the next group no longer waits for the one being written.
const SLOW: Duration = Duration::from_millis(10);
/// How often a publish of unknown outcome is repeated.
const REPEATS_MAX: u32 = 10;
/// The SQLSTATE of a lock timeout.
pub(super) const LOCKED: &str = "55P03";

/// A call that writes some items and has an answer for each.
pub(super) struct Call<W, A> {
    what: Vec<W>,
    count: usize,
    kib: u32,
    /// Its room in the queue.
    room: OwnedSemaphorePermit,
    /// Held until the call is done: closing the store waits for it, also if the caller went away.
    open: Option<OwnedRwLockReadGuard<()>>,
    tell: oneshot::Sender<Result<Vec<A>, StoreError>>,
}

/// The answers of a call, once it was written.
pub(super) type WriterReport<A> = oneshot::Receiver<Result<Vec<A>, StoreError>>;

/// The queue of calls that wait for a commit.
#[derive(Debug)]
pub(super) struct CommitQueue<W, A> {
    send: mpsc::UnboundedSender<Call<W, A>>,
    room: Arc<Semaphore>,
}

/// The receiving end of the queue.
pub(super) type Calls<W, A> = mpsc::UnboundedReceiver<Call<W, A>>;

impl<W, A> std::fmt::Debug for Call<W, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("what", &self.what.len()).finish_non_exhaustive()
    }
}

impl<W, A> Clone for CommitQueue<W, A> {
    fn clone(&self) -> Self {
        Self { send: self.send.clone(), room: Arc::clone(&self.room) }
    }
}

impl<W, A> CommitQueue<W, A> {
    /// A queue, and its receiving end.
    pub(super) fn new() -> (Self, Calls<W, A>) {
        let (send, calls) = mpsc::unbounded_channel();
        (Self { send, room: Arc::new(Semaphore::new(QUEUED_KIB_MAX as usize)) }, calls)
    }

    /// Appends a call, if there is room.
    fn put(
        &self,
        what: Vec<W>,
        kib: u32,
        room: OwnedSemaphorePermit,
        open: Option<OwnedRwLockReadGuard<()>>,
    ) -> WriterReport<A> {
        let (tell, told) = oneshot::channel();
        let count = what.len();
        // If the writer is gone, the answer's other end is dropped, which says so.
        let _ = self.send.send(Call { what, count, kib, room, open, tell });
        told
    }
}

impl<W: BatchItem> CommitQueue<W, W::Answer> {
    /// Writes items when there is room.
    pub(super) async fn write(&self, what: Vec<W>) -> Result<Vec<W::Answer>, StoreError> {
        let kib = kib(&what);
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| StoreError::Closed)?;
        self.put(what, kib, room, None).await.unwrap_or(Err(StoreError::Closed))
    }

    /// Queues items, if there is room now and the store is not about to close; otherwise they are returned. This needs
    /// no task of its own: queued items are written even if the caller goes away.
    pub(super) fn write_now(
        &self,
        what: Vec<W>,
        gate: &Arc<RwLock<()>>,
    ) -> Result<WriterReport<W::Answer>, Vec<W>> {
        let kib = kib(&what);
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(kib) else { return Err(what) };
        let Ok(open) = Arc::clone(gate).try_read_owned() else { return Err(what) };
        Ok(self.put(what, kib, room, Some(open)))
    }
}

fn kib<W: BatchItem>(what: &[W]) -> u32 {
    let bytes: usize = what.iter().map(BatchItem::size).sum();
    u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX).min(QUEUED_KIB_MAX)
}

/// Writes calls until all callers are gone.
pub(super) async fn write_all<W: BatchItem>(db: Arc<Database>, mut calls: Calls<W, W::Answer>) {
    let mut waiting = Waiting::default();
    let mut under_way = JoinSet::new();
    let (mut began, mut is_open) = (Instant::now(), true);
    let mut come = Vec::new();
    loop {
        while waiting.may_go(under_way.len(), began.elapsed()) {
            under_way.spawn(write_group(Arc::clone(&db), waiting.group()));
            began = Instant::now();
        }
        let could_go = !waiting.calls.is_empty() && under_way.len() < GROUPS_AT_ONCE;
        tokio::select! {
            some = calls.recv_many(&mut come, GROUP_MAX), if is_open => {
                is_open = some > 0;
                come.drain(..).for_each(|call| waiting.add(call));
            }
            Some(_) = under_way.join_next() => {}
            () = tokio::time::sleep_until(began + SLOW), if could_go => {}
            else => return,
        }
    }
}

/// The calls that wait.
struct Waiting<W, A> {
    calls: VecDeque<Call<W, A>>,
    /// How many items they write.
    count: usize,
}

impl<W, A> Default for Waiting<W, A> {
    fn default() -> Self {
        Self { calls: VecDeque::new(), count: 0 }
    }
}

impl<W, A> Waiting<W, A> {
    fn add(&mut self, call: Call<W, A>) {
        self.count += call.count;
        self.calls.push_back(call);
    }

    /// Whether a group may start while `under_way` others are being written, the last of them for this long.
    fn may_go(&self, under_way: usize, since: Duration) -> bool {
        let is_first = under_way == 0;
        let has_turn = is_first || (under_way < GROUPS_AT_ONCE && (self.count >= MANY || since >= SLOW));
        has_turn && !self.calls.is_empty()
    }

    /// The first calls, as many as share a commit.
    fn group(&mut self) -> Vec<Call<W, A>> {
        let (mut count, mut kib) = (0, 0);
        let mut group = Vec::new();
        while let Some(next) = self.calls.front()
            && (group.is_empty() || (count + next.count <= GROUP_MAX && kib + next.kib <= GROUP_KIB_MAX))
            && let Some(next) = self.calls.pop_front()
        {
            (count, kib) = (count + next.count, kib + next.kib);
            group.push(next);
        }
        self.count -= count;
        group
    }
}

async fn write_group<W: BatchItem>(db: Arc<Database>, mut group: Vec<Call<W, W::Answer>>) {
    let mut all = Batch::new(group.iter_mut().flat_map(|call| std::mem::take(&mut call.what)).collect());
    let counts: Vec<usize> = group.iter().map(|call| call.count).collect();
    let fault = W::write(&db, &mut all, true).await.err();
    let is_alone = group.len() == 1;
    let mut fault = fault.filter(|fault| is_alone && !is_locked(fault));
    for (Call { room, open, tell, .. }, mut own) in group.into_iter().zip(all.split(counts)) {
        if let Some(answers) = own.answered() {
            let _ = tell.send(Ok(answers));
        } else if let Some(fault) = fault.take() {
            let _ = tell.send(W::give_up(&db, own, &not_done(fault)));
        } else {
            // A call of the group is blocked, or must not commit: each gets a commit of its own, and waits for itself.
            let db = Arc::clone(&db);
            tokio::spawn(async move {
                let said = match W::write(&db, &mut own, false).await {
                    Ok(()) => own.answered().ok_or_else(|| broken("an item was not answered")),
                    Err(fault) => W::give_up(&db, own, &not_done(fault)),
                };
                let _ = tell.send(said);
                drop((room, open));
            });
        }
    }
}

fn is_locked(fault: &Fault) -> bool {
    matches!(fault, Fault::Sql(error) if says(error, LOCKED))
}

impl BatchItem for NewEvent {
    type Answer = Answer;
    type Doubt = Vec<Seq>;

    fn size(&self) -> usize {
        self.event.payload.len() + 256
    }

    /// Publishes in one commit. A commit of unknown outcome is repeated: the dedupe records tell which events it
    /// stored.
    ///
    /// New events go with one statement; the others are looked up.
    async fn write(db: &Arc<Database>, batch: &mut Batch<Self>, is_shared: bool) -> Step<()> {
        if !is_shared {
            db.wait_for_streams(&batch.what).await;
        }
        if !batch.is_doubted() {
            let left = batch.left();
            let events = batch.those(&left);
            let mut given = Given::new();
            let done = db.publish_fast(&events, is_shared, &mut given).await;
            doubt(batch, &left, given);
            match done {
                Ok(answers) => batch.answer(&left, answers),
                Err(TxError::No(fault)) => return Err(fault),
                Err(TxError::Unknown(_)) => {}
            }
        }
        publish_slow(db, batch, is_shared).await
    }

    /// If some were published, the others are answered one by one.
    fn give_up(_: &Arc<Database>, batch: Batch<Self>, error: &StoreError) -> Result<Vec<Answer>, StoreError> {
        if !batch.is_begun() {
            return Err(if batch.is_doubted() { left_open(error) } else { error.clone() });
        }
        let told = batch.answers.into_iter().zip(batch.doubts).map(|(answer, doubt)| {
            let error = || if doubt.is_empty() { error.clone() } else { left_open(error) };
            answer.unwrap_or_else(|| Err(PublishError::Store(error())))
        });
        Ok(told.collect())
    }
}

/// Records the seqs that a commit may have given to the events at `left`.
fn doubt(batch: &mut Batch<NewEvent>, left: &[usize], given: Given) {
    for (seq, at) in given {
        batch.doubts[left[at]].push(seq);
    }
}

/// Publishes events that may have been published before, and delayed ones.
async fn publish_slow(db: &Arc<Database>, batch: &mut Batch<NewEvent>, is_shared: bool) -> Step<()> {
    let left = batch.left();
    if left.is_empty() {
        return Ok(());
    }
    let events: Arc<Vec<NewEvent>> = Arc::new(batch.those(&left).into_iter().cloned().collect());
    let mut repeats = 0;
    loop {
        let doubts = left.iter().enumerate().flat_map(|(place, at)| {
            let seqs = batch.doubts[*at].iter();
            seqs.map(move |seq| (*seq, place))
        });
        let before: Arc<Given> = Arc::new(doubts.collect());
        let last = Arc::new(Mutex::new(Given::new()));
        let (all, gives) = (Arc::clone(&events), Arc::clone(&last));
        let done = db
            .try_to_write(move |tx| -> TxFuture<'_, Vec<Answer>> {
                let (all, before, gives) = (Arc::clone(&all), Arc::clone(&before), Arc::clone(&gives));
                Box::pin(async move {
                    if is_shared {
                        tx.wait_shortly().await?;
                    }
                    let refs: Vec<&NewEvent> = all.iter().collect();
                    let mut given = Given::clone(&before);
                    let answers = tx.publish_all(&refs, &mut given).await?;
                    given.retain(|seq, _| !before.contains_key(seq));
                    *gives.lock().unwrap_or_else(PoisonError::into_inner) = given;
                    Ok(answers)
                })
            })
            .await;
        match done {
            Ok(answers) => {
                batch.answer(&left, answers.into_iter().map(Some));
                return Ok(());
            }
            Err(TxError::No(fault)) => return Err(fault),
            Err(TxError::Unknown(error)) => {
                doubt(
                    batch,
                    &left,
                    std::mem::take(&mut *last.lock().unwrap_or_else(PoisonError::into_inner)),
                );
                repeats += 1;
                if repeats > REPEATS_MAX {
                    return Err(Fault::Sql(error));
                }
            }
        }
    }
}
