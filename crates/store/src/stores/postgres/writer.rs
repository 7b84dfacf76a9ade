//! Writing what waits together: one statement and one commit for all that came while the last ones were made.
//!
//! A commit costs a sync of the disk, whether there is one event in it or a hundred, and a statement costs the same before
//! its first row. So what comes while a group is under way waits, and goes together. When nobody else writes, a lone call
//! waits for nothing. A second group goes beside the first, on a connection of its own, when it is a large one, or when
//! the first one takes long: it may be waiting for somebody's lock. Publishes and settles wait in a line each, so that
//! neither waits for the other.
//!
//! Whoever writes may have to wait for somebody else's identity, or for an event that somebody has locked. A group waits
//! for that shortly, and is then split, so that only the one that is blocked waits on, and takes nobody's turn for it.
//! What was written by then is answered; of what may have been written, it is known what that would have been
//! ([`Batch`]). So nobody is told to be a duplicate of itself, nor that nothing was changed when something may have been.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_core::entry::Seq;
use tokio::sync::{OwnedRwLockReadGuard, OwnedSemaphorePermit, RwLock, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::at_once::says;
use super::batch::{Batch, Piece};
use super::faults::{Fault, Step, broken, left_open, not_done};
use super::office::{Doing, Office, Trouble};
use super::publish::{Answer, Given};
use crate::error::{PublishError, StoreError};
use crate::store::New;

/// How much may wait, in KiB: some seconds' worth of writing on a slow disk. Every call counts as one at least.
pub(super) const QUEUED_KIB_MAX: u32 = 32 << 10;
/// How many events share a commit at most.
const GROUP_MAX: usize = 2048;
/// How many KiB share a commit at most.
const GROUP_KIB_MAX: u32 = 8 << 10;
/// How many groups of a line are under way at once, at most.
pub(super) const GROUPS_AT_ONCE: usize = 2;
/// How many make a group that does not wait for the one under way: from here on, more of them in a statement are hardly
/// cheaper.
const MANY: usize = 256;
/// After how long nobody waits for the group under way.
const SLOW: Duration = Duration::from_millis(10);
/// How often a publish of unknown fate is repeated.
const REPEATS_MAX: u32 = 10;
/// What the database says where a lock was not to be had in time.
pub(super) const LOCKED: &str = "55P03";

/// A call that writes some things and has an answer for each.
pub(super) struct Call<W, A> {
    what: Vec<W>,
    count: usize,
    kib: u32,
    /// Its room in the line.
    room: OwnedSemaphorePermit,
    /// Whoever closes the store waits for this one, where nobody else does.
    open: Option<OwnedRwLockReadGuard<()>>,
    tell: oneshot::Sender<Result<Vec<A>, StoreError>>,
}

/// The answers of a call, when it was written.
pub(super) type Told<A> = oneshot::Receiver<Result<Vec<A>, StoreError>>;

/// Where calls wait.
#[derive(Debug)]
pub(super) struct Line<W, A> {
    send: mpsc::UnboundedSender<Call<W, A>>,
    room: Arc<Semaphore>,
}

/// Where the calls of a line come out.
pub(super) type Calls<W, A> = mpsc::UnboundedReceiver<Call<W, A>>;

impl<W, A> std::fmt::Debug for Call<W, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("what", &self.what.len()).finish_non_exhaustive()
    }
}

impl<W, A> Clone for Line<W, A> {
    fn clone(&self) -> Self {
        Self { send: self.send.clone(), room: Arc::clone(&self.room) }
    }
}

impl<W, A> Line<W, A> {
    /// A line, and where the calls come out.
    pub(super) fn new() -> (Self, Calls<W, A>) {
        let (send, calls) = mpsc::unbounded_channel();
        (Self { send, room: Arc::new(Semaphore::new(QUEUED_KIB_MAX as usize)) }, calls)
    }

    /// Puts a call at the end, where its room is.
    fn put(
        &self,
        what: Vec<W>,
        kib: u32,
        room: OwnedSemaphorePermit,
        open: Option<OwnedRwLockReadGuard<()>>,
    ) -> Told<A> {
        let (tell, told) = oneshot::channel();
        let count = what.len();
        // Where nobody takes it any more, nobody tells either.
        let _ = self.send.send(Call { what, count, kib, room, open, tell });
        told
    }
}

impl<W: Piece> Line<W, W::Answer> {
    /// Writes things when there is room.
    pub(super) async fn write(&self, what: Vec<W>) -> Result<Vec<W::Answer>, StoreError> {
        let kib = kib(&what);
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| StoreError::Closed)?;
        self.put(what, kib, room, None).await.unwrap_or(Err(StoreError::Closed))
    }

    /// Has things written, if there is room now and nobody is about to close; else they are given back. This needs no
    /// task of its own: what is in the line is written, whoever goes away.
    pub(super) fn write_now(&self, what: Vec<W>, gate: &Arc<RwLock<()>>) -> Result<Told<W::Answer>, Vec<W>> {
        let kib = kib(&what);
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(kib) else { return Err(what) };
        let Ok(open) = Arc::clone(gate).try_read_owned() else { return Err(what) };
        Ok(self.put(what, kib, room, Some(open)))
    }
}

fn kib<W: Piece>(what: &[W]) -> u32 {
    let bytes: usize = what.iter().map(Piece::size).sum();
    u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX).min(QUEUED_KIB_MAX)
}

/// Writes what comes, until nobody can call any more.
pub(super) async fn write_all<W: Piece>(office: Arc<Office>, mut calls: Calls<W, W::Answer>) {
    let mut waiting = Waiting::default();
    let mut under_way = JoinSet::new();
    let (mut began, mut is_open) = (Instant::now(), true);
    let mut come = Vec::new();
    loop {
        while waiting.may_go(under_way.len(), began.elapsed()) {
            under_way.spawn(write_group(Arc::clone(&office), waiting.group()));
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
    /// How much they want to write.
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

    /// Whether a group may go while so many are under way, the last of them for so long.
    fn may_go(&self, under_way: usize, since: Duration) -> bool {
        let is_first = under_way == 0;
        let has_turn = is_first || (under_way < GROUPS_AT_ONCE && (self.count >= MANY || since >= SLOW));
        has_turn && !self.calls.is_empty()
    }

    /// The first of them, so many as share a commit.
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

async fn write_group<W: Piece>(office: Arc<Office>, mut group: Vec<Call<W, W::Answer>>) {
    let mut all = Batch::new(group.iter_mut().flat_map(|call| std::mem::take(&mut call.what)).collect());
    let counts: Vec<usize> = group.iter().map(|call| call.count).collect();
    let fault = W::write(&office, &mut all, true).await.err();
    let is_alone = group.len() == 1;
    let mut fault = fault.filter(|fault| is_alone && !is_locked(fault));
    for (Call { room, open, tell, .. }, mut own) in group.into_iter().zip(all.split(counts)) {
        if let Some(answers) = own.answered() {
            let _ = tell.send(Ok(answers));
        } else if let Some(fault) = fault.take() {
            let _ = tell.send(W::give_up(&office, own, &not_done(fault)));
        } else {
            // Somebody in it is in the way, or is not to be kept: each has a commit of its own, and waits for itself.
            let office = Arc::clone(&office);
            tokio::spawn(async move {
                let said = match W::write(&office, &mut own, false).await {
                    Ok(()) => own.answered().ok_or_else(|| broken("something was not answered")),
                    Err(fault) => W::give_up(&office, own, &not_done(fault)),
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

impl Piece for New {
    type Answer = Answer;
    type Doubt = Vec<Seq>;

    fn size(&self) -> usize {
        self.event.payload.len() + 256
    }

    /// Publishes in one commit. One of unknown fate is repeated: its receipts say which of them it was.
    ///
    /// What is simply new goes with one statement; for the others somebody looks.
    async fn write(office: &Arc<Office>, batch: &mut Batch<Self>, is_shared: bool) -> Step<()> {
        if !is_shared {
            office.wait_for_streams(&batch.what).await;
        }
        if !batch.is_doubted() {
            let left = batch.left();
            let events = batch.those(&left);
            let mut given = Given::new();
            let done = office.publish_at_once(&events, is_shared, &mut given).await;
            doubt(batch, &left, given);
            match done {
                Ok(answers) => batch.answer(&left, answers),
                Err(Trouble::No(fault)) => return Err(fault),
                Err(Trouble::Unknown(_)) => {}
            }
        }
        publish_with_care(office, batch, is_shared).await
    }

    /// Where some were published, the others are told one by one.
    fn give_up(_: &Arc<Office>, batch: Batch<Self>, error: &StoreError) -> Result<Vec<Answer>, StoreError> {
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

/// Takes note of the seqs that a commit may have given to those at `left`.
fn doubt(batch: &mut Batch<New>, left: &[usize], given: Given) {
    for (seq, at) in given {
        batch.doubts[left[at]].push(seq);
    }
}

/// Publishes what may have been published before, and what has to wait for its time.
async fn publish_with_care(office: &Arc<Office>, batch: &mut Batch<New>, is_shared: bool) -> Step<()> {
    let left = batch.left();
    if left.is_empty() {
        return Ok(());
    }
    let events: Arc<Vec<New>> = Arc::new(batch.those(&left).into_iter().cloned().collect());
    let mut repeats = 0;
    loop {
        let doubts = left.iter().enumerate().flat_map(|(place, at)| {
            let seqs = batch.doubts[*at].iter();
            seqs.map(move |seq| (*seq, place))
        });
        let before: Arc<Given> = Arc::new(doubts.collect());
        let last = Arc::new(Mutex::new(Given::new()));
        let (all, gives) = (Arc::clone(&events), Arc::clone(&last));
        let done = office
            .try_to_write(move |desk| -> Doing<'_, Vec<Answer>> {
                let (all, before, gives) = (Arc::clone(&all), Arc::clone(&before), Arc::clone(&gives));
                Box::pin(async move {
                    if is_shared {
                        desk.wait_shortly().await?;
                    }
                    let refs: Vec<&New> = all.iter().collect();
                    let mut given = Given::clone(&before);
                    let answers = desk.publish_all(&refs, &mut given).await?;
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
            Err(Trouble::No(fault)) => return Err(fault),
            Err(Trouble::Unknown(error)) => {
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
