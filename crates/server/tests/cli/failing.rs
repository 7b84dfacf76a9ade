//! Events that fail and are retried: seen, and drained.

use crate::dead_letters::{fail, publish, succeed, until};
use crate::program::ask;
use crate::test_server::TestServer;

/// Nothing is due again by itself while a test runs.
const QUEUES: &str = "[queues.orders]\npull = {}\n[queues.orders.policy]\njitter = \"none\"\n\
                      backoff.constant.delay = \"1h\"\n[queues.mails]\npull = {}\n[queues.mails.policy]\n\
                      jitter = \"none\"\nbackoff.constant.delay = \"1h\"\n";

#[tokio::test]
async fn what_fails_is_seen_in_groups_and_attempted_again_by_one_command() {
    let server = TestServer::open(QUEUES).await;
    assert_eq!(ask(&server, &["failing", "groups"]).await.fine().err, "redrive: no event is failing\n");
    publish(&server, "orders", "", None, &["a1", "a2"]).await;
    publish(&server, "mails", "", None, &["b1"]).await;
    fail(&server, "orders").await;
    fail(&server, "mails").await;
    let groups = ask(&server, &["failing", "groups", "--json"]).await.fine().json();
    let group = &groups["groups"][0];
    assert_eq!(
        (&group["events"], &group["title"]),
        (&3.into(), &"Shop 503: no room for #".into()),
        "{groups}"
    );
    let cause = group["cause"].as_str().expect("a cause");
    let table = ask(&server, &["failing", "groups", "--queue", "orders"]).await.fine();
    assert_eq!(table.rows()[1][..2], [cause, "2"], "{table:?}");
    let (_, dead) = server.get("/v1/dead/groups").await;
    assert_eq!(dead["groups"], serde_json::json!([]), "nothing is dead");

    let unsure = ask(&server, &["event", "retry-now"]).await;
    assert_eq!((unsure.code, unsure.err.contains("confirm with --yes")), (Some(1), true), "{unsure:?}");
    let none = ask(&server, &["event", "retry-now", "--group", "zz"]).await;
    assert!(none.code == Some(1) && none.err.contains("redrive failing groups"), "{none:?}");
    let begun = ask(&server, &["event", "retry-now", "--queue", "orders", "--canary", "1"]).await.fine();
    assert_eq!(begun.out, "job 1: retry-now of 2 retrying events\n");
    until(&server, "/v1/jobs/1", |job| job["taken"] == 1).await;
    assert_eq!(succeed(&server, "orders").await, 1, "the canary goes first");
    until(&server, "/v1/jobs/1", |job| job["taken"] == 2).await;
    assert_eq!(succeed(&server, "orders").await, 1);
    let watched = ask(&server, &["job", "watch", "1"]).await.fine();
    assert_eq!(watched.out, "job 1: done, 2 taken, 2 done\n");

    let again = ask(&server, &["event", "retry-now", "--group", &cause[..6]]).await.fine();
    assert_eq!(again.out, "job 2: retry-now of 1 retrying event\n");
    until(&server, "/v1/jobs/2", |job| job["taken"] == 1).await;
    assert_eq!(fail(&server, "mails").await, 1);
    let watched = ask(&server, &["job", "watch", "2"]).await;
    assert_eq!((watched.code, watched.out.as_str()), (Some(1), "job 2: done, 1 taken, 1 failed again\n"));
    assert!(watched.err.contains("1 event still failing; see `redrive failing groups`"), "{watched:?}");
    assert_eq!(ask(&server, &["event", "retry-now", "b1"]).await.fine().out, "1 event due now\n");
    let metrics =
        server.client.get(server.url("/metrics")).send().await.expect("metrics").text().await.expect("text");
    assert!(metrics.contains("redrive_retrying{queue=\"mails\"} 1\n"), "{metrics}");
    assert!(metrics.contains("redrive_oldest_failing_seconds{queue=\"mails\"}"), "{metrics}");
}

#[tokio::test]
async fn an_id_is_found_whatever_its_tenant_and_queue_also_when_it_is_done() {
    let mut server = TestServer::open(QUEUES).await;
    publish(&server, "orders", "acme", None, &["a"]).await;
    publish(&server, "mails", "", None, &["b"]).await;
    publish(&server, "mails", "acme", None, &["b"]).await;
    fail(&server, "orders").await;
    let waiting = ask(&server, &["event", "show", "a"]).await.fine();
    assert!(waiting.out.contains("\nerror      Shop 503: no room for a\n"), "{}", waiting.out);
    ask(&server, &["event", "retry-now", "a"]).await.fine();
    succeed(&server, "orders").await;
    let done = ask(&server, &["event", "show", "a"]).await.fine();
    assert!(
        done.out.contains("state       done\n") && done.out.contains("tenant      acme\n"),
        "{}",
        done.out
    );
    assert!(done.out.contains("last error  Shop 503: no room for a\n"), "{}", done.out);
    assert!(done.out.contains("attempts    2\n"), "{}", done.out);
    let two = ask(&server, &["event", "show", "b"]).await;
    assert_eq!(two.code, Some(1));
    assert!(
        two.err.contains("there are 2 events `b`; choose one: --queue mails, or --queue mails --tenant acme"),
        "{two:?}"
    );
    let none = ask(&server, &["event", "show", "zz"]).await;
    assert!(none.err.contains("there is no event `zz`"), "{none:?}");

    // The queues of a file are known without its configuration.
    server.stop().await;
    let file = server.folder.path().join("redrive.db");
    let elsewhere = tempfile::tempdir().expect("a folder");
    let args = ["queue", "ls", "--store", &format!("sqlite:{}", file.display())];
    let queues = crate::program::run(elsewhere.path(), &args, &[], "").await.fine();
    let names: Vec<&str> = queues.rows().iter().skip(1).map(|row| row[0]).collect();
    assert_eq!(names, ["mails", "orders"]);
}
