//! Queues, keys, quarantine, events and the audit by the program, against a server.

use crate::house::House;
use crate::letters::{die, engine, publish, succeed};
use crate::program::ask;

const ORDERED: &str =
    "[queues.orders]\norder = \"key\"\nafter_dead = \"park\"\n[queues.orders.pull]\n[queues.mails.pull]\n";

#[tokio::test]
async fn a_queue_is_paused_for_a_time_and_resumed() {
    let house = House::open(ORDERED).await;
    publish(&house, "orders", "", None, &["a"]).await;
    let paused = ask(&house, &["queue", "pause", "orders", "--for", "30m", "--why", "a sale"]).await.fine();
    assert!(paused.out.starts_with("1 queue changed: orders: paused until 20"), "{paused:?}");
    let listed = ask(&house, &["queue", "ls"]).await.fine();
    let rows = listed.rows();
    assert_eq!(rows[0], ["QUEUE", "GOES", "ORDER", "READY", "RULES"]);
    assert_eq!(
        (&rows[1][..3], &rows[2][..5]),
        (&["mails", "pull", "none"][..], &["orders", "pull", "key", "1", "pause"][..])
    );
    let shown = ask(&house, &["queue", "show", "orders"]).await.fine();
    assert!(shown.out.contains("a sale"), "{shown:?}");
    assert_eq!(
        ask(&house, &["queue", "resume", "orders"]).await.fine().out,
        "1 queue changed: orders: goes on\n"
    );
    let again = ask(&house, &["queue", "resume", "orders"]).await;
    assert_eq!((again.code, again.err.as_str()), (Some(1), "redrive: the queue orders is not paused\n"));
    let retries = ask(&house, &["queue", "pause", "orders", "--retries"]).await.fine();
    assert_eq!(retries.out, "1 queue changed: orders: its retries wait\n");
    let nowhere = ask(&house, &["queue", "pause", "nowhere"]).await;
    assert_eq!((nowhere.code, nowhere.err.as_str()), (Some(1), "redrive: there is no queue nowhere\n"));
    let pulled = ask(&house, &["queue", "reroute", "orders", "--to", "mails"]).await;
    assert!(pulled.err.contains("leased to workers outside"), "{pulled:?}");
    let wrong = ask(&house, &["queue", "pause", "orders", "--for", "soon"]).await;
    assert_eq!(wrong.code, Some(2));
}

#[tokio::test]
async fn a_queue_is_rerouted_and_sent_back() {
    let push = |name: &str| format!("[queues.{name}.push]\nurl = \"https://shop.example/{name}\"\n");
    let house = House::open(&format!("{}{}", push("a"), push("b"))).await;
    let sent = ask(&house, &["queue", "reroute", "a", "--to", "b"]).await.fine();
    assert_eq!(sent.out, "1 queue changed: a: its events go to b\n");
    let rules = ask(&house, &["queue", "show", "a", "--json"]).await.fine().json();
    assert_eq!((&rules["rules"][0]["rule"], &rules["rules"][0]["to"]), (&"reroute".into(), &"b".into()));
    let back = ask(&house, &["queue", "reroute", "a", "--back"]).await.fine();
    assert_eq!(back.out, "1 queue changed: a: its events go to its own handler\n");
    assert_eq!(ask(&house, &["queue", "reroute", "a"]).await.code, Some(2));
}

#[tokio::test]
async fn a_key_is_looked_at_and_let_go() {
    let house = House::open(ORDERED).await;
    publish(&house, "orders", "", Some("k/1"), &["a", "b", "c"]).await;
    die(&house, "orders").await;
    let shown = ask(&house, &["key", "show", "k/1", "--queue", "orders"]).await.fine();
    assert!(shown.out.contains("held up by  a dead letter\n"), "{}", shown.out);
    let states: Vec<_> = shown
        .rows()
        .into_iter()
        .filter(|row| row.len() > 3)
        .map(|row| (row[0].to_owned(), row[1].to_owned()))
        .collect();
    let is = |id: &str, state: &str| states.contains(&(id.to_owned(), state.to_owned()));
    assert!(is("a", "dead") && is("b", "parked") && is("c", "parked"), "{states:?}");
    let key = ["k/1", "--queue", "orders"];
    let key = async |verb: &str| ask(&house, &[&["key", verb][..], &key].concat()).await;
    assert_eq!(key("skip-head").await.fine().out, "1 key changed: k/1: its head is skipped\n");
    assert_eq!(key("skip-head").await.err, "redrive: no dead letter holds up this key\n");
    assert_eq!(key("park").await.fine().out, "1 key changed: k/1: parked\n");
    assert_eq!(succeed(&house, "orders").await, 0);
    assert_eq!(key("unpark").await.fine().out, "1 key changed: k/1: goes on\n");
    assert_eq!(succeed(&house, "orders").await, 2);
}

#[tokio::test]
async fn tenants_and_keys_go_into_quarantine_and_out() {
    let house = House::open(ORDERED).await;
    assert_eq!(ask(&house, &["quarantine", "ls"]).await.fine().err, "redrive: nothing is in quarantine\n");
    let added = ask(&house, &["quarantine", "add", "tenant=acme", "--for", "1h"]).await.fine();
    assert!(added.out.starts_with("1 rule changed: tenant=acme: in quarantine until 20"), "{added:?}");
    ask(&house, &["quarantine", "add", "key=k", "--queue", "orders"]).await.fine();
    let listed = ask(&house, &["quarantine", "ls"]).await.fine();
    let rules: Vec<_> = listed.rows().iter().skip(1).map(|row| row[0].to_owned()).collect();
    assert_eq!(rules.len(), 2, "{listed:?}");
    assert!(rules.iter().all(|rule| rule.starts_with("quarantine-")), "{listed:?}");
    ask(&house, &["quarantine", "rm", "tenant=acme"]).await.fine();
    ask(&house, &["quarantine", "rm", "key=k", "--queue", "orders"]).await.fine();
    let gone = ask(&house, &["quarantine", "rm", "tenant=acme"]).await;
    assert_eq!((gone.code, gone.err.as_str()), (Some(1), "redrive: there is no such rule\n"));
    assert!(ask(&house, &["quarantine", "add", "key=k"]).await.err.contains("say which with --queue"));
    assert!(
        ask(&house, &["quarantine", "add", "acme"]).await.err.contains("neither tenant=NAME nor key=KEY")
    );
}

#[tokio::test]
async fn events_that_wait_are_made_due_skipped_and_killed() {
    let house = House::open(ORDERED).await;
    for id in ["a", "b", "c"] {
        let event = redrive::Event::new("mails", id).delay(std::time::Duration::from_secs(3600));
        engine(&house).publish(event).await.expect("it is kept");
    }
    let waiting = ask(&house, &["event", "ls", "--state", "waiting"]).await.fine();
    assert_eq!(waiting.rows()[1][..3], ["mails", "a", "waiting"]);
    assert!(waiting.out.contains("in 59m"), "{waiting:?}");
    assert_eq!(ask(&house, &["event", "retry-now", "a"]).await.fine().out, "1 event due now\n");
    assert_eq!(ask(&house, &["event", "kill", "b", "c"]).await.fine().out, "2 events dead now\n");
    assert_eq!(ask(&house, &["event", "skip", "a"]).await.fine().out, "1 event discarded\n");
    let running = ask(&house, &["event", "ls", "--state", "running"]).await.fine();
    assert_eq!(running.err, "redrive: no running events\n");
    let wrong = ask(&house, &["event", "ls", "--state", "sleeping"]).await;
    assert!(
        wrong.code == Some(1) && wrong.err.contains("no events are listed as `sleeping`; there are ready,"),
        "{wrong:?}"
    );
}

#[tokio::test]
async fn an_id_that_several_events_have_is_asked_about() {
    let house = House::open(ORDERED).await;
    publish(&house, "orders", "", None, &["a"]).await;
    publish(&house, "mails", "", None, &["a"]).await;
    let which = ask(&house, &["event", "kill", "a"]).await;
    let told = "redrive: there are 2 events `a`; say which: --queue mails, or --queue orders\n";
    assert_eq!((which.code, which.out.as_str(), which.err.as_str()), (Some(1), "", told));
    assert_eq!(
        ask(&house, &["event", "kill", "a", "--queue", "mails"]).await.fine().out,
        "1 event dead now\n"
    );
    assert_eq!(ask(&house, &["dead", "ls", "--json"]).await.fine().json()["events"][0]["queue"], "mails");
}

#[tokio::test]
async fn the_audit_says_who_did_what() {
    let house = House::open(ORDERED).await;
    assert_eq!(ask(&house, &["audit", "ls"]).await.fine().err, "redrive: nobody did anything\n");
    ask(&house, &["queue", "pause", "orders", "--why", "a sale"]).await.fine();
    ask(&house, &["queue", "resume", "orders"]).await.fine();
    let listed = ask(&house, &["audit", "ls", "--limit", "1"]).await.fine();
    let rows = listed.rows();
    assert_eq!(rows[0], ["NUMBER", "AT", "WHO", "FROM", "VERB", "TARGET", "COUNT", "NOTE"]);
    assert_eq!(rows[1][2..8], ["local", "127.0.0.1", "lift", "queue", "orders", "1"]);
    assert!(listed.err.contains("there is more: --before 2"), "{listed:?}");
    let exported = ask(&house, &["audit", "export"]).await.fine();
    assert_eq!((exported.out.lines().count(), exported.err.as_str()), (2, "redrive: 2 lines exported\n"));
}
