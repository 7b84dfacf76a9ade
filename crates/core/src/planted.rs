//! Bugs on request.
//!
//! A simulation that finds nothing may be blind. So each rule that keeps the engine right has a weaker form
//! here, and the simulation must find it. One is on at a time, for the thread that runs the simulation.
//! Without the feature `planted` the question costs nothing, because the answer is known to the compiler.

/// The weaker forms, each named after what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flaw {
    /// Settles are written whoever owns the shard.
    FenceOff,
    /// Settles look at the epoch alone, not at the event's `rev`.
    EpochWithoutRev,
    /// The head of a key is the one that is due first, not the one that was published first.
    DueOnlyHeads,
    /// The next of a key is handed out when the one before is decided, before that is committed.
    NextBeforeCommit,
    /// Loads look only beyond the largest seq that was seen.
    CursorLoads,
    /// What arrives during a load is forgotten.
    ArrivalsLostInLoad,
    /// A load that began before a settle brings the settled event back. Two things forbid it: what is in memory
    /// is left out of the load, and what left memory since is left out of its answer. Neither is done here for
    /// what is being settled.
    StaleLoad,
    /// The event is settled in one commit and its effect follows in another.
    SettleBeforeEffect,
    /// The marker is in a second commit after the effect.
    MarkerInSecondCommit,
    /// After a commit of unknown fate a look that finds nothing counts as proof that nothing happened.
    LookUpAfterFailedSync,
    /// Suspects run side by side.
    SuspectsInParallel,
    /// A suspect runs before its strike is committed.
    StrikeAfterRun,
    /// A crash counts as an attempt.
    CrashCountsAsAttempt,
    /// The receipt goes with the event.
    ReceiptGoesWithEvent,
    /// A settle of unknown fate is taken for written, and not repeated.
    UnknownSettleForgotten,
    /// The late answer of an attempt that timed out settles the next one.
    LateAnswerWins,
    /// A dead letter that parks lets the next of its key go.
    ParkLeaks,
    /// A clean stop is noted while attempts are under way.
    ReleaseWhileRunning,
    /// Answers of an earlier time as the owner of a shard are taken for those of the present one.
    AnswersOfAnotherTime,
    /// Every load has the whole window to itself.
    WindowForEachLoad,
    /// The next of a key runs when an answer names it, however late that comes.
    LateAnswerNamesNext,
    /// An event that expires while it is noted runs all the same.
    ExpiredRuns,
    /// Care ends when one lane of a flow is loaded, whatever waits in the other.
    CareEndsEarly,
    /// What was being noted when a stop was ordered starts all the same.
    DrainStartsNoted,
    /// A strike whose fate was unknown is written once more.
    StrikesWithoutDeath,
    /// A dead letter whose time is over holds up its key for ever if that cannot be written at once.
    LettersForgotten,
    /// Care ends when a stop empties the memory.
    DrainEndsCare,
    /// The timer of a settle that failed repeats whatever is being settled when it fires.
    SettlesTwice,
    /// What comes due while a load is under way is forgotten.
    DueLostInLoad,
    /// In a careful shard nothing is noted before it runs.
    NotesLeftOut,
    /// A retry is due at once, whatever the policy or the other side says.
    RetriesTooEarly,
    /// A dead letter holds up one more than it may.
    ParksOneMore,
    /// Rules are not heeded.
    RulesForgotten,
    /// A load that was under way when an order came brings back what the order took away.
    RecallMissesLoads,
    /// An answer that was under way when an order came names an event that the order took away, and that runs.
    RecallMissesAnswers,
    /// An event that an operator puts back before its settle was answered is not looked for after that.
    PutBackUnheard,
    /// A flow is forgotten while a dead letter of it is being told to hold up nobody any more.
    FlowsForgottenEarly,
    /// Care ends by a load that left out what has left memory since without having ended.
    CareEndsBlind,
    /// What was being noted or struck when an order came starts all the same.
    RecallMissesNotes,
    /// The next of a key starts while the one before runs that an order took away.
    NextBesideTakenAway,
    /// An event that is put back out of order runs beside a later one of its key.
    KeyRunsTwice,
    /// What is put back loses its receipt, and whoever publishes its id again makes a second event.
    RedriveForgetsIdentity,
    /// What was edited goes to the end of its key.
    EditLosesPlace,
    /// What was discarded can be restored when its identity is forgotten.
    RestoreAfterForgetting,
    /// What is rerouted moves: another queue has it, and knows neither its order nor its identity.
    RerouteAsMove,
    /// Whoever settles a lease settles it, whichever attempt has it now.
    LateAckWins,
    /// A letter that died by the end of its last lease is settled by the holder of any lease before, too.
    LapsedTakesOlder,
    /// A letter that died by the end of its lease is settled by that lease though it was put back since.
    RedriveKeepsLease,
    /// A job takes letters that died after it began: those that another job put back.
    TwoJobsOneLetter,
    /// An order takes something out of the owner's hands, and the owner is not told.
    RecallLost,
    /// What is published to a key that an operator holds back runs, and so does the next of such a key.
    WithheldLeaks,
    /// A shard is given back while attempts of it are under way.
    GivenWhileRunning,
    /// What was being noted in a shard that is to be given back starts all the same.
    GivingStartsNoted,
    /// A shard is given back as clean, whatever its owner had reason to be careful of.
    GivenAsClean,
    /// An event starts beside a later one of its key that was committed, and began, before it.
    LateFirstRuns,
    /// The next of a key is published while the one before is being settled, and neither that settle nor a load finds
    /// it.
    NextMissedBySettle,
    /// Events with a key are kept in whichever shard their publisher wishes for.
    KeysGoNear,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 57] = [
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
        Self::FlowsForgottenEarly,
        Self::CareEndsBlind,
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
    ];
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Flaw>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in this thread, or takes it out.
#[cfg(feature = "planted")]
pub fn plant(flaw: Option<Flaw>) {
    PLANTED.set(flaw);
}

/// Whether this bug is planted.
#[cfg(feature = "planted")]
#[must_use]
pub fn has(flaw: Flaw) -> bool {
    PLANTED.get() == Some(flaw)
}

/// Whether this bug is planted: never, in what ships.
#[cfg(not(feature = "planted"))]
#[must_use]
#[inline(always)]
pub const fn has(_: Flaw) -> bool {
    false
}
