//! Setting up a queue.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redrive_core::classify::Classification;
use redrive_core::event::{Cause, check_queue_name};
use redrive_core::scheduler::{AfterDead, QueuePlan};
use redrive_core::{Classify, Disposition, Event, Fault, Policy, Rate};
use redrive_store::{DeadLetterRetention, DeclaredBy, QueueSpec};

use super::handler::{Handled, Handler};
use super::observe::Meters;
use super::queue::Queue;
use super::{Delivery, Failure, IntoReply, QueueError, Redrive, Reply, Transaction};

/// How long an identity is remembered after its event ended, unless the queue sets another window.
const WINDOW: Duration = Duration::from_secs(86_400);

/// A handler's reply, with its error classified.
pub(crate) fn classified<C, T, E>(classifier: &C, said: Result<T, E>) -> Reply
where
    C: Classify<E>,
    T: IntoReply,
    E: Error + 'static,
{
    match said {
        Ok(value) => value.into_reply(),
        Err(error) => {
            let disposition = classifier.classify(&error).disposition();
            let reply = Reply::from(Failure::from(error));
            // A classifier that says "permanent" knows better.
            let is_victim = reply.is_victim
                && !matches!(disposition, Some(Disposition::Permanent(_) | Disposition::Drop));
            Reply { disposition, is_victim, ..reply }
        }
    }
}

/// Sets up a queue. Finish with one of the `handle` functions, with [`pull`](Self::pull) or with
/// [`declare`](Self::declare).
///
/// | setting | default |
/// |---|---|
/// | `policy` | [`Policy::default`]: 3 attempts, budgeted retries |
/// | `concurrency` | 16 attempts at once |
/// | `rate` | no limit |
/// | `ordered` | no order, even for events with keys |
/// | `after_dead` | the next event of the key runs |
/// | `window` | identities are remembered for a day after their event ended |
/// | `retry_share` | retries may claim a quarter of the concurrency from first attempts |
/// | `panics` | a panic is permanent |
/// | `keep_dead` | dead letters are kept until an operator resolves them |
#[must_use = "a queue exists once its handler is set and awaited"]
#[derive(Debug)]
pub struct QueueBuilder {
    redrive: Redrive,
    plan: QueuePlan,
    ordered: bool,
    window: Duration,
    keep: DeadLetterRetention,
}

impl QueueBuilder {
    pub(super) fn new(redrive: Redrive, name: String) -> Self {
        let plan = QueuePlan::new(name, Policy::default());
        Self { redrive, plan, ordered: false, window: WINDOW, keep: DeadLetterRetention::default() }
    }

    /// Which errors are retried, how often and how soon, with the budget and the breaker of the called service. While
    /// the breaker is open no attempt starts and none is charged; while the budget is spent, retries wait.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.plan.policy = policy;
        self
    }

    /// How many attempts run at once; at least one.
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.plan = self.plan.concurrency(concurrency);
        self.plan.concurrency = concurrency;
        self
    }

    /// How many attempts start per second.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.plan.rate = Some(rate);
        self
    }

    /// Events of one key run one at a time, in the order of their publishing. An event that waits for its retry holds
    /// up its own key only.
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// What happens to the events that follow a dead letter of the same key. Makes the queue ordered.
    pub fn after_dead(mut self, after_dead: AfterDead) -> Self {
        self.plan.after_dead = after_dead;
        self.ordered = true;
        self
    }

    /// How long an identity is remembered after its event ended. At least as long as the policy may retry.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// How long and how many dead letters are kept: their age since death, and their number in the queue, oldest
    /// removed first. Default: all of them, until an operator resolves them. A dead letter that holds up its key is
    /// always kept.
    pub fn keep_dead(mut self, time: Option<Duration>, count: Option<u64>) -> Self {
        self.keep = DeadLetterRetention { time, count };
        self
    }

    /// The share of the concurrency that retries may claim while first attempts are due. Either side may use what the
    /// other leaves free.
    pub fn retry_share(mut self, share: f64) -> Self {
        self.plan.retry_share = share;
        self
    }

    /// How a panic of the handler is classified.
    pub fn panics(mut self, fault: Fault) -> Self {
        self.plan.panics = fault;
        self
    }

    /// Declares the queue without a handler: this process publishes, another one runs the queue and decides its
    /// settings. Until that process has declared them, events of one key keep their order.
    ///
    /// # Errors
    /// If the queue's settings are invalid.
    pub async fn declare(self) -> Result<(), QueueError> {
        self.finish(Handler::Elsewhere).await
    }

    /// Lets workers outside the engine lease the events: see [`lease`](super::lease). Policy, order and dead letters
    /// work as with a handler; concurrency, rate, budget and breaker are up to the workers.
    ///
    /// # Errors
    /// If the queue's settings are invalid.
    pub async fn pull(self) -> Result<(), QueueError> {
        self.finish(Handler::Pulled).await
    }

    /// Handles each event with an async function. An unclassified error is permanent.
    ///
    /// # Errors
    /// If the queue's settings are invalid.
    pub async fn handle<F, Fut>(self, handler: F) -> Result<(), QueueError>
    where
        F: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoReply> + Send + 'static,
    {
        let one = move |delivery| {
            let handled = handler(delivery);
            async move { Handled::AttemptEnd(handled.await.into_reply()) }
        };
        self.finish(Handler::One(Box::new(move |delivery| Box::pin(one(delivery))))).await
    }

    /// Handles each event with an async function; the classifier says which of its errors are transient.
    ///
    /// # Errors
    /// If the queue's settings are invalid.
    pub async fn handle_with<C, F, Fut, T, E>(self, classifier: C, handler: F) -> Result<(), QueueError>
    where
        C: Classify<E> + Send + Sync + 'static,
        F: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: IntoReply,
        E: Error + 'static,
    {
        let classifier = Arc::new(classifier);
        let one = move |delivery| {
            let (handled, classifier) = (handler(delivery), classifier.clone());
            async move { Handled::AttemptEnd(classified(&*classifier, handled.await)) }
        };
        self.finish(Handler::One(Box::new(move |delivery| Box::pin(one(delivery))))).await
    }

    /// Decodes each payload first. A payload that does not decode, or is not valid, becomes a dead letter
    /// (`undecodable`) and the handler does not run. [`json`](super::json) decodes JSON.
    ///
    /// # Errors
    /// If the queue's settings are invalid.
    pub async fn handle_typed<T, D, DE, F, Fut>(self, decode: D, handler: F) -> Result<(), QueueError>
    where
        D: Fn(&Event) -> Result<T, DE> + Send + Sync + 'static,
        DE: Error,
        T: Send + 'static,
        F: Fn(T, Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoReply> + Send + 'static,
    {
        let one = move |delivery: Delivery| {
            let handled = decode(delivery.event())
                .map(|value| handler(value, delivery))
                .map_err(|error| Cause::of(&error));
            async move {
                match handled {
                    Ok(handled) => Handled::AttemptEnd(handled.await.into_reply()),
                    Err(cause) => Handled::Undecodable(cause),
                }
            }
        };
        self.finish(Handler::One(Box::new(move |delivery| Box::pin(one(delivery))))).await
    }

    /// Handles up to `max` events in one call, with one reply for each, in order. No event waits for the batch to
    /// fill. The concurrency counts events, and is raised to `max` if it is lower.
    ///
    /// # Errors
    /// If the queue's settings are invalid.
    pub async fn handle_batch<F, Fut, R>(self, max: usize, handler: F) -> Result<(), QueueError>
    where
        F: Fn(Vec<Delivery>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<R>> + Send + 'static,
        R: IntoReply,
    {
        if max == 0 {
            return Err(self.refuse("a batch must have at least 1 event"));
        }
        let run = move |deliveries| {
            let handled = handler(deliveries);
            async move { handled.await.into_iter().map(IntoReply::into_reply).collect() }
        };
        let run = Box::new(move |deliveries| Box::pin(run(deliveries)) as _);
        let mut builder = self;
        let whole = u32::try_from(max).unwrap_or(u32::MAX);
        if builder.plan.concurrency < whole {
            builder = builder.concurrency(whole);
        }
        builder.finish(Handler::Batch { max, run }).await
    }

    /// Handles each event with a blocking function, on a thread that may block. A function that outlasts its timeout
    /// keeps running, and its reply is ignored.
    ///
    /// # Errors
    /// If the queue's settings are invalid.
    pub async fn handle_blocking<F, R>(self, handler: F) -> Result<(), QueueError>
    where
        F: Fn(Delivery) -> R + Send + Sync + 'static,
        R: IntoReply,
    {
        let run = move |delivery| handler(delivery).into_reply();
        self.finish(Handler::Blocking(Arc::new(run))).await
    }

    /// Handles each event in the store's own transaction: effect and settle are one commit, so in that domain the
    /// effect happens once.
    ///
    /// The function does database work only: every other commit waits for it, and it may run more than once. A call
    /// through Redrive's HTTP client and a plain publish are refused inside it; `tx.publish` is the outbox. Other
    /// clients, spawned tasks and files escape that check, and their effects would be repeated.
    ///
    /// # Errors
    /// If the queue's settings are invalid.
    pub async fn handle_in<F, R>(self, handler: F) -> Result<(), QueueError>
    where
        F: Fn(&mut Transaction<'_>, &Delivery) -> R + Send + Sync + 'static,
        R: IntoReply,
    {
        let run = move |tx: &mut Transaction<'_>, delivery: &Delivery| handler(tx, delivery).into_reply();
        self.finish(Handler::Transactional(Arc::new(run))).await
    }

    /// As [`handle_in`](Self::handle_in), with a classifier that says which errors are transient, such as a busy
    /// database.
    ///
    /// # Errors
    /// If the queue's settings are invalid.
    pub async fn handle_in_with<C, F, T, E>(self, classifier: C, handler: F) -> Result<(), QueueError>
    where
        C: Classify<E> + Send + Sync + 'static,
        F: Fn(&mut Transaction<'_>, &Delivery) -> Result<T, E> + Send + Sync + 'static,
        T: IntoReply,
        E: Error + 'static,
    {
        let run = move |tx: &mut Transaction<'_>, delivery: &Delivery| {
            classified(&classifier, handler(tx, delivery))
        };
        self.finish(Handler::Transactional(Arc::new(run))).await
    }

    /// As [`handle_in`](Self::handle_in), with an async function and the PostgreSQL connection in which the
    /// transaction is open: effect and settle are one commit. It runs on a thread of its own, so its future need not
    /// be `Send`.
    ///
    /// It may run more than once for one commit: after a serialisation failure or a deadlock the whole function runs
    /// again. An effect outside the database would be repeated. A call through Redrive's HTTP client and a plain
    /// publish are refused inside it; other clients, tasks that it spawns and files escape that check. Publish the
    /// effect as an event in the same transaction instead.
    ///
    /// ```no_run
    /// # use redrive::{Delivery, Failure, Redrive, postgres::sqlx::{self, PgConnection}};
    /// # async fn example(redrive: Redrive) -> Result<(), Box<dyn std::error::Error>> {
    /// let project = async |conn: &mut PgConnection, order: &Delivery| {
    ///     let insert = sqlx::query("INSERT INTO sale (id) VALUES ($1)").bind(order.id());
    ///     insert.execute(conn).await.map_err(Failure::transient)?;
    ///     Ok::<_, Failure>(())
    /// };
    /// redrive.queue("orders").handle_in_postgres(project).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the queue's settings are invalid, or the store is not PostgreSQL.
    #[cfg(feature = "postgres")]
    pub async fn handle_in_postgres<F, R>(self, handler: F) -> Result<(), QueueError>
    where
        F: AsyncFn(&mut redrive_store::postgres::sqlx::PgConnection, &Delivery) -> R + Send + Sync + 'static,
        R: IntoReply,
    {
        self.redrive.database()?;
        let run = move |tx: &mut Transaction<'_>, delivery: &Delivery| {
            let said = tx.postgres(async |conn| handler(conn, delivery).await.into_reply());
            // Only another store has no connection, and this store is PostgreSQL.
            said.unwrap_or_else(|| {
                Err::<(), _>(crate::Failure::permanent_text("the store is not in PostgreSQL")).into_reply()
            })
        };
        self.finish(Handler::Transactional(Arc::new(run))).await
    }

    fn refuse(&self, what: impl Into<String>) -> QueueError {
        QueueError::Setting { queue: self.plan.name.to_string(), what: what.into() }
    }

    async fn finish(self, handler: Handler) -> Result<(), QueueError> {
        check_queue_name(&self.plan.name)?;
        if self.plan.concurrency == 0 {
            return Err(self.refuse("a concurrency of 0 runs nothing; use at least 1, or `declare()`"));
        }
        if !(0.0..=1.0).contains(&self.plan.retry_share) {
            return Err(self.refuse("the retry share must be between 0 and 1"));
        }
        let horizon = self.plan.policy.settings().horizon();
        let queue = self.plan.name.to_string();
        if horizon.total() > self.window {
            return Err(QueueError::Window { queue, window: self.window, sum: horizon.to_string() });
        }
        let Self { redrive, mut plan, ordered, window, keep } = self;
        if redrive.0.starting.load(Ordering::Acquire) && !matches!(handler, Handler::Elsewhere) {
            return Err(QueueError::Started { queue });
        }
        // A process that only publishes does not know whether order matters, and order that was not kept from the
        // start cannot be had later.
        let ordered = ordered || matches!(handler, Handler::Elsewhere);
        plan.ordered = ordered;
        let pull = matches!(handler, Handler::Pulled);
        let spec = QueueSpec { name: queue.clone(), ordered, window, horizon: horizon.total(), pull, keep };
        let meters = Meters::of(&queue);
        let made = Arc::new(Queue {
            plan,
            window,
            spec: spec.clone(),
            handler,
            meters,
            slow: AtomicBool::new(false),
            blocking: AtomicUsize::new(0),
        });
        if !redrive.0.queues.add(made) {
            return Err(QueueError::Twice { queue });
        }
        // A publisher's settings count until an owner declares its own. The process that runs the queue decides when
        // it starts: a start that is refused must not have changed the settings that another process runs with.
        if let Err(error) = redrive.0.store.declare(spec, DeclaredBy::Publisher).await {
            redrive.0.queues.remove(&queue);
            return Err(error.into());
        }
        Ok(())
    }
}
