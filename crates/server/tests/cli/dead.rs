//! Dead letters and jobs by the program, against a server.

use serde_json::json;

use crate::dead_letters::{die, publish, succeed, until};
use crate::program::{ask, interrupted, run};
use crate::test_server::TestServer;

const QUEUE: &str = "[queues.orders.pull]\n";

async fn with_letters(ids: &[&str]) -> TestServer {
    let server = TestServer::open(QUEUE).await;
    publish(&server, "orders", "", None, ids).await;
    assert_eq!(die(&server, "orders").await, ids.len());
    server
}

#[tokio::test]
async fn groups_and_letters_are_tables_for_people_and_json_for_programs() {
    let server = with_letters(&["order-1", "order-2"]).await;
    let groups = ask(&server, &["dead", "groups"]).await.fine();
    let rows = groups.rows();
    assert_eq!(rows[0], ["GROUP", "LETTERS", "FIRST", "LAST", "QUEUES", "TITLE"]);
    assert_eq!(rows[1][1], "2");
    assert!(rows[1].ends_with(&["orders", "Shop", "404:", "no", "customer", "for", "#"]), "{groups:?}");
    let cause = rows[1][0].to_owned();
    let json = ask(&server, &["dead", "groups", "--json"]).await.fine().json();
    assert_eq!((&json["groups"][0]["cause"], &json["groups"][0]["letters"]), (&json!(cause), &json!(2)));

    for by in ["type", "key"] {
        let json = ask(&server, &["dead", "groups", "--by", by, "--json"]).await.fine().json();
        assert_eq!(
            (&json["groups"][0]["title"], &json["groups"][0]["letters"]),
            (&json!(""), &json!(2)),
            "{by}"
        );
    }

    let listed = ask(&server, &["dead", "ls", "--group", &cause[..6], "--since", "2h"]).await.fine();
    let rows = listed.rows();
    assert_eq!(rows[0], ["QUEUE", "ID", "STATE", "ATTEMPTS", "WHEN", "REASON", "ERROR"]);
    assert_eq!(rows[1][..4], ["orders", "order-1", "dead", "1"]);
    assert_eq!(rows.len(), 3);
    let one = ask(&server, &["dead", "ls", "--limit", "1", "--json"]).await.fine();
    assert_eq!(one.json()["events"][0]["id"], "order-1");
    assert!(
        one.err.contains(&format!("--after {}", one.json()["next"].as_str().expect("a next"))),
        "{one:?}"
    );
    let none = ask(&server, &["dead", "ls", "--match", "timeout"]).await.fine();
    assert_eq!((none.out.as_str(), none.err.as_str()), ("", "redrive: no dead letters that match\n"));
    let wrong = ask(&server, &["dead", "ls", "--group", "zzz"]).await;
    assert_eq!((wrong.code, wrong.out.as_str()), (Some(1), ""));
    assert!(wrong.err.contains("no group starts with `zzz`"), "{wrong:?}");
}

#[tokio::test]
async fn a_letter_is_shown_whole_and_does_nothing_to_the_terminal() {
    let server = TestServer::open(QUEUE).await;
    let mut event =
        redrive::Event::new("orders", "a/b").header("x-note", "red \u{202e}der").payload(*b"{\"a\":[1.50]}");
    event.meta_mut().content_type = Some("application/json".to_owned());
    crate::dead_letters::engine(&server).publish(event).await.expect("it is kept");
    let event = redrive::Event::new("orders", "b").payload(*b"\x1b[2J\xff");
    crate::dead_letters::engine(&server).publish(event).await.expect("it is kept");
    die(&server, "orders").await;
    let shown = ask(&server, &["dead", "show", "a/b", "--body"]).await.fine();
    for line in ["id         a/b", "queue      orders", "state      dead", "reason     permanent"] {
        assert!(shown.out.lines().any(|is| is == line), "{line}: {}", shown.out);
    }
    assert!(shown.out.contains("Shop 404: no customer for a/b"), "{}", shown.out);
    assert!(shown.out.contains("x-note: red \\u{202e}der\n"), "{}", shown.out);
    assert!(shown.out.ends_with("{\n  \"a\": [\n    1.50\n  ]\n}\n"), "{}", shown.out);
    let bytes = ask(&server, &["event", "show", "b", "--queue", "orders", "--body"]).await.fine();
    assert!(bytes.out.contains("00000000  1b 5b 32 4a ff") && !bytes.out.contains('\x1b'), "{}", bytes.out);
    let none = ask(&server, &["dead", "show", "never"]).await;
    assert_eq!(
        (none.code, none.err.as_str()),
        (Some(1), "redrive: there is no event `never`, or it has been forgotten\n")
    );
}

/// Over the network as straight to the file.
#[tokio::test]
async fn ids_tenants_and_keys_may_have_any_letters() {
    let mut server =
        TestServer::open("[queues.orders]\norder = \"key\"\nafter_dead = \"park\"\n[queues.orders.pull]\n")
            .await;
    let odd = "a&b=c#d%20 e/../ö+?";
    publish(&server, "orders", odd, Some(odd), &[odd]).await;
    publish(&server, "orders", "", Some(".."), &[".."]).await;
    assert_eq!(die(&server, "orders").await, 2);
    let url = server.url("");
    for (place, value) in [("--url", url.as_str()), ("--store", "sqlite:redrive.db")] {
        if place == "--store" {
            server.stop().await;
        }
        let run = async |args: &[&str]| {
            let args = [args, &[place, value]].concat();
            run(server.folder.path(), &args, &[], "").await.fine()
        };
        assert_eq!(run(&["dead", "show", odd, "--json"]).await.json()["tenant"], odd);
        let shown = run(&["dead", "show", odd, "--queue", "orders", "--tenant", odd, "--json"]).await;
        assert_eq!(shown.json()["key"], odd);
        assert_eq!(run(&["dead", "ls", "--key", odd, "--json"]).await.json()["events"][0]["id"], odd);
        let key = run(&["key", "show", odd, "--queue", "orders", "--tenant", odd, "--json"]).await;
        assert_eq!(key.json()["events"][0]["id"], odd);
        assert_eq!(
            run(&["key", "show", "..", "--queue", "orders", "--json"]).await.json()["events"][0]["id"],
            ".."
        );
        assert_eq!(run(&["event", "show", "..", "--json"]).await.json()["id"], "..");
        assert_eq!(run(&["dead", "discard", odd, ".."]).await.out, "2 events discarded\n");
        assert_eq!(run(&["dead", "restore", odd, ".."]).await.out, "2 events restored\n");
    }
}

#[tokio::test]
async fn letters_are_put_back_by_id_and_refusals_are_told_one_by_one() {
    let server = with_letters(&["a", "b"]).await;
    let dry = ask(&server, &["dead", "redrive", "a", "--dry-run"]).await.fine();
    assert_eq!(dry.rows()[1], ["orders", "a"]);
    assert!(dry.err.contains("nothing was done"));
    let done = ask(&server, &["dead", "redrive", "a"]).await.fine();
    assert_eq!(done.out, "1 event put back\n");
    let again = ask(&server, &["dead", "redrive", "a", "b", "zz", "--queue", "orders"]).await;
    assert_eq!((again.code, again.out.as_str()), (Some(1), "1 event put back\n"));
    assert!(again.err.contains("refused: orders/a: it is ready\n"), "{again:?}");
    assert!(again.err.contains("refused: orders/zz: there is no such event"), "{again:?}");
    assert_eq!(succeed(&server, "orders").await, 2);
    let stale = with_letters(&["c"]).await;
    let refused = ask(&stale, &["dead", "discard", "c", "--rev", "99", "--json"]).await;
    assert_eq!((refused.code, &refused.json()["refused"][0]["reason"]), (Some(1), &json!("changed")));
}

#[tokio::test]
async fn a_redrive_of_many_needs_a_yes_and_is_a_job_that_can_be_watched() {
    let server = with_letters(&["a", "b", "c"]).await;
    let planned = ask(&server, &["dead", "plan", "--rate", "1/s"]).await.fine();
    assert_eq!(planned.rows()[0], ["events", "3"]);
    assert!(planned.out.contains("minimum time  3s"), "{planned:?}");
    for args in [&["dead", "redrive"][..], &["dead", "redrive", "--queue", "orders"]] {
        let refused = ask(&server, args).await;
        assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""));
        assert!(
            refused.err.ends_with("redrive: this affects 3 dead letters; confirm with --yes\n"),
            "{refused:?}"
        );
    }
    let dry = ask(&server, &["dead", "redrive", "--dry-run", "--json"]).await.fine();
    assert_eq!(dry.json()["letters"], 3);
    let none = ask(&server, &["dead", "redrive", "--queue", "nowhere"]).await.fine();
    assert_eq!(none.err, "redrive: no dead letters that match\n");

    let begun = ask(&server, &["dead", "redrive", "--yes", "--canary", "2", "--stop-at", "50%"]).await.fine();
    assert_eq!(begun.out, "job 1: redrive of 3 dead letters\n");
    assert!(begun.err.contains("redrive job watch 1"), "{begun:?}");
    let path = "/v1/jobs/1";
    until(&server, path, |job| job["taken"] == 2).await;
    succeed(&server, "orders").await;
    until(&server, path, |job| job["taken"] == 3).await;
    let watched = tokio::join!(ask(&server, &["job", "watch", "1"]), succeed(&server, "orders"));
    assert_eq!(watched.0.code, Some(0), "{watched:?}");
    assert_eq!(watched.0.out, "job 1: done, 3 taken, 3 done\n");
    let listed = ask(&server, &["job", "ls"]).await.fine();
    assert_eq!(listed.rows()[1][..6], ["1", "redrive", "done", "3", "3", "3"]);
    let over = ask(&server, &["job", "cancel", "1"]).await;
    assert_eq!((over.code, over.err.as_str()), (Some(1), "redrive: the job is done\n"));
    assert_eq!(ask(&server, &["job", "show", "1", "--json"]).await.fine().json()["canary"], 2);
}

#[tokio::test]
async fn a_job_that_stops_itself_is_a_failure_for_who_watches() {
    let server = with_letters(&["a", "b"]).await;
    ask(&server, &["dead", "redrive", "--yes", "--canary", "1"]).await.fine();
    until(&server, "/v1/jobs/1", |job| job["taken"] == 1).await;
    die(&server, "orders").await;
    let watched = ask(&server, &["job", "watch", "1"]).await;
    assert_eq!(
        (watched.code, watched.out.as_str()),
        (Some(1), "job 1: stopped, 1 taken, 1 failed again, 1 of 1 failed again\n")
    );
}

/// The job did all that it was to do, and what it put back is dead again.
#[tokio::test]
async fn a_redrive_that_fails_again_is_a_failure_for_who_watches() {
    let server = with_letters(&["a", "b"]).await;
    ask(&server, &["dead", "redrive", "--yes"]).await.fine();
    until(&server, "/v1/jobs/1", |job| job["taken"] == 2).await;
    die(&server, "orders").await;
    let watched = ask(&server, &["job", "watch", "1"]).await;
    assert_eq!((watched.code, watched.out.as_str()), (Some(1), "job 1: done, 2 taken, 2 failed again\n"));
    assert!(watched.err.contains("2 events dead again; see `redrive dead groups`"), "{watched:?}");
}

/// Ctrl-C stops the watching alone.
#[tokio::test]
async fn who_watches_can_leave_and_the_job_goes_on() {
    let server = with_letters(&["a", "b"]).await;
    ask(&server, &["dead", "redrive", "--yes", "--rate", "1/h"]).await.fine();
    let said = interrupted(&server, &["job", "watch", "1"], "job 1: running").await;
    assert_eq!(said.code, Some(130), "{said:?}");
    assert!(said.err.ends_with("redrive: stopped watching; job 1 continues\n"), "{said:?}");
    assert_eq!(ask(&server, &["job", "show", "1", "--json"]).await.fine().json()["state"], "running");
    assert_eq!(ask(&server, &["job", "pause", "1"]).await.fine().out, "job 1: paused\n");
    assert_eq!(ask(&server, &["job", "resume", "1"]).await.fine().out, "job 1: running\n");
    assert_eq!(ask(&server, &["job", "cancel", "1"]).await.fine().out, "job 1: cancelled\n");
}

#[tokio::test]
async fn letters_are_discarded_and_restored() {
    let server = with_letters(&["a", "b", "c"]).await;
    let gone = ask(&server, &["dead", "discard", "--yes", "--watch"]).await.fine();
    assert_eq!(gone.out, "job 1: done, 3 taken\n", "{gone:?}");
    assert_eq!(ask(&server, &["dead", "groups"]).await.fine().err, "redrive: no dead letters\n");
    assert_eq!(ask(&server, &["dead", "ls", "--discarded"]).await.fine().rows().len(), 4);
    publish(&server, "orders", "", None, &["lives"]).await;
    let lives = ask(&server, &["dead", "discard", "lives"]).await;
    assert_eq!(lives.code, Some(1));
    assert!(lives.err.contains("lives is ready, not a dead letter; use `redrive event skip`"), "{lives:?}");
    let none = ask(&server, &["dead", "restore", "--queue", "nowhere"]).await.fine();
    assert_eq!(none.err, "redrive: no discarded events to restore\n");
    let unsure = ask(&server, &["dead", "restore"]).await;
    assert_eq!(unsure.code, Some(1));
    assert!(unsure.err.contains("3 discarded events; confirm with --yes"), "{unsure:?}");
    assert_eq!(ask(&server, &["dead", "restore", "b"]).await.fine().out, "1 event restored\n");
    assert_eq!(ask(&server, &["dead", "restore", "--match", "for c"]).await.fine().out, "1 event restored\n");
    ask(&server, &["dead", "discard", "c"]).await.fine();
    assert_eq!(
        ask(&server, &["dead", "restore", "--queue", "orders", "--yes"]).await.fine().out,
        "2 events restored\n"
    );
    assert_eq!(ask(&server, &["dead", "ls"]).await.fine().rows().len(), 4);
}

#[tokio::test]
async fn a_letter_is_edited_where_that_is_allowed() {
    let mut server = with_letters(&["a"]).await;
    let off = ask(&server, &["dead", "edit", "a", "--payload", "-"]).await;
    assert_eq!(off.code, Some(1));
    assert!(off.err.contains("editing is disabled"), "{off:?}");
    server.stop().await;
    server.settings_are(&format!("[server]\nedit = true\n{QUEUE}"));
    server.start().await;
    let url = server.url("");
    let args = ["dead", "edit", "a", "--payload", "-", "--new-id", "a-mended", "--header", "x-by=ada"];
    let edited = run(server.folder.path(), &args, &[("REDRIVE_URL", &url)], "mended").await.fine();
    assert_eq!(edited.out, "1 event edited: a continues as a-mended\n");
    let shown = ask(&server, &["event", "show", "a-mended", "--body"]).await.fine();
    assert!(shown.out.contains("x-by: ada\n") && shown.out.ends_with("\nmended\n"), "{}", shown.out);
    let nothing = ask(&server, &["dead", "edit", "a"]).await;
    assert!(nothing.err.contains("nothing to change"), "{nothing:?}");
}

#[tokio::test]
async fn letters_move_from_one_server_to_another() {
    let server = with_letters(&["a", "b"]).await;
    let out = ask(&server, &["dead", "export"]).await.fine();
    assert_eq!((out.out.lines().count(), out.err.as_str()), (2, "redrive: 2 dead letters exported\n"));
    let other = TestServer::open(QUEUE).await;
    let url = other.url("");
    let import = async |lines: String| {
        run(other.folder.path(), &["dead", "import", "-"], &[("REDRIVE_URL", &url)], &lines).await
    };
    assert_eq!(import(out.out.clone()).await.fine().out, "2 dead letters imported\n");
    let again = import(out.out.clone()).await;
    assert_eq!((again.code, again.out.as_str()), (Some(1), "0 dead letters imported\n"));
    assert!(again.err.contains("refused: line 1: ") && again.err.contains("refused: line 2: "), "{again:?}");
    // More lines than are sent at once: the number is that of the file.
    let wrong = import(format!("{}nonsense\n", "\n".repeat(1500))).await;
    assert!(wrong.err.contains("line 1501 is not a dead letter"), "{wrong:?}");
}
