//! Performing the scheduler's actions: running attempts, reading and writing the store.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use redrive_core::event::Cause;
use redrive_core::observe::Outcome;
use redrive_core::queue_entry::{FencingToken, LoadedEvents, QueueEntry, Seq, SettleRequest, SettleResult};
use redrive_core::scheduler::{Action, AttemptEnd, DispatchedAttempt, EndedAttempt, FlowKey, LoadId, NoteId};
use redrive_core::{Executed, Fault, Moment};
use redrive_retry::effects;
use redrive_retry::scope::RetryScope as Scope;
use redrive_store::nodes::NodeLease as Tenure;
use redrive_store::{Store, StoreError, TakenShard, Tx, TxJob, TxOutcome, TxSettle};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::engine::attempt_batch::{self, Attempt};
use crate::engine::context::Context;
use crate::engine::driver::PeerLook;
use crate::engine::handler::{Handled, Handler};
use crate::engine::lineage::Lineage;
use crate::engine::observe;
use crate::engine::queue::{Queue, Queues};
use crate::engine::transaction::{Refused, TIME};
use crate::engine::{Delivery, Reply, Transaction};

/// How long to wait before a failed note of the running attempts is written again: the disk is full.
const NOTE_AGAIN: Duration = Duration::from_millis(100);

/// An attempt that ended: the fencing token it ran under, its event, the event's revision, and how it ended.
pub(in crate::engine) type Ended = (FencingToken, Seq, u32, EndedAttempt);

/// The result of attempts.
pub(in crate::engine) enum Attempted {
    /// One ended, or was abandoned.
    One(Option<Ended>),
    /// These ended, and those go on, each in a task of its own.
    Several(Vec<Ended>, Vec<Attempt>),
}

/// An answer of the store.
pub(in crate::engine) enum Answered {
    Loaded(LoadId, Result<LoadedEvents, StoreError>),
    /// The store's events of a stream whose shard stands still.
    Checked(FlowKey, Result<LoadedEvents, StoreError>),
    Settled(Vec<(FencingToken, Seq, u32)>, Result<Vec<SettleResult>, StoreError>),
    Noted(NoteId, Result<(), StoreError>),
    Ruled(Result<redrive_core::triage::ActiveRules, StoreError>),
    /// Housekeeping is done.
    Kept(Result<usize, StoreError>),
    /// The result of a look at the other processes.
    Visited(PeerLook),
    /// A stalled shard was taken again, or could not be.
    TakenAgain(Result<TakenShard, StoreError>),
    /// A shard was handed back, or could not be.
    Gave(Result<(), StoreError>),
}

/// Performs all actions.
pub(in crate::engine) fn perform(
    context: &Arc<Context>,
    actions: &mut Vec<Action>,
    attempts: &mut JoinSet<Attempted>,
    answers: &FuturesUnordered<BoxFuture<'static, Answered>>,
) -> Result<(), StoreError> {
    let mut settles = Vec::new();
    let mut batches: Vec<Vec<DispatchedAttempt>> = context.queues.iter().map(|_| Vec::new()).collect();
    let mut ones = Vec::new();
    for action in actions.drain(..) {
        match action {
            Action::Settle(settle) => settles.push(settle),
            Action::Attempt(ticket) => match &context.queues[ticket.queue].handler {
                Handler::Batch { .. } => batches[ticket.queue].push(*ticket),
                Handler::One(_) => ones.push(ticket),
                _ => start(context, *ticket, attempts),
            },
            Action::Load(id, load) => {
                let loading = context.store.load(load);
                answers.push(async move { Answered::Loaded(id, loading.await) }.boxed());
            }
            Action::Note(note, under_way) => {
                let noting = context.store.note(note.token, under_way);
                answers.push(async move { Answered::Noted(note, noted(noting.await).await) }.boxed());
            }
            Action::EventSettled(told) => observe::told(&context.queues[told.queue], &told),
            Action::Damaged(row) if context.is_news(&row) => observe::damaged(&row),
            Action::Damaged(_) => {}
            Action::Check(flow, load) => {
                let checking = context.store.load(load);
                answers.push(async move { Answered::Checked(flow, checking.await) }.boxed());
            }
            Action::Lost(_) => return Err(lost(context)),
            // Handled by the loop. In a store that is not shared, no shard is handed back.
            Action::Stalled { .. } | Action::Given { .. } => {}
        }
    }
    if ones.len() < attempt_batch::LINE_LEAST {
        ones.into_iter().for_each(|ticket| start(context, *ticket, attempts));
    } else {
        attempt_batch::start(context, ones, attempts);
    }
    for (number, tickets) in batches.into_iter().enumerate().filter(|(_, tickets)| !tickets.is_empty()) {
        start_batches(context, number, tickets, attempts);
    }
    if !settles.is_empty() {
        answers.push(settle(context, settles));
    }
    Ok(())
}

/// Passes on the result of a note; delayed after a transient failure, because the scheduler repeats it at once.
async fn noted(noted: Result<(), StoreError>) -> Result<(), StoreError> {
    if let Err(error) = &noted
        && error.is_transient()
    {
        crate::engine::observe::in_trouble(error);
        tokio::time::sleep(NOTE_AGAIN).await;
    }
    noted
}

fn lost(context: &Context) -> StoreError {
    let path = context.store.domain().to_string().into();
    StoreError::NotOwner { path, pid: None }
}

fn settle(context: &Context, mut settles: Vec<SettleRequest>) -> BoxFuture<'static, Answered> {
    // Events that were published together are neighbours in the store, and cheaper to settle in that order.
    settles.sort_by_key(|settle| settle.seq);
    let which = settles.iter().map(|settle| (settle.token, settle.seq, settle.rev)).collect();
    let settling = context.store.settle(settles);
    async move { Answered::Settled(which, settling.await) }.boxed()
}

fn start(context: &Arc<Context>, ticket: DispatchedAttempt, attempts: &mut JoinSet<Attempted>) {
    let queue = context.queues[ticket.queue].clone();
    match &queue.handler {
        Handler::Transactional(_) => {
            let context = context.clone();
            started(&context, &ticket);
            attempts.spawn(async move {
                let ended = attempt_in(&context, &queue, ticket).await;
                queue.meters.ended(&ended.3);
                Attempted::One(Some(ended))
            });
        }
        Handler::Blocking(handler) => {
            let (handler, busy) = (handler.clone(), queue.clone());
            let end = started(context, &ticket);
            let tenure = context.tenure.clone();
            let attempt = attempt(tenure, queue.clone(), ticket, end, move |delivery, mut scope: Scope| {
                let lineage = Lineage::of(&delivery.entry().event);
                let work = move || {
                    let _busy = Busy::new(busy);
                    lineage.enter(|| scope.enter(|| handler(delivery)))
                };
                async move {
                    // An attempt whose time is over before it began does not begin.
                    match AbortOnDrop(tokio::task::spawn_blocking(work)).await {
                        Ok(reply) => Handled::AttemptEnd(reply),
                        Err(error) => match error.try_into_panic() {
                            Ok(panic) => std::panic::resume_unwind(panic),
                            Err(error) => {
                                Handled::AttemptEnd(crate::engine::Failure::transient(error).into())
                            }
                        },
                    }
                }
            });
            attempts.spawn(attempt.map(|ended| Attempted::One(Some(ended))));
        }
        Handler::One(_) | Handler::Batch { .. } | Handler::Elsewhere | Handler::Pulled => {
            attempts.spawn(attempt_one(context, ticket).map(|ended| Attempted::One(Some(ended))));
        }
    }
}

/// Counts an attempt that starts, and returns its deadline.
fn started(context: &Context, ticket: &DispatchedAttempt) -> Option<Instant> {
    context.queues[ticket.queue].meters.started(|| context.clock.now().since(ticket.entry.progress.due));
    ticket.deadline.map(|deadline| context.clock.instant(deadline))
}

/// An attempt of a handler that takes one event.
pub(in crate::engine) fn attempt_one(
    context: &Context,
    ticket: DispatchedAttempt,
) -> impl Future<Output = Ended> + Send + 'static + use<> {
    let queue = context.queues[ticket.queue].clone();
    let end = started(context, &ticket);
    attempt(context.tenure.clone(), queue.clone(), ticket, end, move |delivery, scope: Scope| {
        let lineage = Lineage::of(&delivery.entry().event);
        lineage.around(async move {
            let Handler::One(handler) = &queue.handler else {
                return Handled::Undecodable(Cause::new(
                    "handler",
                    "no handler of this process takes single events",
                ));
            };
            // Called in here, so that its panics are caught like those of its future.
            scope.around(async { handler(delivery).await }).await.0
        })
    })
}

/// Runs one attempt to its end, its timeout or its panic.
fn attempt<F, R>(
    tenure: Option<Arc<Tenure>>,
    queue: Arc<Queue>,
    ticket: DispatchedAttempt,
    end: Option<Instant>,
    run: R,
) -> impl Future<Output = Ended> + use<F, R>
where
    F: Future<Output = Handled>,
    R: FnOnce(Delivery, Scope) -> F,
{
    // Destructured out here: a future keeps all its arguments, and there are thousands of them.
    let which = (ticket.token, ticket.entry.seq, ticket.entry.rev);
    let scope = Scope::incoming(Some(ticket.attempt), end.map(|end| redrive_retry::moment(end.into_std())));
    let span = observe::Span::of(&ticket);
    let delivery = Delivery::new(ticket, end);
    let around = span.clone();
    attempted(tenure, queue, which, end, span, async move { around.around(run(delivery, scope)).await })
}

async fn attempted<F>(
    tenure: Option<Arc<Tenure>>,
    queue: Arc<Queue>,
    (token, seq, rev): (FencingToken, Seq, u32),
    end: Option<Instant>,
    span: observe::Span,
    handler: F,
) -> Ended
where
    F: Future<Output = Handled>,
{
    if is_over(tenure.as_deref()) {
        return (token, seq, rev, EndedAttempt::new(AttemptEnd::Stale));
    }
    let began = Instant::now();
    let running = in_time(end, handler);
    let mut ended = match running.await {
        Ok(Some(Handled::AttemptEnd(reply))) => said(reply),
        Ok(Some(Handled::Undecodable(cause))) => because(AttemptEnd::Undecodable, cause),
        Ok(None) => timed_out(),
        Err(panic) => because(AttemptEnd::Panicked, Cause::new("panic", message_of(&*panic))),
    };
    ended.took = began.elapsed();
    queue.meters.ended(&ended);
    span.ended(&ended);
    (token, seq, rev, ended)
}

/// Runs a handler until its end or its deadline (`None`), and catches its panics: also a panic while its future is
/// dropped at the deadline.
async fn in_time<F: Future>(
    end: Option<Instant>,
    handler: F,
) -> Result<Option<F::Output>, Box<dyn std::any::Any + Send>> {
    let in_time = async {
        match end {
            None => Some(handler.await),
            Some(end) => tokio::time::timeout_at(end, handler).await.ok(),
        }
    };
    AssertUnwindSafe(in_time).catch_unwind().await
}

/// Whether the lease ran out under which an attempt was to start: the process was suspended since. The attempt does
/// not start, and the state in memory can no longer be trusted.
fn is_over(tenure: Option<&Tenure>) -> bool {
    tenure.is_some_and(Tenure::is_over)
}

/// Counts a blocking handler while it runs.
struct Busy(Arc<Queue>);

impl Busy {
    fn new(queue: Arc<Queue>) -> Self {
        queue.blocking.fetch_add(1, Ordering::AcqRel);
        Self(queue)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.blocking.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Reads the rules, and retries if the store cannot be read for now: a caller waits until they are in effect.
pub(in crate::engine) async fn read_rules(store: Arc<dyn Store>) -> Answered {
    loop {
        match store.controls().await {
            Err(error) if error.is_transient() => tokio::time::sleep(NOTE_AGAIN).await,
            controls => return Answered::Ruled(controls),
        }
    }
}

/// A task that is aborted, or does not begin any more, when this is dropped.
pub(in crate::engine) struct AbortOnDrop<T>(pub(in crate::engine) tokio::task::JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, tokio::task::JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn said(reply: Reply) -> EndedAttempt {
    let Reply { disposition, cause, result, is_victim: _, is_put_off } = reply;
    if is_put_off {
        return EndedAttempt { cause, ..EndedAttempt::new(AttemptEnd::NotKept) };
    }
    EndedAttempt { cause, result, ..EndedAttempt::new(AttemptEnd::Outcome(disposition.into())) }
}

fn because(end: AttemptEnd, cause: Cause) -> EndedAttempt {
    EndedAttempt { cause: Some(cause), ..EndedAttempt::new(end) }
}

fn timed_out() -> EndedAttempt {
    because(
        AttemptEnd::Outcome(Outcome::TimedOut),
        Cause::new("timeout", "the attempt exceeded its time limit"),
    )
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Splits attempts into batches, and starts them.
fn start_batches(
    context: &Arc<Context>,
    number: usize,
    tickets: Vec<DispatchedAttempt>,
    attempts: &mut JoinSet<Attempted>,
) {
    let queue = &context.queues[number];
    let Handler::Batch { max, .. } = queue.handler else { return };
    let now = context.clock.now();
    tickets.iter().for_each(|ticket| queue.meters.started(|| now.since(ticket.entry.progress.due)));
    // An event with an earlier deadline has a batch of its own: its end would be the end of the others.
    let mut batches: Vec<Vec<DispatchedAttempt>> = Vec::new();
    for ticket in tickets {
        let fits =
            |batch: &&mut Vec<DispatchedAttempt>| batch.len() < max && batch[0].deadline == ticket.deadline;
        match batches.iter_mut().find(fits) {
            Some(batch) => batch.push(ticket),
            None => batches.push(vec![ticket]),
        }
    }
    for batch in batches {
        let end = batch[0].deadline.map(|end| context.clock.instant(end));
        let ended = attempt_batch(context.tenure.clone(), queue.clone(), batch, end);
        attempts.spawn(ended.map(|ended| Attempted::Several(ended, Vec::new())));
    }
}

async fn attempt_batch(
    tenure: Option<Arc<Tenure>>,
    queue: Arc<Queue>,
    tickets: Vec<DispatchedAttempt>,
    end: Option<Instant>,
) -> Vec<Ended> {
    let which = |ticket: &DispatchedAttempt| (ticket.token, ticket.entry.seq, ticket.entry.rev);
    let which: Vec<(FencingToken, Seq, u32)> = tickets.iter().map(which).collect();
    if is_over(tenure.as_deref()) {
        let stale = |(token, seq, rev)| (token, seq, rev, EndedAttempt::new(AttemptEnd::Stale));
        return which.into_iter().map(stale).collect();
    }
    let deliveries: Vec<Delivery> = tickets.into_iter().map(|ticket| Delivery::new(ticket, end)).collect();
    let count = deliveries.len();
    let began = Instant::now();
    let ended = in_time(end, async {
        let Handler::Batch { run, .. } = &queue.handler else { return Vec::new() };
        // A retry inside a handler makes one attempt: the engine makes the others.
        let attempt = deliveries.iter().map(Delivery::attempt).max();
        Scope::incoming(attempt, None).around(async { run(deliveries).await }).await.0
    });
    let endings: Vec<EndedAttempt> = match ended.await {
        Ok(Some(replies)) if replies.len() == count => replies.into_iter().map(said).collect(),
        Ok(Some(replies)) => {
            let text = format!("the handler returned {} replies for {count} events", replies.len());
            vec![because(AttemptEnd::Outcome(Outcome::Unclassified), Cause::new("batch", text)); count]
        }
        Ok(None) => vec![timed_out(); count],
        Err(panic) => {
            vec![because(AttemptEnd::Panicked, Cause::new("panic", message_of(&*panic))); count]
        }
    };
    let took = began.elapsed();
    let ended = |((token, seq, rev), ended)| {
        let ended = EndedAttempt { took, ..ended };
        queue.meters.ended(&ended);
        (token, seq, rev, ended)
    };
    which.into_iter().zip(endings).map(ended).collect()
}

/// Runs one attempt in the store's own transaction: effect and settle are one commit.
async fn attempt_in(context: &Context, queue: &Arc<Queue>, ticket: DispatchedAttempt) -> Ended {
    let (seq, rev, token, attempt) = (ticket.entry.seq, ticket.entry.rev, ticket.token, ticket.attempt);
    if is_over(context.tenure.as_deref()) {
        return (token, seq, rev, EndedAttempt::new(AttemptEnd::Stale));
    }
    let now = context.clock.now();
    let time = ticket.deadline.map_or(TIME, |deadline| deadline.since(now).min(TIME));
    let history = ticket.entry.progress.history.clone();
    let end = ticket.deadline.map(|deadline| context.clock.instant(deadline));
    let delivery = Delivery::new(ticket, end);
    let job = TxJob {
        work: work_in(context.all.clone(), queue.clone(), delivery, now, time),
        claim: Some(TxSettle { token, seq, rev, at: now, attempts: attempt, history }),
        time,
        alone: queue.slow.load(Ordering::Relaxed),
    };
    let began = Instant::now();
    let transacted = context.store.transact(job).await;
    let took = began.elapsed();
    // The rollback makes it certain that nothing was executed.
    let executed = Some(Executed::No);
    (token, seq, rev, EndedAttempt { took, executed, ..transacted_ending(transacted) })
}

fn work_in(
    queues: Arc<Queues>,
    queue: Arc<Queue>,
    delivery: Delivery,
    now: Moment,
    time: Duration,
) -> redrive_store::TxWork {
    Box::new(move |tx: &mut dyn Tx| {
        let Handler::Transactional(handler) = &queue.handler else { return Ok(None) };
        let lineage = Lineage::of(&delivery.entry().event);
        let remember = queue.window.saturating_add(queue.plan.policy.settings().horizon().total());
        let mut tx = Transaction::new(tx, &queues, now, remember, Some(lineage));
        let mut scope = Scope::incoming(Some(delivery.attempt()), None);
        let began = Instant::now();
        let reply = scope.enter(|| effects::refused_in(|| handler(&mut tx, &delivery)));
        // A transaction that delays every other commit for so long has a commit of its own from now on.
        if began.elapsed() > time {
            queue.slow.store(true, Ordering::Relaxed);
        }
        if reply.is_ok() {
            return Ok(reply.result);
        }
        if reply.is_victim {
            tx.run_again();
        }
        Err(Box::new(Refused(reply)) as _)
    })
}

fn transacted_ending(transacted: Result<TxOutcome, StoreError>) -> EndedAttempt {
    match transacted {
        Ok(TxOutcome::Committed { next }) => {
            EndedAttempt::new(AttemptEnd::Committed { next: next.map(Box::<QueueEntry>::new) })
        }
        Ok(TxOutcome::Aborted(error)) => match error.downcast::<Refused>() {
            // It ran again until its deadline, and each run conflicted with another transaction.
            Ok(refused) if refused.0.is_victim && refused.0.disposition.is_none() => {
                said(Reply { disposition: Some(Fault::transient().into()), ..refused.0 })
            }
            Ok(refused) => said(refused.0),
            Err(error) => because(AttemptEnd::Outcome(Outcome::Unclassified), Cause::of(&*error)),
        },
        Ok(TxOutcome::Panicked(message)) => because(AttemptEnd::Panicked, Cause::new("panic", message)),
        Ok(TxOutcome::TimedOut) => timed_out(),
        Ok(TxOutcome::Stale) => EndedAttempt::new(AttemptEnd::Stale),
        Ok(TxOutcome::Fenced) => EndedAttempt::new(AttemptEnd::Fenced),
        // Nothing was changed, or the outcome is unknown: then the next write finds out. The store failed, so the
        // handler is not charged an attempt.
        Err(error) if error.is_transient() => {
            crate::engine::observe::in_trouble(&error);
            EndedAttempt::new(AttemptEnd::NotKept)
        }
        // The store has stopped. Nothing can be written any more.
        Err(_) => EndedAttempt::new(AttemptEnd::Released),
    }
}
