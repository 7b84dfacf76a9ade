//! Destinations that are not public, in every known spelling. Each goes the whole way of a destination: parsed as a
//! setting, then called by the real client, with names resolved by our own table. A listener on this machine is the
//! target; no request reaches it.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use redrive_server::config::{PushSettings, PushTo};
use redrive_server::push::client;
use redrive_server::push::destination::Destination;
use redrive_server::push::network::Network;
use redrive_server::push::ssrf_guard::{BlockedAddress, SsrfGuard};
use reqwest::dns::Resolve as _;
use url::{Host, Url};

/// Names, and what the table of ours says of them.
const NAMES: &[(&str, &[&str])] = &[
    ("localhost", &["127.0.0.1", "::1"]),
    ("localhost.", &["127.0.0.1"]),
    ("localhost.localdomain", &["127.0.0.1"]),
    ("ip6-localhost", &["::1"]),
    ("metadata.google.internal", &["169.254.169.254"]),
    ("metadata", &["169.254.169.254"]),
    ("instance-data.ec2.internal", &["169.254.169.254"]),
    ("kubernetes.default.svc", &["10.96.0.1"]),
    ("127.0.0.1.nip.example", &["127.0.0.1"]),
    ("10.0.0.1.sslip.example", &["10.0.0.1"]),
    ("7f000001.rebind.example", &["127.0.0.1"]),
    ("mapped.example", &["::ffff:127.0.0.1"]),
    ("compatible.example", &["::127.0.0.1"]),
    ("nat64.example", &["64:ff9b::7f00:1"]),
    ("nat64-local.example", &["64:ff9b:1::7f00:1"]),
    ("sixtofour.example", &["2002:7f00:1::"]),
    ("teredo.example", &["2001:0:4136:e378:8000:63bf:3fff:fdd2"]),
    ("ula.example", &["fd00::1"]),
    ("linklocal.example", &["fe80::1"]),
    ("cgnat.example", &["100.64.0.1"]),
    ("benchmark.example", &["198.18.0.1"]),
    ("multicast.example", &["224.0.0.1", "ff02::1"]),
    ("broadcast.example", &["255.255.255.255"]),
    ("zero.example", &["0.0.0.0", "::"]),
    ("azure.example", &["168.63.129.16"]),
    ("all-private.example", &["10.0.0.1", "192.168.0.1", "172.16.0.1"]),
    ("shop.example", &["93.184.215.14"]),
    ("mixed.example", &["10.0.0.1", "93.184.215.14", "127.0.0.1"]),
    ("xn--strae-oqa.example", &["10.1.1.1"]),
];

/// Addresses of IPv4 that are not public, each of which is spelt in many ways.
const ADDRESSES: &[[u8; 4]] = &[
    [127, 0, 0, 1],
    [127, 255, 255, 254],
    [10, 0, 0, 1],
    [172, 16, 0, 1],
    [172, 31, 255, 255],
    [192, 168, 1, 1],
    [169, 254, 169, 254],
    [100, 64, 0, 1],
    [198, 18, 0, 1],
    [0, 0, 0, 0],
    [255, 255, 255, 255],
    [224, 0, 0, 1],
    [240, 0, 0, 1],
];

/// Ways to spell an address of IPv4.
fn spellings([a, b, c, d]: [u8; 4]) -> Vec<String> {
    let number = u32::from_be_bytes([a, b, c, d]);
    let (tail, last) = (number & 0x00ff_ffff, number & 0xffff);
    vec![
        format!("{a}.{b}.{c}.{d}"),
        format!("{a}.{b}.{c}.{d}."),
        format!("{number}"),
        format!("{number:#x}"),
        format!("0{number:o}"),
        format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("000{a:o}.{b}.{c:#x}.{d}"),
        format!("{a}.{tail}"),
        format!("{a}.{b}.{last}"),
        format!("{a:#x}.{tail:#x}"),
        format!("[::ffff:{a}.{b}.{c}.{d}]"),
        format!("[::ffff:{:x}:{last:x}]", number >> 16),
        format!("[0:0:0:0:0:FFFF:{:X}:{last:X}]", number >> 16),
        format!("[::{a}.{b}.{c}.{d}]"),
        format!("[64:ff9b::{a}.{b}.{c}.{d}]"),
        format!("[64:ff9b:1::{a}.{b}.{c}.{d}]"),
        format!("[2002:{:x}:{last:x}::1]", number >> 16),
        format!("[2001:0:{:x}:{last:x}::]", number >> 16),
    ]
}

/// Hosts that are spelt with more cunning, or that are names.
const ODD: &[&str] = &[
    "１２７.０.０.１",
    "①②⑦.⓪.⓪.①",
    "𝟙𝟚𝟟.𝟘.𝟘.𝟙",
    "127。0。0。1",
    "127．0．0．1",
    "127｡0｡0｡1",
    "0",
    "0x0",
    "00",
    "0.0",
    "127.1",
    "127.0.1",
    "0x7f.1",
    "0177.1",
    "017700000001",
    "0x7f000001",
    "0x00000000007f000001",
    "2130706433.",
    "%31%32%37.0.0.1",
    "127%2e0%2e0%2e1",
    "%6c%6f%63%61%6c%68%6f%73%74",
    "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
    "LOCALHOST",
    "LocalHost.",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000:0000:0000:0000:0000:0000:0001]",
    "[fd00::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "[febf:ffff::1]",
    "[fec0::1]",
    "[ff02::1]",
    "[100::1]",
    "[5f00::1]",
    "[2001:db8::1]",
    "[2001:2::1]",
    "[2001:10::1]",
    "[3fff::1]",
    "[4000::1]",
    "[fe80::1%eth0]",
    "[fe80::1%25eth0]",
    "[::1%lo]",
    "[::ffff:127.0.0.1%25lo]",
    "[::ffff:127.1]",
    "[::ffff:0x7f.0.0.1]",
    "[::ffff:127.0.0.1",
    "256.0.0.1",
    "127.0.0.0x100",
    "127.0.0.1.1",
    "1.2.3.08",
    "0x100000000",
    "4294967296",
    "user@127.0.0.1",
    "shop.example@127.0.0.1",
    "shop.example:80@127.0.0.1",
    "shop.example%40127.0.0.1",
    "127.0.0.1#@shop.example",
    "127.0.0.1?@shop.example",
    "127.0.0.1\\@shop.example",
    "user:pass@localhost",
    "127.0.0.1%00.shop.example",
    "127.0.0.1 .shop.example",
    "\t127.0.0.1",
    "127.0.\n0.1",
    "straße.example",
];

fn guard(allow: &[&str]) -> SsrfGuard {
    let allow = allow.iter().map(|network| network.parse::<Network>().expect("a network")).collect();
    let table: BTreeMap<&str, &[&str]> = NAMES.iter().copied().collect();
    let resolver = move |name: String| {
        let found = table.get(name.as_str()).map(|addresses| {
            addresses.iter().map(|address| address.parse::<IpAddr>().expect("an address")).collect::<Vec<_>>()
        });
        let none = || std::io::Error::other(format!("unknown name {name}"));
        Box::pin(std::future::ready(found.ok_or_else(none))) as _
    };
    SsrfGuard::with_resolver(allow, Arc::new(resolver))
}

fn destination(url: &str) -> Result<Destination, String> {
    Destination::new(&PushTo {
        url: url.to_owned(),
        secret: None,
        headers: BTreeMap::new(),
        statuses: BTreeMap::new(),
        format: redrive_server::config::PushFormat::Binary,
    })
}

/// What came of calling an address.
#[derive(Debug, PartialEq)]
enum Came {
    /// No destination can have it.
    NoUrl,
    /// The guard refused it.
    Refused,
    /// It was called: an answer, or why there is none.
    Called(String),
}

async fn call(url: &str, guard: &SsrfGuard, client: &reqwest::Client) -> Came {
    let Ok(destination) = destination(url) else { return Came::NoUrl };
    if guard.check_host(destination.url()).is_err() {
        return Came::Refused;
    }
    if let Some(address) = elsewhere(destination.url(), guard).await {
        return Came::Called(format!("{address} would be"));
    }
    send(destination.url(), client).await
}

/// An address outside of this machine that the guard lets pass: a guard that is broken must not have the test call
/// strangers.
async fn elsewhere(url: &Url, guard: &SsrfGuard) -> Option<IpAddr> {
    let addresses: Vec<IpAddr> = match url.host()? {
        Host::Ipv4(address) => vec![address.into()],
        Host::Ipv6(address) => vec![address.into()],
        Host::Domain(name) => {
            guard.resolve(name.parse().ok()?).await.ok()?.map(|address| address.ip()).collect()
        }
    };
    addresses.into_iter().find(|address| !address.to_canonical().is_loopback())
}

async fn send(url: &Url, client: &reqwest::Client) -> Came {
    let sending = client.post(url.clone()).send();
    let error = match tokio::time::timeout(Duration::from_secs(5), sending).await {
        Ok(Ok(answer)) => return Came::Called(answer.status().to_string()),
        Ok(Err(error)) => error,
        // The target does not respond.
        Err(_) => return Came::Called("no answer".to_owned()),
    };
    let mut source = error.source();
    while let Some(inner) = source {
        if inner.is::<BlockedAddress>() {
            return Came::Refused;
        }
        source = inner.source();
    }
    Came::Called(format!("{error:?}"))
}

#[tokio::test]
async fn two_hundred_spellings_of_what_is_not_public_are_refused() {
    let prize = TcpListener::bind("127.0.0.1:0").expect("a port");
    prize.set_nonblocking(true).expect("a listener");
    let port = prize.local_addr().expect("an address").port();
    let names =
        NAMES.iter().map(|(name, _)| *name).filter(|name| !["shop.example", "mixed.example"].contains(name));
    let hosts: BTreeSet<String> = ADDRESSES
        .iter()
        .flat_map(|address| spellings(*address))
        .chain(ODD.iter().chain(&names.collect::<Vec<_>>()).map(|host| (*host).to_owned()))
        .collect();
    let guard = guard(&[]);
    let client = client(&PushSettings::default(), guard.clone()).expect("a client");
    let (mut refused, mut no_url) = (0, 0);
    for host in &hosts {
        // Where the host is followed by something, the port comes before it.
        let url = match host.find(['#', '?', '\\']) {
            Some(at) => format!("http://{}:{port}{}", &host[..at], &host[at..]),
            None => format!("http://{host}:{port}/"),
        };
        match call(&url, &guard, &client).await {
            Came::Refused => refused += 1,
            Came::NoUrl => no_url += 1,
            came => panic!("{url:?}: {came:?}"),
        }
    }
    assert!(refused >= 200, "{refused} were refused, {no_url} are no addresses");
    let nobody = prize.accept().expect_err("no request got through");
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
}

/// The same client reaches the prize by any of these spellings once it is allowed, so the refusals were the guard's.
#[tokio::test]
async fn what_is_allowed_is_reached_by_every_spelling() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let router = axum::Router::new().fallback(async || "got it");
    tokio::spawn(async move { axum::serve(listener, router).await });
    let guard = guard(&["127.0.0.0/8"]);
    let client = client(&PushSettings::default(), guard.clone()).expect("a client");
    let hosts = [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.01",
        "１２７.０.０.１",
        "127.0.0.1.",
        "[::ffff:7f00:1]",
    ];
    for host in hosts.iter().chain(&["localhost", "127.0.0.1.nip.example", "mapped.example"]) {
        let came = call(&format!("http://{host}:{port}/"), &guard, &client).await;
        assert_eq!(came, Came::Called("200 OK".to_owned()), "{host}");
    }
    for host in ["10.0.0.1", "[::1]", "0.0.0.0", "metadata", "all-private.example"] {
        assert_eq!(call(&format!("http://{host}:{port}/"), &guard, &client).await, Came::Refused, "{host}");
    }
}

#[tokio::test]
async fn what_is_public_passes_and_a_name_is_narrowed_to_it() {
    let guard = guard(&[]);
    for host in [
        "93.184.215.14",
        "1.1.1.1",
        "0x01010101",
        "[2606:4700:4700::1111]",
        "[64:ff9b::101:101]",
        "[::ffff:1.1.1.1]",
    ] {
        let destination = destination(&format!("https://{host}/")).expect("a destination");
        assert_eq!(guard.check_host(destination.url()), Ok(()), "{host}");
    }
    for name in ["shop.example", "mixed.example"] {
        let addresses =
            guard.resolve(name.parse().expect("a name")).await.unwrap_or_else(|error| panic!("{error}"));
        let addresses: Vec<IpAddr> = addresses.map(|address| address.ip()).collect();
        assert_eq!(addresses, [IpAddr::from(Ipv4Addr::new(93, 184, 215, 14))], "{name}");
    }
    // What stands before a backslash is the host, to us as to the client.
    let slash = destination("http://shop.example\\@127.0.0.1/").expect("a destination");
    assert_eq!(slash.url().host_str(), Some("shop.example"));
}

/// A name that resolves to a public address when checked, and to a private one when called.
#[tokio::test]
async fn a_name_that_changes_its_answer_gains_nothing() {
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = asked.clone();
    let resolver = move |_| {
        let first = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
        let answer = if first { Ipv4Addr::new(93, 184, 215, 14) } else { Ipv4Addr::LOCALHOST };
        Box::pin(std::future::ready(Ok(vec![answer.into()]))) as _
    };
    let guard = SsrfGuard::with_resolver(Vec::new(), Arc::new(resolver));
    let client = client(&PushSettings::default(), guard.clone()).expect("a client");
    assert!(guard.resolve("rebind.example".parse().expect("a name")).await.is_ok());
    let rebind = "http://rebind.example:1/".parse().expect("an address");
    assert_eq!(send(&rebind, &client).await, Came::Refused);
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 2);
}
