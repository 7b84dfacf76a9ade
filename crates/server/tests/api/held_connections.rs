//! Campaign: anonymous clients hold every connection. Health checks and one caller with a token are answered.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use crate::campaign::{Program, scaled};
use crate::dead_letters::token;
use crate::test_server::answer;

/// How soon a request has to be answered, however many connections are held.
const SOON: Duration = Duration::from_secs(2);

/// Holds connections: some say nothing, some send half a head, some are kept after an answer.
async fn hold(address: &str, count: usize) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for at in 0..count {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let said: &[u8] = match at % 3 {
            0 => b"",
            1 => b"GET /v1/jobs HTTP/1.1\r\nhost: localhost\r\nx-",
            _ => b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        };
        let _ = stream.write_all(said).await;
        held.push(stream);
    }
    held
}

/// The longest of so many requests, each on a connection of its own; `None` where one is not answered soon.
async fn longest(url: &str, rounds: usize, ask: impl AsyncFn(&reqwest::Client) -> u16) -> Option<Duration> {
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        let client =
            reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().expect("a client");
        let began = Instant::now();
        let status = tokio::time::timeout(SOON, ask(&client)).await.ok()?;
        assert!((200..300).contains(&status), "{url}: {status}");
        longest = longest.max(began.elapsed());
    }
    Some(longest)
}

#[tokio::test(flavor = "multi_thread")]
async fn held_connections_keep_out_no_other_client() {
    let (most, held) = scaled((64, 200), (1024, 4096));
    let folder = tempfile::tempdir().expect("a folder");
    let settings = format!(
        "store.address = \"memory:\"\n[server]\nconnections_max = {most}\nhead_time = \"1h\"\nbody_time = \"1h\"\n{}\
         [queues.jobs.pull]\n",
        token("shop", "\"publish\"", None)
    );
    std::fs::write(folder.path().join("redrive.toml"), settings).expect("settings");
    let program = Program::start(folder.path()).await;
    let _held = hold(&program.address, held).await;
    let health = program.url("/healthz");
    let healthy = longest(&health, scaled(20, 200), async |client| answer(client.get(&health)).await.0);
    let healthy = healthy.await.expect("health checks are answered");
    let events = program.url("/v1/queues/jobs/events");
    let published = longest(&events, scaled(20, 200), async |client| {
        answer(client.post(&events).bearer_auth("shop").json(&json!({ "id": "1" }))).await.0
    });
    let published = published.await.expect("a caller is answered");
    println!("{held} connections held, {most} places: health {healthy:?}, publish {published:?} at most");
}

/// The control: a listener as it was before, which takes a place and then accepts.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_waits_for_a_free_place_is_held_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        let places = std::sync::Arc::new(tokio::sync::Semaphore::new(64));
        loop {
            let place = places.clone().acquire_owned().await.expect("it is open");
            let (mut stream, _) = listener.accept().await.expect("a client");
            tokio::spawn(async move {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                tokio::time::sleep(Duration::from_secs(3600)).await;
                drop((stream, place));
            });
        }
    });
    let _held = hold(&address, 64).await;
    let health = format!("http://{address}/healthz");
    let healthy = longest(&health, 1, async |client| answer(client.get(&health)).await.0).await;
    assert_eq!(healthy, None, "it has no defence, and the attack finds nothing");
}
