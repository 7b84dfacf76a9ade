//! Jobs: changes to many dead letters, a step at a time.

use redrive_core::event::State;
use redrive_core::queue_entry::{EventChange, ParkFollowers, Seq};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, Job, JobId, JobPlan, JobState, JobStrategy, RedriveOptions};
use redrive_store::operate::{EventAction, JobAdvance, OperatorAction, Refusal};

use crate::conformance::Subject;
use crate::conformance::desk::redrive;
use crate::conformance::owner::{MAILS, Owner, at, dead, mail, order, secs};

fn plan(filter: Filter, act: JobAct) -> JobPlan {
    JobPlan { filter, act, strategy: JobStrategy::default() }
}

fn all() -> JobPlan {
    plan(Filter::default(), JobAct::Redrive(RedriveOptions::default()))
}

impl<S: Subject> Owner<S> {
    async fn start(&self, plan: JobPlan, secs: u64) -> JobId {
        let done = self.operate(OperatorAction::Start(Box::new(plan)), at(secs)).await;
        assert_eq!((done.changed, &done.refused[..]), (1, &[][..]));
        done.job.unwrap()
    }

    async fn job(&self, id: JobId) -> Job {
        self.store.jobs(Some(id)).await.unwrap().remove(0)
    }

    async fn step(&self, job: JobId, from: Option<Seq>, most: u32, secs: u64) -> Job {
        let step = JobAdvance { job, from, most, at: at(secs) };
        self.store.advance(step).await.unwrap().unwrap()
    }

    /// Steps the job until it has looked at all events.
    async fn run(&self, id: JobId, most: u32, secs: u64) -> Job {
        let mut job = self.job(id).await;
        while !job.exhausted {
            let taken = job.taken;
            job = self.step(id, job.cursor, most, secs).await;
            assert!(job.taken - taken <= u64::from(most), "{job:?}");
        }
        job
    }

    async fn letters(&self, ids: &[&str]) {
        for id in ids {
            self.die(&mail(id), at(0), ParkFollowers::No).await;
        }
    }
}

/// A job is known from its start, with its plan.
pub async fn a_job_is_known_from_its_start<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.letters(&["1", "2", "3"]).await;
    owner.die(&order("4", "k"), at(0), ParkFollowers::UntilResolved).await;
    let plan = plan(Filter::queue(MAILS), JobAct::Discard);
    let first = owner.start(plan.clone(), 5).await;
    let second = owner.start(all(), 6).await;
    let owner = owner.crash().await;
    let job = owner.job(first).await;
    assert_eq!((job.id, &job.plan, job.state, job.who.as_str()), (first, &plan, JobState::Running, "ann"));
    assert_eq!((job.planned, job.taken, job.cursor, job.exhausted), (3, 0, None, false));
    assert_eq!((job.started, job.running_since, job.ended), (at(5), at(5), None));
    let listed = owner.store.jobs(None).await.unwrap();
    assert_eq!(listed.iter().map(|job| job.id).collect::<Vec<_>>(), [second, first]);
    assert_eq!(listed[0].planned, 4);
    assert_eq!(owner.store.jobs(Some(JobId(99))).await.unwrap(), []);
}

/// An invalid plan starts no job.
pub async fn a_senseless_plan_is_refused<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let canary = JobStrategy { canary: Some(0), ..JobStrategy::default() };
    let start = |plan| OperatorAction::Start(Box::new(plan));
    let refusal = owner.refused(start(JobPlan { strategy: canary, ..all() }), at(1)).await;
    assert!(matches!(refusal, Refusal::Senseless(_)), "{refusal:?}");
    let to = RedriveOptions { to: Some("nowhere".to_owned()), ..RedriveOptions::default() };
    let refusal = owner.refused(start(plan(Filter::default(), JobAct::Redrive(to))), at(1)).await;
    assert_eq!(refusal, Refusal::NoQueue { queue: "nowhere".to_owned() });
    assert_eq!(owner.store.jobs(None).await.unwrap(), []);
}

/// A job takes as many as a step allows, and continues from its position, also after a crash.
pub async fn a_job_goes_on_where_it_was<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.letters(&["1", "2", "3", "4", "5"]).await;
    let id = owner.start(all(), 1).await;
    let job = owner.step(id, None, 2, 2).await;
    assert_eq!((job.taken, job.exhausted), (2, false));
    assert_eq!(owner.due_ids(at(2)).await, ["1", "2"]);
    let owner = owner.crash().await;
    assert_eq!(owner.job(id).await, job);
    let job = owner.run(id, 2, 3).await;
    assert_eq!((job.taken, job.skipped, job.under_way()), (5, 0, 5));
    assert_eq!(owner.due_ids(at(3)).await, ["1", "2", "3", "4", "5"]);
    assert_eq!(owner.entry("5", at(3)).await.progress.due, at(3));
}

/// Repeating a step has no effect.
pub async fn a_step_is_taken_once<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.letters(&["1", "2", "3"]).await;
    let id = owner.start(all(), 1).await;
    let first = owner.step(id, None, 1, 2).await;
    assert_eq!(owner.step(id, None, 1, 3).await, first);
    assert_eq!(owner.step(id, Some(Seq(u64::MAX)), 1, 3).await, first);
    assert_eq!(owner.due_ids(at(3)).await, ["1"]);
    let unknown = JobAdvance { job: JobId(99), from: None, most: 1, at: at(3) };
    assert_eq!(owner.store.advance(unknown).await.unwrap(), None);
}

/// A job changes the dead letters that its filter selects, and no others.
pub async fn a_job_takes_what_its_filter_means<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.letters(&["1", "2"]).await;
    owner.die(&order("3", "k"), at(0), ParkFollowers::UntilResolved).await;
    owner.publish(mail("living"), at(0)).await;
    let filter = Filter { text: Some("2".to_owned()), ..Filter::queue(MAILS) };
    let id = owner.start(plan(filter, JobAct::Discard), 1).await;
    let job = owner.run(id, 100, 2).await;
    assert_eq!((job.planned, job.taken), (1, 1));
    assert_eq!(owner.state(&mail("2")).await, State::Discarded);
    assert_eq!(owner.state(&mail("1")).await, State::Dead);
    assert_eq!(owner.state(&order("3", "k")).await, State::Dead);
    owner.act(&mail("2"), EventAction::Restore, at(3)).await;
}

/// A job does not take a letter that died after it began: two jobs redrive a dead letter once.
pub async fn two_jobs_put_a_letter_back_once<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.letters(&["1"]).await;
    let first = owner.start(all(), 1).await;
    let second = owner.start(all(), 1).await;
    owner.run(first, 100, 2).await;
    // At the same moment: the number of the death decides, not the clock.
    owner.dies(&mail("1"), at(2), dead(ParkFollowers::No)).await;
    owner.die(&mail("2"), at(1), ParkFollowers::No).await;
    let job = owner.run(second, 100, 2).await;
    assert_eq!((job.taken, job.skipped), (0, 0));
    assert_eq!(owner.due_ids(at(9)).await, [""; 0]);
    assert_eq!(owner.job(first).await.failed, 1);
    let third = owner.start(all(), 3).await;
    assert_eq!(owner.run(third, 100, 4).await.taken, 2);
}

/// A dead letter that would run out of order is skipped and counted.
pub async fn a_job_passes_over_what_would_run_out_of_order<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2"] {
        owner.die(&order(id, "k"), at(0), ParkFollowers::No).await;
    }
    owner.die(&order("3", "k"), at(0), ParkFollowers::UntilResolved).await;
    let id = owner.start(all(), 1).await;
    let job = owner.run(id, 1, 2).await;
    assert_eq!((job.taken, job.skipped), (1, 2));
    assert_eq!(owner.due_ids(at(2)).await, ["3"]);
    let any = RedriveOptions { out_of_order: true, ..RedriveOptions::default() };
    let id = owner.start(plan(Filter::default(), JobAct::Redrive(any)), 3).await;
    let job = owner.run(id, 100, 4).await;
    assert_eq!((job.taken, job.skipped), (2, 0));
    assert_eq!(owner.due_ids(at(4)).await, ["1"], "in the order of the key");
}

/// A job counts the outcome of each dead letter that it redrove, once.
pub async fn a_job_hears_what_became_of_its_letters<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.letters(&["done", "with", "dead", "dropped", "expired", "discarded", "again", "killed"]).await;
    let id = owner.start(all(), 1).await;
    owner.run(id, 100, 2).await;
    let (attempts, history) = (1, None);
    let changes = [
        ("done", EventChange::Done),
        ("with", EventChange::DoneWith { result: None, attempts, history: None }),
        ("dead", dead(ParkFollowers::No)),
        ("dropped", EventChange::Dropped { attempts, history: None }),
        ("expired", EventChange::Expired { attempts, history }),
        ("again", EventChange::Retry(crate::conformance::owner::retry(at(3)))),
    ];
    for (id, change) in changes {
        let entry = owner.entry(id, at(2)).await;
        owner.settle_next(&entry, at(3), change).await;
    }
    owner.act(&mail("discarded"), EventAction::Discard, at(3)).await;
    owner.act(&mail("killed"), EventAction::Kill, at(3)).await;
    let owner = owner.crash().await;
    let job = owner.job(id).await;
    assert_eq!((job.taken, job.done, job.failed, job.other, job.under_way()), (8, 2, 2, 3, 1));
    owner.act(&mail("dead"), redrive(), at(4)).await;
    owner.dies(&mail("dead"), at(4), dead(ParkFollowers::No)).await;
    assert_eq!(owner.job(id).await.failed, 2, "that was another redrive");
    let entry = owner.entry("again", at(4)).await;
    owner.settle_next(&entry, at(5), EventChange::Done).await;
    assert_eq!(owner.job(id).await.under_way(), 0);
}

/// A job that is not running does nothing; a resumed job counts its rate from then on.
pub async fn a_job_can_be_paused_and_ended<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.letters(&["1", "2", "3"]).await;
    let id = owner.start(all(), 1).await;
    let before = owner.step(id, None, 1, 2).await;
    let turn = |to| OperatorAction::Turn(id, to, "because".to_owned());
    owner.done(turn(JobState::Paused), at(3)).await;
    let paused = owner.step(id, before.cursor, 1, 4).await;
    assert_eq!((paused.state, paused.taken, paused.why.as_str()), (JobState::Paused, 1, "because"));
    owner.done(turn(JobState::Running), at(5)).await;
    let running = owner.job(id).await;
    assert_eq!((running.running_since, running.taken_before, running.started), (at(5), 1, at(1)));
    assert_eq!(owner.step(id, running.cursor, 1, 6).await.taken, 2);
    owner.done(turn(JobState::Cancelled), at(7)).await;
    let over = owner.job(id).await;
    assert_eq!((over.state, over.ended), (JobState::Cancelled, Some(at(7))));
    assert_eq!(owner.step(id, over.cursor, 1, 8).await, over);
    let refusal = owner.refused(turn(JobState::Running), at(8)).await;
    assert_eq!(refusal, Refusal::JobOver { is: "cancelled" });
    let unknown = OperatorAction::Turn(JobId(99), JobState::Paused, String::new());
    assert_eq!(owner.refused(unknown, at(8)).await, Refusal::NoJob);
    assert_eq!(owner.due_ids(at(8)).await, ["1", "2"]);
}

/// A job announces the events that it redrives, as a command does.
pub async fn what_a_job_puts_back_is_told<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.letters(&["1"]).await;
    let id = owner.start(all(), 1).await;
    let arrivals = owner.watch();
    owner.run(id, 1, 2).await;
    assert!(crate::conformance::desk::told(&arrivals, "1"));
}

/// The list has the last hundred jobs, the latest first.
pub async fn the_last_jobs_are_told<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let first = owner.start(all(), 0).await;
    let mut last = first;
    for secs in 1..=100 {
        owner.done(OperatorAction::Turn(last, JobState::Cancelled, String::new()), at(secs)).await;
        last = owner.start(all(), secs).await;
    }
    let told = owner.store.jobs(None).await.unwrap();
    assert_eq!((told.len(), told[0].id), (100, last));
    assert!(told.iter().rev().map(|job| job.id).is_sorted_by(|a, b| a < b));
    assert_eq!(owner.job(first).await.id, first, "the others can be asked for");
}

/// An expired dead letter, which would end without a run, stays dead: alone and in a job.
pub async fn a_letter_whose_time_is_over_is_not_put_back<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&mail("1").expires_after(secs(10)), at(0), ParkFollowers::No).await;
    assert_eq!(owner.act_refused(&mail("1"), redrive(), at(10)).await, Refusal::Expired);
    let id = owner.start(all(), 10).await;
    let job = owner.run(id, 10, 10).await;
    assert_eq!((job.taken, job.skipped), (0, 1));
    assert_eq!(owner.state(&mail("1")).await, State::Dead);
    owner.act(&mail("1"), redrive(), at(9)).await;
    assert_eq!(owner.state(&mail("1")).await, State::Ready);
}

/// The list includes every job that has not ended, however many were started after it: the job runner relies
/// on it.
pub async fn a_job_that_is_not_over_is_told_however_old_it_is<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let first = owner.start(all(), 0).await;
    owner.done(OperatorAction::Turn(first, JobState::Paused, String::new()), at(1)).await;
    for _ in 0..101 {
        let later = owner.start(all(), 2).await;
        owner.done(OperatorAction::Turn(later, JobState::Cancelled, String::new()), at(3)).await;
    }
    owner.done(OperatorAction::Turn(first, JobState::Running, String::new()), at(4)).await;
    let told = owner.store.jobs(None).await.unwrap();
    assert!(told.iter().any(|job| job.id == first), "the job runner would not find it");
    assert_eq!(told.len(), 101, "the last hundred, and this one");
}
