//! Single bits flipped by the disk: a handler never sees a payload that was not published.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::prelude::*;
use redrive::{Delivery, Event, RandomSource, Redrive, StoreError};

use crate::{SECOND, file, quick};

const EVENTS: usize = 12;
/// The one whose payload is damaged bit by bit.
const VICTIM: usize = 7;

fn payload(n: usize) -> Vec<u8> {
    format!("<{n:02} {}>", "abcdefgh".repeat(6)).into_bytes()
}

fn event(n: usize) -> Event {
    Event::new("orders", format!("order-{n}")).payload(payload(n))
}

/// A closed file with events in it: half of them fresh, half of them waiting for another attempt.
async fn make(folder: &Path) -> Vec<u8> {
    let redrive = crate::open(folder).await;
    let fail = |delivery: Delivery| async move {
        let is_even = delivery.id().trim_start_matches("order-").parse::<usize>().unwrap() % 2 == 0;
        assert!(is_even, "only even ones were published before the start");
        Disposition::from(Fault::transient())
    };
    let wait = Backoff::constant(SECOND / 2);
    let slow = Policy::builder().attempts(9).backoff(wait).no_budget().build().unwrap();
    redrive.queue("orders").policy(slow).handle(fail).await.unwrap();
    for n in (0..EVENTS).step_by(2) {
        redrive.publish(event(n)).await.unwrap();
    }
    redrive.start().await.unwrap();
    redrive.idle().await;
    redrive.shutdown(SECOND).await.unwrap();
    let redrive = crate::open(folder).await;
    for n in (1..EVENTS).step_by(2) {
        redrive.publish(event(n)).await.unwrap();
    }
    redrive.shutdown(SECOND).await.unwrap();
    // A process that only publishes leaves the log to the owner.
    let db = rusqlite::Connection::open(file(folder)).unwrap();
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    std::fs::read(file(folder)).unwrap()
}

/// The payloads that handlers saw, and the engine's error about the victim.
struct Seen {
    payloads: BTreeMap<String, Vec<u8>>,
    victim: Result<(), StoreError>,
}

/// Runs the events of a file with these bytes until `expected` ran, or the time is over. An error is a valid result,
/// too.
async fn run(bytes: &[u8], expected: usize, time: Duration) -> Result<Seen, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(file(folder.path()), bytes).unwrap();
    let options = redrive::engine::OpenOptions::new().disk_least(0);
    let redrive = options.open(&format!("sqlite:{}", file(folder.path()).display())).await?;
    let payloads = Arc::new(Mutex::new(BTreeMap::new()));
    let seen = payloads.clone();
    let look = move |delivery: Delivery| {
        seen.lock().unwrap().insert(delivery.id().to_owned(), delivery.payload().to_owned());
        async {}
    };
    redrive.queue("orders").policy(quick()).handle(look).await?;
    redrive.start().await?;
    tokio::select! {
        () = ran(&redrive, &payloads, expected) => {}
        () = tokio::time::sleep(time) => {}
        error = redrive.failed() => return Err(error.into()),
    }
    let victim = redrive.event("", "orders", &format!("order-{VICTIM}")).await.map(drop);
    // It does not matter whether so damaged a file can be closed.
    let _ = redrive.shutdown(SECOND).await;
    let payloads = payloads.lock().unwrap().clone();
    Ok(Seen { payloads, victim })
}

async fn ran(redrive: &Redrive, payloads: &Mutex<BTreeMap<String, Vec<u8>>>, expected: usize) {
    while payloads.lock().unwrap().len() < expected {
        redrive.idle().await;
        tokio::time::sleep(SECOND / 200).await;
    }
}

fn check(seen: &Seen, what: &str) {
    for (id, payload) in &seen.payloads {
        let n = id.trim_start_matches("order-").parse::<usize>();
        let published = n.is_ok_and(|n| n < EVENTS && self::payload(n) == *payload);
        assert!(published, "{what}: a handler saw {id} with {:?}", String::from_utf8_lossy(payload));
    }
}

fn flipped(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_of_a_payload_is_named_and_everybody_else_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = make(folder.path()).await;
    // All of them run, so from here on everything in the file is due.
    let whole = run(&bytes, EVENTS, 20 * SECOND).await.unwrap();
    let all: Vec<_> = whole.payloads.keys().collect();
    assert_eq!((all.len(), whole.victim.is_ok()), (EVENTS, true), "{all:?}");

    let victim = payload(VICTIM);
    let places: Vec<usize> =
        (0..bytes.len() - victim.len()).filter(|at| bytes[*at..].starts_with(&victim)).collect();
    let [at] = places[..] else { panic!("the victim's payload is at {places:?}") };
    for n in 0..victim.len() {
        let what = format!("byte {n} of the payload");
        let seen = run(&flipped(&bytes, (at + n) * 8 + n % 8), EVENTS - 1, 20 * SECOND).await.unwrap();
        check(&seen, &what);
        assert_eq!(seen.payloads.len(), EVENTS - 1, "{what}: others go on");
        let error = seen.victim.unwrap_err();
        assert!(error.to_string().starts_with("redrive_fresh row "), "{what}: {error}");
        assert!(matches!(error, StoreError::Damaged { .. }), "{what}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_flipped_bit_anywhere_hands_a_handler_what_nobody_published() {
    let rounds = std::env::var("REDRIVE_CRASH_ROUNDS").map_or(2, |text| text.parse::<usize>().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let bytes = make(folder.path()).await;
    // All of them run, so from here on everything in the file is due.
    assert_eq!(run(&bytes, EVENTS, 20 * SECOND).await.unwrap().payloads.len(), EVENTS);
    // Most of a small file is empty, and a bit there changes nothing.
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let mut random = redrive::SeededRandom::new(7);
    let mut roll = |below: usize| usize::try_from(random.roll() % below as u64).unwrap();
    let (mut refused, mut fewer) = (0, 0);
    for round in 0..rounds * 50 {
        let bit = used[roll(used.len())] * 8 + roll(8);
        let what = format!("round {round}, bit {bit} of {}", bytes.len() * 8);
        let running =
            tokio::time::timeout(20 * SECOND, run(&flipped(&bytes, bit), EVENTS, SECOND / 10)).await;
        match running.unwrap_or_else(|_| panic!("{what}: it hangs")) {
            Ok(seen) => {
                check(&seen, &what);
                fewer += usize::from(seen.payloads.len() < EVENTS);
            }
            Err(_) => refused += 1,
        }
    }
    eprintln!("{} flipped bits: {refused} refused, {fewer} with some events left out", rounds * 50);
}
