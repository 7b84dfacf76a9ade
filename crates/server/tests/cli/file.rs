//! The program straight at a store file, and how it finds its way.

use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::dead_letters::{die, publish, succeed};
use crate::program::{ask, run};
use crate::test_server::TestServer;

const QUEUE: &str = "[queues.orders.pull]\n";

async fn stopped_with_letters(ids: &[&str]) -> TestServer {
    let mut server = TestServer::open(QUEUE).await;
    publish(&server, "orders", "", None, ids).await;
    die(&server, "orders").await;
    server.stop().await;
    server
}

#[tokio::test]
async fn a_file_is_operated_when_no_server_runs() {
    let mut server = stopped_with_letters(&["a", "b"]).await;
    let folder = server.folder.path();
    let file =
        async |args: &[&str]| run(folder, &[args, &["--store", "sqlite:redrive.db"]].concat(), &[], "").await;
    let listed = file(&["dead", "ls"]).await.fine();
    assert_eq!(
        (listed.rows().len(), listed.err.as_str()),
        (3, "redrive: opening sqlite:redrive.db directly\n")
    );
    assert!(file(&["dead", "show", "a", "--body"]).await.fine().out.contains("\"order\": \"a\""));
    assert_eq!(file(&["dead", "redrive", "a"]).await.fine().out, "1 event put back\n");
    let job = file(&["dead", "redrive", "--queue", "orders"]).await.fine();
    assert_eq!(job.out, "job 1: redrive of 1 dead letter\n");
    assert!(job.err.contains("job 1 starts as soon as a server runs on this file"), "{job:?}");
    let watched = file(&["job", "watch", "1"]).await;
    assert_eq!((watched.code, watched.out.as_str()), (Some(1), ""));
    assert!(watched.err.contains("job 1 makes no progress"), "{watched:?}");
    let audit = file(&["audit", "ls", "--json"]).await.fine().json();
    let line = &audit["lines"][0];
    assert_eq!(
        (&line["who"], &line["from"], &line["verb"]),
        (&"ada".into(), &"cli".into(), &"start-job".into())
    );

    server.start().await;
    crate::dead_letters::until(&server, "/v1/jobs/1", |job| job["taken"] == 1).await;
    assert_eq!(succeed(&server, "orders").await, 2);
    // While a server has the file open, looking and ordering past it is fine too.
    publish(&server, "orders", "", None, &["c"]).await;
    die(&server, "orders").await;
    let beside =
        run(server.folder.path(), &["dead", "redrive", "c"], &[("REDRIVE_STORE", "sqlite:redrive.db")], "")
            .await;
    assert_eq!(beside.fine().out, "1 event put back\n");
    assert_eq!(succeed(&server, "orders").await, 1);
}

#[tokio::test]
async fn without_a_word_the_server_of_the_configuration_is_asked_and_then_its_file() {
    let mut server = stopped_with_letters(&["a"]).await;
    server.start().await;
    let address = server.url("").trim_start_matches("http://").to_owned();
    let settings = format!("[server]\nlisten = \"{address}\"\n{QUEUE}");
    std::fs::write(server.folder.path().join("redrive.toml"), settings).expect("written");
    let asked = run(server.folder.path(), &["dead", "ls"], &[], "").await.fine();
    assert_eq!((asked.rows().len(), asked.err.as_str()), (2, ""));
    let asked = run(server.folder.path(), &["dead", "ls", "-v"], &[], "").await.fine();
    assert_eq!(asked.err, format!("redrive: using the server at http://{address}\n"));
    server.stop().await;
    let file = run(server.folder.path(), &["dead", "ls"], &[], "").await.fine();
    assert_eq!(file.rows().len(), 2);
    assert_eq!(
        file.err,
        format!("redrive: no server at http://{address}; opening sqlite:redrive.db directly\n")
    );
    std::fs::remove_file(server.folder.path().join("redrive.db")).expect("removed");
    let none = run(server.folder.path(), &["dead", "ls"], &[], "").await;
    assert_eq!(none.code, Some(1));
    assert!(
        none.err.contains(&format!("no server at http://{address}, and no store at sqlite:redrive.db")),
        "{none:?}"
    );
    assert!(!Path::new(&server.folder.path().join("redrive.db")).exists(), "looking makes no store");
}

#[tokio::test]
async fn a_token_goes_to_no_server_that_a_file_of_the_folder_names() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("redrive.toml"), format!("[server]\nlisten = \"{address}\"\n"))
        .expect("written");
    let token = ("REDRIVE_TOKEN", "rdt_hush");
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.expect("a request");
            let text = String::from_utf8_lossy(&request[..read]).into_owned();
            // What asks which store is served carries no token.
            if text.contains("rdt_hush") {
                return text;
            }
        }
    });
    let asked = run(folder.path(), &["dead", "ls"], &[token], "").await;
    assert!(asked.code == Some(1) && asked.err.contains("names the server"), "{asked:?}");
    assert!(!serving.is_finished(), "it was sent");
    // A user who names the file chose it.
    let _ = run(folder.path(), &["dead", "ls", "--config", "redrive.toml"], &[token], "").await;
    assert!(serving.await.expect("a request").contains("rdt_hush"));
}

#[tokio::test]
async fn an_audit_log_is_verified_with_the_key_and_the_head_that_was_logged() {
    let server = stopped_with_letters(&["a"]).await;
    let folder = server.folder.path();
    run(folder, &["secret", "key", "key"], &[], "").await.fine();
    let verify = async |more: &[&str]| {
        let all = [&["audit", "verify", "--store", "sqlite:redrive.db", "--key-file", "key"], more].concat();
        run(folder, &all, &[], "").await
    };
    run(folder, &["dead", "export", "--store", "sqlite:redrive.db"], &[], "").await.fine();
    let fine = verify(&[]).await.fine();
    assert!(fine.err.contains("1 line read, 1 not sealed yet"), "{fine:?}");
    let cut = verify(&["--head", "7:00"]).await;
    assert!(cut.code == Some(1) && cut.err.contains("the head 7:00 is missing"), "{cut:?}");
}

#[tokio::test]
async fn flags_go_before_variables_and_a_server_before_a_file() {
    let mut server = stopped_with_letters(&["a"]).await;
    let nobody = ("REDRIVE_URL", "http://127.0.0.1:9");
    let file =
        run(server.folder.path(), &["dead", "ls", "--store", "sqlite:redrive.db"], &[nobody], "").await;
    assert_eq!(file.fine().rows().len(), 2);
    let both =
        run(server.folder.path(), &["dead", "ls"], &[nobody, ("REDRIVE_STORE", "sqlite:redrive.db")], "")
            .await;
    assert!(both.code == Some(1) && both.err.contains("cannot reach the server"), "{both:?}");
    server.start().await;
    let server =
        run(server.folder.path(), &["dead", "ls", "--url", &server.url("/")], &[nobody], "").await.fine();
    assert_eq!((server.rows().len(), server.err.as_str()), (2, ""));
}

/// A redirect would leak the token.
#[tokio::test]
async fn redirects_are_not_followed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let elsewhere = url.clone();
    let serving = tokio::spawn(async move {
        let mut requests = 0;
        loop {
            let (mut stream, _) = listener.accept().await.expect("a client");
            requests += 1;
            let status = if requests == 1 { "302 Found" } else { "200 OK" };
            let answer =
                format!("HTTP/1.1 {status}\r\nlocation: {elsewhere}/2\r\ncontent-length: 2\r\n\r\n{{}}");
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).await.expect("a request") > 0);
            stream.write_all(answer.as_bytes()).await.expect("an answer");
            stream.shutdown().await.expect("an end");
        }
    });
    let folder = tempfile::tempdir().expect("a folder");
    let said = run(folder.path(), &["job", "ls", "--url", &url], &[("REDRIVE_TOKEN", "secret")], "").await;
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("the response is 302 Found, which is not from redrive"), "{said:?}");
    serving.abort();
}

#[tokio::test]
async fn what_cannot_be_reached_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = async |args: &[&str], variables: &[(&str, &str)]| run(folder.path(), args, variables, "").await;
    let none = run(&["dead", "ls", "--store", "sqlite:nowhere.db"], &[]).await;
    assert_eq!((none.code, none.err.as_str()), (Some(1), "redrive: there is no file nowhere.db\n"));
    let memory = run(&["dead", "ls", "--store", "memory:"], &[]).await;
    assert!(memory.err.contains("is the memory of another process"), "{memory:?}");
    let away = run(&["dead", "ls", "--url", "http://127.0.0.1:9"], &[]).await;
    assert_eq!(away.code, Some(1));
    assert!(away.err.starts_with("redrive: cannot reach the server at http://127.0.0.1:9: "), "{away:?}");
    let wrong = run(&["dead", "ls", "--url", "somewhere"], &[]).await;
    assert!(wrong.err.contains("`somewhere` is not a server URL"), "{wrong:?}");
    let both = run(&["dead", "ls", "--url", "http://127.0.0.1:9", "--store", "sqlite:a.db"], &[]).await;
    assert_eq!(both.code, Some(2));
    let flag = run(&["dead", "ls", "--token", "secret"], &[]).await;
    assert_eq!(flag.code, Some(2), "a token is never on the command line");
}

#[tokio::test]
async fn a_token_comes_from_the_environment_or_a_file() {
    let server = TestServer::open(&format!(
        "{}{QUEUE}",
        crate::dead_letters::token("ada", "\"read\", \"operate\"", None)
    ))
    .await;
    let url = server.url("");
    let asked = ask(&server, &["queue", "pause", "orders"]).await;
    assert_eq!((asked.code, asked.err.contains("set REDRIVE_TOKEN")), (Some(1), true), "{asked:?}");
    let run = async |args: &[&str], token: &str| {
        run(server.folder.path(), args, &[("REDRIVE_URL", &url), ("REDRIVE_TOKEN", token)], "").await
    };
    let wrong = run(&["queue", "ls"], "eve").await;
    assert_eq!((wrong.code, wrong.err.as_str()), (Some(1), "redrive: the server rejected the token\n"));
    run(&["queue", "pause", "orders"], "ada").await.fine();
    std::fs::write(server.folder.path().join("token"), "ada\n").expect("written");
    let lines = run(&["audit", "ls", "--token-file", "token", "--json"], "eve").await.fine().json();
    assert_eq!(lines["lines"][0]["who"], "ada");
}

/// A server of another store happens to listen on the address of the configuration.
#[tokio::test]
async fn a_server_of_another_store_than_the_configured_one_is_not_asked() {
    let mut server = stopped_with_letters(&["a"]).await;
    server.start().await;
    let listen = server.url("").trim_start_matches("http://").to_owned();
    let folder = tempfile::tempdir().expect("a folder");
    let asked = async |store: &str| {
        let settings = format!("[server]\nlisten = \"{listen}\"\n{store}");
        std::fs::write(folder.path().join("said.toml"), settings).expect("settings");
        run(folder.path(), &["dead", "ls", "--config", "said.toml"], &[], "").await
    };
    let file = server.folder.path().join("redrive.db");
    for other in ["postgres://ann@127.0.0.1:1/shop".to_owned(), "sqlite:redrive.db".to_owned()] {
        let said = asked(&format!("[store]\naddress = \"{other}\"\n")).await;
        assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{said:?}");
        assert!(said.err.contains("serves another store"), "{said:?}");
        let secrets = run(folder.path(), &["secret", "ls", "--config", "said.toml"], &[], "").await;
        assert!(secrets.code == Some(1) && secrets.err.contains("serves another store"), "{secrets:?}");
        let url = server.url("");
        let named = ["dead", "ls", "--config", "said.toml", "--url", &url];
        assert_eq!(
            run(folder.path(), &named, &[], "").await.fine().rows().len(),
            2,
            "who names the server means it"
        );
    }
    let same = asked(&format!("[store]\naddress = \"sqlite:{}\"\n", file.display())).await.fine();
    assert_eq!(same.rows().len(), 2);
    let unsaid = asked("").await.fine();
    assert_eq!(unsaid.rows().len(), 2, "a configuration without a store names none");
}

#[tokio::test]
async fn another_program_on_the_port_of_the_configuration_is_not_taken_for_the_server() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let listen = listener.local_addr().expect("an address");
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
        }
    });
    let folder = tempfile::tempdir().expect("a folder");
    let settings = format!("[server]\nlisten = \"{listen}\"\n[store]\naddress = \"sqlite:a.db\"\n");
    std::fs::write(folder.path().join("redrive.toml"), settings).expect("settings");
    let said = run(folder.path(), &["dead", "ls"], &[], "").await;
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{said:?}");
    assert!(said.err.contains("does not say which store it serves"), "{said:?}");
    serving.abort();
}

/// Wherever the address of a database comes from and whatever is wrong with it, its password is said nowhere.
#[tokio::test]
async fn the_password_of_a_database_is_said_nowhere() {
    let folder = tempfile::tempdir().expect("a folder");
    for address in [
        "postgres://ann:hush@127.0.0.1:1/shop",
        "postgres://ann@127.0.0.1:1/shop?password=hush",
        "postgres://ann:hush@127.0.0.1:1/shop?sslpassword=hush",
        "postgres://ann:hush@127.0.0.1:port/shop",
        "postgress://ann:hush@127.0.0.1:1/shop",
        "postgres:ann:hush@127.0.0.1:1/shop",
    ] {
        let settings = format!("[server]\nlisten = \"127.0.0.1:1\"\n[store]\naddress = \"{address}\"\n");
        std::fs::write(folder.path().join("said.toml"), settings).expect("settings");
        // As many would write it at first.
        std::fs::write(folder.path().join("short.toml"), format!("store = \"{address}\"\n"))
            .expect("settings");
        let trace = [("REDRIVE_LOG", "trace")];
        let store = [("REDRIVE_LOG", "trace"), ("REDRIVE_STORE", address)];
        let listen = ["serve", "--listen", "127.0.0.1:0"];
        for (args, variables) in [
            (vec!["dead", "ls", "--store", address], &trace[..]),
            (vec!["dead", "ls"], &store),
            (vec!["dead", "ls", "--config", "said.toml"], &trace),
            ([&listen[..], &["--store", address]].concat(), &trace),
            ([&listen[..], &["--config", "said.toml"]].concat(), &trace),
            ([&listen[..], &["--config", "short.toml"]].concat(), &trace),
            (vec!["backup", "copy", "--store", address], &trace),
        ] {
            let said = run(folder.path(), &args, variables, "").await;
            assert_ne!(said.code, Some(0), "{args:?}: {said:?}");
            assert!(!format!("{}{}", said.out, said.err).contains("hush"), "{args:?}: {said:?}");
        }
        for help in [&["backup", "--help"][..], &["dead", "ls", "--help"], &["serve", "--help"]] {
            let said = run(folder.path(), help, &store, "").await.fine();
            assert!(!said.out.contains("hush"), "{help:?}: {said:?}");
        }
    }
}
