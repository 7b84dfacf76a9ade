//! Publishing, settings and a check-up from the shell; and what `serve` says when it cannot.

use std::path::Path;

use crate::program::{ask, run};
use crate::test_server::TestServer;

const QUEUE: &str = "[queues.orders.pull]\n";

fn write(folder: &Path, settings: &str) {
    std::fs::write(folder.join("redrive.toml"), settings).expect("settings");
}

#[tokio::test]
async fn an_event_is_published_from_an_argument_a_file_and_stdin() {
    let server = TestServer::open(QUEUE).await;
    let first = ask(&server, &["publish", "orders", "a", "--payload", "{\"n\": 1.10}"]).await.fine();
    assert_eq!(first.out, "a: accepted\n");
    let again = ask(&server, &["publish", "orders", "a", "--payload", "{\"n\": 1.10}"]).await.fine();
    assert_eq!(again.out, "a: duplicate; the first one is ready\n");
    let other = ask(&server, &["publish", "orders", "a", "--payload", "2"]).await;
    assert!(other.code == Some(1) && other.err.contains("another payload"), "{other:?}");
    std::fs::write(server.folder.path().join("b.txt"), "hello").expect("a file");
    ask(&server, &["publish", "orders", "b", "--file", "b.txt", "--tenant", "acme"]).await.fine();
    let url = server.url("");
    let stdin =
        run(server.folder.path(), &["publish", "orders", "c", "-"], &[("REDRIVE_URL", &url)], "[1]").await;
    assert_eq!(stdin.fine().out, "c: accepted\n");
    let named = ask(&server, &["publish", "orders", "--json"]).await.fine().json();
    assert_eq!(named["result"], "accepted");
    let shown = ask(&server, &["event", "show", "a", "--body"]).await.fine();
    assert!(shown.out.contains("\"n\": 1.10"), "{}", shown.out);
    assert!(ask(&server, &["event", "show", "b", "--body"]).await.fine().out.contains("hello"));
    let none = ask(&server, &["publish", "nowhere", "a"]).await;
    assert_eq!((none.code, none.err.contains("nowhere")), (Some(1), true), "{none:?}");
}

#[tokio::test]
async fn the_settings_in_force_are_printed_with_where_they_came_from() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &format!("[server]\nlisten = \"localhost:1\"\n{QUEUE}"));
    let said = run(folder.path(), &["config"], &[("REDRIVE_SERVER_BODY_MAX", "17")], "").await.fine();
    let line = |name: &str| {
        let found = said.out.lines().find(|line| line.starts_with(&format!("{name} = ")));
        found
            .unwrap_or_else(|| panic!("{name} is not in {}", said.out))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(line("server.listen"), "server.listen = \"localhost:1\" # redrive.toml");
    assert_eq!(line("server.body_max"), "server.body_max = 17 # REDRIVE_SERVER_BODY_MAX");
    assert_eq!(line("queues.orders.policy.attempts"), "queues.orders.policy.attempts = 20 # default");
    let default = run(folder.path(), &["config", "--default"], &[], "").await.fine();
    assert!(default.out.starts_with("# redrive.toml: every setting"), "{}", default.out);
}

#[tokio::test]
async fn a_check_up_says_what_is_wrong_and_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let push = "[push]\nallow = [\"127.0.0.0/8\"]\n[queues.hooks.push]\nurl = \"http://127.0.0.1:1/\"\n";
    write(folder.path(), &format!("[server]\nlisten = \"127.0.0.1:1\"\n{QUEUE}{push}"));
    let sick = run(folder.path(), &["doctor"], &[], "").await;
    assert_eq!(sick.code, Some(1), "{sick:?}");
    assert!(
        sick.out.contains("WRONG  queue hooks: its destination 127.0.0.1:1 cannot be reached: "),
        "{}",
        sick.out
    );
    assert!(sick.out.to_lowercase().contains("connection refused"), "{}", sick.out);
    assert!(!folder.path().join("redrive.db").exists(), "a look creates nothing");
    write(folder.path(), &format!("[server]\nlisten = \"127.0.0.1:1\"\n{QUEUE}"));
    let well = run(folder.path(), &["doctor", "--json"], &[], "").await.fine().json();
    assert_eq!(well["fine"], true, "{well}");
    write(folder.path(), "[server]\nlisen = \"127.0.0.1:1\"\n");
    let wrong = run(folder.path(), &["doctor"], &[], "").await;
    assert!(wrong.code == Some(1) && wrong.out.contains("did you mean `listen`?"), "{wrong:?}");
}

#[tokio::test]
async fn serve_says_what_is_missing_and_who_has_its_address() {
    let folder = tempfile::tempdir().expect("a folder");
    let bare = run(folder.path(), &["serve", "--listen", "127.0.0.1:0"], &[], "").await;
    assert_eq!(bare.code, Some(1), "{bare:?}");
    assert!(
        bare.err.contains("[queues.orders.pull]") && bare.err.contains("nothing was created"),
        "{bare:?}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    write(folder.path(), QUEUE);
    let nonsense =
        run(folder.path(), &["serve", "--listen", "127.0.0.1:0"], &[("REDRIVE_LOG", "inof")], "").await;
    assert_eq!(nonsense.code, Some(1));
    assert!(nonsense.err.contains("REDRIVE_LOG = `inof`: `inof` is not a log level"), "{nonsense:?}");
    let server = TestServer::open(QUEUE).await;
    let address = server.url("").trim_start_matches("http://").to_owned();
    let taken = run(folder.path(), &["serve", "--listen", &address], &[], "").await;
    assert_eq!(taken.code, Some(1));
    assert!(taken.err.contains("a redrive server of another store runs there already"), "{taken:?}");
    assert!(taken.err.contains("--listen"), "{taken:?}");
}

#[tokio::test]
async fn attempts_are_printed_as_they_happen() {
    let server = TestServer::open(QUEUE).await;
    ask(&server, &["publish", "orders", "a", "--tenant", "acme"]).await.fine();
    let url = server.url("");
    let variables = [("REDRIVE_URL", url.as_str())];
    let mut tail =
        crate::program::Running::start(server.folder.path(), &["tail", "orders", "-n", "2"], &variables);
    let tail = tokio::task::spawn_blocking(move || {
        tail.hear("waiting for attempts");
        tail
    })
    .await
    .expect("it watches");
    let lease = async || {
        let (_, leased) = server.post("/v1/queues/orders/leases", serde_json::json!({ "max": 1 })).await;
        leased["leases"][0].clone()
    };
    for say in ["retry", "ok"] {
        let lease = lease().await;
        let (id, tenant, attempt, token) =
            (&lease["id"], &lease["tenant"], &lease["attempt"], &lease["token"]);
        let mut settled = serde_json::json!({ "id": id, "tenant": tenant, "attempt": attempt, "token": token, "disposition": say });
        if say == "retry" {
            settled["error"] = serde_json::json!({ "kind": "Shop", "code": "503", "message": "no room" });
        }
        let (status, told) =
            server.post("/v1/queues/orders/leases/settle", serde_json::json!({ "leases": [settled] })).await;
        assert_eq!(status, 200, "{told}");
        ask(&server, &["event", "retry-now", "a"]).await;
    }
    let said = tokio::task::spawn_blocking(move || tail.end()).await.expect("it ended").fine();
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines.len(), 2, "{said:?}");
    assert!(lines[0].ends_with("acme/a  attempt 1  retry  Shop  503"), "{said:?}");
    assert!(lines[1].ends_with("acme/a  attempt 2  ok"), "{said:?}");
}
