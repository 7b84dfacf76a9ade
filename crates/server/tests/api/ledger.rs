//! Requests under idempotency keys: looking at them, and saying how an unknown one was.

use redrive::http::idempotent::{LedgerClaim, ReplyProtection, RunEnding};
use redrive::http::seal::{KeyRing, SealKey};
use serde_json::{Value, json};

use crate::dead_letters::{each, get_as, post_as, token};
use crate::requests::{BOOK, claim, complete, end, hold};
use crate::test_server::TestServer;

const ONE: &str = "/v1/ledger/request?operation=POST%20/bookings&tenant=acme";

fn resolution(key: &str, more: Value) -> Value {
    let mut order = json!({ "tenant": "acme", "operation": BOOK, "key": key });
    for (name, value) in more.as_object().expect("an object") {
        order[name] = value.clone();
    }
    order
}

#[tokio::test]
async fn requests_are_listed_by_state_resource_and_page() {
    let server = TestServer::open("").await;
    hold(&server, "acme", &["a", "b", "c"]).await;
    complete(&server, "acme", "done", &ReplyProtection::new()).await;
    end(&server, "other", "later", RunEnding::Retriable(None)).await;
    let (status, first) = server.get("/v1/ledger?state=unknown&limit=2").await;
    assert_eq!((status, each(&first, "requests", "key")), (200, vec!["a", "b"]));
    let next = first["next"].as_str().expect("there is more");
    let (_, rest) = server.get(&format!("/v1/ledger?state=unknown&limit=2&after={next}")).await;
    assert_eq!((each(&rest, "requests", "key"), &rest["next"]), (vec!["c"], &Value::Null));
    assert_eq!(each(&server.get("/v1/ledger").await.1, "requests", "key"), ["a", "b", "c", "done", "later"]);
    assert_eq!(each(&server.get("/v1/ledger?tenant=other").await.1, "requests", "state"), ["retriable"]);
    let (_, made) = server.get("/v1/ledger?resource=booking-7").await;
    assert_eq!(each(&made, "requests", "key"), ["done"]);
    assert_eq!(
        (&made["requests"][0]["status"], &made["requests"][0]["location"]),
        (&json!(201), &json!("/bookings/7"))
    );
    assert_eq!(server.get("/v1/ledger?resource=booking-8").await.1["requests"], json!([]));
    for wrong in ["state=lost", "after=x", "after=W10", "limit=0", "limit=1001", "states=unknown"] {
        assert_eq!(server.get(&format!("/v1/ledger?{wrong}")).await.0, 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_request_is_shown_and_its_answer_where_it_is_asked_for() {
    let server = TestServer::open("").await;
    complete(&server, "acme", "k", &ReplyProtection::new()).await;
    let (status, shown) = server.get(&format!("{ONE}&key=k")).await;
    assert_eq!(status, 200);
    assert_eq!(
        (&shown["state"], &shown["attempt"], &shown["resource"]),
        (&json!("completed"), &json!(1), &json!("booking-7"))
    );
    assert!(shown["headers"].is_null() && shown["body"].is_null() && shown["sealed"].is_null(), "{shown}");
    let (_, shown) = server.get(&format!("{ONE}&key=k&contents=1")).await;
    assert_eq!(shown["body"], "{\"cabin\":7}");
    assert_eq!(shown["headers"], json!([["location", "/bookings/7"], ["x-odd", { "base64": "/w==" }]]));
    for (path, wanted) in [
        (format!("{ONE}&key=nobody"), 404),
        (format!("{ONE}&key=k&contents=yes"), 400),
        (ONE.to_owned(), 400),
        ("/v1/ledger/request?operation=POST%20/bookings&key=k".to_owned(), 404),
    ] {
        assert_eq!(server.get(&path).await.0, wanted, "{path}");
    }
}

#[tokio::test]
async fn what_happened_is_answered_from_now_on_and_told_in_the_audit() {
    let server = TestServer::open("").await;
    hold(&server, "acme", &["k"]).await;
    let order = resolution(
        "k",
        json!({
            "as": "completed", "status": 201, "body": "{\"cabin\":7}", "why": "asked the bank",
            "headers": [["Content-Type", "application/json"], ["link", "a"], ["link", "b"]],
        }),
    );
    let (status, done) = server.post("/v1/ledger/resolve", order.clone()).await;
    assert_eq!((status, &done["changed"], &done["state"]), (200, &json!(1), &json!("completed")));
    let LedgerClaim::Say(answer) = claim(&server, "acme", "k").await else { panic!("it runs") };
    let redrive::http::idempotent::LedgerAnswer::Replay(record) = answer else { panic!("{answer:?}") };
    let redrive::desk::RecordPhase::Completed { reply, .. } = record.phase else {
        panic!("it is not completed")
    };
    assert_eq!((reply.status, reply.body.as_deref()), (201, Some(&b"{\"cabin\":7}"[..])));
    let names: Vec<_> = reply.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["content-type", "link", "link"]);
    let (status, again) = server.post("/v1/ledger/resolve", order).await;
    assert_eq!(
        (status, &again["detail"]),
        (409, &json!("it is completed: only an unknown outcome can be resolved"))
    );
    let (_, audit) = server.get("/v1/audit").await;
    let lines = audit["lines"].as_array().expect("lines");
    let told: Vec<_> = lines.iter().map(|line| (line["verb"].as_str(), line["count"].as_u64())).collect();
    assert_eq!(told, [(Some("resolve"), Some(0)), (Some("resolve"), Some(1))]);
    assert_eq!(lines[1]["target"], "POST /bookings, tenant acme, key k");
    assert_eq!(lines[1]["note"], "as completed with 201; asked the bank");
    assert!(!audit.to_string().contains("cabin"), "answers are not in the audit");
}

#[tokio::test]
async fn what_did_not_happen_runs_again() {
    let server = TestServer::open("").await;
    hold(&server, "acme", &["k", "l"]).await;
    let (status, done) =
        server.post("/v1/ledger/resolve", resolution("k", json!({ "as": "retriable" }))).await;
    assert_eq!((status, &done["state"]), (200, &json!("retriable")));
    assert!(matches!(claim(&server, "acme", "k").await, LedgerClaim::Run(record) if record.attempt == 2));
    let gone = resolution("l", json!({ "as": "completed", "status": 201, "gone": true }));
    assert_eq!(server.post("/v1/ledger/resolve", gone).await.1["gone"], true);
    let LedgerClaim::Say(answer) = claim(&server, "acme", "l").await else { panic!("it runs") };
    assert!(matches!(answer, redrive::http::idempotent::LedgerAnswer::Gone(_)), "{answer:?}");
}

#[tokio::test]
async fn unknown_outcomes_are_resolved_in_bulk_by_a_filter() {
    let tokens =
        [token("acme", "\"read\", \"operate\"", Some("acme")), token("all", "\"read\", \"operate\"", None)];
    let server = TestServer::open(&tokens.join("")).await;
    let many: Vec<String> = (0..600).map(|n| format!("k{n:03}")).collect();
    hold(&server, "acme", &many.iter().map(String::as_str).collect::<Vec<_>>()).await;
    hold(&server, "other", &["k"]).await;
    let unknown = async || {
        let (_, page) = get_as(&server, "all", "/v1/ledger?state=unknown&limit=1000").await;
        page["requests"].as_array().expect("a page").len()
    };
    let all = async |by: &str, order: serde_json::Value| {
        post_as(&server, by, "/v1/ledger/resolve-all", order).await
    };
    assert_eq!(all("all", json!({ "as": "retriable" })).await.0, 400, "everything has to be meant");
    assert_eq!(all("acme", json!({ "as": "retriable", "tenant": "other" })).await.0, 403);
    let (_, none) = all("all", json!({ "as": "retriable", "operation": "POST /else" })).await;
    assert_eq!((&none["changed"], unknown().await), (&json!(0), 601));
    let old = json!({ "as": "retriable", "tenant": "acme", "before": "1970-01-01T00:00:01Z" });
    assert_eq!(all("all", old).await.1["changed"], 0);
    // Page by page; a tenant's token reaches its own alone.
    let (_, first) =
        all("acme", json!({ "as": "completed", "status": 201, "why": "found at the bank" })).await;
    assert_eq!(first["changed"], 500, "{first}");
    let (_, rest) = all("acme", json!({ "as": "completed", "status": 201, "after": first["next"] })).await;
    assert_eq!((&rest["changed"], rest.get("next")), (&json!(100), None));
    assert_eq!(unknown().await, 1, "the other tenant's");
    assert!(matches!(claim(&server, "acme", "k000").await, LedgerClaim::Say(_)));
}

#[tokio::test]
async fn unknown_outcomes_are_counted_until_they_are_resolved() {
    let server = TestServer::open("").await;
    let scrape = async || {
        let answer = server.client.get(server.url("/metrics")).send().await.expect("an answer");
        answer.text().await.expect("a body")
    };
    hold(&server, "acme", &["k"]).await;
    hold(&server, "other", &["k"]).await;
    let line = "redrive_ledger_unknown{endpoint=\"POST /bookings\"} ";
    assert!(scrape().await.contains(&format!("{line}2\n")));
    let order = resolution("k", json!({ "as": "retriable" }));
    assert_eq!(server.post("/v1/ledger/resolve", order).await.0, 200);
    // A count is used for a while.
    let counted = async { while !scrape().await.contains(&format!("{line}1\n")) {} };
    tokio::time::timeout(std::time::Duration::from_secs(60), counted).await.expect("it is counted again");
}

#[tokio::test]
async fn what_cannot_be_meant_changes_nothing() {
    let server = TestServer::open("").await;
    hold(&server, "acme", &["k"]).await;
    for (more, wanted) in [
        (json!({}), 400),
        (json!({ "as": "lost" }), 400),
        (json!({ "as": "completed" }), 400),
        (json!({ "as": "completed", "status": 101 }), 422),
        (json!({ "as": "completed", "status": 600 }), 422),
        (json!({ "as": "completed", "status": 201, "body": "", "gone": true }), 400),
        (json!({ "as": "completed", "status": 201, "body": "", "body_base64": "" }), 400),
        (json!({ "as": "completed", "status": 201, "body_base64": "?" }), 400),
        (json!({ "as": "completed", "status": 201, "headers": [["set-cookie", "a"]] }), 422),
        (json!({ "as": "completed", "status": 201, "headers": [["redrive-sealed", "a"]] }), 422),
        (json!({ "as": "completed", "status": 201, "headers": [["a b", "a"]] }), 422),
        (json!({ "as": "completed", "status": 201, "why": "a\nb" }), 422),
        (json!({ "as": "retriable", "status": 201 }), 400),
        (json!({ "as": "retriable", "why": "x".repeat(10_000) }), 422),
        (json!({ "as": "retriable", "key": "k".repeat(256) }), 422),
        (json!({ "as": "retriable", "key": "l" }), 404),
        (json!({ "as": "retriable", "tenant": "other" }), 404),
    ] {
        let (status, told) = server.post("/v1/ledger/resolve", resolution("k", more.clone())).await;
        assert_eq!(status, wanted, "{more}: {told}");
    }
    assert_eq!(server.get(&format!("{ONE}&key=k")).await.1["state"], "unknown");
}

#[tokio::test]
async fn a_tenant_has_its_own_requests_alone_and_answers_want_the_right_to_operate() {
    let tokens = [
        token("acme", "\"read\", \"operate\"", Some("acme")),
        token("reader", "\"read\"", None),
        token("shop", "\"publish\"", None),
    ];
    let server = TestServer::open(&tokens.join("")).await;
    hold(&server, "acme", &["k"]).await;
    hold(&server, "other", &["k"]).await;
    complete(&server, "acme", "done", &ReplyProtection::new()).await;
    assert_eq!(each(&get_as(&server, "acme", "/v1/ledger").await.1, "requests", "tenant"), ["acme", "acme"]);
    for path in ["/v1/ledger?tenant=other", "/v1/ledger/request?tenant=other&operation=x&key=k"] {
        assert_eq!(get_as(&server, "acme", path).await.0, 403, "{path}");
    }
    let theirs = json!({ "tenant": "other", "operation": BOOK, "key": "k", "as": "retriable" });
    assert_eq!(post_as(&server, "acme", "/v1/ledger/resolve", theirs.clone()).await.0, 403);
    // Without a word it is the token's own.
    let own = json!({ "operation": BOOK, "key": "k", "as": "retriable" });
    assert_eq!(post_as(&server, "acme", "/v1/ledger/resolve", own).await.1["tenant"], "acme");
    assert_eq!(
        each(&get_as(&server, "reader", "/v1/ledger?state=unknown").await.1, "requests", "tenant"),
        ["other"]
    );
    assert_eq!(get_as(&server, "reader", &format!("{ONE}&key=done")).await.0, 200);
    assert_eq!(get_as(&server, "reader", &format!("{ONE}&key=done&contents=1")).await.0, 403);
    assert_eq!(
        get_as(&server, "acme", &format!("{ONE}&key=done&contents=1")).await.1["body"],
        "{\"cabin\":7}"
    );
    assert_eq!(post_as(&server, "reader", "/v1/ledger/resolve", theirs).await.0, 403);
    for path in ["/v1/ledger", ONE] {
        assert_eq!(get_as(&server, "shop", path).await.0, 403, "{path}");
        assert_eq!(server.get(path).await.0, 401, "{path}");
    }
}

#[tokio::test]
async fn answers_are_sealed_with_the_keys_of_the_configuration() {
    let keys = tempfile::tempdir().expect("a folder");
    let file = |name: &str| keys.path().join(name);
    for name in ["new", "old"] {
        redrive_server::secrets::make_key(&file(name)).expect("a key");
    }
    let settings = |names: &[&str]| {
        let files: Vec<_> = names.iter().map(|name| file(name)).collect();
        format!("[ledger]\nkey_files = {files:?}\n")
    };
    let mut server = TestServer::open(&settings(&["old"])).await;
    hold(&server, "acme", &["k"]).await;
    let order = resolution("k", json!({ "as": "completed", "status": 201, "body": "SECRET" }));
    assert_eq!(server.post("/v1/ledger/resolve", order).await.1["sealed"], true);
    let shown = async |server: &TestServer| server.get(&format!("{ONE}&key=k&contents=1")).await.1;
    assert_eq!(shown(&server).await["body"], "SECRET");
    server.stop().await;
    let on_disk: Vec<u8> = ["redrive.db", "redrive.db-wal"]
        .iter()
        .flat_map(|name| std::fs::read(server.folder.path().join(name)).unwrap_or_default())
        .collect();
    assert!(
        on_disk.windows(8).any(|bytes| bytes == b"bookings")
            && !on_disk.windows(6).any(|bytes| bytes == b"SECRET")
    );
    server.set(&settings(&["new", "old"]));
    server.start().await;
    assert_eq!(shown(&server).await["body"], "SECRET");
    server.stop().await;
    server.set(&settings(&["new"]));
    server.start().await;
    let unopened = shown(&server).await;
    assert_eq!(
        (&unopened["unopened"], &unopened["body"], &unopened["status"]),
        (&json!(true), &Value::Null, &json!(201))
    );
    // A key that is set and cannot be read: nothing is stored in clear.
    hold(&server, "acme", &["l"]).await;
    std::fs::remove_file(file("new")).expect("it was there");
    let order = resolution("l", json!({ "as": "completed", "status": 201, "body": "SECRET" }));
    let (status, told) = server.post("/v1/ledger/resolve", order).await;
    assert_eq!(status, 500, "{told}");
    assert_eq!(server.get(&format!("{ONE}&key=l")).await.1["state"], "unknown");
}

#[tokio::test]
async fn a_request_of_a_layer_elsewhere_is_sealed_and_shown() {
    let keys = tempfile::tempdir().expect("a folder");
    let file = keys.path().join("key");
    std::fs::write(&file, "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=\n").expect("a file");
    let server = TestServer::open(&format!("[ledger]\nkey_files = [{file:?}]\n")).await;
    let keep = ReplyProtection::new().sealed(KeyRing::new([SealKey::new(&[b'A'; 32])]).expect("a ring"));
    complete(&server, "acme", "k", &keep).await;
    let (_, shown) = server.get(&format!("{ONE}&key=k&contents=1")).await;
    assert_eq!((&shown["sealed"], &shown["body"]), (&json!(true), &json!("{\"cabin\":7}")));
}
