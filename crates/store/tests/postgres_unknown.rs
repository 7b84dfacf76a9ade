//! P5 for every verb: whoever is not answered a COMMIT is told what was so, and it was so once.
//!
//! Each verb meets both cuts: the COMMIT is lost on its way, and is done again; or its answer is lost, and is known
//! again. What it says is what it says without a cut.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::{Duration, Instant};

use redrive_core::entry::{Change, Park, Progress, Settled};
use redrive_core::event::DeadReason;
use redrive_core::ledger::{
    Ask, Claim, Effects, End, OnUnknown, Print, Renewed, Reply, Resolution, Retention, Scope,
};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, JobPlan, Operator, Redrive, Rule, Strategy};
use redrive_core::{Event, Moment};
use redrive_store::lease::{Held, Lease, LeaseSettle, LeaseSettled};
use redrive_store::operate::{Advance, Operated, Order, What};
use redrive_store::{By, Job, Ledger, New, QueueSpec, Store, StoreError, Transacted};
use redrive_testkit::postgres::{Cut, Proxy, Server};

mod postgres_common;

use postgres_common::{Node, ORDERS, PATIENCE, Place, Raw, at};

const PULLED: &str = "pulled";
const CUTS: [Cut; 2] = [Cut::Before, Cut::After];

/// A process with somebody in between, and a connection past it.
struct Line {
    place: Place,
    proxy: Proxy,
    node: Node,
    raw: Raw,
}

impl Line {
    async fn new() -> Self {
        Self::patient(Duration::from_secs(60)).await
    }

    async fn patient(patience: Duration) -> Self {
        let place = Place { patience, ..Place::new() };
        let proxy = Proxy::start(Server::shared()).unwrap();
        let node = place.node_at(&proxy.url()).await;
        let raw = place.raw().await;
        Self { place, proxy, node, raw }
    }

    async fn order(&self, what: What) -> Operated {
        let by = Operator { who: "ada".to_owned(), from: "desk".to_owned() };
        self.node.store.operate(Order { by, at: at(1), what }).await.unwrap()
    }

    async fn publish(&self, queue: &str, id: &str) {
        let event = Event::new(queue, id).payload(id.as_bytes());
        self.node.store.publish(vec![New::at(event, at(0))]).await.unwrap().remove(0).unwrap();
    }

    /// How many cuts there were since; there must have been one.
    fn was_cut(&self, round: usize) {
        assert_eq!(self.proxy.cuts(), round + 1, "nobody committed");
    }
}

fn scope(key: &str) -> Scope {
    Scope { tenant: "acme".to_owned(), operation: "POST /bookings".to_owned(), key: key.to_owned() }
}

fn ask() -> Ask {
    Ask {
        print: Print { version: 1, hash: [7; 32] },
        older: Vec::new(),
        effects: Effects::Opaque(OnUnknown::Hold),
        lease: Duration::from_secs(60),
        retention: Retention { answer: Duration::from_secs(86_400) },
        first_sent: None,
        skew: Duration::ZERO,
    }
}

fn note(target: &str) -> What {
    What::Note { verb: "note", target: target.to_owned(), count: 1, note: String::new() }
}

fn reply() -> Reply {
    Reply { status: 201, headers: Vec::new(), body: Some(b"booked".to_vec()) }
}

#[tokio::test]
async fn a_shard_is_taken_once_and_given_back_once() {
    let mut line = Line::new().await;
    for (round, cut) in CUTS.into_iter().enumerate() {
        line.proxy.cut_next(cut);
        let taken = line.node.store.take(0, at(0)).await.unwrap();
        line.was_cut(round * 3);
        assert!(!taken.unclean, "{cut:?}: nobody had it");
        let epoch = line.raw.number("SELECT epoch FROM redrive.shard WHERE id = 0").await;
        assert_eq!(
            (taken.grant.epoch, epoch),
            (round as u64 + 1, i64::try_from(round).unwrap() + 1),
            "{cut:?}"
        );

        line.proxy.cut_next(cut);
        line.node.store.note(taken.grant, Vec::new()).await.unwrap();
        line.was_cut(round * 3 + 1);

        line.proxy.cut_next(cut);
        line.node.store.release(taken.grant).await.unwrap();
        line.was_cut(round * 3 + 2);
        let refused = line.node.store.release(taken.grant).await;
        assert!(matches!(refused, Err(StoreError::NotOwner { .. })), "{cut:?}: {refused:?}");
    }
}

#[tokio::test]
async fn a_queue_is_declared_and_old_things_are_forgotten() {
    let line = Line::new().await;
    for (round, cut) in CUTS.into_iter().enumerate() {
        line.proxy.cut_next(cut);
        let name = format!("{cut:?}");
        line.node.store.declare(QueueSpec { name, ..QueueSpec::default() }, By::Runner).await.unwrap();
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
            What::Set { rule: Rule::Pause { queue: ORDERS.to_owned() }, until: None, why: String::new() },
            note("it"),
            What::Lift(Rule::Pause { queue: ORDERS.to_owned() }),
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
        let (reason, progress) = (DeadReason::AttemptsSpent, Progress::fresh(at(0)));
        let died = line.node.settle(&entry, Change::Dead { reason, progress, park: Park::GoOn }).await;
        assert!(matches!(died, Settled::Applied { .. }), "{died:?}");

        let act = JobAct::Redrive(Redrive::default());
        let plan = JobPlan { filter: Filter::default(), act, strategy: Strategy::default() };
        line.proxy.cut_next(cut);
        let job = line.order(What::Start(Box::new(plan))).await.job.unwrap();
        line.was_cut(round * 2);
        assert_eq!(line.node.store.jobs(None).await.unwrap().len(), round + 1, "{cut:?}");

        line.proxy.cut_next(cut);
        let step = Advance { job, from: None, most: 10, at: at(2) };
        let job = line.node.store.advance(step).await.unwrap().unwrap();
        line.was_cut(round * 2 + 1);
        assert_eq!((job.taken, job.skipped), (1, 0), "{cut:?}");
        line.node.settle(&line.node.one(&id).await, Change::Done).await;
    }
}

#[tokio::test]
async fn a_lease_is_handed_out_made_longer_and_settled_once() {
    let line = Line::new().await;
    let queue = QueueSpec { name: PULLED.to_owned(), pull: true, ..QueueSpec::default() };
    line.node.store.declare(queue, By::Runner).await.unwrap();
    for (round, cut) in CUTS.into_iter().enumerate() {
        let id = format!("{cut:?}");
        line.publish(PULLED, &id).await;
        line.proxy.cut_next(cut);
        let leased = line.node.store.lease(lease(at(1))).await.unwrap();
        line.was_cut(round * 3);
        let ids: Vec<&str> = leased.entries.iter().map(|entry| entry.event.id.as_str()).collect();
        assert_eq!(ids, [&id], "nobody else has it");
        let (tenant, queue) = (leased.entries[0].event.tenant.clone(), PULLED.to_owned());
        let held = Held { tenant, queue, id: id.clone(), attempt: 1, token: [1; 16] };

        line.proxy.cut_next(cut);
        let longer = line.node.store.extend(vec![held.clone()], at(2), at(90)).await.unwrap();
        line.was_cut(round * 3 + 1);
        assert_eq!(longer, [LeaseSettled::Applied], "{cut:?}");

        line.proxy.cut_next(cut);
        let settle = || LeaseSettle { lease: held.clone(), at: at(3), decide: Box::new(|_, _| Change::Done) };
        let settled = line.node.store.settle_leased(vec![settle()]).await.unwrap();
        line.was_cut(round * 3 + 2);
        assert_eq!(settled, [LeaseSettled::Applied], "{cut:?}");
        let again = line.node.store.settle_leased(vec![settle()]).await.unwrap();
        assert_eq!(again, [LeaseSettled::Already], "{cut:?}");
    }
}

fn lease(when: Moment) -> Lease {
    Lease {
        queue: PULLED.to_owned(),
        tenant: None,
        at: when,
        until: when + Duration::from_secs(60),
        tokens: vec![[1; 16]],
        bytes_max: usize::MAX,
        lapsed: Box::new(|_, _| Change::Done),
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
        let Claim::Run(record) = claimed else { panic!("{cut:?}: {claimed:?}") };

        line.proxy.cut_next(cut);
        let renewed = line.node.store.renew(scope(&key), record.epoch, second, second * 60, at(1)).await;
        line.was_cut(round * 4 + 1);
        assert!(matches!(renewed, Ok(Ok(Renewed::On(_)))), "{cut:?}: {renewed:?}");

        line.proxy.cut_next(cut);
        let ended = line.node.store.end(scope(&key), record.epoch, End::Unknown, at(2)).await.unwrap();
        line.was_cut(round * 4 + 2);
        assert_eq!(ended, Ok(()), "{cut:?}");

        line.proxy.cut_next(cut);
        let (scope, resolution) = (scope(&key), Resolution::Completed(reply()));
        let resolved =
            line.order(What::Resolve { scope: scope.clone(), resolution, why: String::new() }).await;
        line.was_cut(round * 4 + 3);
        assert_eq!((resolved.changed, &resolved.refused[..]), (1, &[][..]), "{cut:?}");
        assert!(matches!(line.node.store.claim(scope, ask(), at(3)).await, Ok(Claim::Say(_))));
    }
    assert_eq!(line.raw.number("SELECT count(*) FROM redrive.request").await, 2);
}

/// Work that claims no event has its effect once, too.
#[tokio::test]
async fn work_without_an_event_is_done_once() {
    let mut line = Line::new().await;
    line.raw.say("CREATE TABLE redrive.effect (id TEXT)").await.unwrap();
    for (round, cut) in CUTS.into_iter().enumerate() {
        let insert = format!("INSERT INTO {}.effect VALUES ('{cut:?}')", line.place.schema);
        let work = move |tx: &mut dyn redrive_store::Tx| {
            tx.execute(&insert, &[])?;
            Ok(None)
        };
        let job = Job { work: Box::new(work), claim: None, time: Duration::from_secs(60), alone: false };
        line.proxy.cut_next(cut);
        let done = line.node.store.transact(job).await.unwrap();
        line.was_cut(round);
        assert!(matches!(done, Transacted::Committed { next: None }), "{cut:?}: {done:?}");
        let effects = format!("SELECT count(*) FROM redrive.effect WHERE id = '{cut:?}'");
        assert_eq!(line.raw.number(&effects).await, 1, "{cut:?}");
    }
}

/// A COMMIT that arrives after the same was done again is one too many, and changes nothing.
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

/// A COMMIT that arrives while the same is done again, and waits for it: one of the two has claimed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_arrives_meanwhile_is_the_only_one() {
    let mut line = Line::new().await;
    line.proxy.cut_next(Cut::Late);
    let claiming = line.node.store.claim(scope("a"), ask(), at(0));
    let claiming = tokio::spawn(claiming);
    line.raw.until_somebody_waits().await;
    line.proxy.deliver();
    let claimed = claiming.await.unwrap().unwrap();
    let Claim::Run(record) = claimed else { panic!("{claimed:?}") };
    let second = Duration::from_secs(1);
    let renewed = line.node.store.renew(scope("a"), record.epoch, second, second * 60, at(1)).await;
    assert!(matches!(renewed, Ok(Ok(Renewed::On(_)))), "it is not ours: {renewed:?}");
}

/// Where nobody can be asked, the error is exact; and when somebody can be asked again, a request that was claimed for
/// nobody is let go of, long before its lease is over.
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
        assert!(began.elapsed() < PATIENCE, "nobody lets go of it");
        tokio::task::yield_now().await;
    }
    assert!(matches!(line.node.store.claim(scope("a"), ask(), at(1)).await, Ok(Claim::Run(_))));
}

/// The store goes on after it was not answered, and numbers of tries do not pile up.
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
    let left = line.raw.number("SELECT count(*) FROM redrive.once").await;
    assert!(left <= 2, "{left} numbers are left");
    line.raw
        .say("INSERT INTO redrive.once VALUES (gen_random_uuid(), now() - interval '2 h')")
        .await
        .unwrap();
    line.node.store.forget(at(9)).await.unwrap();
    let old = "SELECT count(*) FROM redrive.once WHERE at < now() - interval '1 h'";
    assert_eq!(line.raw.number(old).await, 0);
}
