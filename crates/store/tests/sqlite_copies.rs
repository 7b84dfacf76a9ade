//! Backups of a file in use, and their restoration.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redrive_core::Event;
use redrive_core::event::State;
use redrive_core::ledger::{ClaimRequest, Effects, RequestFingerprint, RequestScope, Retention};
use redrive_core::queue_entry::{EventChange, FencingToken, SettleResult};
use redrive_store::ledger::LedgerStore as _;
use redrive_store::sqlite::{self, SqliteSettings};
use redrive_store::{Sqlite, StoreError, prelude::*};

mod sqlite_common;
use sqlite_common::{AT, TestStore, due, publish, settle};

fn open(path: &std::path::Path) -> Sqlite {
    let mut settings = SqliteSettings::default();
    settings.disk_least = 0;
    Sqlite::open(path, settings).unwrap()
}

/// Every identity that was acknowledged before the backup began is in it, once and complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_under_load_is_of_one_moment() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    let (stop, kept) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let publishing = {
        let (store, stop, kept) = (store.clone(), stop.clone(), kept.clone());
        tokio::spawn(async move {
            let mut n = 0;
            while !stop.load(Ordering::SeqCst) {
                n += 1;
                // Large ones first, so that the backup takes many steps, with commits in between.
                let bytes = if n <= 16 { 1 << 20 } else { 600 };
                let event = Event::new("orders", format!("{n}")).payload(vec![7; bytes]);
                publish(&store, event).await.unwrap();
                kept.store(n, Ordering::SeqCst);
            }
        })
    };
    let settling = {
        let (store, stop) = (store.clone(), stop.clone());
        tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let entries = due(&store, token).await;
                let settles: Vec<_> =
                    entries.iter().take(3).map(|entry| settle(token, entry, EventChange::Done)).collect();
                store.settle(settles).await.unwrap();
            }
        })
    };
    let load = Arc::clone(&kept);
    while load.load(Ordering::SeqCst) < 200 {
        tokio::task::yield_now().await;
    }
    let backup = store_dir.folder.path().join("backup.db");
    let before = kept.load(Ordering::SeqCst);
    store.backup(backup.clone()).await.unwrap();
    let during = kept.load(Ordering::SeqCst);
    stop.store(true, Ordering::SeqCst);
    publishing.await.unwrap();
    settling.await.unwrap();
    store.close().await.unwrap();

    let restored = store_dir.folder.path().join("restored.db");
    let found = sqlite::restore(&backup, &restored, false).unwrap();
    assert!((before..=during + 1).contains(&found.identities), "{before} {found:?} {during}");
    assert_eq!(found.damaged, (vec![], 0));
    let store = open(&restored);
    let mut done = 0;
    for n in 1..=found.identities {
        // Without a gap: every event in the backup was committed before every event that is not.
        let event = store.find("", "orders", &n.to_string()).await.unwrap().unwrap();
        done += u64::from(event.state == State::Done);
    }
    let living: u64 = store.count(AT).await.unwrap().iter().map(|count| count.events).sum();
    assert_eq!((found.identities, living), (done + living, found.events));
}

#[tokio::test]
async fn after_a_restore_settles_of_the_life_before_change_nothing() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    let old = store.take(0, AT).await.unwrap().token;
    let entry = due(&store, old).await.remove(0);
    let (backup, restored) = (store_dir.folder.path().join("b.db"), store_dir.folder.path().join("r.db"));
    store.backup(backup.clone()).await.unwrap();
    sqlite::restore(&backup, &restored, false).unwrap();

    let store = open(&restored);
    let new = store.take(0, AT).await.unwrap().token;
    assert_ne!(new.incarnation, old.incarnation);
    assert!(new.epoch > old.epoch, "tokens grow on");
    // By its incarnation alone: whatever its epoch.
    for zombie in [old, FencingToken { incarnation: old.incarnation, ..new }] {
        let refused = store.settle(vec![settle(zombie, &entry, EventChange::Done)]).await.unwrap();
        assert_eq!(refused, [SettleResult::Fenced]);
    }
    let entry = due(&store, new).await.remove(0);
    let applied = store.settle(vec![settle(new, &entry, EventChange::Done)]).await.unwrap();
    assert!(matches!(applied[..], [SettleResult::Applied { .. }]));
}

#[tokio::test]
async fn nothing_is_written_over() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let there = store_dir.folder.path().join("there");
    std::fs::write(&there, "mine").unwrap();
    let refused = store.backup(there.clone()).await;
    assert!(matches!(&refused, Err(StoreError::Open { path, .. }) if *path == there), "{refused:?}");
    let backup = store_dir.folder.path().join("b.db");
    store.backup(backup.clone()).await.unwrap();
    assert!(sqlite::restore(&backup, &there, false).is_err());
    assert!(sqlite::restore(&backup, &store_dir.path, false).is_err());
    assert_eq!(std::fs::read(&there).unwrap(), b"mine");
    // A leftover log belongs to another file.
    std::fs::write(store_dir.folder.path().join("new.db-wal"), "old").unwrap();
    assert!(sqlite::restore(&backup, &store_dir.folder.path().join("new.db"), false).is_err());
    let left: Vec<_> = std::fs::read_dir(store_dir.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("part"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    let mode = std::os::unix::fs::PermissionsExt::mode(&backup.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "only the owner may read the events of all tenants");
}

#[tokio::test]
async fn what_is_damaged_is_found_before_it_is_restored() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    for n in 0..3 {
        publish(&store, Event::new("orders", n.to_string()).payload(*b"17 euro")).await.unwrap();
    }
    let backup = store_dir.folder.path().join("b.db");
    store.backup(backup.clone()).await.unwrap();
    let restored = store_dir.folder.path().join("r.db");
    rusqlite::Connection::open(&backup)
        .unwrap()
        .execute("UPDATE redrive_fresh SET payload = x'00' WHERE id = '1'", [])
        .unwrap();
    let refused = sqlite::restore(&backup, &restored, false);
    assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{refused:?}");
    assert!(!restored.exists());
    let found = sqlite::restore(&backup, &restored, true).unwrap();
    assert_eq!((found.events, found.damaged.1), (3, 1));

    let mut bytes = std::fs::read(&backup).unwrap();
    bytes.truncate(bytes.len() - 4096);
    std::fs::write(&backup, bytes).unwrap();
    assert!(sqlite::restore(&backup, &store_dir.folder.path().join("r2.db"), true).is_err());
    std::fs::write(&backup, "no database at all, but long enough to look like something").unwrap();
    assert!(sqlite::restore(&backup, &store_dir.folder.path().join("r2.db"), true).is_err());
}

/// The error must say which of the two files to look at.
#[tokio::test]
async fn the_file_that_is_at_fault_is_named() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    let folder = store_dir.folder.path();
    let (backup, restored) = (folder.join("b.db"), folder.join("r.db"));
    store.backup(backup.clone()).await.unwrap();
    let named = |from: &std::path::Path, to: &std::path::Path| match sqlite::restore(from, to, true) {
        Err(StoreError::Open { path, .. }) => path,
        other => panic!("{other:?}"),
    };
    let nowhere = folder.join("no folder").join("r.db");
    assert_eq!(named(&backup, &nowhere), nowhere);
    let whole = std::fs::read(&backup).unwrap();
    for (name, bytes) in [
        ("short.db", &whole[..whole.len() - 4096]),
        ("text.db", b"no database at all, but long enough to look like something, and then some more of it"),
        ("empty.db", b""),
    ] {
        let wrong = folder.join(name);
        std::fs::write(&wrong, bytes).unwrap();
        assert_eq!(named(&wrong, &restored), wrong);
    }
    // A file that exists, and whose first bytes cannot be read.
    let unread = std::path::Path::new("/proc/self/mem");
    if unread.is_file() {
        assert_eq!(named(unread, &restored), unread);
    }
}

/// The last writes are in the log beside it, and would be left out silently.
#[tokio::test]
async fn the_file_of_a_store_is_not_taken_for_a_copy() {
    let store_dir = TestStore::new();
    let restored = store_dir.folder.path().join("r.db");
    let refused = |from: &std::path::Path| match sqlite::restore(from, &restored, true) {
        Err(StoreError::Open { path, why, .. }) => {
            assert!(path == from && why.contains("`redrive backup`"), "{why}");
            assert!(!restored.exists());
        }
        other => panic!("{other:?}"),
    };
    let store = store_dir.open().await;
    for n in 0..3 {
        publish(&store, Event::new("orders", n.to_string())).await.unwrap();
    }
    refused(&store_dir.path);
    // Moved away from its log.
    let taken = store_dir.folder.path().join("taken.db");
    std::fs::copy(&store_dir.path, &taken).unwrap();
    refused(&taken);
    // A backup, and a change to it that was under way.
    let backup = store_dir.folder.path().join("b.db");
    store.backup(backup.clone()).await.unwrap();
    for end in ["-wal", "-journal"] {
        let log = store_dir.folder.path().join(format!("b.db{end}"));
        std::fs::write(&log, "something").unwrap();
        refused(&backup);
        // An empty log means nothing.
        std::fs::write(&log, "").unwrap();
    }
    assert_eq!(sqlite::restore(&backup, &restored, false).unwrap().events, 3);
}

#[tokio::test]
async fn what_is_restored_is_its_makers_alone() {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let (backup, restored) = (store_dir.folder.path().join("b.db"), store_dir.folder.path().join("r.db"));
    store.backup(backup.clone()).await.unwrap();
    std::fs::set_permissions(&backup, Permissions::from_mode(0o644)).unwrap();
    sqlite::restore(&backup, &restored, false).unwrap();
    assert_eq!(restored.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn damaged_ends_and_requests_are_found_before_they_are_restored() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    let token = store.take(0, AT).await.unwrap().token;
    let entry = due(&store, token).await.remove(0);
    let change = EventChange::DoneWith { result: Some(b"17 euro".to_vec()), attempts: 1, history: None };
    store.settle(vec![settle(token, &entry, change)]).await.unwrap();
    let scope = RequestScope { tenant: String::new(), operation: "pay".to_owned(), key: "k".to_owned() };
    let ask = ClaimRequest {
        print: RequestFingerprint { version: 1, hash: [7; 32] },
        older: Vec::new(),
        effects: Effects::Keyed,
        lease: Duration::from_secs(9),
        retention: Retention { answer: Duration::from_secs(9) },
        first_sent: None,
        skew: Duration::ZERO,
    };
    store.claim(scope, ask, AT).await.unwrap();
    for (n, change) in
        ["UPDATE redrive_ending SET result = x'00'", "UPDATE redrive_request SET attempt = attempt + 1"]
            .into_iter()
            .enumerate()
    {
        let backup = store_dir.folder.path().join(format!("b{n}.db"));
        let restored = store_dir.folder.path().join(format!("r{n}.db"));
        store.backup(backup.clone()).await.unwrap();
        assert_eq!(rusqlite::Connection::open(&backup).unwrap().execute(change, []).unwrap(), 1);
        let refused = sqlite::restore(&backup, &restored, false);
        assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{change}: {refused:?}");
        assert_eq!(sqlite::restore(&backup, &restored, true).unwrap().damaged.1, 1);
    }
}

#[tokio::test]
async fn the_oldest_that_is_due_is_told_and_commits_are_counted() {
    use redrive_core::Moment;

    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let late = AT + Duration::from_secs(60);
    assert_eq!(store.oldest_due(late).await.unwrap(), []);
    publish(&store, Event::new("orders", "later").delay(Duration::from_secs(120))).await.unwrap();
    assert_eq!(store.oldest_due(late).await.unwrap(), []);
    publish(&store, Event::new("orders", "soon").delay(Duration::from_secs(30))).await.unwrap();
    let due: Moment = AT + Duration::from_secs(30);
    assert_eq!(store.oldest_due(late).await.unwrap(), [("orders".to_owned(), due)]);
    publish(&store, Event::new("orders", "now")).await.unwrap();
    assert_eq!(store.oldest_due(late).await.unwrap(), [("orders".to_owned(), AT)]);

    let figures = store.figures();
    let commits = figures.commits.unwrap();
    assert_eq!((commits.count, commits.batch.count, commits.sync.count), (4, 4, 4));
    assert!(commits.sync.sum > 0.0);
    assert!(figures.disk.is_some_and(|disk| disk.free > 0 && !disk.is_low()));
}
