//! Too much at once: refused with when to come again, before memory or disk run out.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::test_server::TestServer;

const QUEUE: &str = "[queues.jobs.pull]\n";

/// The hashes of `sesame` and of `other`.
const HASHES: [&str; 2] = [
    "sha256:d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272",
    "sha256:d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa",
];

/// Sends the head of a publish; what the server says first is its answer, or that it reads on.
async fn head(server: &TestServer, length: usize, token: &str) -> (TcpStream, String) {
    let address = server.server.as_ref().expect("it runs").address();
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let head = format!(
        "POST /v1/queues/jobs/events HTTP/1.1\r\nhost: localhost\r\nredrive-id: half\r\n\
         authorization: Bearer {token}\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("it is sent");
    let mut said = [0; 25];
    stream.read_exact(&mut said).await.expect("it answers");
    (stream, String::from_utf8_lossy(&said).into_owned())
}

/// A publish whose body lacks its last byte, and the room that it takes until it is dropped.
async fn half_a_publish(server: &TestServer, length: usize, token: &str) -> TcpStream {
    let before = room(server);
    let (mut stream, said) = head(server, length, token).await;
    assert_eq!(said, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(&vec![b'x'; length - 1]).await.expect("it is sent");
    room_is(server, before - length).await;
    stream
}

fn room(server: &TestServer) -> usize {
    server.server.as_ref().expect("it runs").app().room()
}

async fn room_is(server: &TestServer, bytes: usize) {
    let waiting = async {
        while room(server) != bytes {
            tokio::task::yield_now().await;
        }
    };
    let waiting = tokio::time::timeout(std::time::Duration::from_secs(30), waiting);
    waiting.await.unwrap_or_else(|_| panic!("there is room for {} bytes, and not {bytes}", room(server)));
}

async fn publish(server: &TestServer, id: &str, bytes: usize) -> (u16, Option<u64>, Value) {
    publish_as(server, "", id, bytes).await
}

async fn publish_as(server: &TestServer, token: &str, id: &str, bytes: usize) -> (u16, Option<u64>, Value) {
    let event = json!({ "id": id, "payload": "x".repeat(bytes) });
    let request = server.client.post(server.url("/v1/queues/jobs/events")).json(&event);
    let response = request.bearer_auth(token).send().await.expect("an answer");
    let wait = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    (response.status().as_u16(), wait, response.json().await.expect("JSON"))
}

#[tokio::test]
async fn bodies_share_a_room_and_who_finds_it_full_is_told_to_come_again() {
    let server = TestServer::open(&format!("[server]\nbody_max = 60000\nbodies_max = 100000\n{QUEUE}")).await;
    let half = half_a_publish(&server, 60_000, "").await;
    assert_eq!(publish(&server, "small", 10).await.0, 202, "there is room for this one");
    let (status, wait, problem) = publish(&server, "large", 50_000).await;
    assert_eq!((status, wait, &problem["code"]), (503, Some(1), &json!("busy")));
    drop(half);
    room_is(&server, 100_000).await;
    assert_eq!(publish(&server, "large", 50_000).await.0, 202);
}

#[tokio::test]
async fn a_promise_of_bytes_takes_no_room() {
    let server = TestServer::open(&format!("[server]\nbody_max = 60000\nbodies_max = 100000\n{QUEUE}")).await;
    let mut heads = Vec::new();
    for _ in 0..8 {
        heads.push(head(&server, 60_000, "").await);
    }
    assert_eq!(publish(&server, "large", 50_000).await.0, 202);
    // Nor does a body that says no length.
    let body =
        reqwest::Body::wrap_stream(futures_util::stream::iter([Ok::<_, std::io::Error>("{\"id\":\"1\"}")]));
    let request = server.client.post(server.url("/v1/queues/jobs/events"));
    let response =
        request.header("content-type", "application/json").body(body).send().await.expect("an answer");
    assert_eq!(response.status(), 202);
}

/// Two callers: one that publishes, and one with these rights.
async fn two_callers(rights: &str) -> TestServer {
    let [one, other] = HASHES;
    let settings = format!(
        "[server]\nbody_max = 60000\nbodies_max = 240000\n{QUEUE}\
         [tokens.one]\nhash = \"{one}\"\nrights = [\"publish\"]\n\
         [tokens.other]\nhash = \"{other}\"\nrights = [\"{rights}\"]\n"
    );
    TestServer::open(&settings).await
}

#[tokio::test]
async fn nothing_is_read_of_who_may_not() {
    let server = two_callers("read").await;
    for (token, wanted) in [("sesame", "100"), ("other", "403"), ("nobody", "401")] {
        let (_stream, said) = head(&server, 60_000, token).await;
        assert_eq!(said.get(9..12), Some(wanted), "{token}: {said}");
    }
}

#[tokio::test]
async fn who_fills_its_share_of_the_room_stops_nobody_else() {
    let server = two_callers("publish").await;
    // That is a quarter of the room, and all of its share.
    let half = half_a_publish(&server, 60_000, "sesame").await;
    assert_eq!(room(&server), 180_000);
    assert_eq!(publish_as(&server, "sesame", "1", 50_000).await.0, 503);
    assert_eq!(publish_as(&server, "other", "2", 50_000).await.0, 202);
    drop(half);
    room_is(&server, 240_000).await;
    assert_eq!(publish_as(&server, "sesame", "1", 50_000).await.0, 202);
}

#[tokio::test]
async fn nothing_is_leased_that_there_is_no_room_to_tell_of() {
    let server = TestServer::open(&format!("[server]\nbody_max = 99000\nbodies_max = 100000\n{QUEUE}")).await;
    assert_eq!(publish(&server, "1", 10).await.0, 202);
    let half = half_a_publish(&server, 99_000, "").await;
    let (status, problem) = server.post("/v1/queues/jobs/leases", json!({ "lease": "1h" })).await;
    assert_eq!((status, &problem["code"]), (503, &json!("busy")), "{problem}");
    drop(half);
    let leased = async {
        loop {
            let (status, told) = server.post("/v1/queues/jobs/leases", json!({ "lease": "1h" })).await;
            if status == 200 {
                return told["leases"][0]["attempt"].clone();
            }
            tokio::task::yield_now().await;
        }
    };
    let attempt =
        tokio::time::timeout(std::time::Duration::from_secs(30), leased).await.expect("there is room again");
    assert_eq!(attempt, 1, "the refused call had leased nothing");
}

#[tokio::test]
async fn a_large_answer_arrives_whole() {
    let server = TestServer::open(QUEUE).await;
    for id in 0..12 {
        assert_eq!(publish(&server, &id.to_string(), 600_000).await.0, 202);
    }
    let mut counts = Vec::new();
    for _ in 0..2 {
        let (status, told) = server.post("/v1/queues/jobs/leases", json!({ "max": 100 })).await;
        let leases = told["leases"].as_array().expect("a list");
        assert_eq!(status, 200);
        assert!(leases.iter().all(|lease| lease["payload"].as_str().map(str::len) == Some(600_002)));
        counts.push(leases.len());
    }
    assert_eq!(counts, [7, 5], "an answer has some 4 MiB, and the next call the rest");
}

#[tokio::test]
async fn too_many_events_are_counted_before_they_are_read() {
    let server = TestServer::open(&format!("[server]\nbatch_max = 3\n{QUEUE}")).await;
    let url = server.url("/v1/queues/jobs/events");
    let many = "{},".repeat(4);
    for (media_type, body) in [
        ("application/json", format!("{{\"events\":[{many}{{\"no\":1}}]}}")),
        ("application/x-ndjson", "{\"no\":1}\n".repeat(4)),
        ("application/cloudevents-batch+json", format!("[{many}1]")),
    ] {
        let request = server.client.post(&url).header("content-type", media_type).body(body);
        let (status, problem) = crate::test_server::answer(request).await;
        assert_eq!((status, &problem["code"]), (413, &json!("too-many")), "{media_type}");
    }
}

#[tokio::test]
async fn a_disk_that_is_nearly_full_takes_no_events() {
    let server = TestServer::open(&format!("[store]\ndisk_least = {}\n{QUEUE}", i64::MAX)).await;
    let (status, wait, problem) = publish(&server, "1", 10).await;
    assert_eq!((status, wait, &problem["code"]), (503, Some(10), &json!("disk-low")), "{problem}");
}

#[tokio::test]
async fn who_does_not_read_its_answer_is_let_go() {
    let settings = "[server]\nbody_max = 2000000\nbodies_max = 6000000\nbody_time = '700ms'\n";
    let server = TestServer::open(&format!("{settings}{QUEUE}")).await;
    for id in 0..4 {
        // As JSON each byte takes six, and the answer is more than the system keeps for a connection.
        let request = server.client.post(server.url("/v1/queues/jobs/events")).header("redrive-id", id);
        let (status, told) = crate::test_server::answer(request.body(vec![1; 1_000_000])).await;
        assert_eq!(status, 202, "{told}");
    }
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small one");
    let address = server.server.as_ref().expect("it runs").address();
    let mut deaf = socket.connect(address).await.expect("a connection");
    let request =
        "POST /v1/queues/jobs/leases HTTP/1.1\r\nhost: localhost\r\ncontent-length: 11\r\n\r\n{\"max\": 5 }";
    deaf.write_all(request.as_bytes()).await.expect("it is sent");
    // There is an answer, and it takes most of the room.
    let mut answer = vec![0; 15];
    deaf.read_exact(&mut answer).await.expect("it begins");
    assert_eq!(answer, b"HTTP/1.1 200 OK");
    let free = async {
        while publish(&server, "next", 1_000_000).await.0 != 202 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), free).await.expect("its room is free again");
    let _ = deaf.read_to_end(&mut answer).await;
    assert!(answer.len() < 20_000_000, "{} bytes came, so it was not let go", answer.len());
}

#[tokio::test]
async fn held_connections_keep_out_neither_health_checks_nor_callers() {
    let token = format!("[tokens.a]\nhash = \"{}\"\nrights = [\"publish\"]\n", HASHES[0]);
    // Nothing ends by its time.
    let server = TestServer::open(&format!(
        "[server]\nconnections_max = 16\nhead_time = \"1h\"\nbody_time = \"1h\"\n{token}{QUEUE}"
    ))
    .await;
    let address = server.server.as_ref().expect("it runs").address();
    let mut held = Vec::new();
    // One that works, and stays connected.
    let mut busy = half_a_publish(&server, 60_000, "sesame").await;
    for at in 0..64 {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        if at % 2 == 0 {
            stream.write_all(b"GET /v1/jobs HTTP/1.1\r\nhost: localhost\r\nx-").await.expect("it is sent");
        }
        held.push(stream);
    }
    let in_time = async {
        assert_eq!(server.get("/healthz").await.0, 200);
        assert_eq!(publish_as(&server, "sesame", "1", 10).await.0, 202);
        // A request in progress was not cut.
        busy.write_all(b"x").await.expect("it is sent");
        let mut said = [0; 12];
        busy.read_exact(&mut said).await.expect("it answers");
        assert_eq!(&said, b"HTTP/1.1 202");
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), in_time).await.expect("they are answered");
}
