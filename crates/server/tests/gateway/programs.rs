//! The gateway as a program between third-party programs: Python's `http.server` and busybox's `httpd` with a CGI
//! script behind it, `curl --retry` before it. The network loses responses after the effect.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::process::Program;
use crate::test_gateway::in_time;

/// A network that loses the first answer: everything of a request gets through, and then the connection is cut.
async fn lossy(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.expect("a connection");
        let mut far = TcpStream::connect(to).await.expect("the upstream accepts");
        let (mut from, mut sent) = near.split();
        let (mut back, mut on) = far.split();
        let mut first = [0];
        // That an answer comes shows that the effect is done.
        tokio::select! {
            _ = tokio::io::copy(&mut from, &mut on) => panic!("the client gave up"),
            read = back.read_exact(&mut first) => { read.expect("an answer"); }
        }
        let _ = sent.shutdown().await;
        drop((near, far));
        while let Ok((mut near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut far = TcpStream::connect(to).await.expect("the upstream accepts");
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    address
}

/// Python's server.
struct Shop {
    _child: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Shop {
    async fn open(flag: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/shop.py");
        let mut command = Command::new("python3");
        command.arg(script).arg(orders(&folder)).args(flag).stdout(Stdio::piped());
        // What it says of connections that were cut is no news.
        command.stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().expect("python3 is needed: `cargo xtask install`");
        let mut said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let port = in_time(said.next_line()).await.expect("it talks").expect("a port");
        let address = SocketAddr::from(([127, 0, 0, 1], port.parse().expect("a port")));
        Self { _child: child, address, folder }
    }

    fn orders(&self) -> Vec<String> {
        lines(&orders(&self.folder))
    }
}

fn orders(folder: &TempDir) -> PathBuf {
    folder.path().join("orders")
}

fn lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Busybox's server, one process a connection, as inetd would start it.
async fn busybox(folder: &Path) -> SocketAddr {
    let scripts = folder.join("cgi-bin");
    std::fs::create_dir(&scripts).expect("a folder");
    let script = "#!/bin/sh\norder=$(head -c \"$CONTENT_LENGTH\")\nprintf '%s\\n' \"$order\" >> ../orders\n\
                  printf 'Status: 201 Created\\r\\nContent-Type: text/plain\\r\\n\\r\\ntaken: %s' \"$order\"\n";
    let file = scripts.join("order");
    std::fs::write(&file, script).expect("a script");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("it can be run");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let folder = folder.to_owned();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let stream = stream.into_std().expect("a socket");
            stream.set_nonblocking(false).expect("a socket that waits");
            let twin = stream.try_clone().expect("a socket");
            let mut command = Command::new("busybox");
            command.args(["httpd", "-i", "-h"]).arg(&folder).kill_on_drop(true);
            command.stdin(std::os::fd::OwnedFd::from(stream)).stdout(std::os::fd::OwnedFd::from(twin));
            let mut child = command.spawn().expect("busybox is needed: `cargo xtask install`");
            tokio::spawn(async move { child.wait().await });
        }
    });
    address
}

/// An order by curl, which tries again whatever happens. Its exit code, and what the last answer was.
async fn order(to: SocketAddr, path: &str) -> (Option<i32>, String) {
    let mut command = Command::new("curl");
    command.args(["--silent", "--retry", "2", "--retry-all-errors", "--fail", "--noproxy", "*"]);
    command.args(["--header", "Idempotency-Key: order-17", "--data", "two cabins"]);
    command.args(["--write-out", "\n%{http_code} %header{idempotent-replayed} %header{idempotency-attempt}"]);
    command.arg(format!("http://{to}{path}")).kill_on_drop(true);
    let output = in_time(command.output()).await.expect("curl is needed: `cargo xtask install`");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

const KEYED: &str = "[[gateway.routes]]\nmatch = \"POST /order\"\ntenant = \"shop\"\neffects = \"keyed\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn without_a_gateway_an_order_whose_answer_is_lost_is_taken_twice() {
    let shop = Shop::open(None).await;
    let (code, told) = order(lossy(shop.address).await, "/order").await;
    assert_eq!((code, told.as_str()), (Some(0), "taken: two cabins\n201"));
    assert_eq!(shop.orders(), ["two cabins", "two cabins"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_answer_is_lost_before_the_client_is_taken_once() {
    let shop = Shop::open(None).await;
    let gateway = Program::gateway(shop.address, "").await;
    let (code, told) = order(lossy(gateway.address()).await, "/order").await;
    assert_eq!((code, told.as_str()), (Some(0), "taken: two cabins\n201 true"));
    assert_eq!(shop.orders(), ["two cabins"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_answer_is_lost_behind_the_gateway_is_not_taken_again() {
    let shop = Shop::open(None).await;
    let gateway = Program::gateway(lossy(shop.address).await, "").await;
    // The outcome is unknown, so curl gives up, and an operator is needed.
    let (code, told) = order(gateway.address(), "/order").await;
    assert_eq!((code, told.as_str()), (Some(22), "409"));
    assert_eq!(shop.orders(), ["two cabins"]);
    let waiting = gateway.command(&["ledger", "ls", "--unknown"]).await;
    assert!(waiting.contains("order-17"), "{waiting}");
    let which = ["ledger", "resolve", "order-17", "--operation", "POST /{*path}", "--tenant", "default"];
    let how = ["--as", "completed", "--status", "201", "--body", "taken: two cabins"];
    gateway.command(&[&which[..], &how[..]].concat()).await;
    let (code, told) = order(gateway.address(), "/order").await;
    assert_eq!((code, told.as_str()), (Some(0), "taken: two cabins\n201 true"));
    assert_eq!(shop.orders(), ["two cabins"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_at_a_shop_that_knows_keys_is_sent_again_and_taken_once() {
    let shop = Shop::open(Some("keyed")).await;
    let gateway = Program::gateway(lossy(shop.address).await, KEYED).await;
    let (code, told) = order(gateway.address(), "/order").await;
    assert_eq!((code, told.as_str()), (Some(0), "taken: two cabins\n201 false 2"));
    assert_eq!(shop.orders(), ["two cabins"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_at_a_script_behind_busybox_is_taken_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let upstream = busybox(folder.path()).await;
    let gateway = Program::gateway(upstream, "").await;
    let (code, told) = order(lossy(gateway.address()).await, "/cgi-bin/order").await;
    assert_eq!((code, told.as_str()), (Some(0), "taken: two cabins\n201 true"));
    assert_eq!(lines(&orders(&folder)), ["two cabins"]);
}
