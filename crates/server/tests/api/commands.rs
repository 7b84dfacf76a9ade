//! The commands that make keys, secrets and tokens, as a person types them.

use std::path::Path;
use std::process::Output;

use redrive_server::config::Config;
use serde_json::json;

use crate::test_server::{TestServer, answer};

/// Runs the program with this on its standard input.
async fn redrive(arguments: &[&str], input: &str) -> Output {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let input = input.to_owned();
    let run = move || {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(arguments)
            .env_remove("REDRIVE_TOKEN")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the program");
        let mut stdin = program.stdin.take().expect("its input");
        // One that does not read it may be gone by now.
        let _ = std::io::Write::write_all(&mut stdin, input.as_bytes());
        drop(stdin);
        program.wait_with_output().expect("its end")
    };
    tokio::task::spawn_blocking(run).await.expect("a run")
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("text").trim().to_owned()
}

#[tokio::test]
async fn a_token_is_printed_once_and_its_lines_let_it_in() {
    let output =
        redrive(&["token", "new", "--name", "shop", "--rights", "publish,read", "--tenant", "acme"], "")
            .await;
    let printed = out(&output);
    let (token, lines) = printed.split_once("\n\n").expect("a token and lines");
    let config: Config = toml::from_str(lines).expect("settings");
    assert!(config.tokens.contains_key("shop") && !lines.contains(token));
    let server = TestServer::open(&format!("{lines}\n[queues.orders.pull]\n")).await;
    let publish = |token: &str| {
        let url = server.url("/v1/queues/orders/events");
        answer(server.client.post(url).bearer_auth(token).json(&json!({ "id": "a" })))
    };
    assert_eq!((publish(token).await.0, publish("rdt_other").await.0), (202, 401));
    let wrong = redrive(&["token", "new", "--name", "shop", "--rights", "publsh"], "").await;
    assert!(!wrong.status.success() && wrong.stdout.is_empty());
}

#[tokio::test]
async fn secrets_are_made_listed_rotated_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    let key_text = key.to_str().expect("text");
    out(&redrive(&["secret", "key", key_text], "").await);
    assert!(!redrive(&["secret", "key", key_text], "").await.status.success(), "it is there already");
    assert!(Path::new(&key).is_file());
    let server =
        TestServer::open(&format!("secrets.key_file = \"{key_text}\"\n[queues.orders.pull]\n")).await;
    let url = server.url("");
    let secret = async |arguments: &[&str], input: &str| {
        redrive(&[&["secret"], arguments, &["--url", &url]].concat(), input).await
    };
    let made = out(&secret(&["set", "orders"], "").await);
    assert!(made.starts_with("whsec_") && made.lines().count() == 1, "{made}");
    let given = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let rotated = secret(&["rotate", "orders", "--keep-old", "1h", "--stdin"], given).await;
    assert_eq!(out(&rotated), "", "what was given is not repeated");
    let listed = out(&secret(&["ls"], "").await);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(listed.starts_with("orders  2  ") && !listed.contains("whsec"), "{listed}");
    let listed = out(&secret(&["ls", "--json"], "").await);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("a line of JSON");
    assert_eq!(listed["versions"][0]["version"], json!(2));
    out(&secret(&["drop-old", "orders"], "").await);
    assert_eq!(out(&secret(&["ls"], "").await).lines().count(), 1);
    out(&secret(&["rm", "orders"], "").await);
    assert_eq!(out(&secret(&["ls"], "").await), "");
    let gone = secret(&["rm", "orders"], "").await;
    assert!(String::from_utf8_lossy(&gone.stderr).contains("there is no secret `orders`"), "{gone:?}");
}

#[tokio::test]
async fn a_token_is_in_a_file_and_never_on_the_command_line() {
    let hash = "sha256:d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272";
    let token = format!("[tokens.ops]\nhash = \"{hash}\"\nrights = [\"operate\"]\n");
    let server = TestServer::open(&format!("{token}[queues.orders.pull]\n")).await;
    let path = |name: &str| server.folder.path().join(name).to_str().expect("text").to_owned();
    let (file, copy, url) = (path("token"), path("copy"), server.url(""));
    std::fs::write(&file, "sesame\n").expect("written");
    for command in [&["secret", "ls"][..], &["backup", &copy]] {
        let with = |flag: &'static str, value: &str| {
            let all: Vec<String> =
                command.iter().chain(&["--url", &url, flag, value]).map(|text| (*text).to_owned()).collect();
            async move { redrive(&all.iter().map(String::as_str).collect::<Vec<_>>(), "").await }
        };
        assert_eq!(with("--token", "secret").await.status.code(), Some(2), "{command:?}");
        out(&with("--token-file", &file).await);
    }
}

/// What carries a token goes to the server that was named, and to no other.
#[tokio::test]
async fn a_backup_follows_nobody_elsewhere() {
    use axum::http::header::LOCATION;
    use axum::routing::post;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let away = || async { (axum::http::StatusCode::TEMPORARY_REDIRECT, [(LOCATION, "/elsewhere")]) };
    let router = axum::Router::new()
        .route("/v1/backup", post(away))
        .route("/elsewhere", post(|| async { "somebody else's" }));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy");
    let said = redrive(&["backup", copy.to_str().expect("text"), "--url", &url], "").await;
    assert!(String::from_utf8_lossy(&said.stderr).contains("307"), "{said:?}");
    assert!(!said.status.success() && !copy.exists());
}
