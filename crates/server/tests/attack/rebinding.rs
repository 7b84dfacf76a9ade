//! DNS rebinding: a destination whose name resolves to an address that may be called, and then to one that may not. No
//! connection is made to the second, whatever the name server says, in whichever order.
//!
//! `127.77.0.0/16` stands for the internet: it is allowed, and one listener is there. The prize is a listener on
//! 127.0.0.1 and on ::1, at the same port. The client is the one that sends events.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use redrive_server::config::{PushSettings, PushTo};
use redrive_server::push;
use redrive_server::push::destination::Destination;
use redrive_server::push::ssrf_guard::{BlockedAddress, Resolver, SsrfGuard};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use crate::stage::{in_time, scaled};

/// The internet.
const PUBLIC: &str = "127.77.0.0/16";
/// An address of the internet that answers, and one that refuses connections.
const SHOP: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 1);
const DEAF: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 2);

/// What a script can answer with besides the internet: each has to be refused.
fn inside() -> Vec<IpAddr> {
    let written = [
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "::",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "127.78.0.1",
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "fd00:ec2::254",
        "10.0.0.1",
        "192.168.0.1",
    ];
    written.iter().map(|address| address.parse().expect("an address")).collect()
}

/// Listeners of one port: the shop, and the prize on this machine; and how many connections each has had.
struct Stage {
    port: u16,
    shop: Arc<AtomicUsize>,
    prize: Arc<AtomicUsize>,
}

impl Stage {
    async fn open() -> Self {
        let [shop, prize] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        // A port that is free on the first address may not be on the others.
        let (port, listeners) = loop {
            let first = TcpListener::bind((SHOP, 0)).await.expect("a port");
            let port = first.local_addr().expect("an address").port();
            let Ok(second) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await else { continue };
            // Not every machine has IPv6.
            let third = TcpListener::bind((Ipv6Addr::LOCALHOST, port)).await.ok();
            break (port, [(Some(first), &shop), (Some(second), &prize), (third, &prize)]);
        };
        for (listener, count) in listeners {
            if let Some(listener) = listener {
                tokio::spawn(accept(listener, count.clone()));
            }
        }
        Self { port, shop, prize }
    }

    fn destination(&self, name: &str) -> Destination {
        let url = format!("http://{name}:{}/", self.port);
        let to = PushTo {
            url,
            secret: None,
            headers: BTreeMap::new(),
            statuses: BTreeMap::new(),
            format: Default::default(),
        };
        Destination::new(&to).expect("a destination")
    }
}

/// Counts connections. Every other one is sent on to the prize, and all end after an answer, so that the name is resolved
/// each time.
async fn accept(listener: TcpListener, count: Arc<AtomicUsize>) {
    let port = listener.local_addr().expect("an address").port();
    while let Ok((mut stream, _)) = listener.accept().await {
        let answer = match count.fetch_add(1, SeqCst) % 2 {
            0 => "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_owned(),
            _ => format!(
                "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:{port}/\r\nconnection: close\r\n\
                 content-length: 0\r\n\r\n"
            ),
        };
        tokio::spawn(async move {
            // The whole head first: a connection that ends with unread bytes is reset.
            let mut read = vec![0; 4096];
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut read).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        });
    }
}

/// A name server that answers as its script says, one line a question, and begins again at the end.
fn scripted(script: Vec<Vec<IpAddr>>) -> Resolver {
    let asked = Arc::new(AtomicUsize::new(0));
    Arc::new(move |_| {
        let line = script[asked.fetch_add(1, SeqCst) % script.len()].clone();
        Box::pin(std::future::ready(Ok(line)))
    })
}

/// Scripts: first the internet, then this address; both at once, in both orders; behind an address that refuses
/// connections, so that a client tries the next; and many changes in a row.
fn scripts(inner: IpAddr) -> Vec<Vec<Vec<IpAddr>>> {
    let (shop, deaf) = (IpAddr::from(SHOP), IpAddr::from(DEAF));
    vec![
        vec![vec![shop], vec![inner]],
        vec![vec![shop, inner]],
        vec![vec![inner, shop]],
        vec![vec![deaf, inner], vec![inner, deaf]],
        vec![vec![shop], vec![deaf, inner, shop], vec![inner], vec![inner, inner]],
    ]
}

/// What came of a request.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    Answered(u16),
    Refused,
    Failed(String),
}

async fn send(client: &reqwest::Client, to: &Destination) -> Came {
    let error = match in_time(client.post(to.url().clone()).body("event").send()).await {
        Ok(answer) => return Came::Answered(answer.status().as_u16()),
        Err(error) => error,
    };
    let mut source = error.source();
    while let Some(inner) = source {
        if inner.is::<BlockedAddress>() {
            return Came::Refused;
        }
        source = inner.source();
    }
    Came::Failed(format!("{error:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_changes_its_address_reaches_nothing_inside() {
    let stage = Stage::open().await;
    let (mut answered, mut refused, mut failed) = (0, 0, 0);
    for round in 0..scaled(2, 100) {
        for (at, inner) in inside().into_iter().enumerate() {
            for (number, script) in scripts(inner).into_iter().enumerate() {
                let allow = vec![PUBLIC.parse().expect("a network")];
                let guard = SsrfGuard::with_resolver(allow, scripted(script));
                let client = push::client(&PushSettings::default(), guard).expect("a client");
                let to = stage.destination(&format!("rebind-{round}-{at}-{number}.example"));
                for _ in 0..4 {
                    match send(&client, &to).await {
                        Came::Answered(200 | 307) => answered += 1,
                        Came::Refused => refused += 1,
                        // The address that refuses connections.
                        Came::Failed(_) if number >= 3 => failed += 1,
                        came => panic!("{inner}, script {number}: {came:?}"),
                    }
                }
            }
        }
    }
    println!("rebinding: {answered} answered by the internet, {refused} refused, {failed} without an answer");
    assert_eq!(stage.prize.load(SeqCst), 0, "connections to the inside");
    assert_eq!(stage.shop.load(SeqCst), answered, "and the internet was reached");
    assert!(refused > 0);
}

/// The control: a guard that checks the name and leaves the connection to a client that resolves it again.
#[tokio::test(flavor = "multi_thread")]
async fn control_a_name_that_is_checked_and_resolved_again_reaches_the_inside() {
    let stage = Stage::open().await;
    let to = stage.destination("rebind.example");
    let resolver = scripted(vec![vec![SHOP.into()], vec![Ipv4Addr::LOCALHOST.into()]]);
    let check = SsrfGuard::with_resolver(vec![PUBLIC.parse().expect("a network")], resolver.clone());
    let checked = reqwest::dns::Resolve::resolve(&check, "rebind.example".parse().expect("a name")).await;
    assert!(checked.is_ok(), "it is public when it is checked");
    let found = resolver("rebind.example".to_owned()).await.expect("addresses");
    let found: Vec<SocketAddr> = found.into_iter().map(|address| (address, stage.port).into()).collect();
    let client = reqwest::Client::builder().no_proxy().resolve_to_addrs("rebind.example", &found);
    let came = send(&client.build().expect("a client"), &to).await;
    assert_eq!(came, Came::Answered(200));
    assert_eq!(stage.prize.load(SeqCst), 1, "it has no defence, and the attack finds nothing");
    // And one that follows redirects: the second answer of the shop leads inside.
    let to_shop = format!("http://{SHOP}:{}/", stage.port);
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    for _ in 0..2 {
        let _ = in_time(client.post(&to_shop).send()).await.expect("an answer");
    }
    assert!(stage.prize.load(SeqCst) > 1, "the redirect leads nowhere");
}
