//! The plan of a run in words: the first lines of a trace. Defaults are left out.

use std::time::Duration;

use redrive_core::scheduler::AfterDead;

use super::{Plan, QueueSetup, Rates};

impl Plan {
    /// A line for the whole, and one for each queue.
    pub(in super::super) fn words(&self) -> Vec<String> {
        let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let mut words = vec![count(self.nodes, "node"), count(self.shards as usize, "shard")];
        words.extend(self.operators.then(|| "operators act".to_owned()));
        words.extend((self.give_back > 0).then(|| "nodes are asked for shards".to_owned()));
        words.extend(self.rates.words());
        let mut lines = vec![words.join(", ")];
        lines.extend(self.queues.iter().map(QueueSetup::words));
        lines
    }
}

impl Rates {
    /// The faults that may happen.
    fn words(&self) -> Option<String> {
        let rates = [
            ("crash", self.crash),
            ("take-over from the living", self.take_over),
            ("stop", self.drain),
            ("refused commit", self.refused_commit),
            ("commit of unknown outcome", self.unknown_commit),
            ("failed sync", self.failed_sync),
            ("death between commits", self.between_commits),
            ("lost acknowledgement", self.lost_answer),
            ("missed arrival", self.missed_arrival),
            ("failed load", self.failed_load),
            ("jump of the clock", self.jump),
            ("clock set back", self.backward),
            ("handler that kills", self.killers),
        ];
        let given: Vec<&str> =
            rates.into_iter().filter(|(_, rate)| *rate > 0).map(|(name, _)| name).collect();
        (!given.is_empty()).then(|| format!("faults: {}", given.join(", ")))
    }
}

impl QueueSetup {
    fn words(&self) -> String {
        let mut words = vec![format!("{} attempts of {:?}", self.attempts, self.attempt_time)];
        let mut when = |is: bool, word: String| words.extend(is.then_some(word));
        when(!self.ordered, "without order".to_owned());
        when(self.pull, "pulled by workers".to_owned());
        when(self.backoff > Duration::ZERO, format!("backoff {:?}", self.backoff));
        when(self.time.is_some(), format!("{:?} in all", self.time.unwrap_or_default()));
        when(true, format!("{} at a time", self.concurrency));
        when(true, format!("{} in memory", self.window));
        when(self.limit.is_some(), format!("a limit of {}", self.limit.unwrap_or(0)));
        when(self.budget, "a retry budget".to_owned());
        when(self.breaker, "a breaker".to_owned());
        when(self.after_dead != AfterDead::GoOn, format!("dead letters: {:?}", self.after_dead));
        when(self.keep.time.is_some(), format!("keeps letters {:?}", self.keep.time.unwrap_or_default()));
        when(self.keep.count.is_some(), format!("keeps {} letters", self.keep.count.unwrap_or(0)));
        format!("queue {}: {}", self.name, words.join(", "))
    }
}
