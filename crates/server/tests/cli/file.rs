//! The program straight at a store file, and how it finds its way.

use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::house::House;
use crate::letters::{die, publish, succeed};
use crate::program::{ask, run};

const QUEUE: &str = "[queues.orders.pull]\n";

async fn stopped_with_letters(ids: &[&str]) -> House {
    let mut house = House::open(QUEUE).await;
    publish(&house, "orders", "", None, ids).await;
    die(&house, "orders").await;
    house.stop().await;
    house
}

#[tokio::test]
async fn a_file_is_operated_when_no_server_runs() {
    let mut house = stopped_with_letters(&["a", "b"]).await;
    let folder = house.folder.path();
    let file =
        async |args: &[&str]| run(folder, &[args, &["--store", "sqlite:redrive.db"]].concat(), &[], "").await;
    let listed = file(&["dead", "ls"]).await.fine();
    assert_eq!((listed.rows().len(), listed.err.as_str()), (3, "redrive: straight to sqlite:redrive.db\n"));
    assert!(file(&["dead", "show", "a", "--body"]).await.fine().out.contains("\"order\": \"a\""));
    assert_eq!(file(&["dead", "redrive", "a"]).await.fine().out, "1 event put back\n");
    let job = file(&["dead", "redrive", "--queue", "orders"]).await.fine();
    assert_eq!(job.out, "job 1: redrive of 1 dead letter\n");
    assert!(job.err.contains("job 1 starts when a server runs on this file"), "{job:?}");
    let watched = file(&["job", "watch", "1"]).await;
    assert_eq!((watched.code, watched.out.as_str()), (Some(1), ""));
    assert!(watched.err.contains("nobody takes job 1 further"), "{watched:?}");
    let audit = file(&["audit", "ls", "--json"]).await.fine().json();
    let line = &audit["lines"][0];
    assert_eq!(
        (&line["who"], &line["from"], &line["verb"]),
        (&"ada".into(), &"cli".into(), &"start-job".into())
    );

    house.start().await;
    crate::letters::until(&house, "/v1/jobs/1", |job| job["taken"] == 1).await;
    assert_eq!(succeed(&house, "orders").await, 2);
    // While a server has the file open, looking and ordering past it is fine too.
    publish(&house, "orders", "", None, &["c"]).await;
    die(&house, "orders").await;
    let beside =
        run(house.folder.path(), &["dead", "redrive", "c"], &[("REDRIVE_STORE", "sqlite:redrive.db")], "")
            .await;
    assert_eq!(beside.fine().out, "1 event put back\n");
    assert_eq!(succeed(&house, "orders").await, 1);
}

#[tokio::test]
async fn without_a_word_the_server_of_the_configuration_is_asked_and_then_its_file() {
    let mut house = stopped_with_letters(&["a"]).await;
    house.start().await;
    let address = house.url("").trim_start_matches("http://").to_owned();
    let settings = format!("[server]\nlisten = \"{address}\"\n{QUEUE}");
    std::fs::write(house.folder.path().join("redrive.toml"), settings).expect("written");
    let asked = run(house.folder.path(), &["dead", "ls"], &[], "").await.fine();
    assert_eq!(
        (asked.rows().len(), asked.err.clone()),
        (2, format!("redrive: asking the server at http://{address}\n"))
    );
    house.stop().await;
    let file = run(house.folder.path(), &["dead", "ls"], &[], "").await.fine();
    assert_eq!(file.rows().len(), 2);
    assert_eq!(
        file.err,
        format!("redrive: no server at http://{address}, so straight to sqlite:redrive.db\n")
    );
    std::fs::remove_file(house.folder.path().join("redrive.db")).expect("removed");
    let none = run(house.folder.path(), &["dead", "ls"], &[], "").await;
    assert_eq!(none.code, Some(1));
    assert!(
        none.err.contains(&format!("no server at http://{address}, and no store at sqlite:redrive.db")),
        "{none:?}"
    );
    assert!(!Path::new(&house.folder.path().join("redrive.db")).exists(), "looking makes no store");
}

#[tokio::test]
async fn flags_go_before_variables_and_a_server_before_a_file() {
    let mut house = stopped_with_letters(&["a"]).await;
    let nobody = ("REDRIVE_URL", "http://127.0.0.1:9");
    let file = run(house.folder.path(), &["dead", "ls", "--store", "sqlite:redrive.db"], &[nobody], "").await;
    assert_eq!(file.fine().rows().len(), 2);
    let both =
        run(house.folder.path(), &["dead", "ls"], &[nobody, ("REDRIVE_STORE", "sqlite:redrive.db")], "")
            .await;
    assert!(both.code == Some(1) && both.err.contains("cannot reach the server"), "{both:?}");
    house.start().await;
    let server =
        run(house.folder.path(), &["dead", "ls", "--url", &house.url("/")], &[nobody], "").await.fine();
    assert_eq!((server.rows().len(), server.err.as_str()), (2, ""));
}

/// Whoever redirects would get the token.
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
    assert!(said.err.contains("the answer is 302 Found, and not one of redrive's"), "{said:?}");
    serving.abort();
}

#[tokio::test]
async fn what_cannot_be_reached_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = async |args: &[&str], variables: &[(&str, &str)]| run(folder.path(), args, variables, "").await;
    let none = run(&["dead", "ls", "--store", "sqlite:nowhere.db"], &[]).await;
    assert_eq!((none.code, none.err.as_str()), (Some(1), "redrive: there is no file nowhere.db\n"));
    let memory = run(&["dead", "ls", "--store", "memory:"], &[]).await;
    assert!(memory.err.contains("in another process' memory"), "{memory:?}");
    let away = run(&["dead", "ls", "--url", "http://127.0.0.1:9"], &[]).await;
    assert_eq!(away.code, Some(1));
    assert!(away.err.starts_with("redrive: cannot reach the server at http://127.0.0.1:9: "), "{away:?}");
    let wrong = run(&["dead", "ls", "--url", "somewhere"], &[]).await;
    assert!(wrong.err.contains("`somewhere` is no address of a server"), "{wrong:?}");
    let both = run(&["dead", "ls", "--url", "http://127.0.0.1:9", "--store", "sqlite:a.db"], &[]).await;
    assert_eq!(both.code, Some(2));
    let flag = run(&["dead", "ls", "--token", "secret"], &[]).await;
    assert_eq!(flag.code, Some(2), "a token is never on the command line");
}

#[tokio::test]
async fn a_token_comes_from_the_environment_or_a_file() {
    let house =
        House::open(&format!("{}{QUEUE}", crate::letters::token("ada", "\"read\", \"operate\"", None))).await;
    let url = house.url("");
    let asked = ask(&house, &["queue", "pause", "orders"]).await;
    assert_eq!((asked.code, asked.err.contains("put it into REDRIVE_TOKEN")), (Some(1), true), "{asked:?}");
    let run = async |args: &[&str], token: &str| {
        run(house.folder.path(), args, &[("REDRIVE_URL", &url), ("REDRIVE_TOKEN", token)], "").await
    };
    let wrong = run(&["queue", "ls"], "eve").await;
    assert_eq!((wrong.code, wrong.err.as_str()), (Some(1), "redrive: the server does not know this token\n"));
    run(&["queue", "pause", "orders"], "ada").await.fine();
    std::fs::write(house.folder.path().join("token"), "ada\n").expect("written");
    let lines = run(&["audit", "ls", "--token-file", "token", "--json"], "eve").await.fine().json();
    assert_eq!(lines["lines"][0]["who"], "ada");
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
        let settings = format!("[store]\naddress = \"{address}\"\n");
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
