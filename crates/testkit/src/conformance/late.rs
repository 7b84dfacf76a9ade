//! Answers that come after the end of the last lease: the event is a dead letter, until its holder knows better.

use redrive_core::entry::{Change, Park, Progress};
use redrive_core::event::{DeadReason, State};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, JobPlan, Redrive, Strategy};
use redrive_store::lease::{Decide, LeaseSettled};
use redrive_store::operate::{Act, Advance, GroupQuery, What};

use super::Subject;
use super::desk::{edited, redrive, target};
use super::owner::{Owner, at};
use super::worker::{PULLED, after, again, conflict, dies, dispositions, done, held, lapsed, work};

/// Not to be tried again, for a reason of its own.
fn permanent(park: Park) -> Decide {
    Box::new(move |entry, _| {
        let (reason, progress) = (DeadReason::Permanent, after(entry, "permanent", 0));
        Change::Dead { reason, progress, park }
    })
}

fn dropped() -> Decide {
    Box::new(|entry, _| {
        let Progress { attempts, story, .. } = after(entry, "discard", 0);
        Change::Dropped { attempts, story }
    })
}

impl<S: Subject> Owner<S> {
    /// Some of a key, of which the first was leased twice and died at twenty seconds because nobody settled it.
    async fn lapsed(subject: S, ids: &[&str], park: Park) -> Self {
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

    async fn late(&self, when: u64, decide: Decide) -> LeaseSettled {
        self.settle_lease(held(&work("1"), 2, 2), when, decide).await
    }

    /// How many letters there are of each cause, and how many of them hold up their key.
    async fn counted(&self) -> Vec<(u64, u64)> {
        let groups = self.store.groups(GroupQuery::default()).await.unwrap();
        groups.iter().map(|group| (group.letters, group.keys_blocked)).collect()
    }

    async fn skip(&self, when: u64) {
        let (queue, tenant, key) = (PULLED.to_owned(), String::new(), "k".to_owned());
        self.done(What::SkipHead { queue, tenant, key }, at(when)).await;
    }
}

/// A late success ends the letter that the end of its lease made: its receipt says so, and its key goes on.
pub async fn a_late_answer_ends_the_letter_of_its_lapse<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1", "2"], Park::Stay).await;
    assert_eq!(owner.counted().await, [(1, 1)]);
    let before = owner.found(&work("1")).await;
    for wrong in [held(&work("1"), 1, 1), held(&work("1"), 2, 1), held(&work("1"), 1, 2)] {
        assert_eq!(conflict(owner.settle_lease(wrong.clone(), 50, done()).await), before, "{wrong:?}");
    }
    assert_eq!(lapsed(owner.extend(held(&work("1"), 2, 2), 50, 99).await), before);
    assert_eq!(owner.lease_ids(&[3], 50).await, [""; 0], "it holds up its key");
    assert_eq!(owner.late(51, done()).await, LeaseSettled::Applied);
    let owner = owner.crash().await;
    let found = owner.publish_again(work("1").key("k"), at(52)).await;
    assert_eq!((found.state, found.attempts, found.ended), (State::Done, 2, Some(at(51))));
    assert_eq!(dispositions(found.story.as_ref()), ["lapsed"], "of the first attempt alone");
    assert_eq!(owner.counted().await, []);
    assert_eq!(owner.late(53, done()).await, LeaseSettled::Already);
    assert_eq!(owner.lease_ids(&[3], 54).await, ["2"]);
}

/// Whoever says late that it is not needed ends the letter as well, also where its key has gone on.
pub async fn a_late_answer_ends_a_letter_that_was_passed<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1", "2", "3"], Park::Stay).await;
    owner.skip(30).await;
    assert_eq!(owner.lease_ids(&[3], 31).await, ["2"]);
    assert_eq!(owner.late(32, dropped()).await, LeaseSettled::Applied);
    let found = owner.found(&work("1")).await;
    assert_eq!((found.state, found.attempts), (State::Dropped, 2));
    assert_eq!(dispositions(found.story.as_ref()), ["lapsed", "discard"]);
    assert_eq!(owner.counted().await, []);
    assert_eq!(owner.lease_ids(&[4], 33).await, [""; 0], "somebody has the one of its key");
    conflict(owner.late(34, done()).await);
}

/// A late failure is what the letter died of: one attempt, one letter, and what waits behind it waits on.
pub async fn a_late_failure_is_the_cause_of_its_letter<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1", "2"], Park::Stay).await;
    let before = owner.found(&work("1")).await;
    assert_eq!(owner.late(50, permanent(Park::GoOn)).await, LeaseSettled::Applied);
    let owner = owner.crash().await;
    let found = owner.found(&work("1")).await;
    assert_eq!((found.state, found.reason, found.attempts), (State::Dead, Some(DeadReason::Permanent), 2));
    assert_eq!(dispositions(found.story.as_ref()), ["lapsed", "permanent"]);
    assert_eq!((found.rev > before.rev, found.cause == before.cause), (true, false));
    assert_eq!(owner.counted().await, [(1, 1)]);
    assert_eq!(owner.lease_ids(&[3], 51).await, [""; 0], "it holds up its key as before");
    assert_eq!(conflict(owner.late(52, done()).await), found, "it is settled");
    owner.act(&work("1"), redrive(), at(53)).await;
    assert_eq!(owner.lease_ids(&[3], 54).await, ["1"]);
}

/// Whose key went on holds up nobody anew, and is not tried again by itself.
pub async fn a_late_failure_brings_nobody_back_out_of_order<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1", "2"], Park::Stay).await;
    owner.skip(30).await;
    assert_eq!(owner.late(31, again("retry", 32)).await, LeaseSettled::Applied);
    let found = owner.found(&work("1")).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::AttemptsSpent)));
    assert_eq!(dispositions(found.story.as_ref()), ["lapsed", "retry"]);
    assert_eq!(owner.counted().await, [(1, 0)]);
    conflict(owner.late(32, done()).await);
    assert_eq!(owner.lease_ids(&[3, 4], 40).await, ["2"]);
}

/// A late failure that is worth another attempt gets one, in its turn.
pub async fn a_late_failure_may_be_tried_again<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1", "2"], Park::Stay).await;
    assert_eq!(owner.late(31, again("retry", 40)).await, LeaseSettled::Applied);
    let owner = owner.crash().await;
    assert_eq!(owner.state(&work("1")).await, State::Waiting);
    assert_eq!(owner.counted().await, []);
    assert_eq!(owner.lease_ids(&[3], 39).await, [""; 0]);
    let leased = owner.lease(&[3, 4], 40).await;
    let leased: Vec<_> = leased.entries.iter().map(|one| (&*one.event.id, one.progress.attempts)).collect();
    assert_eq!(leased, [("1", 2)]);
    conflict(owner.late(41, done()).await);
    assert_eq!(owner.settle_lease(held(&work("1"), 3, 3), 42, done()).await, LeaseSettled::Applied);
    assert_eq!(owner.lease_ids(&[5], 43).await, ["2"]);
}

/// What somebody has done to a letter since counts, and a late answer does not.
pub async fn a_letter_that_was_touched_takes_no_late_answer<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1"], Park::GoOn).await;
    owner.act(&work("1"), Act::Discard, at(30)).await;
    assert_eq!(conflict(owner.late(31, done()).await).state, State::Discarded);
    owner.act(&work("1"), Act::Restore, at(32)).await;
    assert_eq!(conflict(owner.late(33, done()).await).state, State::Dead);
    // Whatever is ordered of another letter.
    for (id, token) in [("put back", 3), ("kept", 4), ("edited", 5), ("killed", 6)] {
        owner.publish(work(id), at(40)).await;
        owner.lease(&[token], 40).await;
        let lapse = if id == "killed" { again("lapsed", 99) } else { dies(Park::GoOn) };
        assert_eq!(owner.lease_or(&[], 50, lapse).await.lapsed, 1);
        match id {
            "put back" => owner.act(&work(id), redrive(), at(51)).await,
            "kept" => {
                let kept = Redrive { keep_attempts: true, ..Redrive::default() };
                owner.act(&work(id), Act::Redrive(kept), at(51)).await;
            }
            "edited" => {
                let into = Box::new(edited(work("mended")));
                owner.done(What::Edit(target(&work(id)), into), at(51)).await;
            }
            _ => owner.act(&work(id), Act::Kill, at(51)).await,
        }
        let before = owner.found(&work(id)).await;
        let said = owner.settle_lease(held(&work(id), 1, token), 52, done()).await;
        assert_eq!(conflict(said), before, "{id}");
        let into = held(&work("mended"), 1, token);
        assert_ne!(owner.settle_lease(into, 52, done()).await, LeaseSettled::Applied);
        // Leased again, and gone.
        for entry in owner.lease(&[7], 53).await.entries {
            let said = owner.settle_lease(held(&work(id), 1, token), 54, done()).await;
            assert_ne!(said, LeaseSettled::Applied, "{id}");
            let attempt = entry.progress.attempts + 1;
            let taken = held(&work(&entry.event.id), attempt, 7);
            assert_eq!(owner.settle_lease(taken, 55, done()).await, LeaseSettled::Applied);
        }
    }
}

/// A letter is put back by a job or ended by a late answer, whichever comes first, and never both.
pub async fn a_job_and_a_late_answer_have_a_letter_once<S: Subject>(subject: S) {
    let owner = Owner::lapsed(subject, &["1"], Park::GoOn).await;
    for (id, token) in [("2", 3), ("3", 6)] {
        owner.publish(work(id), at(40)).await;
        owner.lease(&[token], 40).await;
    }
    assert_eq!(owner.lease_or(&[], 50, dies(Park::GoOn)).await.lapsed, 2);
    let act = JobAct::Redrive(Redrive { out_of_order: true, ..Redrive::default() });
    let plan = JobPlan { filter: Filter::queue(PULLED), act, strategy: Strategy::default() };
    let job = owner.operate(What::Start(Box::new(plan)), at(51)).await.job.unwrap();
    assert_eq!(owner.late(52, done()).await, LeaseSettled::Applied);
    let failed = owner.settle_lease(held(&work("3"), 1, 6), 52, permanent(Park::GoOn)).await;
    assert_eq!(failed, LeaseSettled::Applied);
    let advanced = owner.store.advance(Advance { job, from: None, most: 9, at: at(53) }).await;
    assert_eq!(advanced.unwrap().unwrap().taken, 1, "one is done, and one has died since it began");
    conflict(owner.settle_lease(held(&work("2"), 1, 3), 54, done()).await);
    assert_eq!(owner.lease_ids(&[4, 5], 55).await, ["2"]);
    assert_eq!(owner.settle_lease(held(&work("2"), 1, 4), 56, done()).await, LeaseSettled::Applied);
    let job = owner.store.jobs(Some(job)).await.unwrap().remove(0);
    assert_eq!((job.taken, job.done, job.failed, job.other), (1, 1, 0, 0));
    assert_eq!(owner.counted().await, [(1, 0)]);
}
