//! The nodes that share the store, and the shards each owns.

use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use redrive::store::nodes::{Node, NodeList};

use super::super::ApiProblem;
use super::super::wire::{self, NodeJson, NodesJson};
use super::OperatorContext;
use crate::app::App;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/nodes", get(list))
}

/// Lists the nodes. A store in a file has a single owner and lists none.
async fn list(context: OperatorContext) -> Result<Json<NodesJson>, ApiProblem> {
    context.may_read()?;
    context.caller.for_everything("the list of nodes")?;
    Ok(Json(match context.app.redrive.nodes().await? {
        None => NodesJson::default(),
        Some(nodes) => to_json(&nodes),
    }))
}

fn to_json(nodes: &NodeList) -> NodesJson {
    // A node that only reads is not part of the list.
    let counts = |node: &&Node| node.id != nodes.me || node.runs || nodes.owned_by(node.id) > 0;
    let is_owned = |owner: Option<_>| nodes.list.iter().any(|node| owner == Some(node.id));
    let shards = |fits: &dyn Fn(Option<redrive::store::nodes::NodeId>) -> bool| -> Vec<usize> {
        let all = nodes.shards.iter().enumerate();
        all.filter(|(_, row)| fits(row.owner)).map(|(shard, _)| shard).collect()
    };
    let node = |node: &Node| NodeJson {
        id: node.id.0,
        name: node.name.clone(),
        here: node.id == nodes.me,
        alive: node.is_alive(),
        runs: node.runs,
        since: wire::moment(node.since),
        lease_left_ms: u64::try_from(node.left.as_millis()).unwrap_or(u64::MAX),
        shards: shards(&|owner| owner == Some(node.id)),
    };
    NodesJson {
        shared: true,
        at: Some(wire::moment(nodes.at)),
        shards: Some(nodes.shards.len()),
        unowned: Some(shards(&|owner| !is_owned(owner))),
        nodes: nodes.list.iter().filter(counts).map(node).collect(),
    }
}
