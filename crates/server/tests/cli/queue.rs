//! Queues, keys, quarantine, events and the audit by the program, against a server.

use crate::dead_letters::{die, engine, publish, succeed};
use crate::program::ask;
use crate::test_server::TestServer;

const ORDERED: &str =
    "[queues.orders]\norder = \"key\"\nafter_dead = \"park\"\n[queues.orders.pull]\n[queues.mails.pull]\n";

#[tokio::test]
async fn a_queue_is_paused_for_a_time_and_resumed() {
    let server = TestServer::open(ORDERED).await;
    publish(&server, "orders", "", None, &["a"]).await;
    let paused = ask(&server, &["queue", "pause", "orders", "--for", "30m", "--why", "a sale"]).await.fine();
    assert!(paused.out.starts_with("1 queue changed: orders: paused until 20"), "{paused:?}");
    let listed = ask(&server, &["queue", "ls"]).await.fine();
    let rows = listed.rows();
    assert_eq!(rows[0], ["QUEUE", "DELIVERY", "ORDER", "READY", "RULES"]);
    assert_eq!(
        (&rows[1][..3], &rows[2][..5]),
        (&["mails", "pull", "none"][..], &["orders", "pull", "key", "1", "pause"][..])
    );
    let shown = ask(&server, &["queue", "show", "orders"]).await.fine();
    assert!(shown.out.contains("a sale"), "{shown:?}");
    assert_eq!(
        ask(&server, &["queue", "resume", "orders"]).await.fine().out,
        "1 queue changed: orders: goes on\n"
    );
    let again = ask(&server, &["queue", "resume", "orders"]).await;
    assert_eq!((again.code, again.err.as_str()), (Some(1), "redrive: the queue orders is not paused\n"));
    let retries = ask(&server, &["queue", "pause", "orders", "--retries"]).await.fine();
    assert_eq!(retries.out, "1 queue changed: orders: its retries wait\n");
    let nowhere = ask(&server, &["queue", "pause", "nowhere"]).await;
    assert_eq!((nowhere.code, nowhere.err.as_str()), (Some(1), "redrive: there is no queue nowhere\n"));
    let pulled = ask(&server, &["queue", "reroute", "orders", "--to", "mails"]).await;
    assert!(pulled.err.contains("external workers lease its events"), "{pulled:?}");
    let wrong = ask(&server, &["queue", "pause", "orders", "--for", "soon"]).await;
    assert_eq!(wrong.code, Some(2));
}

#[tokio::test]
async fn a_queue_is_rerouted_and_sent_back() {
    let push = |name: &str| format!("[queues.{name}.push]\nurl = \"https://shop.example/{name}\"\n");
    let server = TestServer::open(&format!("{}{}", push("a"), push("b"))).await;
    let sent = ask(&server, &["queue", "reroute", "a", "--to", "b"]).await.fine();
    assert_eq!(sent.out, "1 queue changed: a: its events go to b\n");
    let rules = ask(&server, &["queue", "show", "a", "--json"]).await.fine().json();
    assert_eq!((&rules["rules"][0]["rule"], &rules["rules"][0]["to"]), (&"reroute".into(), &"b".into()));
    let back = ask(&server, &["queue", "reroute", "a", "--back"]).await.fine();
    assert_eq!(back.out, "1 queue changed: a: its events go to its own handler\n");
    assert_eq!(ask(&server, &["queue", "reroute", "a"]).await.code, Some(2));
}

#[tokio::test]
async fn a_key_is_looked_at_and_let_go() {
    let server = TestServer::open(ORDERED).await;
    publish(&server, "orders", "", Some("k/1"), &["a", "b", "c"]).await;
    die(&server, "orders").await;
    let shown = ask(&server, &["key", "show", "k/1", "--queue", "orders"]).await.fine();
    assert!(shown.out.contains("blocked by  a dead letter\n"), "{}", shown.out);
    let states: Vec<_> = shown
        .rows()
        .into_iter()
        .filter(|row| row.len() > 3)
        .map(|row| (row[0].to_owned(), row[1].to_owned()))
        .collect();
    let is = |id: &str, state: &str| states.contains(&(id.to_owned(), state.to_owned()));
    assert!(is("a", "dead") && is("b", "parked") && is("c", "parked"), "{states:?}");
    let key = ["k/1", "--queue", "orders"];
    let key = async |verb: &str| ask(&server, &[&["key", verb][..], &key].concat()).await;
    assert_eq!(key("skip-head").await.fine().out, "1 key changed: k/1: head skipped\n");
    assert_eq!(key("skip-head").await.err, "redrive: no dead letter blocks this key\n");
    assert_eq!(key("park").await.fine().out, "1 key changed: k/1: parked\n");
    assert_eq!(succeed(&server, "orders").await, 0);
    assert_eq!(key("unpark").await.fine().out, "1 key changed: k/1: goes on\n");
    assert_eq!(succeed(&server, "orders").await, 2);
}

#[tokio::test]
async fn tenants_and_keys_go_into_quarantine_and_out() {
    let server = TestServer::open(ORDERED).await;
    assert_eq!(ask(&server, &["quarantine", "ls"]).await.fine().err, "redrive: no quarantines\n");
    let added = ask(&server, &["quarantine", "add", "tenant=acme", "--for", "1h"]).await.fine();
    assert!(added.out.starts_with("1 rule changed: tenant=acme: in quarantine until 20"), "{added:?}");
    ask(&server, &["quarantine", "add", "key=k", "--queue", "orders"]).await.fine();
    let listed = ask(&server, &["quarantine", "ls"]).await.fine();
    let rules: Vec<_> = listed.rows().iter().skip(1).map(|row| row[0].to_owned()).collect();
    assert_eq!(rules.len(), 2, "{listed:?}");
    assert!(rules.iter().all(|rule| rule.starts_with("quarantine-")), "{listed:?}");
    ask(&server, &["quarantine", "rm", "tenant=acme"]).await.fine();
    ask(&server, &["quarantine", "rm", "key=k", "--queue", "orders"]).await.fine();
    let gone = ask(&server, &["quarantine", "rm", "tenant=acme"]).await;
    assert_eq!((gone.code, gone.err.as_str()), (Some(1), "redrive: there is no such rule\n"));
    assert!(ask(&server, &["quarantine", "add", "key=k"]).await.err.contains("add --queue"));
    assert!(
        ask(&server, &["quarantine", "add", "acme"]).await.err.contains("neither tenant=NAME nor key=KEY")
    );
}

#[tokio::test]
async fn events_that_wait_are_made_due_skipped_and_killed() {
    let server = TestServer::open(ORDERED).await;
    for id in ["a", "b", "c"] {
        let event = redrive::Event::new("mails", id).delay(std::time::Duration::from_secs(3600));
        engine(&server).publish(event).await.expect("it is kept");
    }
    let waiting = ask(&server, &["event", "ls", "--state", "waiting"]).await.fine();
    assert_eq!(waiting.rows()[1][..3], ["mails", "a", "waiting"]);
    assert!(waiting.out.contains("in 59m"), "{waiting:?}");
    assert_eq!(ask(&server, &["event", "retry-now", "a"]).await.fine().out, "1 event due now\n");
    assert_eq!(ask(&server, &["event", "kill", "b", "c"]).await.fine().out, "2 events dead now\n");
    assert_eq!(ask(&server, &["event", "skip", "a"]).await.fine().out, "1 event discarded\n");
    let running = ask(&server, &["event", "ls", "--state", "running"]).await.fine();
    assert_eq!(running.err, "redrive: no running events\n");
    let wrong = ask(&server, &["event", "ls", "--state", "sleeping"]).await;
    assert!(
        wrong.code == Some(1)
            && wrong.err.contains("events cannot be listed by state `sleeping`; use one of ready,"),
        "{wrong:?}"
    );
}

#[tokio::test]
async fn an_id_that_several_events_have_is_asked_about() {
    let server = TestServer::open(ORDERED).await;
    publish(&server, "orders", "", None, &["a"]).await;
    publish(&server, "mails", "", None, &["a"]).await;
    let which = ask(&server, &["event", "kill", "a"]).await;
    let told = "redrive: there are 2 events `a`; choose one: --queue mails, or --queue orders\n";
    assert_eq!((which.code, which.out.as_str(), which.err.as_str()), (Some(1), "", told));
    assert_eq!(
        ask(&server, &["event", "kill", "a", "--queue", "mails"]).await.fine().out,
        "1 event dead now\n"
    );
    assert_eq!(ask(&server, &["dead", "ls", "--json"]).await.fine().json()["events"][0]["queue"], "mails");
}

#[tokio::test]
async fn the_audit_says_who_did_what() {
    let server = TestServer::open(ORDERED).await;
    assert_eq!(ask(&server, &["audit", "ls"]).await.fine().err, "redrive: the audit log is empty\n");
    ask(&server, &["queue", "pause", "orders", "--why", "a sale"]).await.fine();
    ask(&server, &["queue", "resume", "orders"]).await.fine();
    let listed = ask(&server, &["audit", "ls", "--limit", "1"]).await.fine();
    let rows = listed.rows();
    assert_eq!(rows[0], ["NUMBER", "AT", "WHO", "FROM", "VERB", "TARGET", "COUNT", "NOTE"]);
    assert_eq!(rows[1][2..8], ["local", "127.0.0.1", "lift", "queue", "orders", "1"]);
    assert!(listed.err.contains("more lines: --before 2"), "{listed:?}");
    let exported = ask(&server, &["audit", "export"]).await.fine();
    assert_eq!((exported.out.lines().count(), exported.err.as_str()), (2, "redrive: 2 lines exported\n"));
}
