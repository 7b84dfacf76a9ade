//! Upgrade fuzz: every byte around `h2c` and `Connection`. A tunnel of HTTP leads past every route, so the gateway
//! agrees to `websocket` and to nothing else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::stage::{Gateway, scaled, shout};
use crate::upstream::{Asked, Upstream, answer};

/// An API that upgrades whenever it can: it takes the letters of `Upgrade` and forgives everything else.
async fn forgiving(tunnels: Arc<AtomicUsize>) -> Upstream {
    Upstream::answering(move |asked: &Asked| {
        let letters = |value: &Vec<u8>| -> String {
            let letters = value.iter().filter(|byte| byte.is_ascii_alphanumeric() || **byte == b',');
            letters.map(|byte| char::from(byte.to_ascii_lowercase())).collect()
        };
        let asked: Vec<String> = asked.all("upgrade").iter().map(letters).collect();
        match asked.join(",") {
            named if named.contains("h2c") => {
                tunnels.fetch_add(1, Ordering::Relaxed);
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n".to_vec()
            }
            named if named == "websocket" => {
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
                    .to_vec()
            }
            _ => answer("200 OK", "", "no"),
        }
    })
    .await
}

/// The requests: each byte before, after and inside of the names that matter.
fn requests() -> Vec<Vec<u8>> {
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let around = |word: &[u8], byte: u8, at: usize| [&word[..at], &[byte], &word[at..]].concat();
    let places = scaled(&[3, 0][..], &[0, 1, 2, 3]);
    for byte in (0..=255).filter(|byte| *byte != b'\n') {
        for at in places {
            pairs.push((b"Upgrade".to_vec(), around(b"h2c", byte, *at)));
        }
        pairs.push((around(b"Upgrade", byte, 7), b"h2c".to_vec()));
        pairs.push((around(b"Upgrade", byte, 0), b"h2c".to_vec()));
        pairs.push((b"Upgrade".to_vec(), [b"websocket,", &[byte][..], b"h2c"].concat()));
    }
    for named in
        ["h2c", "H2C", "websocket, h2c", "h2c, websocket", "websocket;h2c", "websocket\r\nUpgrade: h2c"]
    {
        pairs.push((b"Upgrade".to_vec(), named.into()));
    }
    let head = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: ";
    let request = |(connection, upgrade): &(Vec<u8>, Vec<u8>)| {
        [
            head,
            &connection[..],
            b", HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nUpgrade: ",
            upgrade,
            b"\r\n\r\n",
        ]
        .concat()
    };
    pairs.iter().map(request).collect()
}

/// How many requests ended in a tunnel.
async fn tunnels_dug(address: SocketAddr) -> usize {
    let mut dug = 0;
    for request in requests() {
        let found = shout(address, &request).await;
        dug += usize::from(found.is_some_and(|reply| reply.status == 101));
    }
    dug
}

#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_of_http_2_gets_a_tunnel_and_a_websocket_does() {
    let asked_for = Arc::new(AtomicUsize::new(0));
    let upstream = forgiving(asked_for.clone()).await;
    let gateway = Gateway::before(upstream.address, "").await;
    assert_eq!(tunnels_dug(gateway.address).await, 0);
    assert_eq!(asked_for.load(Ordering::Relaxed), 0, "the API was never asked for one");
    let socket = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(shout(gateway.address, socket).await.map(|reply| reply.status), Some(101));
}

/// The control: a stand-in that looks for `h2c` in values that are text, and forwards the bytes as they came.
#[tokio::test(flavor = "multi_thread")]
async fn control_a_gateway_that_skips_what_is_not_text_is_tunnelled_through() {
    let upstream = forgiving(Arc::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, behind) = (listener.local_addr().expect("an address"), upstream.address);
    let relaying = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(relay(client, behind));
        }
    });
    assert!(tunnels_dug(address).await > 100);
    relaying.abort();
}

async fn relay(mut client: TcpStream, upstream: SocketAddr) -> Option<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        if client.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let lines = head.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"Upgrade:"));
    let is_http2 = lines.filter_map(|line| std::str::from_utf8(line).ok()).any(|line| line.contains("h2c"));
    if !is_http2 {
        let mut upstream = TcpStream::connect(upstream).await.ok()?;
        upstream.write_all(&head).await.ok()?;
        let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
    }
    Some(())
}
