//! Requests under idempotency keys by the program, against a server and straight at its file.

use redrive::http::idempotent::{LedgerClaim, ReplyProtection};

use crate::program::{ask, run};
use crate::requests::{claim, complete, hold};
use crate::test_server::TestServer;

const WHICH: [&str; 4] = ["--operation", "POST /bookings", "--tenant", "acme"];

#[tokio::test]
async fn unknown_outcomes_are_listed_shown_and_resolved() {
    let server = TestServer::open("").await;
    hold(&server, "acme", &["k\u{1b}[31m", "l"]).await;
    complete(&server, "acme", "done", &ReplyProtection::new()).await;
    let listed = ask(&server, &["ledger", "ls", "--unknown"]).await.fine();
    assert_eq!(listed.rows()[0], ["TENANT", "OPERATION", "KEY", "STATE", "ATTEMPT", "SINCE"]);
    assert_eq!(listed.rows().len(), 3);
    assert!(listed.out.contains("k\\u{1b}[31m"), "{}", listed.out);
    assert_eq!(
        ask(&server, &["ledger", "ls", "--json"]).await.fine().json()["requests"].as_array().map(Vec::len),
        Some(3)
    );
    let page = ask(&server, &["ledger", "ls", "--unknown", "--limit", "1"]).await.fine();
    let next =
        page.err.trim().strip_prefix("redrive: more may follow: --after ").expect("a place").to_owned();
    let rest = ask(&server, &["ledger", "ls", "--unknown", "--after", &next, "--json"]).await.fine().json();
    assert_eq!(rest["requests"][0]["key"], "l");
    let made = ask(&server, &["ledger", "ls", "--resource", "booking-7"]).await.fine();
    assert!(made.out.contains("done") && made.out.contains("201"), "{}", made.out);

    let show = async |more: &[&str]| {
        ask(&server, &[&["ledger", "show", "done"], &WHICH[..], more].concat()).await.fine()
    };
    let shown = show(&[]).await;
    assert!(shown.out.contains("completed") && !shown.out.contains("cabin"), "{}", shown.out);
    assert!(show(&["--body"]).await.out.contains("\"cabin\": 7"));
    assert_eq!(show(&["--body", "--json"]).await.json()["body"], "{\"cabin\":7}");

    // A key that is unique is enough.
    let found = ask(&server, &["ledger", "show", "done"]).await.fine();
    let same = |shown: &str| shown.split(" (").next().map(str::to_owned);
    assert_eq!(same(&found.out), same(&shown.out), "a key that is unique is enough");
    complete(&server, "other", "done", &ReplyProtection::new()).await;
    let two = ask(&server, &["ledger", "show", "done"]).await;
    assert_eq!(two.code, Some(1));
    assert!(
        two.err.contains(
            "there are 2 requests `done`; choose one: --operation 'POST /bookings' --tenant acme, or"
        )
    );
    let none = ask(&server, &["ledger", "show", "nothing"]).await;
    assert!(none.code == Some(1) && none.err.contains("there is no request `nothing`"), "{none:?}");

    let resolve = async |key: &str, more: &[&str]| {
        ask(&server, &[&["ledger", "resolve", key], &WHICH[..], more].concat()).await
    };
    let body = server.folder.path().join("answer.json");
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
    let shown = ask(&server, &[&["ledger", "show", "l", "--body", "--json"], &WHICH[..]].concat())
        .await
        .fine()
        .json();
    assert_eq!(
        (&shown["body"], &shown["headers"][0][1]),
        (&"{\"cabin\":8}".into(), &"application/json".into())
    );
    let again = resolve("l", &["--as", "retriable"]).await;
    assert_eq!(
        (again.code, again.err.as_str()),
        (Some(1), "redrive: it is completed: only an unknown outcome can be resolved\n")
    );
    let odd = resolve("k\u{1b}[31m", &["--as", "retriable"]).await;
    assert!(odd.code == Some(1) && odd.err.contains("no control characters"), "{odd:?}");
    assert_eq!(resolve("x", &["--as", "lost"]).await.code, Some(2));
    assert_eq!(resolve("x", &["--as", "completed", "--body", "a", "--gone"]).await.code, Some(2));
    let audit = ask(&server, &["audit", "ls"]).await.fine();
    assert!(audit.out.contains("as completed with 201; asked the bank"), "{}", audit.out);
}

#[tokio::test]
async fn the_ledger_of_a_file_is_operated_when_no_server_runs() {
    let mut server = TestServer::open("").await;
    hold(&server, "acme", &["k"]).await;
    server.stop().await;
    let folder = server.folder.path().to_owned();
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
    assert_eq!(audit["lines"][0]["verb"], "read-reply");
    let line = &audit["lines"][1];
    assert_eq!(
        (&line["who"], &line["from"], &line["verb"]),
        (&"ada".into(), &"cli".into(), &"resolve".into())
    );
    server.start().await;
    assert!(matches!(claim(&server, "acme", "k").await, LedgerClaim::Say(_)));
}
