//! Requests under idempotency keys by the program, against a server and straight at its file.

use redrive::http::idempotent::{Claim, Keep};

use crate::house::House;
use crate::program::{ask, run};
use crate::requests::{claim, complete, hold};

const WHICH: [&str; 4] = ["--operation", "POST /bookings", "--tenant", "acme"];

#[tokio::test]
async fn unknown_outcomes_are_listed_shown_and_resolved() {
    let house = House::open("").await;
    hold(&house, "acme", &["k\u{1b}[31m", "l"]).await;
    complete(&house, "acme", "done", &Keep::new()).await;
    let listed = ask(&house, &["ledger", "ls", "--unknown"]).await.fine();
    assert_eq!(listed.rows()[0], ["TENANT", "OPERATION", "KEY", "STATE", "ATTEMPT", "SINCE"]);
    assert_eq!(listed.rows().len(), 3);
    assert!(listed.out.contains("k\\u{1b}[31m"), "{}", listed.out);
    assert_eq!(
        ask(&house, &["ledger", "ls", "--json"]).await.fine().json()["requests"].as_array().map(Vec::len),
        Some(3)
    );
    let page = ask(&house, &["ledger", "ls", "--unknown", "--limit", "1"]).await.fine();
    let next =
        page.err.trim().strip_prefix("redrive: there may be more: --after ").expect("a place").to_owned();
    let rest = ask(&house, &["ledger", "ls", "--unknown", "--after", &next, "--json"]).await.fine().json();
    assert_eq!(rest["requests"][0]["key"], "l");
    let made = ask(&house, &["ledger", "ls", "--resource", "booking-7"]).await.fine();
    assert!(made.out.contains("done") && made.out.contains("201"), "{}", made.out);

    let show = async |more: &[&str]| {
        ask(&house, &[&["ledger", "show", "done"], &WHICH[..], more].concat()).await.fine()
    };
    let shown = show(&[]).await;
    assert!(shown.out.contains("completed") && !shown.out.contains("cabin"), "{}", shown.out);
    assert!(show(&["--body"]).await.out.contains("\"cabin\": 7"));
    assert_eq!(show(&["--body", "--json"]).await.json()["body"], "{\"cabin\":7}");

    let resolve = async |key: &str, more: &[&str]| {
        ask(&house, &[&["ledger", "resolve", key], &WHICH[..], more].concat()).await
    };
    let body = house.folder.path().join("answer.json");
    std::fs::write(&body, "{\"cabin\":8}").expect("written");
    let done = resolve(
        "l",
        &[
            "--as",
            "completed",
            "--status",
            "201",
            "--body",
            "@answer.json",
            "--header",
            "content-type: application/json",
            "--why",
            "asked the bank",
        ],
    )
    .await
    .fine();
    assert_eq!(done.out, "1 request resolved: l: completed\n");
    let shown =
        ask(&house, &[&["ledger", "show", "l", "--body", "--json"], &WHICH[..]].concat()).await.fine().json();
    assert_eq!(
        (&shown["body"], &shown["headers"][0][1]),
        (&"{\"cabin\":8}".into(), &"application/json".into())
    );
    let again = resolve("l", &["--as", "retriable"]).await;
    assert_eq!(
        (again.code, again.err.as_str()),
        (Some(1), "redrive: it is completed: only what is unknown can be resolved\n")
    );
    let odd = resolve("k\u{1b}[31m", &["--as", "retriable"]).await;
    assert!(odd.code == Some(1) && odd.err.contains("letters that cannot be shown"), "{odd:?}");
    assert_eq!(resolve("x", &["--as", "lost"]).await.code, Some(2));
    assert_eq!(resolve("x", &["--as", "completed", "--body", "a", "--gone"]).await.code, Some(2));
    let audit = ask(&house, &["audit", "ls"]).await.fine();
    assert!(audit.out.contains("as completed with 201; asked the bank"), "{}", audit.out);
}

#[tokio::test]
async fn the_ledger_of_a_file_is_operated_when_no_server_runs() {
    let mut house = House::open("").await;
    hold(&house, "acme", &["k"]).await;
    house.stop().await;
    let folder = house.folder.path().to_owned();
    let file = async |args: &[&str], stdin: &str| {
        run(&folder, &[args, &["--store", "sqlite:redrive.db"]].concat(), &[], stdin).await
    };
    assert_eq!(file(&["ledger", "ls", "--unknown"], "").await.fine().rows().len(), 2);
    let resolve =
        [&["ledger", "resolve", "k", "--as", "completed", "--status", "200", "--body", "@-"], &WHICH[..]]
            .concat();
    assert_eq!(file(&resolve, "from a pipe").await.fine().out, "1 request resolved: k: completed\n");
    let shown = file(&[&["ledger", "show", "k", "--body"], &WHICH[..]].concat(), "").await.fine();
    assert!(shown.out.contains("from a pipe"), "{}", shown.out);
    let audit = file(&["audit", "ls", "--json"], "").await.fine().json();
    let line = &audit["lines"][0];
    assert_eq!(
        (&line["who"], &line["from"], &line["verb"]),
        (&"ada".into(), &"cli".into(), &"resolve".into())
    );
    house.start().await;
    assert!(matches!(claim(&house, "acme", "k").await, Claim::Say(_)));
}
