//! The thread that commits: everything of a flow in one line, one commit at a time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::oneshot;

use super::flow::Shared;
use super::plan;
use super::poll::Member;
use super::transaction::{Transaction, TransactionEnd, Worker};
use crate::log;
use crate::message::{Outgoing, Partition};
use crate::offsets::done_set::DoneSetRead;
use crate::offsets::{Committer, DoneSet, Progress};
use crate::source::{Lag, Settled, Settlement, SourceError};

/// The most messages of one transaction.
const BATCH_MAX: usize = 1_000;
/// How long to wait after an aborted commit, doubling up to the last.
const AGAIN_MIN: Duration = Duration::from_millis(20);
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// How long an unknown outcome is asked for; then the flow fails, and committed offsets tell the truth at its next start.
const RESOLVE: Duration = Duration::from_secs(120);
/// How long to wait for an answer about offsets.
const ANSWER: Duration = Duration::from_secs(5);

/// What the committer is asked to do.
#[derive(Debug)]
pub(super) enum Job {
    Settle(Box<Settlement>, oneshot::Sender<Settled>),
    Lag(oneshot::Sender<Result<Vec<Lag>, SourceError>>),
    Stop(oneshot::Sender<()>),
}

struct Committing<'a> {
    shared: &'a Shared,
    member: &'a Member,
    line: Committer<u64>,
    items: HashMap<u64, (Box<Settlement>, oneshot::Sender<Settled>)>,
    count: u64,
    workers: [Option<Worker>; 2],
    turn: usize,
    again: Duration,
}

/// A commit that is about to be sent.
struct Formed {
    /// The offsets that it settles, by partition, and the progress after it.
    partitions: BTreeMap<Partition, (Vec<i64>, Progress)>,
    records: Vec<Outgoing>,
}

/// Commits until the flow stops.
pub(super) fn run(shared: &Arc<Shared>, member: &Arc<Member>, jobs: &Receiver<Job>) {
    let mut committing = Committing {
        shared,
        member,
        line: Committer::default(),
        items: HashMap::new(),
        count: 0,
        workers: [None, None],
        turn: 0,
        again: AGAIN_MIN,
    };
    let mut stopping = None;
    loop {
        match jobs.recv_timeout(Duration::from_millis(100)) {
            Ok(job) => {
                let mut next = Some(job);
                while let Some(job) = next {
                    committing.take(job, &mut stopping);
                    next = jobs.try_recv().ok();
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        // A flow that is dropped commits nothing more; one that is closed empties its line first.
        while !committing.line.is_idle() && (stopping.is_some() || !shared.is_stopping()) {
            committing.commit();
            while let Ok(job) = jobs.try_recv() {
                committing.take(job, &mut stopping);
            }
        }
        if stopping.is_some() || shared.is_stopping() {
            break;
        }
    }
    if let Some(answer) = stopping {
        let _ = answer.send(());
    }
    // What is left belongs to the next owner.
    for (_, (_, answer)) in committing.items.drain() {
        let _ = answer.send(Settled::Lost);
    }
}

impl Committing<'_> {
    fn take(&mut self, job: Job, stopping: &mut Option<oneshot::Sender<()>>) {
        match job {
            Job::Settle(settlement, answer) => {
                self.count += 1;
                self.items.insert(self.count, (settlement, answer));
                self.line.push(self.count);
            }
            Job::Lag(answer) => {
                let _ = answer.send(self.lag());
            }
            Job::Stop(answer) => *stopping = Some(answer),
        }
    }

    /// Forms one commit, sends it, and finds out what became of it.
    fn commit(&mut self) {
        let Some(batch) = self.line.next(BATCH_MAX) else { return };
        let shared = self.shared;
        let ownership = shared.ownership();
        let items = self.still_owned(batch.items);
        if items.is_empty() {
            self.line.committed(batch.number);
            return;
        }
        let formed = match self.form(&items) {
            Ok(formed) => formed,
            Err(error) => {
                self.line.committed(batch.number);
                self.answer(&items, &Settled::Lost);
                shared.fail(error);
                return;
            }
        };
        let end =
            if formed.records.is_empty() { self.commit_plainly(&formed) } else { self.transact(&formed) };
        match end {
            TransactionEnd::Committed => {
                {
                    let mut state = shared.state();
                    for (partition, (offsets, _)) in &formed.partitions {
                        state.settled(partition, offsets);
                    }
                }
                drop(ownership);
                self.line.committed(batch.number);
                self.again = AGAIN_MIN;
                self.answer(&items, &Settled::Settled);
                // Room for more.
                shared.arrived.notify_waiters();
            }
            TransactionEnd::Aborted(why) => {
                drop(ownership);
                log::warn(&format!("{}: a commit was aborted and is tried again: {why}", shared.group));
                self.line.aborted(batch.number);
                let items = &self.items;
                self.line.remove(|item| !items.contains_key(item));
                std::thread::sleep(self.again);
                self.again = (self.again * 2).min(AGAIN_MAX);
            }
            TransactionEnd::Refused(why) => {
                drop(ownership);
                self.line.committed(batch.number);
                self.answer(&items, &Settled::Refused(why));
            }
            TransactionEnd::Unknown(why) => {
                drop(ownership);
                self.line.committed(batch.number);
                self.answer(&items, &Settled::Unknown);
                log::warn(&format!("{}: the outcome of a commit is unknown: {why}", shared.group));
            }
        }
    }

    /// Answers for items whose assignment has ended, and returns the others.
    fn still_owned(&mut self, batch: Vec<u64>) -> Vec<u64> {
        let state = self.shared.state();
        let owns =
            |item: &u64| self.items.get(item).is_some_and(|(settlement, _)| state.owns(&settlement.receipt));
        let (owned, lost): (Vec<u64>, Vec<u64>) = batch.into_iter().partition(owns);
        drop(state);
        self.answer(&lost, &Settled::Lost);
        owned
    }

    fn form(&self, items: &[u64]) -> Result<Formed, SourceError> {
        let settings = &self.shared.settings;
        let now = self.shared.clock.now();
        let bytes_max = self.shared.message_bytes_max.load(Ordering::Relaxed);
        let mut partitions: BTreeMap<Partition, (Vec<i64>, Progress)> = BTreeMap::new();
        let mut records = Vec::new();
        let state = self.shared.state();
        for (settlement, _) in items.iter().filter_map(|item| self.items.get(item)) {
            let partition = &settlement.receipt.partition;
            if !partitions.contains_key(partition) {
                let progress = state.progress(partition);
                let progress =
                    progress.ok_or_else(|| SourceError::Failed(format!("{partition} is not loaded")))?;
                partitions.insert(partition.clone(), (Vec::new(), progress));
            }
            if let Some((offsets, _)) = partitions.get_mut(partition) {
                // A second settle of one delivery changes nothing.
                let position = settlement.receipt.position;
                if state.is_pending(partition, position) && !offsets.contains(&position) {
                    offsets.push(position);
                    records.extend(plan::records(settings, settlement, now, bytes_max));
                }
            }
        }
        for (offsets, progress) in partitions.values_mut() {
            offsets.sort_unstable();
            offsets.dedup();
            progress.settle(offsets.iter().copied());
        }
        Ok(Formed { partitions, records })
    }

    fn list(&self, formed: &Formed) -> Result<TopicPartitionList, String> {
        let mut list = TopicPartitionList::new();
        for (partition, (_, progress)) in &formed.partitions {
            let mark = progress.mark().ok_or_else(|| format!("the done-set of {partition} does not fit"))?;
            let mut element = list.add_partition(&partition.topic, partition.number);
            element.set_offset(Offset::Offset(mark.offset)).map_err(|error| error.to_string())?;
            element.set_metadata(mark.metadata);
        }
        Ok(list)
    }

    /// Commits offsets alone. If the outcome is unknown, the member joins anew: the new generation fences this commit,
    /// and what is committed then is read again.
    fn commit_plainly(&self, formed: &Formed) -> TransactionEnd {
        let list = match self.list(formed) {
            Ok(list) => list,
            Err(why) => return self.stop(why),
        };
        if self.member.assignment_lost() {
            return TransactionEnd::Aborted(LOST.to_owned());
        }
        match self.member.commit(&list, CommitMode::Sync) {
            Ok(()) => TransactionEnd::Committed,
            Err(KafkaError::ConsumerCommit(code)) if NOT_COMMITTED.contains(&code) => {
                TransactionEnd::Aborted(code.to_string())
            }
            Err(error) => {
                self.shared.rejoin.store(true, Ordering::SeqCst);
                TransactionEnd::Unknown(error.to_string())
            }
        }
    }

    /// Copies and offsets in one transaction, under the two transactional ids in turn: while the markers of one are
    /// written, the other goes on.
    fn transact(&mut self, formed: &Formed) -> TransactionEnd {
        self.turn = 1 - self.turn;
        let list = match self.list(formed) {
            Ok(list) => list,
            Err(why) => return self.stop(why),
        };
        let Some(group) = self.member.group_metadata() else {
            return TransactionEnd::Aborted("the member has no group yet".to_owned());
        };
        // A member that was thrown out has no generation, and Kafka accepts a transaction without one. The client sets both
        // together, so the question comes after the generation is read.
        if self.member.assignment_lost() {
            return TransactionEnd::Aborted(LOST.to_owned());
        }
        if let Err(why) = self.worker() {
            return TransactionEnd::Aborted(why);
        }
        let transaction = Transaction { records: formed.records.clone(), offsets: list, group };
        let end = match &self.workers[self.turn] {
            Some(worker) => worker.perform(transaction),
            None => TransactionEnd::Aborted("there is no producer".to_owned()),
        };
        match end {
            TransactionEnd::Unknown(why) => self.resolve(formed, &why),
            end => end,
        }
    }

    fn worker(&mut self) -> Result<(), String> {
        if self.workers[self.turn].is_none() {
            let (settings, turn) = (&self.shared.settings, self.turn);
            let id = format!("redrive-{}-{}-{turn}", self.shared.group, settings.instance);
            self.workers[turn] = Some(Worker::start(settings, &id)?);
        }
        Ok(())
    }

    /// A new producer of the same id fences the old one and ends its transaction; then the committed metadata says
    /// whether it happened.
    fn resolve(&mut self, formed: &Formed, why: &str) -> TransactionEnd {
        let end = Instant::now() + RESOLVE;
        log::warn(&format!("{}: asking for the outcome of a transaction: {why}", self.shared.group));
        while Instant::now() < end && !self.shared.is_stopping() {
            self.workers[self.turn] = None;
            let found = self.worker().and_then(|()| self.is_committed(formed));
            match found {
                Ok(true) => return TransactionEnd::Committed,
                Ok(false) => return TransactionEnd::Aborted(why.to_owned()),
                Err(why) => log::warn(&format!("{}: no answer yet: {why}", self.shared.group)),
            }
            std::thread::sleep(AGAIN_MAX);
        }
        self.stop(format!("the outcome of a transaction cannot be found out: {why}"))
    }

    /// Whether the name of this commit is what is committed. A transaction is whole, so one partition tells.
    fn is_committed(&self, formed: &Formed) -> Result<bool, String> {
        let Some((partition, (_, progress))) = formed.partitions.first_key_value() else { return Ok(true) };
        let mut list = TopicPartitionList::new();
        list.add_partition(&partition.topic, partition.number);
        let committed = self.member.committed_offsets(list, ANSWER).map_err(|error| error.to_string())?;
        let elements = committed.elements();
        let element = elements.first().ok_or("no answer")?;
        element.error().map_err(|error| error.to_string())?;
        let Offset::Offset(low) = element.offset() else { return Ok(false) };
        let name = match DoneSet::decode(low, element.metadata()) {
            DoneSetRead::Found(done) => (done.assignment, done.number),
            DoneSetRead::Absent | DoneSetRead::Unreadable => return Ok(false),
        };
        Ok(name == progress.commit_name())
    }

    /// The flow cannot go on; nothing more is committed.
    fn stop(&self, why: String) -> TransactionEnd {
        self.shared.fail(SourceError::Failed(why.clone()));
        TransactionEnd::Unknown(why)
    }

    fn answer(&mut self, items: &[u64], answer: &Settled) {
        for item in items {
            if let Some((_, waiting)) = self.items.remove(item) {
                let _ = waiting.send(answer.clone());
            }
        }
    }

    fn lag(&self) -> Result<Vec<Lag>, SourceError> {
        let positions = self.shared.state().positions();
        let mut lags = Vec::new();
        for (partition, position, pending) in positions {
            let marks = self.member.fetch_watermarks(&partition.topic, partition.number, ANSWER);
            let (low, high) = marks.map_err(|error| SourceError::Unavailable(error.to_string()))?;
            let unread = u64::try_from(high - position.max(low)).unwrap_or(0);
            lags.push(Lag { partition, messages: pending + unread });
        }
        Ok(lags)
    }
}

/// Why nothing is committed until the revocation is heard of.
const LOST: &str = "the member was thrown out of its group";

/// Answers that say that a plain commit did not happen.
const NOT_COMMITTED: [RDKafkaErrorCode; 6] = [
    RDKafkaErrorCode::IllegalGeneration,
    RDKafkaErrorCode::RebalanceInProgress,
    RDKafkaErrorCode::UnknownMemberId,
    RDKafkaErrorCode::StaleMemberEpoch,
    RDKafkaErrorCode::WaitingForCoordinator,
    RDKafkaErrorCode::NoOffset,
];
