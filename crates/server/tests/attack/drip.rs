//! Drip: slow clients that announce large bodies, or send chunks, byte by byte. Keyed requests of others go on, and
//! every drip is gone within its bound.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::stage::{Client, Gateway, many_connections, post, scaled, shout};
use crate::upstream::{Upstream, answer};

const ROUTE: &str = "[[gateway.routes]]\nmatch = \"POST /orders\"\ntenant = \"acme\"\neffects = \"keyed\"\n";

/// What came of a campaign.
#[derive(Debug)]
struct Found {
    refused: usize,
    p99: Duration,
    /// Drips that were still served after their bound.
    left: usize,
}

/// Slow clients, and one that is not.
#[derive(Debug, Clone, Copy)]
struct Attack {
    drips: usize,
    /// How many bytes a drip is to send, and how many of these come at once.
    announced: usize,
    first: usize,
    /// How many bytes the other client sends.
    body: usize,
}

/// One slow client: how long it was served.
async fn drip(address: SocketAddr, number: usize, attack: Attack, bound: Duration) -> Duration {
    let began = Instant::now();
    let Ok(mut stream) = TcpStream::connect(address).await else { return Duration::ZERO };
    let is_chunked = number.is_multiple_of(2);
    let length = match is_chunked {
        true => "Transfer-Encoding: chunked".to_owned(),
        false => format!("Content-Length: {}", attack.announced),
    };
    let head =
        format!("POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: drip-{number}\r\n{length}\r\n\r\n");
    let piece = |bytes: &str| match is_chunked {
        true => format!("{:x}\r\n{bytes}\r\n", bytes.len()),
        false => bytes.to_owned(),
    };
    if stream.write_all(format!("{head}{}", piece(&"x".repeat(attack.first))).as_bytes()).await.is_err() {
        return began.elapsed();
    }
    let (mut reading, mut writing) = stream.into_split();
    let dripping = async {
        while writing.write_all(piece("x").as_bytes()).await.is_ok() {
            sleep(Duration::from_millis(200)).await;
        }
    };
    let ended = async {
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut reading, &mut Vec::new()).await;
    };
    tokio::select! {
        () = dripping => {}
        () = ended => {}
        () = sleep(bound) => {}
    }
    began.elapsed()
}

/// For as long as drips are to be served and a little longer.
async fn attacked(gateway: &Gateway, attack: Attack, held: Duration) -> Found {
    many_connections();
    let bound = held + Duration::from_secs(3);
    let mut slow = JoinSet::new();
    for number in 0..attack.drips {
        slow.spawn(drip(gateway.address, number, attack, bound));
    }
    sleep(Duration::from_millis(500)).await;
    let (mut times, mut refused) = (Vec::new(), 0);
    let began = Instant::now();
    let mut client = Client::of(gateway.address);
    let body = "x".repeat(attack.body);
    while began.elapsed() < held {
        let asked = Instant::now();
        let found = client.ask(&post("/orders", &format!("fine-{}", times.len()), "", &body)).await;
        times.push(asked.elapsed());
        refused += usize::from(found.status != 201);
        sleep(Duration::from_millis(10)).await;
    }
    times.sort_unstable();
    let served = slow.join_all().await;
    let left = served.iter().filter(|time| **time >= bound).count();
    Found { refused, p99: times[times.len() * 99 / 100], left }
}

async fn api() -> Upstream {
    Upstream::answering(|_| answer("201 Created", "", "made")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_stop_no_other_and_are_gone_within_their_bound() {
    let held = scaled(Duration::from_secs(3), Duration::from_secs(15));
    let upstream = api().await;
    let settings = format!("gateway.held_time = \"{}s\"\n{ROUTE}", held.as_secs());
    let gateway = Gateway::before(upstream.address, &settings).await;
    let attack = Attack { drips: scaled(250, 1_000), announced: 1_000_000, first: 1, body: 100 };
    let found = attacked(&gateway, attack, held).await;
    eprintln!("drip: {found:?}");
    assert_eq!((found.refused, found.left), (0, 0), "{found:?}");
    assert!(found.p99 < Duration::from_secs(1), "{found:?}");
}

/// The controls: without a bound in time the drips stay; and where the room is small they fill it, as if it were taken
/// before a byte arrives.
#[tokio::test(flavor = "multi_thread")]
async fn control_without_its_bounds_drips_stay_and_fill_the_room() {
    let upstream = api().await;
    let gateway = Gateway::before(upstream.address, &format!("gateway.held_time = \"1h\"\n{ROUTE}")).await;
    let few = Attack { drips: 20, announced: 50_000, first: 1, body: 100 };
    let found = attacked(&gateway, few, Duration::from_secs(1)).await;
    assert_eq!(found.left, 20, "{found:?}");
    let small = "server.body_max = 65536\nserver.bodies_max = 65536\n";
    let gateway = Gateway::before(upstream.address, &format!("{small}{ROUTE}body_max = 60000\n")).await;
    let full = Attack { first: 49_000, body: 30_000, ..few };
    let found = attacked(&gateway, full, Duration::from_secs(1)).await;
    assert!(found.refused > 0, "{found:?}");
    let health = shout(gateway.admin, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").await;
    assert_eq!(health.map(|health| health.status), Some(200), "and it lives");
}
