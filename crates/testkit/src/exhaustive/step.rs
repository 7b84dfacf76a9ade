//! What may happen next.

/// What may happen next. Numbers are positions in lists of the world: pending messages, pending actions,
/// running attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// The process takes a shard, whether or not it has it.
    Take(u32),
    /// The third event is published.
    Publish,
    /// The scheduler receives a message.
    Hear(usize),
    /// The scheduler receives a message, and will receive it again.
    HearTwice(usize),
    /// The store performs an action of the scheduler.
    Do(usize),
    /// The action fails, and nothing happened.
    Fail(usize),
    /// The store performs it, and answers that the outcome is unknown.
    DoUnknown(usize),
    /// An attempt succeeds.
    Succeed(usize),
    /// An attempt fails, and is to be retried.
    Retry(usize),
    /// An operator changed something: events that have not started are to be loaded again.
    Recall,
    /// An operator pauses the queue, or resumes it.
    Pause(bool),
    /// The handoff of a shard begins.
    GiveBack(u32),
    /// Time advances to what the scheduler waits for.
    Wait,
}
