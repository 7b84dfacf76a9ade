//! The processes that share the store, and who of them owns which shard.

use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use redrive::store::nodes::{Node, Nodes};
use serde_json::{Value, json};

use super::super::{Problem, wire};
use super::Seat;
use crate::app::App;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/nodes", get(list))
}

/// Who there is. A store in a file has one owner at a time, and knows of no others.
async fn list(seat: Seat) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    seat.for_all_tenants("the list of nodes")?;
    Ok(Json(match seat.app.redrive.nodes().await? {
        None => json!({ "shared": false, "nodes": [] }),
        Some(nodes) => view(&nodes),
    }))
}

fn view(nodes: &Nodes) -> Value {
    // Whoever only asks is no part of the answer.
    let counts = |node: &&Node| node.id != nodes.me || node.runs || nodes.owned_by(node.id) > 0;
    let is_owned = |owner: Option<_>| nodes.list.iter().any(|node| owner == Some(node.id));
    let shards = |fits: &dyn Fn(Option<redrive::store::nodes::NodeId>) -> bool| -> Vec<usize> {
        let all = nodes.shards.iter().enumerate();
        all.filter(|(_, row)| fits(row.owner)).map(|(shard, _)| shard).collect()
    };
    let node = |node: &Node| {
        json!({
            "id": node.id.0,
            "name": node.name,
            "here": node.id == nodes.me,
            "alive": node.is_alive(),
            "runs": node.runs,
            "since": wire::moment(node.since),
            "lease_left_ms": u64::try_from(node.left.as_millis()).unwrap_or(u64::MAX),
            "shards": shards(&|owner| owner == Some(node.id)),
        })
    };
    json!({
        "shared": true,
        "at": wire::moment(nodes.at),
        "shards": nodes.shards.len(),
        "unowned": shards(&|owner| !is_owned(owner)),
        "nodes": nodes.list.iter().filter(counts).map(node).collect::<Vec<_>>(),
    })
}
