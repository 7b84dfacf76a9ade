//! The story of a night, without a script: only links and forms that the pages have.

use crate::browser::Browser;
use crate::dead_letters::{die, fail, publish, succeed, token};
use crate::test_server::TestServer;

const SETTINGS: &str = "[server]\nedit = true\n[queues.mail.pull]\n[queues.orders]\norder = \"key\"\nafter_dead = \"park\"\n[queues.orders.pull]\n\
[queues.patient.pull]\n[queues.patient.policy]\nattempts = 20\n[queues.patient.policy.backoff.exponential]\nbase = \"1h\"\nfactor = 1.0\ncap = \"1h\"\n";

#[tokio::test]
async fn an_operator_finds_the_cause_and_puts_it_right() {
    let server =
        TestServer::open(&format!("{SETTINGS}{}", token("ada", "\"read\", \"operate\", \"publish\"", None)))
            .await;
    let ids: Vec<String> = (0..30).map(|n| format!("mail-{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    publish(&server, "mail", "", None, &ids).await;
    publish(&server, "orders", "acme", Some("customer-9"), &["order-1", "order-2", "order-3"]).await;
    die(&server, "mail").await;
    die(&server, "orders").await;
    let mut browser = Browser::signed_in(&server, "ada").await;

    // One cause is the news, and its list is one click away.
    let page = browser.get("/desk").await;
    assert!(page.said().contains("1 cause = 100 %"), "{}", page.said());
    let list = browser.follow(&page, "Look").await;
    assert_eq!(list.texts("h1"), ["Shop 404: no customer for #"]);

    // One event, its attempts, its body.
    let event = browser.follow(&list, "mail-7").await;
    assert!(event.said().contains("Given up after 1 attempt: permanent."), "{}", event.said());
    assert!(event.texts(".timeline li")[0].contains("Shop 404"), "{:?}", event.texts(".timeline"));
    let event = browser.follow(&event, "json").await;
    assert!(event.texts("pre.payload")[0].contains("\"order\": \"mail-7\""), "{:?}", event.texts("pre"));

    // Edit one: refused without a change, then the difference, then done.
    let edit = browser.follow(&event, "Edit…").await;
    let same = browser.send(&edit, "/desk/edit/check", &[]).await;
    assert!(same.said().contains("Nothing is changed yet."), "{}", same.said());
    let broken = browser.send(&edit, "/desk/edit/check", &[("payload", "{")]).await;
    assert!(broken.said().contains("no longer JSON"), "{}", broken.said());
    let check = browser.send(&edit, "/desk/edit/check", &[("payload", "{\"order\": \"mended\"}")]).await;
    assert!(check.texts("ins").iter().any(|line| line.contains("mended")), "{}", check.said());
    let edited = browser.send(&check, "/desk/edit/do", &[]).await;
    assert!(edited.said().contains("was edited into mail-7.edit"), "{}", edited.said());
    // The same again is refused, and the page says so.
    let again = browser.send(&check, "/desk/edit/do", &[]).await;
    assert_eq!(again.texts(".banner[data-k=bad]").len(), 1, "{}", again.said());
    assert_eq!(succeed(&server, "mail").await, 1);

    // Discard one and bring it back.
    let event = browser.get("/desk/event?queue=mail&id=mail-8").await;
    let sure = browser.send(&event, "/desk/confirm", &[("verb", "discard")]).await;
    assert!(sure.said().contains("can be restored"), "{}", sure.said());
    let gone = browser.send(&sure, "/desk/act", &[]).await;
    assert!(gone.said().contains("1 event discarded."), "{}", gone.said());
    let discarded = browser.get("/desk/discarded").await;
    let chosen = discarded.form("/desk/confirm").expect("a form");
    let which = discarded
        .attributes()
        .into_iter()
        .find(|(_, name, value)| name == "value" && value.contains("mail%2D8"));
    let mut fields = chosen;
    fields.extend([("which".to_owned(), which.expect("a box").2), ("verb".to_owned(), "restore".to_owned())]);
    let sure = browser.post("/desk/confirm", &fields).await;
    let back = browser.send(&sure, "/desk/act", &[]).await;
    assert!(back.said().contains("1 event restored."), "{}", back.said());

    // Pause a queue for a time, with its reason; resume it.
    let flow = browser.get("/desk/flow").await;
    let paused = browser
        .send(&flow, "/desk/flow/pause", &[("queue", "mail"), ("for", "30m"), ("why", "bank window")])
        .await;
    assert!(
        paused.said().contains("mail paused for 30m") && paused.said().contains("bank window"),
        "{}",
        paused.said()
    );
    let resumed = browser.send(&paused, "/desk/flow/resume", &[("queue", "mail")]).await;
    assert!(resumed.said().contains("mail goes on."), "{}", resumed.said());
    let held = browser.send(&flow, "/desk/flow/quarantine", &[("tenant", "acme"), ("for", "1h")]).await;
    assert!(held.said().contains("quarantine tenant"), "{}", held.said());
    let lifted = browser.send(&held, "/desk/flow/lift", &[]).await;
    assert!(lifted.said().contains("The rule is lifted."), "{}", lifted.said());
    let rerouted = browser.send(&flow, "/desk/flow/reroute", &[("queue", "mail"), ("to", "orders")]).await;
    assert_eq!(
        rerouted.texts(".banner[data-k=bad]").len(),
        1,
        "a pulled queue has no handler: {}",
        rerouted.said()
    );

    // The rest as a job with a canary: pause, resume, and the audit.
    let plan = browser.get("/desk/redrive?act=redrive&queue=mail").await;
    assert!(plan.said().contains("29 dead letters"), "{}", plan.said());
    let job = browser.send(&plan, "/desk/redrive/start", &[("canary", "2"), ("rate", "100")]).await;
    assert!(job.texts("h1")[0].starts_with("Job "), "{}", job.said());
    let action = job.actions().into_iter().find(|to| to.ends_with("/pause")).expect("a button");
    let paused = browser.send(&job, &action, &[]).await;
    assert!(paused.said().contains("is paused"), "{}", paused.said());
    let paused = browser.get(&paused.address).await;
    let job = browser.send(&paused, &action.replace("pause", "resume"), &[]).await;
    assert!(job.said().contains("goes on"), "{}", job.said());
    let path = job.address.split('?').next().expect("a path").to_owned();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(90);
    loop {
        succeed(&server, "mail").await;
        let job = browser.get(&path).await;
        if job.texts("h1")[0].contains("done") {
            assert!(job.said().contains("29 done"), "{}", job.said());
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{}", job.said());
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }

    // The lane of a key: its head holds up the rest; skip it.
    let keys = browser.get("/desk/keys").await;
    let key = browser.follow(&keys, "customer-9").await;
    assert!(key.said().contains("holds up what is behind it"), "{}", key.said());
    assert_eq!(key.texts(".lane .id"), ["order-1", "order-2", "order-3"]);
    let skipped = browser.send(&key, "/desk/keys/skip-head", &[]).await;
    assert!(skipped.said().contains("goes on behind its dead letter"), "{}", skipped.said());
    let parked = browser.send(&skipped, "/desk/keys/park", &[("for", "1h")]).await;
    assert!(parked.said().contains("is parked"), "{}", parked.said());

    // Failing events, not dead: retry them now.
    publish(&server, "patient", "", None, &["p-1", "p-2"]).await;
    fail(&server, "patient").await;
    let failing = browser.get("/desk/failing").await;
    assert!(failing.said().contains("Shop 503"), "{}", failing.said());
    let plan = browser.follow(&failing, "Retry now…").await;
    assert!(plan.said().contains("2 retrying events"), "{}", plan.said());
    let job = browser.send(&plan, "/desk/redrive/start", &[]).await;
    assert!(job.texts("h1")[0].contains("retry-now"), "{}", job.said());

    // Who did what.
    let audit = browser.get("/desk/audit?who=ada").await;
    let verbs = audit.texts("td b");
    for verb in ["edit", "discard", "restore", "pause", "lift", "start-job", "skip-head"] {
        assert!(verbs.iter().any(|told| told == verb), "{verb} is not in {verbs:?}");
    }
    let acts = browser.get("/desk/event?queue=mail&id=mail-8").await;
    assert!(
        acts.texts(".timeline li").iter().any(|line| line.starts_with("discard by ada")),
        "{:?}",
        acts.texts(".timeline li")
    );
}
