//! Events that failed and are retried: seen in groups, and retried immediately by a job.

use std::sync::Arc;

use redrive_core::event::{AttemptHistory, Event, Mode, State};
use redrive_core::queue_entry::{EventChange, EventProgress, ParkFollowers, QueueEntry, SettleResult};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, Job, JobId, JobPlan, JobState, JobStrategy};
use redrive_store::operate::{FailingQuery, JobAdvance, OperatorAction, Retrying};

use crate::conformance::Subject;
use crate::conformance::owner::{MAILS, ORDERS, Owner, at, history, mail, order, retry};

fn plan(filter: Filter) -> OperatorAction {
    OperatorAction::Start(Box::new(JobPlan {
        filter,
        act: JobAct::RetryNow,
        strategy: JobStrategy::default(),
    }))
}

impl<S: Subject> Owner<S> {
    /// Publishes an event that fails at its first attempt and has this progress then.
    async fn fail(&self, event: Event, progress: EventProgress) -> QueueEntry {
        let id = event.id.clone();
        self.publish(event, at(0)).await;
        let entry = self.entry(&id, at(0)).await;
        let settled = self.settle(&entry, at(0), EventChange::Retry(progress)).await;
        assert!(matches!(settled, SettleResult::Applied { .. }), "{settled:?}");
        entry
    }

    async fn start_retries(&self, filter: Filter, secs: u64) -> JobId {
        self.operate(plan(filter), at(secs)).await.job.unwrap()
    }

    async fn retries(&self, id: JobId) -> Job {
        self.store.jobs(Some(id)).await.unwrap().remove(0)
    }

    /// Steps the job until it has looked at all events.
    async fn retry_all(&self, id: JobId, secs: u64) -> Job {
        let mut job = self.retries(id).await;
        while !job.exhausted {
            let step = JobAdvance { job: id, from: job.cursor, most: 2, at: at(secs) };
            job = self.store.advance(step).await.unwrap().unwrap();
        }
        job
    }

    async fn count_retrying(&self) -> Vec<Retrying> {
        self.store.retrying().await.unwrap()
    }
}

fn told(what: &str) -> Option<Arc<AttemptHistory>> {
    Some(history(what))
}

/// Retrying events are grouped by the cause of their last failure and counted by queue.
pub async fn retrying_events_of_one_cause_are_a_group<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let later = |secs: u64, what: &str| EventProgress { history: told(what), ..retry(at(secs)) };
    owner
        .fail(mail("1"), EventProgress { started: Some(at(3)), attempts: 2, ..later(90, "no room 17") })
        .await;
    owner.fail(mail("2"), later(80, "no room 18")).await;
    owner.fail(order("3", "k"), later(70, "no room 19")).await;
    owner.fail(mail("4").tenant("acme"), later(60, "gone")).await;
    owner.die(&mail("5"), at(0), ParkFollowers::No).await;
    owner.publish(mail("6"), at(0)).await;
    let groups = owner.store.failing(FailingQuery::default()).await.unwrap();
    let seen: Vec<_> = groups.iter().map(|group| (group.title.as_str(), group.events)).collect();
    assert_eq!(seen, [("Refused 503: no room #", 3), ("Refused 503: gone", 1)]);
    let first = &groups[0];
    assert_eq!(first.queues, [(MAILS.to_owned(), 2), (ORDERS.to_owned(), 1)]);
    assert_eq!((first.keyed, first.since, first.next, first.attempts), (1, at(0), at(70), 2));
    assert_eq!(first.looked, None);
    let asked = |query: FailingQuery| async { owner.store.failing(query).await.unwrap() };
    let acme = FailingQuery { tenant: Some("acme".to_owned()), ..FailingQuery::default() };
    assert_eq!(asked(acme).await, [groups[1].clone()]);
    let orders = FailingQuery { queue: Some(ORDERS.to_owned()), ..FailingQuery::default() };
    assert_eq!(asked(orders).await[0].events, 1);
    let one = FailingQuery { cause: Some(groups[1].cause), ..FailingQuery::default() };
    assert_eq!(asked(one).await, [groups[1].clone()]);
    let few = FailingQuery { limit: 1, ..FailingQuery::default() };
    assert_eq!(&asked(few).await[..], std::slice::from_ref(first));
    let retrying = |queue: &str, events| Retrying { queue: queue.to_owned(), events, since: at(0) };
    assert_eq!(owner.count_retrying().await, [retrying(MAILS, 3), retrying(ORDERS, 1)]);
}

/// A retry-now job makes retrying events due before their time, with their attempts as they were, as a
/// redrive.
pub async fn a_job_has_what_is_retried_attempted_at_once<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3"] {
        owner.fail(mail(id), retry(at(90))).await;
    }
    owner.fail(order("4", "k"), retry(at(90))).await;
    owner.die(&mail("5"), at(0), ParkFollowers::No).await;
    let heard = owner.watch();
    let id = owner.start_retries(Filter::queue(MAILS), 1).await;
    assert_eq!(owner.retries(id).await.planned, 3);
    let job = owner.retry_all(id, 2).await;
    assert_eq!((job.taken, job.skipped, job.under_way()), (3, 0, 3));
    assert_eq!(owner.due_ids(at(2)).await, ["1", "2", "3"]);
    assert!(heard.lock().unwrap().iter().any(|told| told.recall), "owners load again");
    let entry = owner.entry("1", at(2)).await;
    assert_eq!((entry.progress.attempts, entry.progress.mode), (1, Mode::Redrive));
    assert!(entry.progress.history.is_some() && entry.progress.due <= at(2));
    assert_eq!(owner.state(&mail("5")).await, State::Dead);
    for id in ["1", "2", "3"] {
        let entry = owner.entry(id, at(3)).await;
        owner
            .settle(&entry, at(3), EventChange::DoneWith { result: None, attempts: 2, history: told("x") })
            .await;
    }
    let job = owner.retries(id).await;
    assert_eq!((job.done, job.failed, job.under_way(), job.state), (3, 0, 0, JobState::Running));
}

/// A retry-now job counts an event that failed once more, although the event has not ended.
pub async fn a_job_hears_that_what_it_had_retried_failed_again<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.fail(mail("1"), retry(at(90))).await;
    let first = owner.start_retries(Filter::default(), 1).await;
    owner.retry_all(first, 2).await;
    let entry = owner.entry("1", at(2)).await;
    owner.settle(&entry, at(2), EventChange::Retry(EventProgress { attempts: 2, ..retry(at(95)) })).await;
    let job = owner.retries(first).await;
    assert_eq!((job.taken, job.failed, job.under_way()), (1, 1, 0));
    let owner = owner.crash().await;
    // Later outcomes of the event do not count for that job.
    let entry = owner.entry("1", at(95)).await;
    assert_eq!(entry.progress.attempts, 2);
    owner.settle(&entry, at(95), EventChange::DoneWith { result: None, attempts: 3, history: None }).await;
    assert_eq!(owner.retries(first).await, job);
}

/// An attempt that is running when a job takes its event is settled all the same, and counts for the job.
pub async fn what_runs_is_settled_though_a_job_has_it_retried<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.fail(mail("1"), retry(at(1))).await;
    let runs = owner.entry("1", at(1)).await;
    let id = owner.start_retries(Filter::default(), 2).await;
    assert_eq!(owner.retry_all(id, 3).await.taken, 1);
    let settled =
        owner.settle(&runs, at(4), EventChange::DoneWith { result: None, attempts: 2, history: None }).await;
    assert!(matches!(settled, SettleResult::Applied { .. }), "{settled:?}");
    let job = owner.retries(id).await;
    assert_eq!((job.done, job.under_way()), (1, 0));
    assert_eq!(owner.state(&mail("1")).await, State::Done);
}

/// A job takes the events that its filter selects and that failed before it began, and leaves the events of
/// another job alone.
pub async fn a_job_has_no_others_retried<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.fail(mail("1"), retry(at(90))).await;
    owner.fail(mail("late"), EventProgress { started: Some(at(50)), ..retry(at(90)) }).await;
    owner.fail(mail("other"), EventProgress { history: told("gone"), ..retry(at(90)) }).await;
    let groups = owner.store.failing(FailingQuery::default()).await.unwrap();
    let cause = groups.iter().find(|group| group.title.contains("gone")).unwrap().cause;
    let gone = owner.start_retries(Filter { cause: Some(cause), ..Filter::default() }, 10).await;
    assert_eq!(owner.retry_all(gone, 11).await.taken, 1);
    assert_eq!(owner.due_ids(at(11)).await, ["other"]);
    let all = owner.start_retries(Filter::default(), 20).await;
    let job = owner.retry_all(all, 21).await;
    assert_eq!((job.taken, job.skipped), (1, 1));
    assert_eq!(owner.due_ids(at(21)).await, ["1", "other"]);
    let other = owner.entry("other", at(21)).await;
    owner.settle(&other, at(22), EventChange::DoneWith { result: None, attempts: 2, history: None }).await;
    assert_eq!((owner.retries(gone).await.done, owner.retries(all).await.done), (1, 0));
}
