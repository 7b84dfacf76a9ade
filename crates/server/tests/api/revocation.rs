//! Campaign: a signing secret is replaced on one of three nodes while another is stopped. No signature with the old one is
//! made later than five seconds after the change, nor later than five seconds after the stopped node runs again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redrive_testkit::postgres::{self, a_name};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::campaign::{Program, scaled};
use crate::receiver::{Got, Receiver};
use crate::secrets::{keys, signers};
use crate::test_server::answer;

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time of day")
}

/// When something was signed, by the signature's own time.
fn signed(got: &Got) -> Duration {
    Duration::from_secs(got.text("webhook-timestamp").parse().expect("a time"))
}

fn folder(receiver: &Receiver, schema: &str, keys: &TempDir, node: usize) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = format!(
        "push.allow = [\"127.0.0.0/8\"]\n[store]\naddress = \"{}\"\nschema = \"{schema}\"\nshards = 6\nlease = \"3s\"\n\
         node = \"node-{node}\"\n[secrets]\nkey_file = \"{}\"\n[queues.orders.push]\nurl = \"http://{}/\"\n\
         secret = \"orders\"\n",
        postgres::Server::shared().url(),
        keys.path().join("a").display(),
        receiver.address
    );
    std::fs::write(folder.path().join("redrive.toml"), settings).expect("settings");
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn no_node_signs_with_a_revoked_secret_for_longer_than_five_seconds() {
    let mut receiver = Receiver::friendly().await;
    let (schema, keys) = (a_name("revocation"), keys(&["a"]));
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let folders: Vec<_> = (0..3).map(|node| folder(&receiver, &schema, &keys, node)).collect();
    let mut nodes = Vec::new();
    for folder in &folders {
        nodes.push(Program::start(folder.path()).await);
    }
    let put = async |node: &Program| {
        let (status, told) = answer(client.put(node.url("/v1/secrets/orders"))).await;
        assert_eq!(status, 200, "{told}");
        told["value"].as_str().expect("a secret").to_owned()
    };
    let old = put(&nodes[0]).await;
    let (url, sending) = (nodes[0].url("/v1/queues/orders/events"), client.clone());
    let publishing = tokio::spawn(async move {
        for id in 0_u64.. {
            // While a node is stopped, some publishes wait for its shards.
            let _ = sending.post(&url).json(&json!({ "id": id.to_string() })).send().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    // Sent with the old one, as it should be: the check below can find it.
    for _ in 0..scaled(20, 200) {
        assert_eq!(signers(&receiver.next().await, &[&old]), [old.as_str()]);
    }
    nodes[1].signal(Signal::STOP);
    let changed = now();
    let new = put(&nodes[0]).await;
    tokio::time::sleep(scaled(Duration::from_secs(7), Duration::from_secs(30))).await;
    nodes[1].signal(Signal::CONT);
    let ran_again = now();
    let (mut fresh, mut stale, mut seen) = (0, 0, 0);
    let end = tokio::time::Instant::now() + scaled(Duration::from_secs(8), Duration::from_secs(30));
    while let Ok(got) = tokio::time::timeout_at(end, receiver.next()).await {
        seen += 1;
        let by = signers(&got, &[&old, &new]);
        assert_eq!(by.len(), 1, "a replaced secret does not sign beside the new one");
        let at = signed(&got);
        if by[0] == new {
            fresh += 1;
            continue;
        }
        stale += 1;
        let after_change = at.saturating_sub(changed);
        let after_stop = at.saturating_sub(ran_again);
        // A signature's own time is in whole seconds.
        let is_late =
            after_change > Duration::from_secs(6) && (at < ran_again || after_stop > Duration::from_secs(5));
        assert!(
            !is_late,
            "an old signature {after_change:?} after the change, {after_stop:?} after the stop"
        );
    }
    publishing.abort();
    println!(
        "{seen} requests after the change: {fresh} with the new secret, {stale} with the old one in time"
    );
    assert!(fresh > 0, "the new secret signs");
}
