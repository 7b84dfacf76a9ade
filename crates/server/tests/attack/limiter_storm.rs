//! A storm of keys at an API that answers 429: what is unknown is bounded, the disk is, and clients of routes that
//! declare the 429 have their answers soon after it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::stage::{Gateway, each, post, scaled, shout};
use crate::upstream::{Upstream, answer};

/// The ledger's bound on its disk, of the files that it has.
const DISK_MAX: u64 = 64 << 20;

fn routes(unknown_max: usize) -> String {
    format!(
        "gateway.trusted = [\"127.0.0.1\"]\ngateway.unknown_max = {unknown_max}\ngateway.client_unknown_max = {unknown_max}\n\
         [[gateway.routes]]\nmatch = \"POST /held\"\ntenant = \"acme\"\neffects = \"opaque\"\n\
         [[gateway.routes]]\nmatch = \"POST /declared\"\ntenant = \"other\"\neffects = \"opaque\"\nnot_executed = [429]\n"
    )
}

/// An API with a limiter that can be lifted.
async fn limited(lifted: Arc<AtomicBool>) -> Upstream {
    Upstream::answering(move |_| match lifted.load(Ordering::Relaxed) {
        true => answer("201 Created", "Connection: close\r\n", "made"),
        false => answer("429 Too Many Requests", "Connection: close\r\n", "wait"),
    })
    .await
}

/// How many outcomes are unknown, as the metrics say.
async fn unknown(gateway: &Gateway) -> usize {
    let request = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    let metrics = shout(gateway.admin, request).await.expect("metrics").body;
    let line =
        metrics.lines().find(|line| line.starts_with("redrive_ledger_unknown{endpoint=\"POST /held\"}"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

fn disk(gateway: &Gateway) -> u64 {
    let files = ["gateway.db", "gateway.db-wal", "gateway.db-shm"].map(|name| gateway.file(name));
    files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|file| file.len()).sum()
}

/// Requests under so many keys, from one address.
async fn storm(gateway: &Gateway, path: &'static str, keys: usize, from: &'static str) -> Vec<u16> {
    each(gateway.address, keys, move |mut client, number| async move {
        let proxied = format!("X-Forwarded-For: {from}\r\n");
        let found = client.ask(&post(path, &format!("k-{number}"), &proxied, "{}")).await;
        (client, found.status)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_is_bounded_and_declared_routes_go_on_after_it() {
    let (keys, most) = scaled((600, 100), (100_000, 10_000));
    let lifted = Arc::new(AtomicBool::new(false));
    let upstream = limited(lifted.clone()).await;
    let gateway = Gateway::before(upstream.address, &routes(most)).await;
    let held = storm(&gateway, "/held", keys, "192.0.2.1").await;
    assert!(held.iter().all(|status| *status == 429));
    // Those under way at the bound may pass it.
    let found = unknown(&gateway).await;
    assert!((most..most + 100).contains(&found), "{found} of {most}");
    let clients = keys.min(scaled(200, 5_000));
    assert!(storm(&gateway, "/declared", clients, "192.0.2.2").await.iter().all(|status| *status == 429));
    let size = disk(&gateway);
    eprintln!("storm: {found} unknown of {keys}, {} KiB", size >> 10);
    assert!(size <= DISK_MAX, "{size} bytes");
    lifted.store(true, Ordering::Relaxed);
    let ended = Instant::now();
    let served = storm(&gateway, "/declared", clients, "192.0.2.2").await;
    assert!(served.iter().all(|status| *status == 201), "all keys were free");
    assert!(ended.elapsed() < Duration::from_secs(60), "{:?}", ended.elapsed());
}

/// The control: without the bound, every key of the storm stays in the ledger.
#[tokio::test(flavor = "multi_thread")]
async fn control_without_the_bound_every_key_stays() {
    let upstream = limited(Arc::default()).await;
    let gateway = Gateway::before(upstream.address, &routes(1_000_000)).await;
    storm(&gateway, "/held", 400, "192.0.2.1").await;
    assert_eq!(unknown(&gateway).await, 400);
}
