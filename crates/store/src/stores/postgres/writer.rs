//! Publishing what waits together: one statement and one commit for all that came while the last one was made.
//!
//! A commit costs a sync of the disk, whether there is one event in it or a hundred. When nobody publishes, a lone call
//! waits for nothing. Who shares a commit may have to wait for somebody else's identity: a group waits for that shortly,
//! and is then split, so that only the one that is blocked waits on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::faults::not_done;
use super::office::{Doing, Office, Trouble};
use super::publish::{Answer, Given};
use crate::error::StoreError;
use crate::store::New;

/// How much may wait, in KiB: some seconds' worth of writing on a slow disk. Every call counts as one at least.
pub(super) const QUEUED_KIB_MAX: u32 = 32 << 10;
/// How many events share a commit at most.
const GROUP_MAX: usize = 2048;
/// How many KiB share a commit at most.
const GROUP_KIB_MAX: u32 = 8 << 10;
/// How often a publish of unknown fate is repeated.
const REPEATS_MAX: u32 = 10;

/// A call that publishes.
pub(super) struct Publishing {
    pub(super) events: Vec<New>,
    pub(super) kib: u32,
    /// Its room in the queue.
    pub(super) room: OwnedSemaphorePermit,
    pub(super) tell: oneshot::Sender<Result<Vec<Answer>, StoreError>>,
}

/// Where calls wait.
#[derive(Debug, Clone)]
pub(super) struct Line {
    send: mpsc::UnboundedSender<Publishing>,
    room: Arc<Semaphore>,
}

impl std::fmt::Debug for Publishing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publishing").field("events", &self.events.len()).finish_non_exhaustive()
    }
}

impl Line {
    /// A line, and where the calls come out.
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<Publishing>) {
        let (send, calls) = mpsc::unbounded_channel();
        (Self { send, room: Arc::new(Semaphore::new(QUEUED_KIB_MAX as usize)) }, calls)
    }

    /// Publishes, when there is room.
    pub(super) async fn publish(&self, events: Vec<New>) -> Result<Vec<Answer>, StoreError> {
        let bytes: usize = events.iter().map(|new| new.event.payload.len() + 256).sum();
        let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX).min(QUEUED_KIB_MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| StoreError::Closed)?;
        let (tell, told) = oneshot::channel();
        self.send.send(Publishing { events, kib, room, tell }).map_err(|_| StoreError::Closed)?;
        told.await.unwrap_or(Err(StoreError::Closed))
    }
}

/// Publishes what comes, until nobody can call any more.
pub(super) async fn write(office: Arc<Office>, mut calls: mpsc::UnboundedReceiver<Publishing>) {
    let mut waiting = VecDeque::new();
    while let Some(first) = match waiting.pop_front() {
        Some(call) => Some(call),
        None => calls.recv().await,
    } {
        while let Ok(call) = calls.try_recv() {
            waiting.push_back(call);
        }
        let (mut events, mut kib) = (first.events.len(), first.kib);
        let mut group = vec![first];
        while let Some(next) = waiting.front()
            && events + next.events.len() <= GROUP_MAX
            && kib + next.kib <= GROUP_KIB_MAX
            && let Some(next) = waiting.pop_front()
        {
            (events, kib) = (events + next.events.len(), kib + next.kib);
            group.push(next);
        }
        write_group(&office, group).await;
    }
}

async fn write_group(office: &Arc<Office>, group: Vec<Publishing>) {
    let events: Vec<New> = group.iter().flat_map(|call| call.events.iter().cloned()).collect();
    let is_shared = group.len() > 1;
    match publish(office, events, is_shared).await {
        Ok(answers) => {
            let mut answers = answers.into_iter();
            for call in group {
                let own: Vec<Answer> = answers.by_ref().take(call.events.len()).collect();
                let _ = call.tell.send(Ok(own));
            }
        }
        Err(_) if is_shared => {
            // Somebody in it is in the way, or is not to be kept: each has a commit of its own, and waits for itself.
            for call in group {
                let office = Arc::clone(office);
                tokio::spawn(async move {
                    let Publishing { events, room, tell, .. } = call;
                    let _ = tell.send(publish(&office, events, false).await);
                    drop(room);
                });
            }
        }
        Err(error) => {
            for call in group {
                let _ = call.tell.send(Err(error.clone()));
            }
        }
    }
}

/// Publishes in one commit. One of unknown fate is repeated: its receipts say which of them it was.
async fn publish(office: &Arc<Office>, events: Vec<New>, is_shared: bool) -> Result<Vec<Answer>, StoreError> {
    let events = Arc::new(events);
    let given = Arc::new(Mutex::new(Given::new()));
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
