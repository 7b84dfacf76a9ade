//! A store with everything in it: every call is made many times, at random.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Event;
use redrive_core::Executed;
use redrive_core::event::{AttemptHistory, AttemptRecord, Cause, DeadReason, Fingerprint, Mode};
use redrive_core::ledger::{
    ClaimRequest, Effects, LedgerClaim, OnUnknown, RequestFingerprint, RequestScope, Resolution, Retention,
    StoredReply,
};
use redrive_core::queue_entry::{
    EventChange, EventProgress, ParkFollowers, QueueEntry, SettleRequest, TakenShard,
};
use redrive_core::triage::{
    Filter, Job as Work, JobAct, JobId, JobPlan, JobState, JobStrategy, Operator, RedriveOptions, Rule,
};
use redrive_store::lease::{LeaseRef, LeaseRequest, LeaseSettle};
use redrive_store::ledger::RunEnding;
use redrive_store::operate::{
    EditedEvent, EventAction, EventRef, ImportedLetter, JobAdvance, OperatorAction, OperatorCommand,
};
use redrive_store::{DeadLetterRetention, DeclaredBy, NewEvent, Published, QueueSpec, Store, Tx, TxJob};

use super::{Chance, at, due, take};

const QUEUES: [&str; 4] = ["orders", "mails", "pulled", "spare"];
const TENANTS: [&str; 2] = ["", "acme"];

/// Fills a store.
struct Filler<'a> {
    store: &'a Arc<dyn Store>,
    chance: Chance,
    taken: Vec<TakenShard>,
    /// Tenant, queue and id of all published events.
    names: Vec<String>,
    leases: Vec<LeaseRef>,
    runs: Vec<(RequestScope, u64)>,
    jobs: Vec<JobId>,
    clock: u64,
}

/// Fills a store. Returns tenant, queue and id of all published events.
pub(crate) async fn fill(store: &Arc<dyn Store>, seed: u64) -> Vec<String> {
    let (window, horizon) = (Duration::from_secs(10_000), Duration::from_secs(10_000));
    for (n, name) in QUEUES.iter().enumerate() {
        let keep = DeadLetterRetention { time: (n == 3).then_some(window), count: (n == 3).then_some(100) };
        let (name, ordered, pull) = ((*name).to_owned(), n != 1, n == 2);
        let queue = QueueSpec { name, ordered, window, horizon, pull, keep };
        store.declare(queue, DeclaredBy::Runner).await.unwrap();
    }
    let taken = take(store).await;
    let chance = Chance::new(seed);
    let (names, leases, runs, jobs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut filler = Filler { store, chance, taken, names, leases, runs, jobs, clock: 0 };
    for _ in 0..30 {
        filler.publish().await;
    }
    for _ in 0..400 {
        filler.step().await;
    }
    // In every second store, an attempt is running and noted when the owner dies.
    if let Some(entry) = due(store, &filler.taken, at(4_000)).await.first()
        && seed.is_multiple_of(2)
    {
        let TakenShard { token, .. } = filler.taken[usize::try_from(entry.shard).unwrap()];
        store.note(token, vec![entry.seq]).await.unwrap();
        return filler.names;
    }
    for TakenShard { token, .. } in &filler.taken {
        store.release(*token).await.unwrap();
    }
    filler.names
}

fn history(what: &str, before: Option<&Arc<AttemptHistory>>) -> Arc<AttemptHistory> {
    let history = before.map(|history| (**history).clone()).unwrap_or_default();
    Arc::new(history.with(AttemptRecord {
        attempt: 1,
        mode: "live".to_owned(),
        at_ms: 1,
        took_ms: 2,
        disposition: "retry".to_owned(),
        executed: Some(Executed::Unknown),
        cause: Some(Cause::new("Refused \"by\" ö", what).code("503")),
        delay_ms: Some(7000),
    }))
}

impl Filler<'_> {
    async fn step(&mut self) {
        self.clock += 10;
        match self.chance.below(14) {
            0..=2 => self.publish().await,
            3..=6 => self.settle().await,
            7 => self.lease().await,
            8 => self.answer().await,
            9 | 10 => self.order().await,
            11 => self.request().await,
            12 => self.work().await,
            _ => self.advance().await,
        }
    }

    fn name(&mut self) -> Option<EventRef> {
        if self.names.is_empty() {
            return None;
        }
        let name = self.chance.pick(&self.names);
        let [tenant, queue, id] = [0, 1, 2].map(|at| name.split('\t').nth(at).unwrap().to_owned());
        Some(EventRef::new(tenant, queue, id))
    }

    fn event(&mut self) -> Event {
        let chance = &mut self.chance;
        let id = format!("{}-{}", self.names.len(), chance.below(1_000_000));
        let size = if chance.one_in(20) { 60_000 } else { chance.below(300) };
        let bytes: Vec<u8> = (0..size).map(|n| u8::try_from((n * 7 + size) % 251).unwrap()).collect();
        let mut event = Event::new(chance.pick(&QUEUES), id).tenant(chance.pick(&TENANTS)).payload(bytes);
        if !chance.one_in(3) {
            event = event.key(format!("k{}", chance.below(6)));
        }
        if chance.one_in(5) {
            event = event.delay(Duration::from_secs(chance.below(3_000)));
        }
        if chance.one_in(9) {
            event = event.expires_after(Duration::from_secs(50_000 + chance.below(3_000)));
        }
        if chance.one_in(3) {
            event = event
                .header("traceparent", "00-ä-1")
                .content_type("application/json")
                .header("ce-type", "paid");
        }
        event
    }

    async fn publish(&mut self) {
        let mut event = self.event();
        if self.chance.one_in(10)
            && let Some(known) = self.name()
        {
            event = Event::new(known.queue, known.id).tenant(known.tenant);
        }
        let name = format!("{}\t{}\t{}", event.tenant, event.queue, event.id);
        let published =
            self.store.publish(vec![NewEvent::at(event, at(self.clock))]).await.unwrap().remove(0);
        if matches!(published, Ok(Published::Accepted(_))) {
            self.names.push(name);
        }
    }

    fn progress(&mut self, entry: &QueueEntry) -> EventProgress {
        let why = format!("no such card {}", self.chance.below(4));
        EventProgress {
            due: at(self.clock + self.chance.below(3_000)),
            attempts: entry.progress.attempts + 1,
            mode: Mode::Retry,
            started: Some(at(self.clock)),
            previous: Duration::from_secs(7),
            history: Some(history(&why, entry.progress.history.as_ref())),
            ..entry.progress.clone()
        }
    }

    fn change(&mut self, entry: &QueueEntry) -> EventChange {
        let progress = self.progress(entry);
        let (attempts, history) = (progress.attempts, progress.history.clone());
        let reason = self.chance.pick(&[DeadReason::AttemptsSpent, DeadReason::Permanent]);
        let until = Some(at(self.clock + 20_000));
        match self.chance.below(12) {
            0 | 1 => EventChange::Done,
            2 => EventChange::DoneWith { result: Some(vec![0, 1, 255]), attempts, history },
            3 => EventChange::Dropped { attempts, history },
            4 => EventChange::Expired { attempts, history },
            5..=7 => EventChange::Retry(progress),
            8 => EventChange::Dead { reason, progress, park: ParkFollowers::UntilResolved },
            9 => EventChange::Dead { reason, progress, park: ParkFollowers::UpTo { until, count: Some(9) } },
            10 => EventChange::Dead { reason, progress, park: ParkFollowers::No },
            _ => EventChange::CountCrash,
        }
    }

    async fn settle(&mut self) {
        let heads = due(self.store, &self.taken, at(self.clock)).await;
        if heads.is_empty() {
            return;
        }
        let entry = self.chance.pick(&heads);
        let change = self.change(&entry);
        let TakenShard { token, .. } = self.taken[usize::try_from(entry.shard).unwrap()];
        let settle = SettleRequest { token, seq: entry.seq, rev: entry.rev, at: at(self.clock), change };
        self.store.settle(vec![settle]).await.unwrap();
    }

    async fn lease(&mut self) {
        let token = [u8::try_from(self.leases.len() % 250).unwrap(); 16];
        let lapsed = |entry: &QueueEntry, _| {
            EventChange::Retry(EventProgress {
                attempts: entry.progress.attempts + 1,
                mode: Mode::Retry,
                ..entry.progress.clone()
            })
        };
        let lease = LeaseRequest {
            queue: "pulled".to_owned(),
            tenant: None,
            at: at(self.clock),
            until: at(self.clock + 100 + self.chance.below(9_000)),
            tokens: vec![token],
            bytes_max: usize::MAX,
            lapsed: Box::new(lapsed),
        };
        for entry in self.store.lease(lease).await.unwrap().entries {
            let (tenant, queue, id) =
                (entry.event.tenant.clone(), entry.event.queue.clone(), entry.event.id.clone());
            self.leases.push(LeaseRef { tenant, queue, id, attempt: entry.progress.attempts + 1, token });
        }
    }

    async fn answer(&mut self) {
        if self.leases.is_empty() || self.chance.one_in(3) {
            return;
        }
        let lease = self.chance.pick(&self.leases);
        let is_done = self.chance.one_in(2);
        let decide = move |entry: &QueueEntry, _| {
            if is_done {
                return EventChange::Done;
            }
            let progress = EventProgress {
                attempts: entry.progress.attempts + 1,
                history: Some(history("worker", None)),
                ..entry.progress.clone()
            };
            EventChange::Dead {
                reason: DeadReason::AttemptsSpent,
                progress,
                park: ParkFollowers::UntilResolved,
            }
        };
        let settle = LeaseSettle { lease, at: at(self.clock), decide: Box::new(decide) };
        self.store.settle_leased(vec![settle]).await.unwrap();
    }

    async fn order(&mut self) {
        let Some(target) = self.name() else { return };
        let key = format!("k{}", self.chance.below(6));
        let (queue, tenant) = (self.chance.pick(&["orders", "spare"]).to_owned(), String::new());
        let redrive = RedriveOptions {
            out_of_order: self.chance.one_in(2),
            keep_attempts: true,
            ..RedriveOptions::default()
        };
        let set =
            |rule| OperatorAction::Set { rule, until: Some(at(90_000)), why: "it's tried out".to_owned() };
        let events = |act| OperatorAction::Events(vec![target.clone()], act);
        let what = match self.chance.below(17) {
            0..=2 => events(EventAction::Redrive(redrive)),
            3 => events(EventAction::Discard),
            4 => events(EventAction::Restore),
            5 => events(EventAction::Kill),
            6 => events(EventAction::RetryNow),
            7 => {
                let event = Event::new(target.queue.as_str(), format!("{}-edited", target.id))
                    .tenant(target.tenant.as_str())
                    .payload(*b"edited");
                self.names.push(format!("{}\t{}\t{}", event.tenant, event.queue, event.id));
                let edited = EditedEvent {
                    fingerprint: Fingerprint::of(&event),
                    event: Arc::new(event),
                    out_of_order: true,
                };
                OperatorAction::Edit(target, Box::new(edited))
            }
            8 => set(Rule::QuarantineKey { queue, tenant, key }),
            9 => set(Rule::ParkKey { queue, tenant, key }),
            10 => set(Rule::QuarantineTenant { queue: Some("mails".to_owned()), tenant: "acme".to_owned() }),
            11 => OperatorAction::Lift(Rule::QuarantineKey { queue, tenant, key }),
            12..=14 => {
                let filter = Filter { queue: Some(queue), ..Filter::default() };
                let strategy = JobStrategy { rate: Some(5.0), ..JobStrategy::default() };
                OperatorAction::Start(Box::new(JobPlan { filter, act: JobAct::Redrive(redrive), strategy }))
            }
            15 if !self.jobs.is_empty() => {
                OperatorAction::Turn(self.chance.pick(&self.jobs), JobState::Paused, "why".to_owned())
            }
            _ => {
                let event = self.event();
                self.names.push(format!("{}\t{}\t{}", event.tenant, event.queue, event.id));
                OperatorAction::Import(vec![ImportedLetter {
                    fingerprint: Fingerprint::of(&event),
                    event: Arc::new(event),
                    published: at(self.clock),
                    died: at(self.clock),
                    attempts: 3,
                    reason: DeadReason::Permanent,
                    history: Some(history("elsewhere", None)),
                }])
            }
        };
        let order = OperatorCommand { by: Operator::new("ann", "test"), at: at(self.clock), what };
        self.jobs.extend(self.store.operate(order).await.unwrap().job);
    }

    async fn advance(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let id = self.chance.pick(&self.jobs);
        let job: Work = self.store.jobs(Some(id)).await.unwrap().remove(0);
        let step = JobAdvance { job: id, from: job.cursor, most: 2, at: at(self.clock) };
        self.store.advance(step).await.unwrap();
    }

    async fn request(&mut self) {
        let key = format!("key {} ö", self.chance.below(12));
        let scope = RequestScope { tenant: "acme".to_owned(), operation: "POST /bookings".to_owned(), key };
        let ask = ClaimRequest {
            print: RequestFingerprint { version: 1, hash: [7; 32] },
            older: Vec::new(),
            effects: Effects::Opaque(OnUnknown::Hold),
            lease: Duration::from_secs(10 + self.chance.below(90_000)),
            retention: Retention { answer: Duration::from_secs(86_400) },
            first_sent: None,
            skew: Duration::ZERO,
        };
        if let LedgerClaim::Run(record) = self.store.claim(scope.clone(), ask, at(self.clock)).await.unwrap()
        {
            self.runs.push((scope, record.epoch));
        }
        if self.runs.is_empty() {
            return;
        }
        let (scope, epoch) = self.chance.pick(&self.runs);
        let headers = vec![("x-odd".to_owned(), vec![0xff, 0x41])];
        let body = Some(vec![0, 1, 0xfe]);
        let reply = StoredReply { status: 201, headers, body };
        let end = match self.chance.below(6) {
            0 => RunEnding::Completed { reply, resource: Some("booking-7".to_owned()) },
            1 => RunEnding::Retriable(Some(at(self.clock + 100))),
            2 => RunEnding::Unknown,
            3 => {
                let what = OperatorAction::Resolve {
                    scope,
                    resolution: Resolution::Completed(reply),
                    why: "seen".to_owned(),
                };
                let order = OperatorCommand { by: Operator::new("ann", "test"), at: at(self.clock), what };
                self.store.operate(order).await.unwrap();
                return;
            }
            _ => return,
        };
        let _ = self.store.end(scope, epoch, end, at(self.clock)).await.unwrap();
    }

    async fn work(&mut self) {
        let n = self.chance.below(40);
        let work = move |tx: &mut dyn Tx| {
            tx.mark("charger.v1", &format!("m{n}"), at(50_000))?;
            tx.keep(&format!("secret/{n}"), Some(&[u8::try_from(n)?, 0, 255]))?;
            Ok(None)
        };
        let job = TxJob { work: Box::new(work), claim: None, time: Duration::from_secs(10), alone: false };
        self.store.transact(job).await.unwrap();
    }
}
