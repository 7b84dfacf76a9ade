//! Settles that come after the last lease lapsed: the event is a dead letter until its worker reports
//! otherwise.

use redrive_core::event::{DeadReason, State};
use redrive_core::queue_entry::{EventChange, EventProgress, ParkFollowers};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, JobPlan, JobStrategy, RedriveOptions};
use redrive_store::lease::{DecideSettle, LeaseSettleResult};
use redrive_store::operate::{EventAction, GroupQuery, JobAdvance, OperatorAction};

use super::Subject;
use super::desk::{edited, redrive, target};
use super::owner::{Owner, at};
use super::worker::{PULLED, after, again, conflict, dies, dispositions, done, held, lapsed, work};

/// A permanent failure, with a reason of its own.
fn permanent(park: ParkFollowers) -> DecideSettle {
    Box::new(move |entry, _| {
        let (reason, progress) = (DeadReason::Permanent, after(entry, "permanent", 0));
        EventChange::Dead { reason, progress, park }
    })
}

fn dropped() -> DecideSettle {
    Box::new(|entry, _| {
        let EventProgress { attempts, history, .. } = after(entry, "drop", 0);
        EventChange::Dropped { attempts, history }
    })
}

impl<S: Subject> Owner<S> {
    /// Events of a key, of which the first was leased twice and died at twenty seconds because no worker
    /// settled it.
    async fn lapsed(subject: S, ids: &[&str], park: ParkFollowers) -> Self {
        let owner = Self::pulled(subject).await;
        for id in ids {
            owner.publish(work(id).key("k"), at(0)).await;
        }
        assert_eq!(owner.lease_ids(&[1], 0).await, [ids[0]]);
        owner.lease(&[], 10).await;
        assert_eq!(owner.lease_or(&[2], 11, done()).await.entries[0].progress.attempts, 1);
        assert_eq!(owner.lease_or(&[], 21, dies(park)).await.lapsed, 1);
        assert_eq!(owner.state(&work(ids[0])).await, State::Dead);
        owner.crash().await
    }

    async fn late(&self, when: u64, decide: DecideSettle) -> LeaseSettleResult {
        self.settle_lease(held(&work("1"), 2, 2), when, decide).await
    }

    /// How many dead letters each cause has, and how many of them park their key.
    async fn counted(&self) -> Vec<(u64, u64)> {
        let groups = self.store.groups(GroupQuery::default()).await.unwrap();
        groups.iter().map(|group| (group.letters, group.keys_blocked)).collect()
    }

    async fn skip(&self, when: u64) {
        let (queue, tenant, key) = (PULLED.to_owned(), String::new(), "k".to_owned());
        self.done(OperatorAction::SkipHead { queue, tenant, key }, at(when)).await;
    }
}

/// A late success ends the dead letter that the lapse made: its dedupe record says so, and its key is
/// unparked.
pub async fn a_late_answer_ends_the_letter_of_its_lapse<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1", "2"], ParkFollowers::UntilResolved).await;
    assert_eq!(owner.counted().await, [(1, 1)]);
    let before = owner.found(&work("1")).await;
    for wrong in [held(&work("1"), 1, 1), held(&work("1"), 2, 1), held(&work("1"), 1, 2)] {
        assert_eq!(conflict(owner.settle_lease(wrong.clone(), 50, done()).await), before, "{wrong:?}");
    }
    assert_eq!(lapsed(owner.extend(held(&work("1"), 2, 2), 50, 99).await), before);
    assert_eq!(owner.lease_ids(&[3], 50).await, [""; 0], "it holds up its key");
    assert_eq!(owner.late(51, done()).await, LeaseSettleResult::Applied);
    let owner = owner.crash().await;
    let found = owner.publish_again(work("1").key("k"), at(52)).await;
    assert_eq!((found.state, found.attempts, found.ended), (State::Done, 2, Some(at(51))));
    assert_eq!(dispositions(found.history.as_ref()), ["lapsed"], "of the first attempt alone");
    assert_eq!(owner.counted().await, []);
    assert_eq!(owner.late(53, done()).await, LeaseSettleResult::Already);
    assert_eq!(owner.lease_ids(&[3], 54).await, ["2"]);
}

/// A late drop ends the dead letter as well, also if its key was not parked.
pub async fn a_late_answer_ends_a_letter_that_was_passed<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1", "2", "3"], ParkFollowers::UntilResolved).await;
    owner.skip(30).await;
    assert_eq!(owner.lease_ids(&[3], 31).await, ["2"]);
    assert_eq!(owner.late(32, dropped()).await, LeaseSettleResult::Applied);
    let found = owner.found(&work("1")).await;
    assert_eq!((found.state, found.attempts), (State::Dropped, 2));
    assert_eq!(dispositions(found.history.as_ref()), ["lapsed", "drop"]);
    assert_eq!(owner.counted().await, []);
    assert_eq!(owner.lease_ids(&[4], 33).await, [""; 0], "a worker has another event of its key leased");
    conflict(owner.late(34, done()).await);
}

/// A late failure becomes the cause of the dead letter: one attempt, one dead letter, and parked events stay
/// parked.
pub async fn a_late_failure_is_the_cause_of_its_letter<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1", "2"], ParkFollowers::UntilResolved).await;
    let before = owner.found(&work("1")).await;
    assert_eq!(owner.late(50, permanent(ParkFollowers::No)).await, LeaseSettleResult::Applied);
    let owner = owner.crash().await;
    let found = owner.found(&work("1")).await;
    assert_eq!((found.state, found.reason, found.attempts), (State::Dead, Some(DeadReason::Permanent), 2));
    assert_eq!(dispositions(found.history.as_ref()), ["lapsed", "permanent"]);
    assert_eq!((found.rev > before.rev, found.cause == before.cause), (true, false));
    assert_eq!(owner.counted().await, [(1, 1)]);
    assert_eq!(owner.lease_ids(&[3], 51).await, [""; 0], "it holds up its key as before");
    assert_eq!(conflict(owner.late(52, done()).await), found, "it is settled");
    owner.act(&work("1"), redrive(), at(53)).await;
    assert_eq!(owner.lease_ids(&[3], 54).await, ["1"]);
}

/// If the key was not parked, a late failure does not park it, and is not retried by itself.
pub async fn a_late_failure_brings_nobody_back_out_of_order<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1", "2"], ParkFollowers::UntilResolved).await;
    owner.skip(30).await;
    assert_eq!(owner.late(31, again("retry", 32)).await, LeaseSettleResult::Applied);
    let found = owner.found(&work("1")).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::AttemptsSpent)));
    assert_eq!(dispositions(found.history.as_ref()), ["lapsed", "retry"]);
    assert_eq!(owner.counted().await, [(1, 0)]);
    conflict(owner.late(32, done()).await);
    assert_eq!(owner.lease_ids(&[3, 4], 40).await, ["2"]);
}

/// A late failure that is retryable is retried, in its turn.
pub async fn a_late_failure_may_be_tried_again<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1", "2"], ParkFollowers::UntilResolved).await;
    assert_eq!(owner.late(31, again("retry", 40)).await, LeaseSettleResult::Applied);
    let owner = owner.crash().await;
    assert_eq!(owner.state(&work("1")).await, State::Waiting);
    assert_eq!(owner.counted().await, []);
    assert_eq!(owner.lease_ids(&[3], 39).await, [""; 0]);
    let leased = owner.lease(&[3, 4], 40).await;
    let leased: Vec<_> = leased.entries.iter().map(|one| (&*one.event.id, one.progress.attempts)).collect();
    assert_eq!(leased, [("1", 2)]);
    conflict(owner.late(41, done()).await);
    assert_eq!(owner.settle_lease(held(&work("1"), 3, 3), 42, done()).await, LeaseSettleResult::Applied);
    assert_eq!(owner.lease_ids(&[5], 43).await, ["2"]);
}

/// If an operator changed the dead letter since, that counts, and a late settle does not.
pub async fn a_letter_that_was_touched_takes_no_late_answer<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1"], ParkFollowers::No).await;
    owner.act(&work("1"), EventAction::Discard, at(30)).await;
    assert_eq!(conflict(owner.late(31, done()).await).state, State::Discarded);
    owner.act(&work("1"), EventAction::Restore, at(32)).await;
    assert_eq!(conflict(owner.late(33, done()).await).state, State::Dead);
    // Commands for other dead letters do not matter.
    for (id, token) in [("put back", 3), ("kept", 4), ("edited", 5), ("killed", 6)] {
        owner.publish(work(id), at(40)).await;
        owner.lease(&[token], 40).await;
        let lapse = if id == "killed" { again("lapsed", 99) } else { dies(ParkFollowers::No) };
        assert_eq!(owner.lease_or(&[], 50, lapse).await.lapsed, 1);
        match id {
            "put back" => owner.act(&work(id), redrive(), at(51)).await,
            "kept" => {
                let kept = RedriveOptions { keep_attempts: true, ..RedriveOptions::default() };
                owner.act(&work(id), EventAction::Redrive(kept), at(51)).await;
            }
            "edited" => {
                let into = Box::new(edited(work("mended")));
                owner.done(OperatorAction::Edit(target(&work(id)), into), at(51)).await;
            }
            _ => owner.act(&work(id), EventAction::Kill, at(51)).await,
        }
        let before = owner.found(&work(id)).await;
        let said = owner.settle_lease(held(&work(id), 1, token), 52, done()).await;
        assert_eq!(conflict(said), before, "{id}");
        let into = held(&work("mended"), 1, token);
        assert_ne!(owner.settle_lease(into, 52, done()).await, LeaseSettleResult::Applied);
        // Leased again, and done.
        for entry in owner.lease(&[7], 53).await.entries {
            let said = owner.settle_lease(held(&work(id), 1, token), 54, done()).await;
            assert_ne!(said, LeaseSettleResult::Applied, "{id}");
            let attempt = entry.progress.attempts + 1;
            let taken = held(&work(&entry.event.id), attempt, 7);
            assert_eq!(owner.settle_lease(taken, 55, done()).await, LeaseSettleResult::Applied);
        }
    }
}

/// A job redrives a dead letter or a late settle ends it, whichever comes first, and never both.
pub async fn a_job_and_a_late_answer_have_a_letter_once<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1"], ParkFollowers::No).await;
    for (id, token) in [("2", 3), ("3", 6)] {
        owner.publish(work(id), at(40)).await;
        owner.lease(&[token], 40).await;
    }
    assert_eq!(owner.lease_or(&[], 50, dies(ParkFollowers::No)).await.lapsed, 2);
    let act = JobAct::Redrive(RedriveOptions { out_of_order: true, ..RedriveOptions::default() });
    let plan = JobPlan { filter: Filter::queue(PULLED), act, strategy: JobStrategy::default() };
    let job = owner.operate(OperatorAction::Start(Box::new(plan)), at(51)).await.job.unwrap();
    assert_eq!(owner.late(52, done()).await, LeaseSettleResult::Applied);
    let failed = owner.settle_lease(held(&work("3"), 1, 6), 52, permanent(ParkFollowers::No)).await;
    assert_eq!(failed, LeaseSettleResult::Applied);
    let advanced = owner.store.advance(JobAdvance { job, from: None, most: 9, at: at(53) }).await;
    assert_eq!(advanced.unwrap().unwrap().taken, 1, "one is done, and one has died since it began");
    conflict(owner.settle_lease(held(&work("2"), 1, 3), 54, done()).await);
    assert_eq!(owner.lease_ids(&[4, 5], 55).await, ["2"]);
    assert_eq!(owner.settle_lease(held(&work("2"), 1, 4), 56, done()).await, LeaseSettleResult::Applied);
    let job = owner.store.jobs(Some(job)).await.unwrap().remove(0);
    assert_eq!((job.taken, job.done, job.failed, job.other), (1, 1, 0, 0));
    assert_eq!(owner.counted().await, [(1, 0)]);
}
