//! Writing what waits together: one statement and one commit for all that came while the last ones were made.
//!
//! A commit costs a sync of the disk, whether there is one event in it or a hundred. When nobody else writes, a lone
//! call waits for nothing. [`GROUPS_AT_ONCE`] groups are under way at once, each on a connection of its own: while one
//! waits for the disk, the next one is with the processor. Publishes and settles wait in a line each, so that neither
//! waits for the other.
//!
//! Who shares a commit may have to wait for somebody else's identity, or for an event that somebody has locked: a group
//! waits for that shortly, and is then split, so that only the one that is blocked waits on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::entry::{Settle, Settled};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::faults::not_done;
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
/// How many groups of a line are under way at once.
const GROUPS_AT_ONCE: usize = 2;
/// How often a publish of unknown fate is repeated.
const REPEATS_MAX: u32 = 10;

/// A call that writes some things and has an answer for each.
pub(super) struct Call<W, A> {
    what: Vec<W>,
    kib: u32,
    /// Its room in the line.
    room: OwnedSemaphorePermit,
    tell: oneshot::Sender<Result<Vec<A>, StoreError>>,
}

/// Where calls wait.
#[derive(Debug, Clone)]
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

impl<W, A> Line<W, A> {
    /// A line, and where the calls come out.
    pub(super) fn new() -> (Self, Calls<W, A>) {
        let (send, calls) = mpsc::unbounded_channel();
        (Self { send, room: Arc::new(Semaphore::new(QUEUED_KIB_MAX as usize)) }, calls)
    }

    /// Writes things of so many bytes, when there is room.
    async fn write(&self, what: Vec<W>, bytes: usize) -> Result<Vec<A>, StoreError> {
        let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX).min(QUEUED_KIB_MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| StoreError::Closed)?;
        let (tell, told) = oneshot::channel();
        self.send.send(Call { what, kib, room, tell }).map_err(|_| StoreError::Closed)?;
        told.await.unwrap_or(Err(StoreError::Closed))
    }
}

impl Line<New, Answer> {
    pub(super) async fn publish(&self, events: Vec<New>) -> Result<Vec<Answer>, StoreError> {
        let bytes = events.iter().map(|new| new.event.payload.len() + 256).sum();
        self.write(events, bytes).await
    }
}

impl Line<Settle, Settled> {
    pub(super) async fn settle(&self, settles: Vec<Settle>) -> Result<Vec<Settled>, StoreError> {
        let bytes = settles.len() * 256;
        self.write(settles, bytes).await
    }
}

/// Publishes what comes, until nobody can call any more.
pub(super) async fn publish_all(office: Arc<Office>, calls: Calls<New, Answer>) {
    let one =
        |office: Arc<Office>, events, is_shared| async move { publish(&office, events, is_shared).await };
    write_all(office, calls, one).await;
}

/// Settles what comes, until nobody can call any more.
pub(super) async fn settle_all(office: Arc<Office>, calls: Calls<Settle, Settled>) {
    let one =
        |office: Arc<Office>, settles, is_shared| async move { office.settle(settles, is_shared).await };
    write_all(office, calls, one).await;
}

async fn write_all<W, A, F>(
    office: Arc<Office>,
    mut calls: Calls<W, A>,
    one: impl Fn(Arc<Office>, Vec<W>, bool) -> F + Copy + Send + 'static,
) where
    W: Clone + Send + Sync + 'static,
    A: Send + 'static,
    F: Future<Output = Result<Vec<A>, StoreError>> + Send,
{
    let turns = Arc::new(Semaphore::new(GROUPS_AT_ONCE));
    let mut waiting = VecDeque::new();
    while let Some(first) = match waiting.pop_front() {
        Some(call) => Some(call),
        None => calls.recv().await,
    } {
        // What comes while all turns are taken goes along.
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
        while let Ok(call) = calls.try_recv() {
            waiting.push_back(call);
        }
        let (mut count, mut kib) = (first.what.len(), first.kib);
        let mut group = vec![first];
        while let Some(next) = waiting.front()
            && count + next.what.len() <= GROUP_MAX
            && kib + next.kib <= GROUP_KIB_MAX
            && let Some(next) = waiting.pop_front()
        {
            (count, kib) = (count + next.what.len(), kib + next.kib);
            group.push(next);
        }
        let office = Arc::clone(&office);
        tokio::spawn(async move {
            write_group(office, group, one).await;
            drop(turn);
        });
    }
}

async fn write_group<W, A, F>(
    office: Arc<Office>,
    mut group: Vec<Call<W, A>>,
    one: impl Fn(Arc<Office>, Vec<W>, bool) -> F + Copy + Send + 'static,
) where
    W: Clone + Send + Sync + 'static,
    A: Send + 'static,
    F: Future<Output = Result<Vec<A>, StoreError>> + Send,
{
    if group.len() == 1 {
        if let Some(Call { what, room, tell, .. }) = group.pop() {
            let _ = tell.send(one(office, what, false).await);
            drop(room);
        }
        return;
    }
    let what: Vec<W> = group.iter().flat_map(|call| call.what.iter().cloned()).collect();
    match one(Arc::clone(&office), what, true).await {
        Ok(answers) => {
            let mut answers = answers.into_iter();
            for call in group {
                let own: Vec<A> = answers.by_ref().take(call.what.len()).collect();
                let _ = call.tell.send(Ok(own));
            }
        }
        Err(_) => {
            // Somebody in it is in the way, or is not to be kept: each has a commit of its own, and waits for itself.
            for Call { what, room, tell, .. } in group {
                let office = Arc::clone(&office);
                tokio::spawn(async move {
                    let _ = tell.send(one(office, what, false).await);
                    drop(room);
                });
            }
        }
    }
}

/// Publishes in one commit. One of unknown fate is repeated: its receipts say which of them it was.
///
/// What is simply new goes with one statement; for the others somebody looks.
async fn publish(office: &Arc<Office>, events: Vec<New>, is_shared: bool) -> Result<Vec<Answer>, StoreError> {
    let mut given = Given::new();
    let mut answers = match office.publish_at_once(&events, is_shared, &mut given).await {
        Ok(answers) => answers,
        Err(Trouble::No(fault)) => return Err(not_done(fault)),
        Err(Trouble::Unknown(_)) => events.iter().map(|_| None).collect(),
    };
    let left: Vec<usize> = (0..events.len()).filter(|at| answers[*at].is_none()).collect();
    if left.is_empty() {
        return Ok(answers.into_iter().flatten().collect());
    }
    // Where some are kept, the rest does not go back to the line: they would be found to be there.
    let is_alone = left.len() < events.len() || !given.is_empty();
    let place = |at: usize| left.binary_search(&at).ok();
    let given = given.into_iter().filter_map(|(seq, at)| Some((seq, place(at)?))).collect();
    let rest = left.iter().map(|at| events[*at].clone()).collect();
    match publish_with_care(office, rest, is_shared && !is_alone, given).await {
        Ok(rest) => left.iter().zip(rest).for_each(|(at, answer)| answers[*at] = Some(answer)),
        Err(error) if left.len() < events.len() => {
            left.iter().for_each(|at| answers[*at] = Some(Err(PublishError::Store(error.clone()))));
        }
        Err(error) => return Err(error),
    }
    Ok(answers.into_iter().flatten().collect())
}

/// Publishes what may have been published before, and what has to wait for its time.
async fn publish_with_care(
    office: &Arc<Office>,
    events: Vec<New>,
    is_shared: bool,
    given: Given,
) -> Result<Vec<Answer>, StoreError> {
    let events = Arc::new(events);
    let given = Arc::new(Mutex::new(given));
    let mut repeats = 0;
    loop {
        let (all, before) = (Arc::clone(&events), Arc::clone(&given));
        let done = office
            .try_to_write(move |desk| -> Doing<'_, Vec<Answer>> {
                let (all, before) = (Arc::clone(&all), Arc::clone(&before));
                Box::pin(async move {
                    if is_shared {
                        desk.wait_shortly().await?;
                    }
                    let refs: Vec<&New> = all.iter().collect();
                    let mut given = before.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    let answers = desk.publish_all(&refs, &mut given).await?;
                    *before.lock().unwrap_or_else(PoisonError::into_inner) = given;
                    Ok(answers)
                })
            })
            .await;
        match done {
            Ok(answers) => return Ok(answers),
            Err(Trouble::No(fault)) => return Err(not_done(fault)),
            Err(Trouble::Unknown(_)) if repeats < REPEATS_MAX => repeats += 1,
            Err(Trouble::Unknown(error)) => return Err(super::faults::unknown(&error)),
        }
    }
}
