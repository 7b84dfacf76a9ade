//! P5 for every call: if a COMMIT is not answered, the caller still gets the true outcome, and the change happens
//! once.
//!
//! Each call meets both cuts: the COMMIT is lost on its way, and is repeated; or its answer is lost, and is
//! recognised. The result equals that without a cut.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::{Duration, Instant};

use redrive_core::event::DeadReason;
use redrive_core::ledger::{
    ClaimRequest, Effects, LedgerClaim, OnUnknown, RenewResult, RequestFingerprint, RequestScope, Resolution,
    Retention, RunEnding, StoredReply,
};
use redrive_core::queue_entry::{EventChange, EventProgress, ParkFollowers, SettleResult};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, JobPlan, JobStrategy, Operator, RedriveOptions, Rule};
use redrive_core::{Event, Moment};
use redrive_store::lease::{LeaseRef, LeaseRequest, LeaseSettle, LeaseSettleResult};
use redrive_store::operate::{CommandResult, JobAdvance, OperatorAction, OperatorCommand};
use redrive_store::{DeclaredBy, NewEvent, QueueSpec, StoreError, TxJob, TxOutcome, prelude::*};
use redrive_testkit::postgres::{Cut, Proxy, Server};

mod postgres_common;

use postgres_common::{Node, ORDERS, PATIENCE, Raw, TestStore, at};

const PULLED: &str = "pulled";
const CUTS: [Cut; 2] = [Cut::Before, Cut::After];

/// A process with a proxy in between, and a direct connection.
struct Line {
    store_dir: TestStore,
    proxy: Proxy,
    node: Node,
    raw: Raw,
}

impl Line {
    async fn new() -> Self {
        Self::patient(Duration::from_secs(60)).await
    }

    async fn patient(patience: Duration) -> Self {
        let store_dir = TestStore { patience, ..TestStore::new() };
        let proxy = Proxy::start(Server::shared()).unwrap();
        let node = store_dir.node_at(&proxy.url()).await;
        let raw = store_dir.raw().await;
        Self { store_dir, proxy, node, raw }
    }

    async fn order(&self, what: OperatorAction) -> CommandResult {
        let by = Operator { who: "ada".to_owned(), from: "desk".to_owned() };
        self.node.store.operate(OperatorCommand { by, at: at(1), what }).await.unwrap()
    }

    async fn publish(&self, queue: &str, id: &str) {
        let event = Event::new(queue, id).payload(id.as_bytes());
        self.node.store.publish(vec![NewEvent::at(event, at(0))]).await.unwrap().remove(0).unwrap();
    }

    /// Checks that there was exactly one cut since.
    fn was_cut(&self, round: usize) {
        assert_eq!(self.proxy.cuts(), round + 1, "no commit was cut");
    }
}

fn scope(key: &str) -> RequestScope {
    RequestScope { tenant: "acme".to_owned(), operation: "POST /bookings".to_owned(), key: key.to_owned() }
}

fn ask() -> ClaimRequest {
    ClaimRequest {
        print: RequestFingerprint { version: 1, hash: [7; 32] },
        older: Vec::new(),
        effects: Effects::Opaque(OnUnknown::Hold),
        lease: Duration::from_secs(60),
        retention: Retention { answer: Duration::from_secs(86_400) },
        first_sent: None,
        skew: Duration::ZERO,
    }
}

fn note(target: &str) -> OperatorAction {
    OperatorAction::Note { verb: "note", target: target.to_owned(), count: 1, note: String::new() }
}

fn reply() -> StoredReply {
    StoredReply { status: 201, headers: Vec::new(), body: Some(b"booked".to_vec()) }
}

#[tokio::test]
async fn a_shard_is_taken_once_and_given_back_once() {
    let mut line = Line::new().await;
    for (round, cut) in CUTS.into_iter().enumerate() {
        line.proxy.cut_next(cut);
        let taken = line.node.store.take(0, at(0)).await.unwrap();
        line.was_cut(round * 3);
        assert!(!taken.unclean, "{cut:?}: it had no owner");
        let epoch = line.raw.number("SELECT epoch FROM redrive.shard WHERE id = 0").await;
        assert_eq!(
            (taken.token.epoch, epoch),
            (round as u64 + 1, i64::try_from(round).unwrap() + 1),
            "{cut:?}"
        );

        line.proxy.cut_next(cut);
        line.node.store.note(taken.token, Vec::new()).await.unwrap();
        line.was_cut(round * 3 + 1);

        line.proxy.cut_next(cut);
        line.node.store.release(taken.token).await.unwrap();
        line.was_cut(round * 3 + 2);
        let refused = line.node.store.release(taken.token).await;
        assert!(matches!(refused, Err(StoreError::NotOwner { .. })), "{cut:?}: {refused:?}");
    }
}

#[tokio::test]
async fn a_queue_is_declared_and_old_things_are_forgotten() {
    let line = Line::new().await;
    for (round, cut) in CUTS.into_iter().enumerate() {
        line.proxy.cut_next(cut);
        let name = format!("{cut:?}");
        line.node
            .store
            .declare(QueueSpec { name, ..QueueSpec::default() }, DeclaredBy::Runner)
            .await
            .unwrap();
        line.was_cut(round * 2);
        line.proxy.cut_next(cut);
        line.node.store.forget(at(9)).await.unwrap();
        line.was_cut(round * 2 + 1);
    }
}

#[tokio::test]
async fn an_order_is_one_line_in_the_audit() {
    let mut line = Line::new().await;
    for (round, cut) in CUTS.into_iter().enumerate() {
        let orders = [
            OperatorAction::Set {
                rule: Rule::Pause { queue: ORDERS.to_owned() },
                until: None,
                why: String::new(),
            },
            note("it"),
            OperatorAction::Lift(Rule::Pause { queue: ORDERS.to_owned() }),
        ];
        for (nth, what) in orders.into_iter().enumerate() {
            line.proxy.cut_next(cut);
            let said = format!("{cut:?} {what:?}");
            let done = line.order(what).await;
            let number = round * 3 + nth;
            line.was_cut(number);
            assert_eq!((done.changed, &done.refused[..]), (1, &[][..]), "{said}");
            assert_eq!(
                line.raw.number("SELECT count(*) FROM redrive.audit").await,
                i64::try_from(number).unwrap() + 1,
                "{said}"
            );
        }
    }
}

#[tokio::test]
async fn a_job_goes_one_step_further() {
    let mut line = Line::new().await;
    line.node.take().await;
    for (round, cut) in CUTS.into_iter().enumerate() {
        let id = format!("{cut:?}");
        line.publish(ORDERS, &id).await;
        let entry = line.node.one(&id).await;
        let (reason, progress) = (DeadReason::AttemptsSpent, EventProgress::fresh(at(0)));
        let died =
            line.node.settle(&entry, EventChange::Dead { reason, progress, park: ParkFollowers::No }).await;
        assert!(matches!(died, SettleResult::Applied { .. }), "{died:?}");

        let act = JobAct::Redrive(RedriveOptions::default());
        let plan = JobPlan { filter: Filter::default(), act, strategy: JobStrategy::default() };
        line.proxy.cut_next(cut);
        let job = line.order(OperatorAction::Start(Box::new(plan))).await.job.unwrap();
        line.was_cut(round * 2);
        assert_eq!(line.node.store.jobs(None).await.unwrap().len(), round + 1, "{cut:?}");

        line.proxy.cut_next(cut);
        let step = JobAdvance { job, from: None, most: 10, at: at(2) };
        let job = line.node.store.advance(step).await.unwrap().unwrap();
        line.was_cut(round * 2 + 1);
        assert_eq!((job.taken, job.skipped), (1, 0), "{cut:?}");
        line.node.settle(&line.node.one(&id).await, EventChange::Done).await;
    }
}

#[tokio::test]
async fn a_lease_is_handed_out_made_longer_and_settled_once() {
    let line = Line::new().await;
    let queue = QueueSpec { name: PULLED.to_owned(), pull: true, ..QueueSpec::default() };
    line.node.store.declare(queue, DeclaredBy::Runner).await.unwrap();
    for (round, cut) in CUTS.into_iter().enumerate() {
        let id = format!("{cut:?}");
        line.publish(PULLED, &id).await;
        line.proxy.cut_next(cut);
        let leased = line.node.store.lease(lease(at(1))).await.unwrap();
        line.was_cut(round * 3);
        let ids: Vec<&str> = leased.entries.iter().map(|entry| entry.event.id.as_str()).collect();
        assert_eq!(ids, [&id], "no other event has it");
        let (tenant, queue) = (leased.entries[0].event.tenant.clone(), PULLED.to_owned());
        let held = LeaseRef { tenant, queue, id: id.clone(), attempt: 1, token: [1; 16] };

        line.proxy.cut_next(cut);
        let longer = line.node.store.extend(vec![held.clone()], at(2), at(90)).await.unwrap();
        line.was_cut(round * 3 + 1);
        assert_eq!(longer, [LeaseSettleResult::Applied], "{cut:?}");

        line.proxy.cut_next(cut);
        let settle =
            || LeaseSettle { lease: held.clone(), at: at(3), decide: Box::new(|_, _| EventChange::Done) };
        let settled = line.node.store.settle_leased(vec![settle()]).await.unwrap();
        line.was_cut(round * 3 + 2);
        assert_eq!(settled, [LeaseSettleResult::Applied], "{cut:?}");
        let again = line.node.store.settle_leased(vec![settle()]).await.unwrap();
        assert_eq!(again, [LeaseSettleResult::Already], "{cut:?}");
    }
}

fn lease(when: Moment) -> LeaseRequest {
    LeaseRequest {
        queue: PULLED.to_owned(),
        tenant: None,
        at: when,
        until: when + Duration::from_secs(60),
        tokens: vec![[1; 16]],
        bytes_max: usize::MAX,
        lapsed: Box::new(|_, _| EventChange::Done),
    }
}

#[tokio::test]
async fn a_request_is_claimed_renewed_and_ended_once() {
    let mut line = Line::new().await;
    for (round, cut) in CUTS.into_iter().enumerate() {
        let key = format!("{cut:?}");
        let second = Duration::from_secs(1);
        line.proxy.cut_next(cut);
        let claimed = line.node.store.claim(scope(&key), ask(), at(0)).await.unwrap();
        line.was_cut(round * 4);
        let LedgerClaim::Run(record) = claimed else { panic!("{cut:?}: {claimed:?}") };

        line.proxy.cut_next(cut);
        let renewed = line.node.store.renew(scope(&key), record.epoch, second, second * 60, at(1)).await;
        line.was_cut(round * 4 + 1);
        assert!(matches!(renewed, Ok(Ok(RenewResult::On(_)))), "{cut:?}: {renewed:?}");

        line.proxy.cut_next(cut);
        let ended = line.node.store.end(scope(&key), record.epoch, RunEnding::Unknown, at(2)).await.unwrap();
        line.was_cut(round * 4 + 2);
        assert_eq!(ended, Ok(()), "{cut:?}");

        line.proxy.cut_next(cut);
        let (scope, resolution) = (scope(&key), Resolution::Completed(reply()));
        let resolved = line
            .order(OperatorAction::Resolve { scope: scope.clone(), resolution, why: String::new() })
            .await;
        line.was_cut(round * 4 + 3);
        assert_eq!((resolved.changed, &resolved.refused[..]), (1, &[][..]), "{cut:?}");
        assert!(matches!(line.node.store.claim(scope, ask(), at(3)).await, Ok(LedgerClaim::Say(_))));
    }
    assert_eq!(line.raw.number("SELECT count(*) FROM redrive.request").await, 2);
}

/// Work that claims no event has its effect once, too.
#[tokio::test]
async fn work_without_an_event_is_done_once() {
    let mut line = Line::new().await;
    line.raw.say("CREATE TABLE redrive.effect (id TEXT)").await.unwrap();
    for (round, cut) in CUTS.into_iter().enumerate() {
        let insert = format!("INSERT INTO {}.effect VALUES ('{cut:?}')", line.store_dir.schema);
        let work = move |tx: &mut dyn redrive_store::Tx| {
            tx.execute(&insert, &[])?;
            Ok(None)
        };
        let job = TxJob { work: Box::new(work), claim: None, time: Duration::from_secs(60), alone: false };
        line.proxy.cut_next(cut);
        let done = line.node.store.transact(job).await.unwrap();
        line.was_cut(round);
        assert!(matches!(done, TxOutcome::Committed { next: None }), "{cut:?}: {done:?}");
        let effects = format!("SELECT count(*) FROM redrive.effect WHERE id = '{cut:?}'");
        assert_eq!(line.raw.number(&effects).await, 1, "{cut:?}");
    }
}

/// A COMMIT that arrives after the transaction was repeated is one too many, and changes nothing.
#[tokio::test]
async fn a_commit_that_arrives_late_changes_nothing() {
    let mut line = Line::new().await;
    line.proxy.cut_next(Cut::Late);
    let done = line.order(note("late")).await;
    line.was_cut(0);
    assert_eq!(done.changed, 1);
    assert_eq!(line.raw.number("SELECT count(*) FROM redrive.audit").await, 1);
    line.proxy.deliver();
    assert_eq!(line.raw.number("SELECT count(*) FROM redrive.audit").await, 1, "it came late, and counted");
}

/// A COMMIT that arrives while the transaction is repeated, and waits for it: one of the two has claimed the number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_arrives_meanwhile_is_the_only_one() {
    let mut line = Line::new().await;
    line.proxy.cut_next(Cut::Late);
    let claiming = line.node.store.claim(scope("a"), ask(), at(0));
    let claiming = tokio::spawn(claiming);
    line.raw.until_somebody_waits().await;
    line.proxy.deliver();
    let claimed = claiming.await.unwrap().unwrap();
    let LedgerClaim::Run(record) = claimed else { panic!("{claimed:?}") };
    let second = Duration::from_secs(1);
    let renewed = line.node.store.renew(scope("a"), record.epoch, second, second * 60, at(1)).await;
    assert!(matches!(renewed, Ok(Ok(RenewResult::On(_)))), "it is not ours: {renewed:?}");
}

/// If the database cannot be asked, the error is exact; and when it can be asked again, a request whose claim was
/// never answered is released, long before its lease runs out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_claimed_for_nobody_is_let_go_of() {
    let mut line = Line::patient(Duration::from_millis(300)).await;
    line.proxy.cut_next(Cut::After);
    line.proxy.shut(true);
    let claimed = line.node.store.claim(scope("a"), ask(), at(0)).await;
    line.was_cut(0);
    let Err(error @ StoreError::Unanswered { .. }) = claimed else { panic!("{claimed:?}") };
    assert!(error.is_transient() && !error.is_definite(), "{error}");
    assert_eq!(line.raw.number("SELECT count(*) FROM redrive.request").await, 1, "the answer was lost");
    line.proxy.shut(false);
    let began = Instant::now();
    while line.raw.number("SELECT count(*) FROM redrive.request").await != 0 {
        assert!(began.elapsed() < PATIENCE, "the request is not released");
        tokio::task::yield_now().await;
    }
    assert!(matches!(line.node.store.claim(scope("a"), ask(), at(1)).await, Ok(LedgerClaim::Run(_))));
}

/// The store goes on after an unanswered commit, and numbers of tries do not pile up.
#[tokio::test]
async fn numbers_of_tries_do_not_pile_up() {
    let mut line = Line::new().await;
    for round in 0..50 {
        if round % 10 == 0 {
            line.proxy.cut_next(CUTS[round / 10 % 2]);
        }
        line.order(note("it")).await;
    }
    assert_eq!(line.raw.number("SELECT count(*) FROM redrive.audit").await, 50);
    let left = line.raw.number("SELECT count(*) FROM redrive.commit_id").await;
    assert!(left <= 2, "{left} numbers are left");
    line.raw
        .say("INSERT INTO redrive.commit_id VALUES (gen_random_uuid(), now() - interval '2 h')")
        .await
        .unwrap();
    line.node.store.forget(at(9)).await.unwrap();
    let old = "SELECT count(*) FROM redrive.commit_id WHERE at < now() - interval '1 h'";
    assert_eq!(line.raw.number(old).await, 0);
}
