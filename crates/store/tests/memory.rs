//! The store in memory keeps every promise, with one shard and with several.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_store::{Memory, Store, Tx, memory};
use redrive_testkit::conformance::Subject;

/// With how many shards, the store.
struct InMemory<const SHARDS: u32>(Memory);

impl<const SHARDS: u32> Subject for InMemory<SHARDS> {
    async fn fresh() -> Self {
        Self(Memory::with_shards(SHARDS))
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    async fn crash_and_reopen(self) -> Self {
        Self(self.0.reopen())
    }

    fn effect(tx: &mut dyn Tx, name: &str) {
        let table = memory::table(tx).unwrap();
        table.insert(format!("{name} {}", table.len()), Vec::new());
    }

    async fn effects(&self) -> usize {
        self.0.table_snapshot().len()
    }
}

mod with_one_shard {
    redrive_testkit::conformance_tests!(super::InMemory<1>);
}

mod with_three_shards {
    redrive_testkit::conformance_tests!(super::InMemory<3>);
}

mod faults {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use redrive_core::entry::{Change, Entry, Load, Settle, Settled, StreamId};
    use redrive_core::triage::{Operator, Rule};
    use redrive_core::{Event, Moment};
    use redrive_store::memory::Fault;
    use redrive_store::operate::{Order, What};
    use redrive_store::{
        By, Claim, Job, Memory, New, Published, QueueSpec, Store, StoreError, Transacted, memory,
    };

    const AT: Moment = Moment::from_nanos(1);

    async fn store() -> Memory {
        let store = Memory::new();
        let (window, horizon) = (Duration::from_secs(9), Duration::from_secs(9));
        let queue =
            QueueSpec { name: "orders".to_owned(), ordered: true, window, horizon, ..QueueSpec::default() };
        store.declare(queue, By::Runner).await.unwrap();
        store
    }

    async fn publish(store: &Memory, id: &str) -> Result<bool, StoreError> {
        let answers = store.publish(vec![New::at(Event::new("orders", id), AT)]).await?;
        Ok(matches!(answers[..], [Ok(Published::Accepted(_))]))
    }

    async fn first(store: &Memory) -> (Entry, Claim) {
        let grant = store.take(0, AT).await.unwrap().grant;
        let (stream, live_max, retry_max, except) = (StreamId(1), 9, 9, Vec::new());
        let load = Load { grant, stream, until: AT, live_max, retry_max, bytes_max: usize::MAX, except };
        let entry = store.load(load).await.unwrap().entries.remove(0);
        let (seq, rev) = (entry.seq, entry.rev);
        (entry, Claim { grant, seq, rev, at: AT, attempts: 1, story: None })
    }

    async fn charge(store: &Memory, claim: &Claim) -> Result<Transacted, StoreError> {
        let work = |tx: &mut dyn redrive_store::Tx| {
            if tx.mark("charge", "1", Moment::FAR)? {
                let table = memory::table(tx).ok_or("another store")?;
                let effect = format!("charge {}", table.len());
                table.insert(effect, Vec::new());
            }
            Ok(None)
        };
        let (time, alone) = (Duration::from_secs(9), false);
        store.transact(Job { work: Box::new(work), claim: Some(claim.clone()), time, alone }).await
    }

    #[tokio::test]
    async fn before_the_commit_nothing_is_changed() {
        let store = store().await;
        store.fail_next(Fault::BeforeCommit);
        assert!(publish(&store, "1").await.is_err_and(|error| error.is_transient()));
        assert!(store.find("", "orders", "1").await.unwrap().is_none());
        assert!(publish(&store, "1").await.unwrap(), "one fault is for one commit");
    }

    #[tokio::test]
    async fn after_the_commit_the_answer_is_lost() {
        let store = store().await;
        store.fail_next(Fault::AfterCommit);
        assert!(matches!(publish(&store, "1").await, Err(StoreError::Unknown { .. })));
        assert!(!publish(&store, "1").await.unwrap());
        let (entry, claim) = first(&store).await;
        store.fail_next(Fault::AfterCommit);
        let (grant, seq, rev) = (claim.grant, entry.seq, entry.rev);
        let settle = Settle { grant, seq, rev, at: AT, change: Change::Done };
        let lost = store.settle(vec![settle.clone()]).await;
        assert!(matches!(lost, Err(StoreError::Unknown { .. })));
        assert_eq!(
            store.settle(vec![settle]).await.unwrap(),
            [Settled::Stale],
            "repeating tells that it happened"
        );
    }

    #[tokio::test]
    async fn what_changes_nothing_uses_up_no_fault() {
        let store = store().await;
        publish(&store, "1").await.unwrap();
        store.fail_next(Fault::BeforeCommit);
        assert!(!publish(&store, "1").await.unwrap());
        assert!(publish(&store, "2").await.is_err());
    }

    #[tokio::test]
    async fn after_a_failed_sync_nobody_is_answered_until_the_store_is_opened_again() {
        for lands in [true, false] {
            let store = store().await;
            store.fail_next(Fault::FailedSync { lands });
            assert!(matches!(publish(&store, "1").await, Err(StoreError::Unknown { .. })));
            assert!(matches!(publish(&store, "2").await, Err(StoreError::Poisoned { .. })));
            assert!(matches!(store.find("", "orders", "1").await, Err(StoreError::Poisoned { .. })));
            let store = store.reopen();
            assert_eq!(store.find("", "orders", "1").await.unwrap().is_some(), lands);
            assert_eq!(publish(&store, "1").await.unwrap(), !lands);
        }
    }

    #[tokio::test]
    async fn a_transaction_fails_as_a_whole() {
        for fault in [Fault::BeforeCommit, Fault::FailedSync { lands: false }] {
            let store = store().await;
            publish(&store, "1").await.unwrap();
            let (_, claim) = first(&store).await;
            store.fail_next(fault);
            assert!(charge(&store, &claim).await.is_err());
            let store = store.reopen();
            assert_eq!(store.table_snapshot().len(), 0);
            assert!(matches!(charge(&store, &claim).await, Ok(Transacted::Committed { .. })));
            assert_eq!(store.table_snapshot().len(), 1);
        }
    }

    /// Dies between two commits, if there are two, and does the work again where the event is still there.
    async fn effects_after_a_death_between_commits() -> usize {
        let store = store().await;
        publish(&store, "1").await.unwrap();
        let (_, claim) = first(&store).await;
        store.fail_next(Fault::BetweenCommits);
        assert!(matches!(charge(&store, &claim).await, Err(StoreError::Unknown { .. })));
        let store = store.reopen();
        let _ = charge(&store, &claim).await.unwrap();
        store.table_snapshot().len()
    }

    #[tokio::test]
    async fn an_order_fails_as_a_whole_with_its_line() {
        for lands in [None, Some(false), Some(true)] {
            let store = store().await;
            let told = Arc::new(Mutex::new(0));
            let hears = Arc::clone(&told);
            store.watch(Arc::new(move |_| *hears.lock().unwrap() += 1));
            let fault = lands.map_or(Fault::BeforeCommit, |lands| Fault::FailedSync { lands });
            store.fail_next(fault);
            let rule = Rule::Pause { queue: "orders".to_owned() };
            let what = What::Set { rule, until: None, why: String::new() };
            assert!(store.operate(Order { by: Operator::default(), at: AT, what }).await.is_err());
            assert_eq!(*told.lock().unwrap(), 0);
            let store = store.reopen();
            let there = usize::from(lands == Some(true));
            let controls = store.controls().await.unwrap();
            assert_eq!((controls.list.len(), controls.version), (there, there as u64));
            assert_eq!(store.audit(None, 0).await.unwrap().len(), there);
        }
    }

    #[tokio::test]
    async fn there_is_nothing_between_effect_and_marker() {
        assert_eq!(effects_after_a_death_between_commits().await, 1);
    }

    #[cfg(feature = "planted")]
    mod planted {
        use redrive_core::planted::{Flaw, plant};

        use super::*;

        #[tokio::test]
        async fn a_marker_in_a_second_commit_lets_the_effect_happen_twice() {
            plant(Some(Flaw::MarkerInSecondCommit));
            assert_eq!(effects_after_a_death_between_commits().await, 2);
        }

        #[tokio::test]
        async fn a_settle_before_the_effect_loses_the_effect() {
            plant(Some(Flaw::SettleBeforeEffect));
            assert_eq!(effects_after_a_death_between_commits().await, 0);
        }

        #[tokio::test]
        async fn a_look_after_a_failed_sync_finds_nothing_of_what_lands() {
            plant(Some(Flaw::LookUpAfterFailedSync));
            let store = store().await;
            store.fail_next(Fault::FailedSync { lands: true });
            assert!(publish(&store, "1").await.is_err());
            assert!(store.find("", "orders", "1").await.unwrap().is_none());
            assert!(store.reopen().find("", "orders", "1").await.unwrap().is_some());
        }
    }
}

/// Each flaw of a store is found by a promise, so that the promises are known to see.
#[cfg(feature = "planted")]
mod planted {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use redrive_core::planted::{Flaw, plant};
    use redrive_testkit::conformance;

    use super::InMemory;

    /// What a store can get wrong by itself, and the promise that is about it.
    const FOUND: [(Flaw, &str); 18] = [
        (Flaw::FenceOff, "a_stale_epoch_changes_nothing"),
        (Flaw::EpochWithoutRev, "a_stale_rev_changes_nothing"),
        (Flaw::DueOnlyHeads, "a_delayed_head_holds_up_its_key"),
        (Flaw::CursorLoads, "loads_find_everything_whatever_its_seq"),
        (Flaw::SettleBeforeEffect, "failed_work_leaves_nothing"),
        (Flaw::ReceiptGoesWithEvent, "identity_outlives_its_event"),
        (Flaw::ParkLeaks, "a_dead_letter_parks_its_key"),
        (Flaw::ParksOneMore, "parking_ends_at_its_count"),
        (Flaw::RedriveForgetsIdentity, "a_redrive_keeps_identity_and_place"),
        (Flaw::EditLosesPlace, "an_edit_takes_the_place_of_the_original"),
        (Flaw::RestoreAfterForgetting, "nothing_restorable_outlives_its_receipt"),
        (Flaw::RerouteAsMove, "a_reroute_keeps_queue_order_and_identity"),
        (Flaw::LateAckWins, "an_answer_after_it_was_leased_again_is_a_conflict"),
        (Flaw::LapsedTakesOlder, "a_late_answer_ends_the_letter_of_its_lapse"),
        (Flaw::RedriveKeepsLease, "a_letter_that_was_touched_takes_no_late_answer"),
        (Flaw::TwoJobsOneLetter, "two_jobs_put_a_letter_back_once"),
        (Flaw::RecallLost, "a_change_of_rules_is_recalled"),
        (Flaw::WithheldLeaks, "nothing_of_a_withheld_key_is_handed_out"),
    ];

    /// What shows only where there are several shards.
    const FOUND_WITH_SHARDS: [(Flaw, &str); 1] =
        [(Flaw::KeysGoNear, "a_key_stays_together_whatever_is_wished")];

    /// What shows only when a process dies at the right moment: see `faults`.
    const FOUND_BY_FAULTS: [Flaw; 2] = [Flaw::MarkerInSecondCommit, Flaw::LookUpAfterFailedSync];

    /// What the owner gets wrong, with a store that is right: only a simulation of the engine finds it.
    const OF_THE_ENGINE: [Flaw; 36] = [
        Flaw::NextBeforeCommit,
        Flaw::ArrivalsLostInLoad,
        Flaw::StaleLoad,
        Flaw::SuspectsInParallel,
        Flaw::StrikeAfterRun,
        Flaw::CrashCountsAsAttempt,
        Flaw::UnknownSettleForgotten,
        Flaw::LateAnswerWins,
        Flaw::ReleaseWhileRunning,
        Flaw::AnswersOfAnotherTime,
        Flaw::WindowForEachLoad,
        Flaw::LateAnswerNamesNext,
        Flaw::ExpiredRuns,
        Flaw::CareEndsEarly,
        Flaw::DrainStartsNoted,
        Flaw::StrikesWithoutDeath,
        Flaw::LettersForgotten,
        Flaw::DrainEndsCare,
        Flaw::SettlesTwice,
        Flaw::DueLostInLoad,
        Flaw::NotesLeftOut,
        Flaw::RetriesTooEarly,
        Flaw::RulesForgotten,
        Flaw::RecallMissesLoads,
        Flaw::RecallMissesNotes,
        Flaw::CareEndsBlind,
        Flaw::FlowsForgottenEarly,
        Flaw::PutBackUnheard,
        Flaw::NextBesideTakenAway,
        Flaw::RecallMissesAnswers,
        Flaw::KeyRunsTwice,
        Flaw::GivenWhileRunning,
        Flaw::GivingStartsNoted,
        Flaw::GivenAsClean,
        Flaw::LateFirstRuns,
        Flaw::NextMissedBySettle,
    ];

    /// Takes longer than all others together, and is about a bound that no flaw touches.
    const LEFT_OUT: &str = "too_many_causes_are_one_group";

    fn broken_by<const SHARDS: u32>(flaw: Option<Flaw>) -> Vec<&'static str> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        plant(flaw);
        let all = conformance::all::<InMemory<SHARDS>>().into_iter().filter(|(name, _)| *name != LEFT_OUT);
        let fails =
            |promise: fn() -> _| catch_unwind(AssertUnwindSafe(|| runtime.block_on(promise()))).is_err();
        let broken = all.filter(|(_, promise)| fails(*promise)).map(|(name, _)| name).collect();
        plant(None);
        broken
    }

    #[test]
    fn each_flaw_of_a_store_breaks_its_promise() {
        assert_eq!(broken_by::<1>(None), [""; 0]);
        for (flaw, promise) in FOUND {
            let broken = broken_by::<1>(Some(flaw));
            assert!(broken.contains(&promise), "{flaw:?} breaks only {broken:?}");
        }
        for (flaw, promise) in FOUND_WITH_SHARDS {
            let broken = broken_by::<3>(Some(flaw));
            assert!(broken.contains(&promise), "{flaw:?} breaks only {broken:?}");
        }
    }

    #[test]
    fn flaws_of_the_engine_break_no_promise_of_a_store() {
        for flaw in OF_THE_ENGINE.into_iter().chain(FOUND_BY_FAULTS) {
            assert_eq!(broken_by::<1>(Some(flaw)), [""; 0], "{flaw:?}");
        }
    }

    #[test]
    fn every_flaw_is_accounted_for() {
        let found = FOUND.into_iter().chain(FOUND_WITH_SHARDS).map(|(flaw, _)| flaw);
        let known = found.chain(FOUND_BY_FAULTS).chain(OF_THE_ENGINE);
        let known: Vec<_> = known.collect();
        let forgotten: Vec<_> = Flaw::ALL.iter().filter(|flaw| !known.contains(flaw)).collect();
        assert!(forgotten.is_empty(), "{forgotten:?}");
    }
}
