//! Malformed HTTP over raw sockets: answered with 4xx or a close, never with 5xx, a hang or a panic.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::test_server::TestServer;

/// Short times, so that slow clients are seen to be let go.
const SETTINGS: &str = "
    [server]
    body_max = 20000
    head_time = '700ms'
    body_time = '700ms'
    [queues.jobs.pull]
    ";

/// How long the longest of them may take, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(40);

/// What comes back.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Is {
    /// This status first.
    Status(u16),
    /// Any 4xx first.
    Refused,
    /// Nothing but the end of the connection.
    Closed,
    /// 4xx, or the end of the connection.
    Either,
}
use Is::{Closed, Either, Refused, Status};

/// What is sent, in pieces with a wait before each but the first.
struct Case {
    name: &'static str,
    send: Vec<Vec<u8>>,
    is: Is,
}

fn case(name: &'static str, send: impl Into<Vec<u8>>, is: Is) -> Case {
    Case { name, send: vec![send.into()], is }
}

/// A publish with these header lines and this body.
fn publish(headers: &str, body: &str) -> String {
    format!("POST /v1/queues/jobs/events HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n{body}")
}

const EVENT: &str = "{\"id\":\"1\"}";
const JSON: &str = "content-type: application/json\r\n";
const CHUNKED: &str = "content-type: application/json\r\ntransfer-encoding: chunked\r\n";
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n";

fn lines() -> Vec<Case> {
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    vec![
        case("nothing at all", "", Closed),
        case("blank lines alone", "\r\n\r\n\r\n\r\n", Either),
        case("no method", " / HTTP/1.1\r\n\r\n", Refused),
        case("no target", "GET HTTP/1.1\r\n\r\n", Refused),
        case("no version", "GET /healthz\r\n\r\n", Refused),
        case("a version that is none", "GET /healthz HTTP/x\r\n\r\n", Refused),
        case("a version to come", "GET /healthz HTTP/3.0\r\n\r\n", Refused),
        case("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Either),
        case("two blanks", "GET  /healthz HTTP/1.1\r\n\r\n", Refused),
        case("a tab for a blank", "GET\t/healthz\tHTTP/1.1\r\n\r\n", Refused),
        case("a method with a bracket", "G(T /healthz HTTP/1.1\r\n\r\n", Refused),
        case("a NUL in the method", "G\0T /healthz HTTP/1.1\r\n\r\n", Refused),
        case("a NUL in the target", "GET /heal\0thz HTTP/1.1\r\n\r\n", Refused),
        case("bytes in the target", &b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n"[..], Refused),
        case("a target without a slash", "GET healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", Refused),
        case("a long target", get(&format!("/{}", "a".repeat(70_000))), Refused),
        case("a long method", format!("{} / HTTP/1.1\r\n\r\n", "G".repeat(70_000)), Refused),
        case("percent and nothing", get("/v1/queues/%/events"), Refused),
        case("percent and no digits", get("/v1/queues/%zz/events"), Refused),
        case("percent and no UTF-8", publish("", "").replace("queues/jobs", "queues/%ff%fe"), Status(400)),
        case("percent and NUL", publish("", "").replace("queues/jobs", "queues/%00"), Refused),
        case(
            "a slash in disguise",
            publish("", "").replace("queues/jobs", "queues/a%2f..%2fwork"),
            Status(404),
        ),
        case("dots upwards", get("/v1/../../etc/passwd"), Status(404)),
        case("a fragment, which is left out", get("/healthz#x"), Status(200)),
        case("another method", "DELETE /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", Status(405)),
        case("a method of its own", "BREW /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", Status(405)),
        case("a tunnel", "CONNECT localhost:1 HTTP/1.1\r\nhost: localhost\r\n\r\n", Refused),
        case("a proxy's target", get("http://evil.example/nothing"), Status(404)),
        case("a star", "OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n", Refused),
    ]
}

fn heads() -> Vec<Case> {
    let head = |headers: &str| format!("GET /healthz HTTP/1.1\r\n{headers}\r\n");
    vec![
        case("no colon", head("host localhost\r\n"), Refused),
        case("a blank before the colon", head("host : localhost\r\n"), Refused),
        case("a folded line", head("host: localhost\r\n and more\r\n"), Refused),
        case("a line with no name", head(": localhost\r\n"), Refused),
        case("a NUL in a value", head("host: local\0host\r\n"), Refused),
        case("a NUL in a name", head("ho\0st: localhost\r\n"), Refused),
        case("a bare CR in a value", head("host: a\rb\r\n"), Refused),
        case("bytes in a name", &b"GET /healthz HTTP/1.1\r\nh\xffst: a\r\n\r\n"[..], Refused),
        case("too many headers", head(&"a: b\r\n".repeat(200)), Status(431)),
        case("one huge header", head(&format!("a: {}\r\n", "b".repeat(600_000))), Status(431)),
        case("a huge name", head(&format!("{}: b\r\n", "a".repeat(70_000))), Either),
        case(
            "no host where it is asked for",
            publish("", "").replace("host: localhost\r\n", ""),
            Status(403),
        ),
        case("another host", publish("", "").replace("localhost", "evil.example"), Status(403)),
        case("another page", publish("origin: https://evil.example\r\n", ""), Status(403)),
        case(
            "an expectation unknown",
            publish(&format!("{JSON}expect: magic\r\ncontent-length: 4\r\n"), "null"),
            Refused,
        ),
        case("garbage", &b"\x00\x01\x02\x03\xff\xfe\xfd\r\n\r\n"[..], Refused),
        case("a greeting of TLS", &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..], Refused),
        case("a greeting of SSH", "SSH-2.0-OpenSSH_9.2\r\n\r\n", Refused),
        case("a mail", "EHLO localhost\r\nMAIL FROM:<a@b>\r\n\r\n", Refused),
    ]
}

fn bodies() -> Vec<Case> {
    let long = "x".repeat(30_000);
    let with = |headers: &str, body: &str| publish(&format!("{JSON}{headers}"), body);
    let chunks = |body: &str| publish(CHUNKED, body);
    vec![
        case("no length that is one", with("content-length: ten\r\n", EVENT), Refused),
        case("a length below nothing", with("content-length: -1\r\n", EVENT), Refused),
        case("a length with a sign", with("content-length: +10\r\n", EVENT), Refused),
        case("a length in hex", with("content-length: 0xa\r\n", EVENT), Refused),
        case("a length beyond numbers", with("content-length: 99999999999999999999999\r\n", EVENT), Refused),
        case("the longest length", with("content-length: 18446744073709551615\r\n", EVENT), Refused),
        case("two lengths", with("content-length: 10\r\ncontent-length: 11\r\n", EVENT), Refused),
        case("two lengths in one", with("content-length: 10, 11\r\n", EVENT), Refused),
        case("an encoding unknown", with("transfer-encoding: gzip\r\n", EVENT), Refused),
        case("chunks not last", with("transfer-encoding: chunked, gzip\r\n", EVENT), Refused),
        case("chunks in disguise", with("transfer-encoding: xchunked\r\n", EVENT), Refused),
        case(
            "chunks before their time",
            with("transfer-encoding: chunked\r\n", "0\r\n\r\n").replace("HTTP/1.1", "HTTP/1.0"),
            Refused,
        ),
        case("chunks without a size", chunks("\r\nabc\r\n0\r\n\r\n"), Refused),
        case("a size that is none", chunks("zz\r\nabc\r\n0\r\n\r\n"), Refused),
        case("a size below nothing", chunks("-3\r\nabc\r\n0\r\n\r\n"), Refused),
        case("a size beyond numbers", chunks("fffffffffffffffffffff\r\nabc\r\n0\r\n\r\n"), Refused),
        case("a chunk longer than its size", chunks("3\r\nabcdef\r\n0\r\n\r\n"), Refused),
        case("an endless extension", chunks(&format!("3;{long}\r\nabc\r\n0\r\n\r\n")), Refused),
        case("endless trailers", chunks(&format!("0\r\na: {long}\r\n\r\n")), Refused),
        case("chunks with a NUL", chunks("3\0\r\nabc\r\n0\r\n\r\n"), Refused),
        case("more than fits, and said", with("content-length: 30000\r\n", &long), Status(413)),
        case("more than fits, and only said", with("content-length: 30000\r\n", ""), Status(413)),
        case("more than fits, in chunks", chunks(&format!("7530\r\n{long}\r\n0\r\n\r\n")), Status(413)),
        case("no JSON", with("content-length: 4\r\n", "nope"), Status(400)),
        case("JSON too deep", with("content-length: 9000\r\n", &"[".repeat(9000)), Status(400)),
        case(
            "JSON that is no UTF-8",
            [with("content-length: 3\r\n", "").as_bytes(), b"\"\xff\""].concat(),
            Status(400),
        ),
        case("no body", publish(JSON, ""), Status(400)),
        case("no type", publish("content-length: 10\r\n", EVENT), Status(415)),
    ]
}

/// Those that take their time. They are let go after `head_time` or `body_time`.
fn slow() -> Vec<Case> {
    let drip = |head: String, times: usize| {
        let mut send = vec![head.into_bytes()];
        send.extend(std::iter::repeat_n(b"a".to_vec(), times));
        send
    };
    let length = format!("{JSON}content-length: 1000\r\n");
    vec![
        Case { name: "half a line", send: vec![b"GET /hea".to_vec()], is: Either },
        Case { name: "half a head", send: vec![b"GET /healthz HTTP/1.1\r\nhost: lo".to_vec()], is: Either },
        Case {
            name: "a head by drops",
            send: drip("GET /healthz HTTP/1.1\r\na: ".to_owned(), 40),
            is: Either,
        },
        Case { name: "half a body", send: vec![publish(&length, "{").into_bytes()], is: Status(408) },
        Case { name: "a body by drops", send: drip(publish(&length, "\""), 40), is: Status(408) },
        Case { name: "half a chunk", send: vec![publish(CHUNKED, "5\r\nab").into_bytes()], is: Status(408) },
        Case { name: "half a size", send: vec![publish(CHUNKED, "5").into_bytes()], is: Status(408) },
        Case {
            name: "half of the second",
            send: vec![b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\nGET /hea".to_vec()],
            is: Status(200),
        },
    ]
}

/// What a client does when it has sent what it has to say.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    /// It says that there is no more to come.
    Ends,
    /// It says nothing, and stays.
    Stays,
}

/// Sends a case, and reads until the server closes the connection.
async fn perform(server: &TestServer, case: &Case, then: Then) -> Vec<u8> {
    let address = server.server.as_ref().expect("it runs").address();
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (mut from, mut to) = stream.into_split();
    let is_slow = case.send.len() > 1;
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let sending = async {
        for piece in &case.send {
            // It may be closed by now, which is an answer.
            if to.write_all(piece).await.is_err() {
                break;
            }
            // Not a wait for something to happen, which is the answer and ends it: this is the client's own pace.
            if is_slow {
                pace.tick().await;
            }
        }
        to
    };
    let reading = async {
        let mut answer = Vec::new();
        // A response and then a reset: the rest of the request was not read.
        let _ = from.read_to_end(&mut answer).await;
        answer
    };
    let both = async {
        let mut reading = std::pin::pin!(reading);
        tokio::select! {
            answer = &mut reading => answer,
            mut to = sending => {
                if then == Then::Ends {
                    let _ = to.shutdown().await;
                }
                reading.await
            }
        }
    };
    tokio::time::timeout(PATIENCE, both).await.unwrap_or_else(|_| panic!("{}: it hangs", case.name))
}

/// The statuses of all answers in what came back.
fn statuses(answer: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answer);
    let heads = text.split("HTTP/1.1 ").skip(1).chain(text.split("HTTP/1.0 ").skip(1));
    heads.filter_map(|head| head.get(..3)?.parse().ok()).collect()
}

async fn check(cases: Vec<Case>, then: Then) {
    let server = TestServer::open(SETTINGS).await;
    let served = &server;
    let all = cases.iter().map(|case| async move { (case, perform(served, case, then).await) });
    let mut wrong = Vec::new();
    for (case, answer) in futures_util::future::join_all(all).await {
        let said = statuses(&answer);
        let refused = |status: &u16| (400..500).contains(status);
        let right = match case.is {
            Status(status) => said.first() == Some(&status),
            Refused => said.first().is_some_and(refused),
            Closed => answer.is_empty(),
            Either => said.first().is_none_or(refused),
        };
        if !right || said.iter().any(|status| *status >= 500) {
            let text = String::from_utf8_lossy(&answer);
            wrong.push(format!("{}: {:?}, and it says {said:?}: {text}", case.name, case.is));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    // And it serves others as before.
    let (status, told) = server.get("/healthz").await;
    assert_eq!((status, &told["status"]), (200, &json!("ok")));
    let counted = server.post("/v1/queues/jobs/leases", json!({ "max": 100 })).await;
    assert_eq!(counted, (200, json!({ "leases": [] })), "nothing of it was published");
}

#[tokio::test]
async fn bad_request_lines_are_refused() {
    check(lines(), Then::Ends).await;
}

#[tokio::test]
async fn bad_heads_are_refused() {
    check(heads(), Then::Ends).await;
}

#[tokio::test]
async fn bad_bodies_are_refused() {
    check(bodies(), Then::Ends).await;
}

#[tokio::test]
async fn slow_clients_are_let_go() {
    check(slow(), Then::Stays).await;
}

#[test]
fn there_are_more_than_sixty_cases() {
    let count = lines().len() + heads().len() + bodies().len() + slow().len();
    assert!(count > 60, "{count}");
}

/// What follows a request whose end could be seen in two ways is never taken for another one.
#[tokio::test]
async fn nothing_is_smuggled() {
    let server = TestServer::open(SETTINGS).await;
    let chunks = format!("a\r\n{EVENT}\r\n0\r\n\r\n{SMUGGLED}");
    let cases = [
        ("both lengths", format!("{CHUNKED}content-length: 4\r\n"), chunks.clone()),
        ("the other way round", format!("content-length: 4\r\n{CHUNKED}"), chunks.clone()),
        ("chunked twice", format!("{CHUNKED}transfer-encoding: identity\r\n"), chunks.clone()),
        (
            "a junk second line",
            format!("{JSON}content-length: 10\r\n"),
            format!("{EVENT}\x01\x02 junk\r\n\r\n{SMUGGLED}"),
        ),
        ("after a body too large", format!("{JSON}content-length: 30000\r\n"), SMUGGLED.to_owned()),
        ("after a method that is none", format!("{JSON}content-length: x\r\n"), SMUGGLED.to_owned()),
    ];
    for (name, headers, body) in cases {
        let answer = perform(&server, &case(name, publish(&headers, &body), Either), Then::Ends).await;
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(!statuses(&answer).contains(&404), "{name}: the second one was answered: {text}");
        assert!(statuses(&answer).iter().all(|status| *status < 500), "{name}: {text}");
    }
    // As it should be, two requests in one go are two.
    let last = SMUGGLED.replace("host:", "connection: close\r\nhost:");
    let two = format!("{}{last}", publish(&format!("{JSON}content-length: 10\r\n"), EVENT));
    let answer = perform(&server, &case("two that are right", two, Either), Then::Stays).await;
    assert_eq!(statuses(&answer), [202, 404]);
}
