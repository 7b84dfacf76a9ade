//! A backup over the API, under load, and a server on what was restored from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redrive::Reply;
use redrive::store::sqlite;
use serde_json::json;

use crate::test_server::TestServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_under_load_is_consistent_and_can_be_served() {
    let server = Arc::new(TestServer::open("[queues.orders.pull]\n").await);
    let (over, kept) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let publishing = {
        let (server, over, kept) = (server.clone(), over.clone(), kept.clone());
        tokio::spawn(async move {
            let mut n = 0;
            while !over.load(Ordering::SeqCst) {
                let events: Vec<_> = (n..n + 10).map(|n| json!({ "id": n.to_string() })).collect();
                let (status, _) = server.post("/v1/queues/orders/events", json!({ "events": events })).await;
                assert_eq!(status, 202);
                n += 10;
                kept.store(n, Ordering::SeqCst);
            }
        })
    };
    let working = {
        let (server, over) = (server.clone(), over.clone());
        tokio::spawn(async move {
            let redrive = server.server.as_ref().expect("it runs").app().redrive.clone();
            while !over.load(Ordering::SeqCst) {
                let leases = redrive.lease("orders", 5, Duration::from_secs(60)).await.expect("leases");
                let done = leases.iter().map(|lease| (lease.held(), Reply::ok())).collect();
                redrive.settle(done).await.expect("settled");
            }
        })
    };
    while kept.load(Ordering::SeqCst) < 200 {
        tokio::task::yield_now().await;
    }
    let before = kept.load(Ordering::SeqCst);
    let answer = server.client.post(server.url("/v1/backup")).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let copy = answer.bytes().await.expect("a copy");
    over.store(true, Ordering::SeqCst);
    publishing.await.expect("published");
    working.await.expect("worked");
    let left: Vec<_> = std::fs::read_dir(server.folder.path())
        .expect("a folder")
        .map(|file| file.expect("a file").file_name().into_string().expect("a name"))
        .filter(|name| name.contains("backup"))
        .collect();
    assert_eq!(left, Vec::<String>::new(), "nothing is left behind");

    let mut other = TestServer::open("[queues.orders.pull]\n").await;
    other.stop().await;
    for file in std::fs::read_dir(other.folder.path()).expect("a folder") {
        std::fs::remove_file(file.expect("a file").path()).expect("removed");
    }
    let (file, store) = (other.folder.path().join("copy"), other.folder.path().join("redrive.db"));
    std::fs::write(&file, &copy).expect("written");
    let restored = sqlite::restore(&file, &store, false).expect("restored");
    assert!(restored.identities >= before, "{restored:?} {before}");
    other.start().await;
    let redrive = &other.server.as_ref().expect("it runs").app().redrive;
    let counts = redrive.counts().await.expect("counts");
    let pending: u64 = counts.iter().map(|count| count.events).sum();
    let mut done = 0;
    for n in 0..restored.identities {
        let found = redrive.event("", "orders", &n.to_string()).await.expect("a look").expect("no gap");
        done += u64::from(found.state == redrive::event::State::Done);
    }
    assert_eq!(restored.identities, done + pending);
    assert!(done > 0 && pending > 0, "{done} {pending}");
}
