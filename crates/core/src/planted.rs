//! Planted bugs: a check on the simulation.
//!
//! A simulation that finds nothing may be blind. Each rule that keeps the engine correct therefore has a
//! broken form here, and the simulation must find it. At most one is planted at a time, for the thread that
//! runs the simulation. Without the feature `planted` the check costs nothing, because the compiler knows the
//! answer.

/// The planted bugs, each named after what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PlantedBug {
    /// Settles are written whichever node owns the shard.
    FenceOff,
    /// Settles check only the epoch, not the event's `rev`.
    EpochWithoutRev,
    /// The head of a key is the event that is due first, not the one that was published first.
    DueOnlyHeads,
    /// The next event of a key is dispatched when the one before is decided, before that is committed.
    NextBeforeCommit,
    /// Loads look only beyond the largest sequence number seen.
    CursorLoads,
    /// Events that arrive during a load are lost.
    ArrivalsLostInLoad,
    /// A load that began before a settle brings the settled event back. Two rules forbid it: the load skips
    /// events in memory, and events that left memory since are removed from its answer. This bug breaks both
    /// for an event that is being settled.
    StaleLoad,
    /// The event is settled in one commit and its effect follows in another.
    SettleBeforeEffect,
    /// The inbox marker is in a second commit after the effect.
    MarkerInSecondCommit,
    /// After a commit with an unknown outcome, a lookup that finds nothing counts as proof that nothing
    /// happened.
    LookUpAfterFailedSync,
    /// Suspects run in parallel.
    SuspectsInParallel,
    /// A suspect runs before its crash count is committed.
    StrikeAfterRun,
    /// A crash counts as an attempt.
    CrashCountsAsAttempt,
    /// The dedupe record is deleted with the event.
    ReceiptGoesWithEvent,
    /// A settle with an unknown outcome counts as written and is not repeated.
    UnknownSettleForgotten,
    /// The late answer of an attempt that timed out settles the next one.
    LateAnswerWins,
    /// A dead letter that parks its key lets the next event of the key run.
    ParkLeaks,
    /// A clean stop is recorded while attempts are running.
    ReleaseWhileRunning,
    /// Answers from an earlier ownership of a shard are taken for those of the current one.
    AnswersOfAnotherTime,
    /// Every load has the whole window to itself.
    WindowForEachLoad,
    /// The next event of a key runs when an answer names it, however late that answer is.
    LateAnswerNamesNext,
    /// An event that expires while it is being noted runs all the same.
    ExpiredRuns,
    /// The crash guard ends when one lane of a flow is loaded, although the other lane still has events.
    CareEndsEarly,
    /// An event that was being noted when a stop was requested starts all the same.
    DrainStartsNoted,
    /// A crash count whose commit had an unknown outcome is written once more.
    StrikesWithoutDeath,
    /// A dead letter whose parking time is over parks its key for ever if the unpark cannot be written at
    /// once.
    LettersForgotten,
    /// The crash guard ends when a stop empties the memory.
    DrainEndsCare,
    /// The timer of a failed settle repeats whichever settle is pending when it fires.
    SettlesTwice,
    /// Events that become due while a load is running are lost.
    DueLostInLoad,
    /// In a shard with the crash guard on, events run without being noted.
    NotesLeftOut,
    /// A retry is due immediately, whatever the policy or the downstream says.
    RetriesTooEarly,
    /// A dead letter parks one event more than it may.
    ParksOneMore,
    /// Operators' rules are ignored.
    RulesForgotten,
    /// A load that was running when a command arrived brings back the events that the command took.
    RecallMissesLoads,
    /// An answer that was on its way when a command arrived names an event that the command took, and that
    /// event runs.
    RecallMissesAnswers,
    /// An event that an operator redrives before its settle was answered is not looked for after that.
    PutBackUnheard,
    /// An event that was being noted or counted when a command arrived starts all the same.
    RecallMissesNotes,
    /// The next event of a key starts while the one before it, which a command took, still runs.
    NextBesideTakenAway,
    /// An event that is redriven out of order runs beside a later event of its key.
    KeyRunsTwice,
    /// A redriven event loses its dedupe record, and a publisher that repeats its id makes a second event.
    RedriveForgetsIdentity,
    /// An edited event goes to the end of its key.
    EditLosesPlace,
    /// A discarded event can be restored after its dedupe record has expired.
    RestoreAfterForgetting,
    /// A rerouted event moves to another queue, which knows neither its order nor its identity.
    RerouteAsMove,
    /// Any holder of a lease settles the event, whichever attempt holds the lease now.
    LateAckWins,
    /// A dead letter that died when its last lease lapsed is also settled by the holder of an earlier lease.
    LapsedTakesOlder,
    /// A dead letter that died when its lease lapsed is settled by that lease although it was redriven since.
    RedriveKeepsLease,
    /// A job takes dead letters that died after it began: those that another job redrove.
    TwoJobsOneLetter,
    /// A command takes an event from its owner, and the owner is not notified.
    RecallLost,
    /// An event published to a key that an operator holds back runs, and so does the next event of such a
    /// key.
    WithheldLeaks,
    /// A shard is handed off while attempts of it are running.
    GivenWhileRunning,
    /// An event that was being noted in a shard under handoff starts all the same.
    GivingStartsNoted,
    /// A shard is handed off as clean although its owner had the crash guard on.
    GivenAsClean,
    /// An event starts beside a later event of its key that was committed, and started, before it.
    LateFirstRuns,
    /// The next event of a key is published while the one before is being settled, and neither that settle
    /// nor a load finds it.
    NextMissedBySettle,
    /// Events with a key are stored in whichever shard their publisher asks for.
    KeysGoNear,
    /// An event that was held back while the crash guard was on runs later without being noted.
    CareForgetsHeldBack,
    /// An event that is noted and then held back frees its slot after attempts have been dispatched already:
    /// nothing looks for another event to take that slot.
    HeldBackFreesLate,
    /// Two loads find a dead letter whose parking time is over, and the second makes the scheduler forget
    /// that an event arrived since the first.
    CrossingForgotten,
    /// The answer to one load or dispatch note is taken for the answer to the next.
    AnswersUnmatched,
}

impl PlantedBug {
    /// All planted bugs.
    pub const ALL: [PlantedBug; 59] = [
        Self::FenceOff,
        Self::EpochWithoutRev,
        Self::DueOnlyHeads,
        Self::NextBeforeCommit,
        Self::CursorLoads,
        Self::ArrivalsLostInLoad,
        Self::StaleLoad,
        Self::SettleBeforeEffect,
        Self::MarkerInSecondCommit,
        Self::LookUpAfterFailedSync,
        Self::SuspectsInParallel,
        Self::StrikeAfterRun,
        Self::CrashCountsAsAttempt,
        Self::ReceiptGoesWithEvent,
        Self::UnknownSettleForgotten,
        Self::LateAnswerWins,
        Self::ParkLeaks,
        Self::ReleaseWhileRunning,
        Self::AnswersOfAnotherTime,
        Self::WindowForEachLoad,
        Self::LateAnswerNamesNext,
        Self::ExpiredRuns,
        Self::CareEndsEarly,
        Self::DrainStartsNoted,
        Self::StrikesWithoutDeath,
        Self::LettersForgotten,
        Self::DrainEndsCare,
        Self::SettlesTwice,
        Self::DueLostInLoad,
        Self::NotesLeftOut,
        Self::RetriesTooEarly,
        Self::ParksOneMore,
        Self::RulesForgotten,
        Self::RecallMissesLoads,
        Self::RecallMissesAnswers,
        Self::PutBackUnheard,
        Self::RecallMissesNotes,
        Self::NextBesideTakenAway,
        Self::KeyRunsTwice,
        Self::RedriveForgetsIdentity,
        Self::EditLosesPlace,
        Self::RestoreAfterForgetting,
        Self::RerouteAsMove,
        Self::LateAckWins,
        Self::LapsedTakesOlder,
        Self::RedriveKeepsLease,
        Self::TwoJobsOneLetter,
        Self::RecallLost,
        Self::WithheldLeaks,
        Self::GivenWhileRunning,
        Self::GivingStartsNoted,
        Self::GivenAsClean,
        Self::LateFirstRuns,
        Self::NextMissedBySettle,
        Self::KeysGoNear,
        Self::CareForgetsHeldBack,
        Self::HeldBackFreesLate,
        Self::CrossingForgotten,
        Self::AnswersUnmatched,
    ];
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in this thread, or removes it.
#[cfg(feature = "planted")]
pub fn plant(flaw: Option<PlantedBug>) {
    PLANTED.set(flaw);
}

/// Whether this bug is planted.
#[cfg(feature = "planted")]
#[must_use]
pub fn has(flaw: PlantedBug) -> bool {
    PLANTED.get() == Some(flaw)
}

/// Whether this bug is planted: never, in a release.
#[cfg(not(feature = "planted"))]
#[must_use]
#[inline(always)]
pub const fn has(_: PlantedBug) -> bool {
    false
}
