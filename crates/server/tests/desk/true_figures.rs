//! Figures against counts made by hand, and a plan that is frozen.

use crate::browser::Browser;
use crate::dead_letters::{die, publish, token};
use crate::test_server::TestServer;

#[tokio::test]
async fn figures_are_those_that_were_made() {
    let server = TestServer::open(
        "[queues.orders]\norder = \"key\"\nafter_dead = \"park\"\n[queues.orders.pull]\n[queues.mail.pull]\n",
    )
    .await;
    let mut browser = Browser::open(&server);
    let empty = browser.get("/desk").await;
    assert_eq!(empty.texts("#n-dead"), ["0"]);
    assert!(empty.said().contains("No dead letters."), "{}", empty.said());
    for n in 0..40 {
        publish(&server, "orders", "acme", Some(&format!("k{n}")), &[&format!("a{n}"), &format!("b{n}")])
            .await;
    }
    publish(&server, "mail", "", None, &["m1", "m2", "m3"]).await;
    assert_eq!((die(&server, "orders").await, die(&server, "mail").await), (40, 3));
    let page = browser.get("/desk").await;
    assert_eq!(page.texts("#n-dead"), ["43"]);
    assert_eq!(page.texts("#n-keys"), ["40"]);
    let groups = browser.get("/desk/groups?by=queue").await;
    assert_eq!(groups.texts("td.n b"), ["40", "3"]);
    let event = browser.get("/desk/event?queue=orders&tenant=acme&id=a7").await;
    assert!(
        event.said().contains("Holds up 1 later events") || event.said().contains("Holds up 1 later event"),
        "{}",
        event.said()
    );
    // A page that has not changed is not sent again.
    let tag = groups.headers["etag"].to_str().expect("text").to_owned();
    let again = server
        .client
        .get(server.url("/desk/groups?by=queue"))
        .header("if-none-match", tag)
        .send()
        .await
        .expect("an answer");
    assert_eq!(again.status(), 304);
}

#[tokio::test]
async fn a_double_click_is_one_order() {
    let settings = format!("[queues.mail.pull]\n{}", token("ada", "\"read\", \"operate\"", None));
    let mut server = TestServer::open(&settings).await;
    publish(&server, "mail", "", None, &["m1"]).await;
    die(&server, "mail").await;
    let mut browser = Browser::signed_in(&server, "ada").await;
    let event = browser.get("/desk/event?queue=mail&id=m1").await;
    let sure = browser.send(&event, "/desk/confirm", &[("verb", "redrive")]).await;
    let first = browser.send(&sure, "/desk/act", &[]).await;
    assert!(first.said().contains("1 event put back."), "{}", first.said());
    let second = browser.send(&sure, "/desk/act", &[]).await;
    assert!(
        second.said().contains("0 of 1 event put back.") && second.said().contains("was refused"),
        "{}",
        second.said()
    );
    server.stop().await;
}

#[tokio::test]
async fn the_page_and_the_command_say_why_an_event_waits() {
    let policy = "[queues.mail.policy]\nattempts = 9\n[queues.mail.policy.backoff.exponential]\nbase = \"1h\"\nfactor = 1.0\ncap = \"1h\"\n";
    let settings = format!(
        "[queues.orders]\norder = \"key\"\nafter_dead = \"park\"\n[queues.orders.pull]\n[queues.mail.pull]\n{policy}"
    );
    let server = TestServer::open(&settings).await;
    let mut browser = Browser::open(&server);
    publish(&server, "orders", "acme", Some("k"), &["a", "b"]).await;
    publish(&server, "mail", "", None, &["m"]).await;
    let mut waits =
        async |address: &str| browser.get(&format!("/desk/event?{address}")).await.texts("#why").remove(0);
    let (a, b, m) = ("queue=orders&tenant=acme&id=a", "queue=orders&tenant=acme&id=b", "queue=mail&id=m");
    assert_eq!(waits(m).await, "Ready: a worker has to lease it.");
    assert_eq!(waits(b).await, "Waits for a, an earlier event of its key. look at its key");
    let (status, _) = server.post("/v1/queues/mail/pause", serde_json::json!({ "why": "bank window" })).await;
    assert_eq!(status, 200);
    assert_eq!(waits(m).await, "The queue mail is paused by local: bank window. look at the flow");
    server.post("/v1/queues/mail/resume", serde_json::json!({})).await;
    let rule = serde_json::json!({ "rule": "quarantine-tenant", "tenant": "acme" });
    server.post("/v1/rules", rule.clone()).await;
    assert_eq!(waits(a).await, "Its tenant acme is quarantined by local. look at the flow");
    server.post("/v1/rules/lift", rule).await;
    crate::dead_letters::fail(&server, "mail").await;
    assert!(waits(m).await.starts_with("Waits until "), "{}", waits(m).await);
    assert!(waits(m).await.ends_with("for attempt 2."), "{}", waits(m).await);
    die(&server, "orders").await;
    assert_eq!(waits(b).await, "Parked behind the dead letter a, the head of its key. look at its key");
    let shown = tokio::process::Command::new(env!("CARGO_BIN_EXE_redrive"))
        .args(["event", "show", "b", "--url", &server.url("")])
        .output()
        .await
        .expect("the command");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("Parked behind the dead letter a, the head of its key."), "{shown}");
}
