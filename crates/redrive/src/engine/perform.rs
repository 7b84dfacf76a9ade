//! Doing what the scheduler says: running attempts, reading and writing the store.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use redrive_core::entry::{Entry, Grant, Loaded, Seq, Settle, Settled};
use redrive_core::event::Cause;
use redrive_core::observe::Outcome;
use redrive_core::scheduler::{Action, Ending, FlowKey, Said, Ticket};
use redrive_core::{Executed, Fault, Moment};
use redrive_retry::scope::Scope;
use redrive_store::nodes::Tenure;
use redrive_store::{Claim, Job, Store, StoreError, Transacted, Tx};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::conductor::Visit;
use super::context::Context;
use super::handler::{Handled, Handler};
use super::line::{self, Attempt};
use super::lineage::Lineage;
use super::observe;
use super::queue::{Queue, Queues};
use super::transaction::{Refused, TIME};
use super::{Delivery, Reply, Transaction};

/// How long to wait before what is under way is noted again that could not be: the disk is full.
const NOTE_AGAIN: Duration = Duration::from_millis(100);

/// An attempt that ended: in whose right it ran, which event, as of which change, how.
pub(super) type Ended = (Grant, Seq, u32, Ending);

/// What became of attempts.
pub(super) enum Attempted {
    /// One ended, or was given up.
    One(Option<Ended>),
    /// These ended, and those go on, each in a task of its own.
    Several(Vec<Ended>, Vec<Attempt>),
}

/// What the store answered.
pub(super) enum Answered {
    Loaded(FlowKey, Result<Loaded, StoreError>),
    Settled(Vec<(Grant, Seq, u32)>, Result<Vec<Settled>, StoreError>),
    Noted(Grant, Result<(), StoreError>),
    Ruled(Result<redrive_core::triage::Controls, StoreError>),
    /// Housekeeping is done.
    Kept(Result<usize, StoreError>),
    /// Somebody looked around among those that share the store.
    Visited(Visit),
    /// A shard was given back, or could not be.
    Gave(Result<(), StoreError>),
}

/// Does everything in the list.
pub(super) fn perform(
    context: &Arc<Context>,
    actions: &mut Vec<Action>,
    attempts: &mut JoinSet<Attempted>,
    answers: &FuturesUnordered<BoxFuture<'static, Answered>>,
) -> Result<(), StoreError> {
    let mut settles = Vec::new();
    let mut batches: Vec<Vec<Ticket>> = context.queues.iter().map(|_| Vec::new()).collect();
    let mut ones = Vec::new();
    for action in actions.drain(..) {
        match action {
            Action::Settle(settle) => settles.push(settle),
            Action::Attempt(ticket) => match &context.queues[ticket.queue].handler {
                Handler::Batch { .. } => batches[ticket.queue].push(*ticket),
                Handler::One(_) => ones.push(ticket),
                _ => start(context, *ticket, attempts),
            },
            Action::Load(key, load) => {
                let loading = context.store.load(load);
                answers.push(async move { Answered::Loaded(key, loading.await) }.boxed());
            }
            Action::Note(grant, under_way) => {
                let noting = context.store.note(grant, under_way);
                answers.push(async move { Answered::Noted(grant, noted(noting.await).await) }.boxed());
            }
            Action::Told(told) => observe::told(&context.queues[told.queue], &told),
            Action::Damaged(row) if context.is_news(&row) => observe::damaged(&row),
            Action::Damaged(_) => {}
            Action::Lost(_) => return Err(lost(context)),
            // Where nobody shares the store, nobody asks for one.
            Action::Given { .. } => {}
        }
    }
    if ones.len() < line::LINE_LEAST {
        ones.into_iter().for_each(|ticket| start(context, *ticket, attempts));
    } else {
        line::start(context, ones, attempts);
    }
    for (number, tickets) in batches.into_iter().enumerate().filter(|(_, tickets)| !tickets.is_empty()) {
        start_batches(context, number, tickets, attempts);
    }
    if !settles.is_empty() {
        answers.push(settle(context, settles));
    }
    Ok(())
}

/// Hands on how a note went; late where it failed for now, because the scheduler asks for it again at once.
async fn noted(noted: Result<(), StoreError>) -> Result<(), StoreError> {
    if let Err(error) = &noted
        && error.is_transient()
    {
        super::observe::in_trouble(error);
        tokio::time::sleep(NOTE_AGAIN).await;
    }
    noted
}

fn lost(context: &Context) -> StoreError {
    let path = context.store.domain().to_string().into();
    StoreError::NotOwner { path, pid: None }
}

fn settle(context: &Context, mut settles: Vec<Settle>) -> BoxFuture<'static, Answered> {
    // Events that were published together are next to each other in the store, and are cheaper to settle so.
    settles.sort_by_key(|settle| settle.seq);
    let which = settles.iter().map(|settle| (settle.grant, settle.seq, settle.rev)).collect();
    let settling = context.store.settle(settles);
    async move { Answered::Settled(which, settling.await) }.boxed()
}

fn start(context: &Arc<Context>, ticket: Ticket, attempts: &mut JoinSet<Attempted>) {
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
                    // One that has not begun when its time is over does not begin.
                    match AbortOnDrop(tokio::task::spawn_blocking(work)).await {
                        Ok(reply) => Handled::Said(reply),
                        Err(error) => match error.try_into_panic() {
                            Ok(panic) => std::panic::resume_unwind(panic),
                            Err(error) => Handled::Said(super::Failure::transient(error).into()),
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

/// Counts an attempt that starts, and tells when it is to be ended.
fn started(context: &Context, ticket: &Ticket) -> Option<Instant> {
    context.queues[ticket.queue].meters.started(|| context.clock.now().since(ticket.entry.progress.due));
    ticket.deadline.map(|deadline| context.clock.instant(deadline))
}

/// An attempt of a handler that takes one event.
pub(super) fn attempt_one(
    context: &Context,
    ticket: Ticket,
) -> impl Future<Output = Ended> + Send + 'static + use<> {
    let queue = context.queues[ticket.queue].clone();
    let end = started(context, &ticket);
    attempt(context.tenure.clone(), queue.clone(), ticket, end, move |delivery, scope: Scope| {
        let lineage = Lineage::of(&delivery.entry().event);
        lineage.around(async move {
            let Handler::One(handler) = &queue.handler else {
                return Handled::Undecodable(Cause::new("handler", "this queue has none for one event"));
            };
            // Called in here, so that its panics are caught like those of its future.
            scope.around(async { handler(delivery).await }).await.0
        })
    })
}

/// Runs one attempt to its end, its time-out or its panic.
fn attempt<F, R>(
    tenure: Option<Arc<Tenure>>,
    queue: Arc<Queue>,
    ticket: Ticket,
    end: Option<Instant>,
    run: R,
) -> impl Future<Output = Ended> + use<F, R>
where
    F: Future<Output = Handled>,
    R: FnOnce(Delivery, Scope) -> F,
{
    // Taken apart out here: a future keeps all that it was given, and there are thousands of them.
    let which = (ticket.grant, ticket.entry.seq, ticket.entry.rev);
    let scope = Scope::incoming(Some(ticket.attempt), end.map(|end| redrive_retry::moment(end.into_std())));
    let span = observe::Span::of(&ticket);
    let delivery = Delivery::new(ticket, end);
    attempted(tenure, queue, which, end, async move { span.around(run(delivery, scope)).await })
}

async fn attempted<F>(
    tenure: Option<Arc<Tenure>>,
    queue: Arc<Queue>,
    (grant, seq, rev): (Grant, Seq, u32),
    end: Option<Instant>,
    handler: F,
) -> Ended
where
    F: Future<Output = Handled>,
{
    if is_over(tenure.as_deref()) {
        return (grant, seq, rev, Ending::new(Said::Stale));
    }
    let began = Instant::now();
    let running = in_time(end, handler);
    let mut ending = match running.await {
        Ok(Some(Handled::Said(reply))) => said(reply),
        Ok(Some(Handled::Undecodable(cause))) => because(Said::Undecodable, cause),
        Ok(None) => timed_out(),
        Err(panic) => because(Said::Panicked, Cause::new("panic", message_of(&*panic))),
    };
    ending.took = began.elapsed();
    queue.meters.ended(&ending);
    (grant, seq, rev, ending)
}

/// Runs a handler until its end or until then, which is `None`, and catches its panics: also one that comes while
/// it is dropped, because its time is over.
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

/// Whether the lease ended under which an attempt was to start: the process stood still since. It does not start then,
/// and what is in memory is not to be believed.
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

/// Reads the rules, again and again where the store cannot be read for now: somebody waits until they are heeded.
pub(super) async fn read_rules(store: Arc<dyn Store>) -> Answered {
    loop {
        match store.controls().await {
            Err(error) if error.is_transient() => tokio::time::sleep(NOTE_AGAIN).await,
            controls => return Answered::Ruled(controls),
        }
    }
}

/// A task that ends, or does not begin any more, once nobody waits for it.
pub(super) struct AbortOnDrop<T>(pub(super) tokio::task::JoinHandle<T>);

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

fn said(reply: Reply) -> Ending {
    let Reply { disposition, cause, result, is_victim: _ } = reply;
    Ending { cause, result, ..Ending::new(Said::Outcome(disposition.into())) }
}

fn because(said: Said, cause: Cause) -> Ending {
    Ending { cause: Some(cause), ..Ending::new(said) }
}

fn timed_out() -> Ending {
    because(Said::Outcome(Outcome::TimedOut), Cause::new("timeout", "the attempt took longer than it may"))
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Splits what is to run into batches, and starts them.
fn start_batches(
    context: &Arc<Context>,
    number: usize,
    tickets: Vec<Ticket>,
    attempts: &mut JoinSet<Attempted>,
) {
    let queue = &context.queues[number];
    let Handler::Batch { max, .. } = queue.handler else { return };
    let now = context.clock.now();
    tickets.iter().for_each(|ticket| queue.meters.started(|| now.since(ticket.entry.progress.due)));
    // One that has less time than the others has a batch of its own: its end would be theirs.
    let mut batches: Vec<Vec<Ticket>> = Vec::new();
    for ticket in tickets {
        let fits = |batch: &&mut Vec<Ticket>| batch.len() < max && batch[0].deadline == ticket.deadline;
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
    tickets: Vec<Ticket>,
    end: Option<Instant>,
) -> Vec<Ended> {
    let which = |ticket: &Ticket| (ticket.grant, ticket.entry.seq, ticket.entry.rev);
    let which: Vec<(Grant, Seq, u32)> = tickets.iter().map(which).collect();
    if is_over(tenure.as_deref()) {
        let stale = |(grant, seq, rev)| (grant, seq, rev, Ending::new(Said::Stale));
        return which.into_iter().map(stale).collect();
    }
    let deliveries: Vec<Delivery> = tickets.into_iter().map(|ticket| Delivery::new(ticket, end)).collect();
    let count = deliveries.len();
    let began = Instant::now();
    let ended = in_time(end, async {
        let Handler::Batch { run, .. } = &queue.handler else { return Vec::new() };
        // Retries inside make one attempt: the engine makes the others.
        let attempt = deliveries.iter().map(Delivery::attempt).max();
        Scope::incoming(attempt, None).around(async { run(deliveries).await }).await.0
    });
    let endings: Vec<Ending> = match ended.await {
        Ok(Some(replies)) if replies.len() == count => replies.into_iter().map(said).collect(),
        Ok(Some(replies)) => {
            let text = format!("the handler gave {} replies for {count} events", replies.len());
            vec![because(Said::Outcome(Outcome::Unclassified), Cause::new("batch", text)); count]
        }
        Ok(None) => vec![timed_out(); count],
        Err(panic) => {
            vec![because(Said::Panicked, Cause::new("panic", message_of(&*panic))); count]
        }
    };
    let took = began.elapsed();
    let ended = |((grant, seq, rev), ending)| {
        let ending = Ending { took, ..ending };
        queue.meters.ended(&ending);
        (grant, seq, rev, ending)
    };
    which.into_iter().zip(endings).map(ended).collect()
}

/// Runs one attempt in the store's own transaction: effect and settle are one commit.
async fn attempt_in(context: &Context, queue: &Arc<Queue>, ticket: Ticket) -> Ended {
    let (seq, rev, grant, attempt) = (ticket.entry.seq, ticket.entry.rev, ticket.grant, ticket.attempt);
    if is_over(context.tenure.as_deref()) {
        return (grant, seq, rev, Ending::new(Said::Stale));
    }
    let now = context.clock.now();
    let time = ticket.deadline.map_or(TIME, |deadline| deadline.since(now).min(TIME));
    let story = ticket.entry.progress.story.clone();
    let end = ticket.deadline.map(|deadline| context.clock.instant(deadline));
    let delivery = Delivery::new(ticket, end);
    let job = Job {
        work: work_in(context.all.clone(), queue.clone(), delivery, now, time),
        claim: Some(Claim { grant, seq, rev, at: now, attempts: attempt, story }),
        time,
        alone: queue.slow.load(Ordering::Relaxed),
    };
    let began = Instant::now();
    let transacted = context.store.transact(job).await;
    let took = began.elapsed();
    // What was rolled back did not happen, and that is certain.
    let executed = Some(Executed::No);
    (grant, seq, rev, Ending { took, executed, ..transacted_ending(transacted) })
}

fn work_in(
    queues: Arc<Queues>,
    queue: Arc<Queue>,
    delivery: Delivery,
    now: Moment,
    time: Duration,
) -> redrive_store::Work {
    Box::new(move |tx: &mut dyn Tx| {
        let Handler::Transactional(handler) = &queue.handler else { return Ok(None) };
        let lineage = Lineage::of(&delivery.entry().event);
        let remember = queue.window.saturating_add(queue.plan.policy.settings().horizon().total());
        let mut tx = Transaction::new(tx, &queues, now, remember, Some(lineage));
        let mut scope = Scope::incoming(Some(delivery.attempt()), None);
        let began = Instant::now();
        let reply = scope.enter(|| handler(&mut tx, &delivery));
        // Who holds up everybody's commit for so long has one of its own from now on.
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

fn transacted_ending(transacted: Result<Transacted, StoreError>) -> Ending {
    match transacted {
        Ok(Transacted::Committed { next }) => {
            Ending::new(Said::Committed { next: next.map(Box::<Entry>::new) })
        }
        Ok(Transacted::Aborted(error)) => match error.downcast::<Refused>() {
            // It ran again for as long as it had time, and there was somebody each time.
            Ok(refused) if refused.0.is_victim && refused.0.disposition.is_none() => {
                said(Reply { disposition: Some(Fault::transient().into()), ..refused.0 })
            }
            Ok(refused) => said(refused.0),
            Err(error) => because(Said::Outcome(Outcome::Unclassified), Cause::of(&*error)),
        },
        Ok(Transacted::Panicked(message)) => because(Said::Panicked, Cause::new("panic", message)),
        Ok(Transacted::TimedOut) => timed_out(),
        Ok(Transacted::Stale) => Ending::new(Said::Stale),
        Ok(Transacted::Fenced) => Ending::new(Said::Fenced),
        // Nothing was changed, or nobody knows: then what is written next finds out. It is the store's fault, and no
        // attempt of the handler's.
        Err(error) if error.is_transient() => {
            super::observe::in_trouble(&error);
            Ending::new(Said::NotKept)
        }
        // The store has stopped. Nothing is to be written any more.
        Err(_) => Ending::new(Said::Released),
    }
}
