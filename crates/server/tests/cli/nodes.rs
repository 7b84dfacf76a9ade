//! `redrive nodes`: over a file, over a server, and straight at a database that several servers share.

use std::time::{Duration, Instant};

use redrive_server::config::Config;
use redrive_server::serve::Server;
use redrive_testkit::postgres::{self, a_name};

use crate::program::{ask, run};
use crate::test_server::TestServer;

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_file_has_one_owner_and_no_nodes() {
    let mut server = TestServer::open("").await;
    let asked = ask(&server, &["nodes"]).await.fine();
    assert_eq!(asked.out, "");
    assert!(asked.err.contains("a single owner"), "{asked:?}");
    let json = ask(&server, &["nodes", "--json"]).await.fine().json();
    assert_eq!(json, serde_json::json!({ "shared": false, "nodes": [] }));
    server.stop().await;
    let straight =
        run(server.folder.path(), &["nodes", "--store", "sqlite:redrive.db"], &[], "").await.fine();
    assert_eq!(straight.out, "");
}

async fn serve(schema: &str, node: &str) -> Server {
    let settings = format!(
        "[store]\nschema = \"{schema}\"\nshards = 6\nlease = \"1m\"\nnode = \"{node}\"\n[queues.orders.pull]\n"
    );
    let mut config: Config = toml::from_str(&settings).expect("settings");
    config.server.listen.set_port(0);
    config.store.address = postgres::Server::shared().url();
    config.check().expect("settings that can be meant");
    Server::start(config).await.expect("a server")
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_share_a_database_are_listed_with_what_they_own() {
    let schema = a_name("servers");
    let (one, two) = (serve(&schema, "one").await, serve(&schema, "t\u{202e}wo").await);
    let folder = tempfile::tempdir().expect("a folder");
    let url = postgres::Server::shared().url();
    let variables = [("REDRIVE_STORE_SCHEMA", schema.as_str())];
    let straight = async |more: &[&str]| {
        let args = [&["nodes", "--store", url.as_str()], more].concat();
        run(folder.path(), &args, &variables, "").await.fine()
    };
    let began = Instant::now();
    let listed = loop {
        let listed = straight(&["--json"]).await.json();
        let owned = |node: &serde_json::Value| node["shards"].as_array().map(Vec::len);
        let nodes = listed["nodes"].as_array().expect("nodes").clone();
        if nodes.iter().map(owned).collect::<Vec<_>>() == [Some(3), Some(3)] {
            break listed;
        }
        assert!(began.elapsed() < PATIENCE, "{listed:#}");
    };
    assert_eq!((&listed["shared"], &listed["shards"]), (&true.into(), &6.into()), "{listed:#}");
    assert_eq!(listed["unowned"], serde_json::json!([]), "{listed:#}");
    let node = &listed["nodes"][0];
    assert_eq!((&node["name"], &node["alive"], &node["runs"]), (&"one".into(), &true.into(), &true.into()));
    assert!(node["lease_left_ms"].as_u64().is_some_and(|left| left > 1_000 && left <= 60_000), "{node:#}");
    let table = straight(&[]).await;
    assert_eq!(table.rows()[0], ["NODE", "NAME", "STATE", "SINCE", "LEASE", "LEFT", "SHARDS", "WHICH"]);
    assert_eq!(table.rows().len(), 3, "the asking process is not in it: {table:?}");
    assert!(!table.out.contains('\u{202e}'), "{table:?}");
    let asked = format!("http://{}", one.address());
    let by_server = run(folder.path(), &["nodes", "--url", &asked, "--json"], &[], "").await.fine().json();
    let here = |node: &serde_json::Value| node["here"] == true;
    let nodes = by_server["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.iter().map(here).collect::<Vec<_>>(), [true, false], "{by_server:#}");
    two.stop(Duration::from_secs(5)).await.expect("a clean stop");
    let left = straight(&["--json"]).await.json();
    assert_eq!(left["nodes"].as_array().map(Vec::len), Some(1), "who stops is gone: {left:#}");
    one.stop(Duration::from_secs(5)).await.expect("a clean stop");
}
