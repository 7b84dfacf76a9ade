//! Jobs and their plans, as JSON.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobJson {
    /// Its number.
    pub id: u64,
    /// Its state: `running`, `paused`, `done`, `stopped`, `cancelled`, and so on.
    pub state: String,
    /// Its action: `redrive`, `discard` or `retry-now`.
    pub act: String,
    /// Its filter, in the form of a request.
    pub filter: Value,
    /// Who started it.
    pub who: String,
    /// When it was started.
    pub started: String,
    /// Dead letters that matched when it was planned.
    pub planned: u64,
    /// Dead letters it has acted on.
    pub taken: u64,
    /// Dead letters it could not act on.
    pub skipped: u64,
    /// Of those redriven, events that are done.
    pub done: u64,
    /// Of those redriven, events that failed again.
    pub failed: u64,
    /// Of those redriven, events that ended otherwise.
    pub other: u64,
    /// Of those redriven, events that have not ended.
    pub under_way: u64,
    /// Why it stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Its maximum rate, per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// The time over which its rate ramps up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp: Option<String>,
    /// The number of events that go first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<u64>,
    /// The share of failures at which it stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_at: Option<f64>,
    /// The queue whose handler runs the events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Whether attempt counts are kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_attempts: bool,
    /// Whether events may run after later ones of their key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub out_of_order: bool,
}

/// The plan of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanJson {
    /// Matching dead letters.
    pub letters: u64,
    /// Keys they block.
    pub keys_blocked: u64,
    /// Of them, those behind which later events may have run.
    pub out_of_order: u64,
    /// Of them, those redriven before.
    pub redriven_before: u64,
    /// Of them, those whose earlier attempts may have taken effect.
    pub unsure: u64,
    /// The same by queue.
    pub queues: Vec<PlanQueueJson>,
    /// Some of their keys.
    pub keys: Vec<String>,
    /// The minimum duration.
    pub time: String,
    /// What to consider before starting.
    pub warnings: Vec<String>,
}

/// The dead letters of one queue in a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanQueueJson {
    /// The queue.
    pub queue: String,
    /// Its matching dead letters.
    pub letters: u64,
}
