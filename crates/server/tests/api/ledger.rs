//! Requests under idempotency keys: looking at them, and saying how an unknown one was.

use redrive::http::idempotent::{Claim, End, Keep};
use redrive::http::seal::{Key, Ring};
use serde_json::{Value, json};

use crate::house::House;
use crate::letters::{each, get_as, post_as, token};
use crate::requests::{BOOK, claim, complete, end, hold};

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
    let house = House::open("").await;
    hold(&house, "acme", &["a", "b", "c"]).await;
    complete(&house, "acme", "done", &Keep::new()).await;
    end(&house, "other", "later", End::Retriable(None)).await;
    let (status, first) = house.get("/v1/ledger?state=unknown&limit=2").await;
    assert_eq!((status, each(&first, "requests", "key")), (200, vec!["a", "b"]));
    let next = first["next"].as_str().expect("there is more");
    let (_, rest) = house.get(&format!("/v1/ledger?state=unknown&limit=2&after={next}")).await;
    assert_eq!((each(&rest, "requests", "key"), &rest["next"]), (vec!["c"], &Value::Null));
    assert_eq!(each(&house.get("/v1/ledger").await.1, "requests", "key"), ["a", "b", "c", "done", "later"]);
    assert_eq!(each(&house.get("/v1/ledger?tenant=other").await.1, "requests", "state"), ["retriable"]);
    let (_, made) = house.get("/v1/ledger?resource=booking-7").await;
    assert_eq!(each(&made, "requests", "key"), ["done"]);
    assert_eq!(
        (&made["requests"][0]["status"], &made["requests"][0]["location"]),
        (&json!(201), &json!("/bookings/7"))
    );
    assert_eq!(house.get("/v1/ledger?resource=booking-8").await.1["requests"], json!([]));
    for wrong in ["state=lost", "after=x", "after=W10", "limit=0", "limit=1001", "states=unknown"] {
        assert_eq!(house.get(&format!("/v1/ledger?{wrong}")).await.0, 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_request_is_shown_and_its_answer_where_it_is_asked_for() {
    let house = House::open("").await;
    complete(&house, "acme", "k", &Keep::new()).await;
    let (status, shown) = house.get(&format!("{ONE}&key=k")).await;
    assert_eq!(status, 200);
    assert_eq!(
        (&shown["state"], &shown["attempt"], &shown["resource"]),
        (&json!("completed"), &json!(1), &json!("booking-7"))
    );
    assert!(shown["headers"].is_null() && shown["body"].is_null() && shown["sealed"].is_null(), "{shown}");
    let (_, shown) = house.get(&format!("{ONE}&key=k&contents=1")).await;
    assert_eq!(shown["body"], "{\"cabin\":7}");
    assert_eq!(shown["headers"], json!([["location", "/bookings/7"], ["x-odd", { "base64": "/w==" }]]));
    for (path, wanted) in [
        (format!("{ONE}&key=nobody"), 404),
        (format!("{ONE}&key=k&contents=yes"), 400),
        (ONE.to_owned(), 400),
        ("/v1/ledger/request?operation=POST%20/bookings&key=k".to_owned(), 404),
    ] {
        assert_eq!(house.get(&path).await.0, wanted, "{path}");
    }
}

#[tokio::test]
async fn what_happened_is_answered_from_now_on_and_told_in_the_audit() {
    let house = House::open("").await;
    hold(&house, "acme", &["k"]).await;
    let order = resolution(
        "k",
        json!({
            "as": "completed", "status": 201, "body": "{\"cabin\":7}", "why": "asked the bank",
            "headers": [["Content-Type", "application/json"], ["link", "a"], ["link", "b"]],
        }),
    );
    let (status, done) = house.post("/v1/ledger/resolve", order.clone()).await;
    assert_eq!((status, &done["changed"], &done["state"]), (200, &json!(1), &json!("completed")));
    let Claim::Say(answer) = claim(&house, "acme", "k").await else { panic!("it runs") };
    let redrive::http::idempotent::Answer::Replay(record) = answer else { panic!("{answer:?}") };
    let redrive::desk::Phase::Completed { reply, .. } = record.phase else { panic!("it is not completed") };
    assert_eq!((reply.status, reply.body.as_deref()), (201, Some(&b"{\"cabin\":7}"[..])));
    let names: Vec<_> = reply.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["content-type", "link", "link"]);
    let (status, again) = house.post("/v1/ledger/resolve", order).await;
    assert_eq!(
        (status, &again["detail"]),
        (409, &json!("it is completed: only what is unknown can be resolved"))
    );
    let (_, audit) = house.get("/v1/audit").await;
    let lines = audit["lines"].as_array().expect("lines");
    let told: Vec<_> = lines.iter().map(|line| (line["verb"].as_str(), line["count"].as_u64())).collect();
    assert_eq!(told, [(Some("resolve"), Some(0)), (Some("resolve"), Some(1))]);
    assert_eq!(lines[1]["target"], "POST /bookings, tenant acme, key k");
    assert_eq!(lines[1]["note"], "as completed with 201; asked the bank");
    assert!(!audit.to_string().contains("cabin"), "answers are not in the audit");
}

#[tokio::test]
async fn what_did_not_happen_runs_again() {
    let house = House::open("").await;
    hold(&house, "acme", &["k", "l"]).await;
    let (status, done) =
        house.post("/v1/ledger/resolve", resolution("k", json!({ "as": "retriable" }))).await;
    assert_eq!((status, &done["state"]), (200, &json!("retriable")));
    assert!(matches!(claim(&house, "acme", "k").await, Claim::Run(record) if record.attempt == 2));
    let gone = resolution("l", json!({ "as": "completed", "status": 201, "gone": true }));
    assert_eq!(house.post("/v1/ledger/resolve", gone).await.1["gone"], true);
    let Claim::Say(answer) = claim(&house, "acme", "l").await else { panic!("it runs") };
    assert!(matches!(answer, redrive::http::idempotent::Answer::Gone(_)), "{answer:?}");
}

#[tokio::test]
async fn unknown_outcomes_are_counted_until_they_are_resolved() {
    let house = House::open("").await;
    let scrape = async || {
        let answer = house.client.get(house.url("/metrics")).send().await.expect("an answer");
        answer.text().await.expect("a body")
    };
    hold(&house, "acme", &["k"]).await;
    hold(&house, "other", &["k"]).await;
    let line = "redrive_ledger_unknown{endpoint=\"POST /bookings\"} ";
    assert!(scrape().await.contains(&format!("{line}2\n")));
    let order = resolution("k", json!({ "as": "retriable" }));
    assert_eq!(house.post("/v1/ledger/resolve", order).await.0, 200);
    // A count is used for a while.
    let counted = async { while !scrape().await.contains(&format!("{line}1\n")) {} };
    tokio::time::timeout(std::time::Duration::from_secs(60), counted).await.expect("it is counted again");
}

#[tokio::test]
async fn what_cannot_be_meant_changes_nothing() {
    let house = House::open("").await;
    hold(&house, "acme", &["k"]).await;
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
        let (status, told) = house.post("/v1/ledger/resolve", resolution("k", more.clone())).await;
        assert_eq!(status, wanted, "{more}: {told}");
    }
    assert_eq!(house.get(&format!("{ONE}&key=k")).await.1["state"], "unknown");
}

#[tokio::test]
async fn a_tenant_has_its_own_requests_alone_and_answers_want_the_right_to_operate() {
    let tokens = [
        token("acme", "\"read\", \"operate\"", Some("acme")),
        token("reader", "\"read\"", None),
        token("shop", "\"publish\"", None),
    ];
    let house = House::open(&tokens.join("")).await;
    hold(&house, "acme", &["k"]).await;
    hold(&house, "other", &["k"]).await;
    complete(&house, "acme", "done", &Keep::new()).await;
    assert_eq!(each(&get_as(&house, "acme", "/v1/ledger").await.1, "requests", "tenant"), ["acme", "acme"]);
    for path in ["/v1/ledger?tenant=other", "/v1/ledger/request?tenant=other&operation=x&key=k"] {
        assert_eq!(get_as(&house, "acme", path).await.0, 403, "{path}");
    }
    let theirs = json!({ "tenant": "other", "operation": BOOK, "key": "k", "as": "retriable" });
    assert_eq!(post_as(&house, "acme", "/v1/ledger/resolve", theirs.clone()).await.0, 403);
    // Without a word it is the token's own.
    let own = json!({ "operation": BOOK, "key": "k", "as": "retriable" });
    assert_eq!(post_as(&house, "acme", "/v1/ledger/resolve", own).await.1["tenant"], "acme");
    assert_eq!(
        each(&get_as(&house, "reader", "/v1/ledger?state=unknown").await.1, "requests", "tenant"),
        ["other"]
    );
    assert_eq!(get_as(&house, "reader", &format!("{ONE}&key=done")).await.0, 200);
    assert_eq!(get_as(&house, "reader", &format!("{ONE}&key=done&contents=1")).await.0, 403);
    assert_eq!(
        get_as(&house, "acme", &format!("{ONE}&key=done&contents=1")).await.1["body"],
        "{\"cabin\":7}"
    );
    assert_eq!(post_as(&house, "reader", "/v1/ledger/resolve", theirs).await.0, 403);
    for path in ["/v1/ledger", ONE] {
        assert_eq!(get_as(&house, "shop", path).await.0, 403, "{path}");
        assert_eq!(house.get(path).await.0, 401, "{path}");
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
    let mut house = House::open(&settings(&["old"])).await;
    hold(&house, "acme", &["k"]).await;
    let order = resolution("k", json!({ "as": "completed", "status": 201, "body": "SECRET" }));
    assert_eq!(house.post("/v1/ledger/resolve", order).await.1["sealed"], true);
    let shown = async |house: &House| house.get(&format!("{ONE}&key=k&contents=1")).await.1;
    assert_eq!(shown(&house).await["body"], "SECRET");
    house.stop().await;
    let on_disk: Vec<u8> = ["redrive.db", "redrive.db-wal"]
        .iter()
        .flat_map(|name| std::fs::read(house.folder.path().join(name)).unwrap_or_default())
        .collect();
    assert!(
        on_disk.windows(8).any(|bytes| bytes == b"bookings")
            && !on_disk.windows(6).any(|bytes| bytes == b"SECRET")
    );
    house.set(&settings(&["new", "old"]));
    house.start().await;
    assert_eq!(shown(&house).await["body"], "SECRET");
    house.stop().await;
    house.set(&settings(&["new"]));
    house.start().await;
    let unopened = shown(&house).await;
    assert_eq!(
        (&unopened["unopened"], &unopened["body"], &unopened["status"]),
        (&json!(true), &Value::Null, &json!(201))
    );
    // A key that is set and cannot be read: nothing is stored in clear.
    hold(&house, "acme", &["l"]).await;
    std::fs::remove_file(file("new")).expect("it was there");
    let order = resolution("l", json!({ "as": "completed", "status": 201, "body": "SECRET" }));
    let (status, told) = house.post("/v1/ledger/resolve", order).await;
    assert_eq!(status, 500, "{told}");
    assert_eq!(house.get(&format!("{ONE}&key=l")).await.1["state"], "unknown");
}

#[tokio::test]
async fn a_request_of_a_layer_elsewhere_is_sealed_and_shown() {
    let keys = tempfile::tempdir().expect("a folder");
    let file = keys.path().join("key");
    std::fs::write(&file, "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=\n").expect("a file");
    let house = House::open(&format!("[ledger]\nkey_files = [{file:?}]\n")).await;
    let keep = Keep::new().sealed(Ring::new([Key::new(&[b'A'; 32])]).expect("a ring"));
    complete(&house, "acme", "k", &keep).await;
    let (_, shown) = house.get(&format!("{ONE}&key=k&contents=1")).await;
    assert_eq!((&shown["sealed"], &shown["body"]), (&json!(true), &json!("{\"cabin\":7}")));
}
