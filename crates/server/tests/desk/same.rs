//! The command at the foot of a page gives what the page shows: run by a shell, whatever ids contain.

use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use crate::browser::Browser;
use crate::dead_letters::{die, publish};
use crate::test_server::TestServer;

/// Runs a command line of a page in a shell, with JSON; nothing if there is no bash.
async fn run(server: &TestServer, line: &str) -> Option<Value> {
    let program = env!("CARGO_BIN_EXE_redrive");
    let (_, rest) = line.split_once(' ').expect("a command");
    // Flags before `--`, which ends them.
    let script = match rest.split_once(" -- ") {
        Some((flags, words)) => format!("exec {program} {flags} --json --url {} -- {words}", server.url("")),
        None => format!("exec {program} {rest} --json --url {}", server.url("")),
    };
    let ran = Command::new("bash")
        .args(["-c", &script])
        .env_remove("REDRIVE_TOKEN")
        .stdin(Stdio::null())
        .output()
        .await;
    let ran = ran.ok()?;
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    Some(serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{line}: {error}: {said}")))
}

#[tokio::test]
async fn the_command_of_a_page_gives_the_same() {
    let server = TestServer::open("[queues.orders.pull]\n[queues.mail.pull]\n").await;
    let odd =
        ["order 1", "o'clock", "$(touch x)", "-dash", "\u{202e}turned", "plain-7", "a\"b", "back\\slash"];
    publish(&server, "orders", "", Some("my key"), &odd).await;
    publish(&server, "mail", "acme", None, &["mail-1", "mail-2"]).await;
    die(&server, "orders").await;
    die(&server, "mail").await;
    let mut browser = Browser::open(&server);
    let lists = [
        "/desk/events",
        "/desk/events?queue=orders",
        "/desk/events?match=o%27clock",
        "/desk/events?tenant=acme",
        "/desk/events?key=my%20key&attempts_min=1",
        "/desk/events?since=2h",
        "/desk/events?limit=3",
        "/desk/events?state=open&queue=orders",
    ];
    for address in lists {
        let page = browser.get(address).await;
        let line = page.texts("#command").remove(0);
        let Some(answer) = run(&server, &line).await else { return };
        let told: Vec<&str> = answer["events"]
            .as_array()
            .expect("events")
            .iter()
            .map(|it| it["id"].as_str().expect("an id"))
            .collect();
        assert_eq!(page.texts("tbody tr").len(), told.len(), "{address}: {line}");
        let first: Vec<String> = page.texts("td.what a.id");
        let printed = |id: &str| -> String {
            let shown = |c: char| {
                if c.is_control() && c != '\n' || c == '\u{202e}' {
                    c.escape_default().to_string()
                } else {
                    c.to_string()
                }
            };
            id.chars().map(shown).collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(first, told.iter().map(|id| printed(id)).collect::<Vec<_>>(), "{address}: {line}");
    }
    for id in odd {
        let page = browser.get(&format!("/desk/event?queue=orders&id={}", crate::browser::encoded(id))).await;
        assert_eq!(page.status, 200, "{id:?}");
        // A line end in the command is written as its escape, so the foot is one line.
        let line = page.texts("#command").remove(0);
        let Some(answer) = run(&server, &line).await else { return };
        assert_eq!(answer["id"], id, "{line}");
    }
    let groups = browser.get("/desk/groups?by=queue").await;
    let Some(answer) = run(&server, &groups.texts("#command")[0]).await else { return };
    let told: Vec<&str> = answer["groups"]
        .as_array()
        .expect("groups")
        .iter()
        .map(|it| it["title"].as_str().expect("a title"))
        .collect();
    assert_eq!(groups.texts("td.what .cause"), told);
}
