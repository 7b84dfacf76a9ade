//! The store in memory keeps every guarantee, with one shard and with several.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_store::{Memory, Store, Tx, memory};
use redrive_testkit::conformance::Subject;

/// The store, with this many shards.
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

    use redrive_core::queue_entry::{
        EventChange, LoadRequest, QueueEntry, SettleRequest, SettleResult, StreamId,
    };
    use redrive_core::triage::{Operator, Rule};
    use redrive_core::{Event, Moment};
    use redrive_store::memory::InjectedFault;
    use redrive_store::operate::{OperatorAction, OperatorCommand};
    use redrive_store::{
        DeclaredBy, Memory, NewEvent, Published, QueueSpec, StoreError, TxJob, TxOutcome, TxSettle, memory,
        prelude::*,
    };

    const AT: Moment = Moment::from_nanos(1);

    async fn store() -> Memory {
        let store = Memory::new();
        let (window, horizon) = (Duration::from_secs(9), Duration::from_secs(9));
        let queue =
            QueueSpec { name: "orders".to_owned(), ordered: true, window, horizon, ..QueueSpec::default() };
        store.declare(queue, DeclaredBy::Runner).await.unwrap();
        store
    }

    async fn publish(store: &Memory, id: &str) -> Result<bool, StoreError> {
        let answers = store.publish(vec![NewEvent::at(Event::new("orders", id), AT)]).await?;
        Ok(matches!(answers[..], [Ok(Published::Accepted(_))]))
    }

    async fn first(store: &Memory) -> (QueueEntry, TxSettle) {
        let token = store.take(0, AT).await.unwrap().token;
        let (stream, live_max, retry_max, except) = (StreamId(1), 9, 9, Vec::new());
        let load =
            LoadRequest { token, stream, until: AT, live_max, retry_max, bytes_max: usize::MAX, except };
        let entry = store.load(load).await.unwrap().entries.remove(0);
        let (seq, rev) = (entry.seq, entry.rev);
        (entry, TxSettle { token, seq, rev, at: AT, attempts: 1, history: None })
    }

    async fn charge(store: &Memory, claim: &TxSettle) -> Result<TxOutcome, StoreError> {
        let work = |tx: &mut dyn redrive_store::Tx| {
            if tx.mark("charge", "1", Moment::FAR)? {
                let table = memory::table(tx).ok_or("another store")?;
                let effect = format!("charge {}", table.len());
                table.insert(effect, Vec::new());
            }
            Ok(None)
        };
        let (time, alone) = (Duration::from_secs(9), false);
        store.transact(TxJob { work: Box::new(work), claim: Some(claim.clone()), time, alone }).await
    }

    #[tokio::test]
    async fn before_the_commit_nothing_is_changed() {
        let store = store().await;
        store.fail_next(InjectedFault::BeforeCommit);
        assert!(publish(&store, "1").await.is_err_and(|error| error.is_transient()));
        assert!(store.find("", "orders", "1").await.unwrap().is_none());
        assert!(publish(&store, "1").await.unwrap(), "one fault is for one commit");
    }

    #[tokio::test]
    async fn after_the_commit_the_answer_is_lost() {
        let store = store().await;
        store.fail_next(InjectedFault::AfterCommit);
        assert!(matches!(publish(&store, "1").await, Err(StoreError::Unknown { .. })));
        assert!(!publish(&store, "1").await.unwrap());
        let (entry, claim) = first(&store).await;
        store.fail_next(InjectedFault::AfterCommit);
        let (token, seq, rev) = (claim.token, entry.seq, entry.rev);
        let settle = SettleRequest { token, seq, rev, at: AT, change: EventChange::Done };
        let lost = store.settle(vec![settle.clone()]).await;
        assert!(matches!(lost, Err(StoreError::Unknown { .. })));
        assert_eq!(
            store.settle(vec![settle]).await.unwrap(),
            [SettleResult::Stale],
            "repeating tells that it happened"
        );
    }

    #[tokio::test]
    async fn what_changes_nothing_uses_up_no_fault() {
        let store = store().await;
        publish(&store, "1").await.unwrap();
        store.fail_next(InjectedFault::BeforeCommit);
        assert!(!publish(&store, "1").await.unwrap());
        assert!(publish(&store, "2").await.is_err());
    }

    #[tokio::test]
    async fn after_a_failed_sync_nobody_is_answered_until_the_store_is_opened_again() {
        for lands in [true, false] {
            let store = store().await;
            store.fail_next(InjectedFault::FailedSync { lands });
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
        for fault in [InjectedFault::BeforeCommit, InjectedFault::FailedSync { lands: false }] {
            let store = store().await;
            publish(&store, "1").await.unwrap();
            let (_, claim) = first(&store).await;
            store.fail_next(fault);
            assert!(charge(&store, &claim).await.is_err());
            let store = store.reopen();
            assert_eq!(store.table_snapshot().len(), 0);
            assert!(matches!(charge(&store, &claim).await, Ok(TxOutcome::Committed { .. })));
            assert_eq!(store.table_snapshot().len(), 1);
        }
    }

    /// Dies between two commits, if there are two, and repeats the work if the event is still there.
    async fn effects_after_a_death_between_commits() -> usize {
        let store = store().await;
        publish(&store, "1").await.unwrap();
        let (_, claim) = first(&store).await;
        store.fail_next(InjectedFault::BetweenCommits);
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
            let fault =
                lands.map_or(InjectedFault::BeforeCommit, |lands| InjectedFault::FailedSync { lands });
            store.fail_next(fault);
            let rule = Rule::Pause { queue: "orders".to_owned() };
            let what = OperatorAction::Set { rule, until: None, why: String::new() };
            assert!(store.operate(OperatorCommand { by: Operator::default(), at: AT, what }).await.is_err());
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
        use redrive_core::planted::{PlantedBug, plant};

        use super::*;

        #[tokio::test]
        async fn a_marker_in_a_second_commit_lets_the_effect_happen_twice() {
            plant(Some(PlantedBug::MarkerInSecondCommit));
            assert_eq!(effects_after_a_death_between_commits().await, 2);
        }

        #[tokio::test]
        async fn a_settle_before_the_effect_loses_the_effect() {
            plant(Some(PlantedBug::SettleBeforeEffect));
            assert_eq!(effects_after_a_death_between_commits().await, 0);
        }

        #[tokio::test]
        async fn a_look_after_a_failed_sync_finds_nothing_of_what_lands() {
            plant(Some(PlantedBug::LookUpAfterFailedSync));
            let store = store().await;
            store.fail_next(InjectedFault::FailedSync { lands: true });
            assert!(publish(&store, "1").await.is_err());
            assert!(store.find("", "orders", "1").await.unwrap().is_none());
            assert!(store.reopen().find("", "orders", "1").await.unwrap().is_some());
        }
    }
}

/// Each planted bug of a store is found by a conformance function, so those functions are known to work.
#[cfg(feature = "planted")]
mod planted {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use redrive_core::planted::{PlantedBug, plant};
    use redrive_testkit::conformance;

    use super::InMemory;

    /// Bugs of a store by itself, and the conformance function that finds each.
    const FOUND: [(PlantedBug, &str); 18] = [
        (PlantedBug::FenceOff, "a_stale_epoch_changes_nothing"),
        (PlantedBug::EpochWithoutRev, "a_stale_rev_changes_nothing"),
        (PlantedBug::DueOnlyHeads, "a_delayed_head_holds_up_its_key"),
        (PlantedBug::CursorLoads, "loads_find_everything_whatever_its_seq"),
        (PlantedBug::SettleBeforeEffect, "failed_work_leaves_nothing"),
        (PlantedBug::ReceiptGoesWithEvent, "identity_outlives_its_event"),
        (PlantedBug::ParkLeaks, "a_dead_letter_parks_its_key"),
        (PlantedBug::ParksOneMore, "parking_ends_at_its_count"),
        (PlantedBug::RedriveForgetsIdentity, "a_redrive_keeps_identity_and_place"),
        (PlantedBug::EditLosesPlace, "an_edit_takes_the_place_of_the_original"),
        (PlantedBug::RestoreAfterForgetting, "nothing_restorable_outlives_its_receipt"),
        (PlantedBug::RerouteAsMove, "a_reroute_keeps_queue_order_and_identity"),
        (PlantedBug::LateAckWins, "an_answer_after_it_was_leased_again_is_a_conflict"),
        (PlantedBug::LapsedTakesOlder, "a_late_answer_ends_the_letter_of_its_lapse"),
        (PlantedBug::RedriveKeepsLease, "a_letter_that_was_touched_takes_no_late_answer"),
        (PlantedBug::TwoJobsOneLetter, "two_jobs_put_a_letter_back_once"),
        (PlantedBug::RecallLost, "a_change_of_rules_is_recalled"),
        (PlantedBug::WithheldLeaks, "nothing_of_a_withheld_key_is_handed_out"),
    ];

    /// Bugs that show only with several shards.
    const FOUND_WITH_SHARDS: [(PlantedBug, &str); 1] =
        [(PlantedBug::KeysGoNear, "a_key_stays_together_whatever_is_wished")];

    /// Bugs that show only when a process dies at the right moment: see `faults`.
    const FOUND_BY_FAULTS: [PlantedBug; 2] =
        [PlantedBug::MarkerInSecondCommit, PlantedBug::LookUpAfterFailedSync];

    /// Bugs of the owner, with a correct store: only a simulation of the engine finds them.
    const OF_THE_ENGINE: [PlantedBug; 38] = [
        PlantedBug::NextBeforeCommit,
        PlantedBug::ArrivalsLostInLoad,
        PlantedBug::StaleLoad,
        PlantedBug::SuspectsInParallel,
        PlantedBug::StrikeAfterRun,
        PlantedBug::CrashCountsAsAttempt,
        PlantedBug::UnknownSettleForgotten,
        PlantedBug::LateAnswerWins,
        PlantedBug::ReleaseWhileRunning,
        PlantedBug::AnswersOfAnotherTime,
        PlantedBug::WindowForEachLoad,
        PlantedBug::LateAnswerNamesNext,
        PlantedBug::ExpiredRuns,
        PlantedBug::CareEndsEarly,
        PlantedBug::DrainStartsNoted,
        PlantedBug::StrikesWithoutDeath,
        PlantedBug::LettersForgotten,
        PlantedBug::DrainEndsCare,
        PlantedBug::SettlesTwice,
        PlantedBug::DueLostInLoad,
        PlantedBug::NotesLeftOut,
        PlantedBug::RetriesTooEarly,
        PlantedBug::RulesForgotten,
        PlantedBug::RecallMissesLoads,
        PlantedBug::RecallMissesNotes,
        PlantedBug::PutBackUnheard,
        PlantedBug::NextBesideTakenAway,
        PlantedBug::RecallMissesAnswers,
        PlantedBug::KeyRunsTwice,
        PlantedBug::GivenWhileRunning,
        PlantedBug::GivingStartsNoted,
        PlantedBug::GivenAsClean,
        PlantedBug::LateFirstRuns,
        PlantedBug::NextMissedBySettle,
        PlantedBug::CareForgetsHeldBack,
        PlantedBug::HeldBackFreesLate,
        PlantedBug::CrossingForgotten,
        PlantedBug::AnswersUnmatched,
    ];

    /// Takes longer than all others together, and is about a bound that no planted bug touches.
    const LEFT_OUT: &str = "too_many_causes_are_one_group";

    fn broken_by<const SHARDS: u32>(flaw: Option<PlantedBug>) -> Vec<&'static str> {
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
        let forgotten: Vec<_> = PlantedBug::ALL.iter().filter(|flaw| !known.contains(flaw)).collect();
        assert!(forgotten.is_empty(), "{forgotten:?}");
    }
}
