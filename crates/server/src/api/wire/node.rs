//! The nodes that share a store, as JSON.

use serde::{Deserialize, Serialize};

/// The response of `GET /v1/nodes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodesJson {
    /// Whether several processes share the store.
    pub shared: bool,
    /// The time of the list, by the database's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The number of shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<usize>,
    /// Shards without an owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unowned: Option<Vec<usize>>,
    /// The nodes.
    pub nodes: Vec<NodeJson>,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeJson {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Whether it is the node that responds.
    pub here: bool,
    /// Whether its lease is still valid.
    pub alive: bool,
    /// Whether it runs queues.
    pub runs: bool,
    /// When it joined.
    pub since: String,
    /// The rest of its lease, in milliseconds.
    pub lease_left_ms: u64,
    /// The shards it owns.
    pub shards: Vec<usize>,
}
