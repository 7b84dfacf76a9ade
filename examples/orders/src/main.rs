//! Durable events in one SQLite file.
//!
//! Ten orders are published, each of them twice. One cannot be read. The others are booked in a table of this
//! program's own, in the transaction that settles them, and each booking publishes a shipment. The carrier
//! that the shipments go to is busy at first, then loses an answer after it has shipped, and only then works.
//!
//! ```text
//! cargo run -p example-orders
//! ```
//!
//! It ends with figures, and with 1 if they do not add up.

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use redrive::engine::Transaction;
use redrive::event::AttemptRecord;
use redrive::prelude::*;
use redrive::{Delivery, Event, Failure, Published, Redrive, testing};

const ORDERS: u32 = 10;
/// The order whose payload is not a number.
const POISON: &str = "order-7";

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let folder = tempfile::tempdir()?;
    let redrive = Redrive::open(&format!("sqlite:{}", folder.path().join("orders.db").display())).await?;
    println!("effect and settle commit together in {}", redrive.domain());
    let carrier = Carrier::default();
    set_up(&redrive, &carrier).await?;
    redrive.start().await?;

    let duplicates = publish_twice(&redrive).await?;
    // A service would call `run_until_signal`; this program waits until nothing is left to do.
    testing::drain(&redrive).await;

    let (booked, different) = redrive.transact(bookings).await?;
    let dead = redrive.dead_letters("orders").await?.events;
    for (event, found) in &dead {
        let reason = found.reason.context("a dead letter has a reason")?;
        println!("\n{}/{} is a dead letter: {reason}", event.queue, event.id);
        let history = found.history.as_deref().context("a dead letter has an attempt history")?;
        history.records().for_each(tell);
    }
    let shipped = redrive.event("", "shipments", "order-1").await?.context("a shipment is remembered")?;
    println!("\nshipments/order-1 is {} after {} attempts", shipped.state, shipped.attempts);
    shipped.history.context("it was retried, so it has an attempt history")?.records().for_each(tell);
    redrive.shutdown(Duration::from_secs(5)).await?;

    let Seen { calls, parcels } = carrier.seen();
    let good = ORDERS - 1;
    Ok(add_up(&[
        ("duplicates that were answered and not kept", duplicates, ORDERS),
        ("bookings", booked, good),
        ("orders that are booked", different, good),
        ("dead letters", u32::try_from(dead.len())?, 1),
        ("calls to the carrier: each shipment busy, lost, done", calls, 3 * good),
        ("parcels, by idempotency key", parcels, good),
    ]))
}

async fn set_up(redrive: &Redrive, carrier: &Carrier) -> anyhow::Result<()> {
    let make = |tx: &mut Transaction<'_>| {
        let db = tx.sqlite().ok_or("not in SQLite")?;
        // No primary key on purpose: a double booking would be two rows.
        db.execute_batch("CREATE TABLE booking (id TEXT, euro INTEGER)")?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    };
    redrive.transact(make).await?;
    redrive.queue("orders").handle_in(book).await?;

    let policy = Policy::builder()
        .name("carrier")
        .attempts(5)
        .backoff(Backoff::exponential(Duration::from_millis(20), 2.0, Duration::from_millis(200)))
        .build()?;
    let carrier = carrier.clone();
    let ship = move |shipment: Delivery| {
        let shipped = carrier.ship(&shipment);
        async move { shipped }
    };
    redrive.queue("shipments").policy(policy).concurrency(4).handle_with(classify::io, ship).await?;
    Ok(())
}

/// Books an order, and publishes its shipment. The booking, the shipment and the end of the order are one
/// commit.
fn book(tx: &mut Transaction<'_>, order: &Delivery) -> Result<(), Failure> {
    // These errors are unclassified, hence permanent: the same bytes will not parse tomorrow.
    let euro: u32 = std::str::from_utf8(order.payload())?.parse()?;
    let db = tx.sqlite().ok_or_else(|| Failure::permanent(io::Error::other("not in SQLite")))?;
    db.execute("INSERT INTO booking (id, euro) VALUES (?1, ?2)", (order.id(), euro))?;
    tx.publish(Event::new("shipments", order.id()))?;
    Ok(())
}

/// Publishes every order, and all of them again, as a client does that got no answer. Gives how many of them
/// were known.
async fn publish_twice(redrive: &Redrive) -> anyhow::Result<u32> {
    let mut duplicates = 0;
    for _ in 0..2 {
        for number in 1..=ORDERS {
            let id = format!("order-{number}");
            let payload = if id == POISON { "seventeen".to_owned() } else { number.to_string() };
            match redrive.publish(Event::new("orders", id).payload(payload)).await? {
                Published::Accepted(_) => {}
                Published::Duplicate(_) => duplicates += 1,
            }
        }
    }
    Ok(duplicates)
}

/// The numbers of bookings, and of booked orders.
fn bookings(tx: &mut Transaction<'_>) -> Result<(u32, u32), Box<dyn std::error::Error + Send + Sync>> {
    let db = tx.sqlite().ok_or("not in SQLite")?;
    Ok(db.query_row("SELECT count(*), count(DISTINCT id) FROM booking", [], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?)
}

fn tell(record: &AttemptRecord) {
    let cause = record.cause.as_ref().map(|cause| format!(": {}", cause.message)).unwrap_or_default();
    let executed = record.executed.map(|it| format!(", executed: {}", it.as_str())).unwrap_or_default();
    println!("  attempt {} {}{executed}{cause}", record.attempt, record.disposition);
}

fn add_up(figures: &[(&str, u32, u32)]) -> ExitCode {
    println!();
    for (what, seen, expected) in figures {
        let word = if seen == expected { "ok   " } else { "WRONG" };
        println!("{word} {seen:>3} of {expected:>3}  {what}");
    }
    ExitCode::from(u8::from(figures.iter().any(|(_, seen, expected)| seen != expected)))
}

/// The carrier's counters.
struct Seen {
    calls: u32,
    parcels: u32,
}

/// An external service: outside the file, so an attempt may reach it more than once. It ships one parcel per
/// idempotency key.
#[derive(Debug, Clone, Default)]
struct Carrier(Arc<Mutex<BTreeMap<String, Told>>>);

/// The carrier's record of a key.
#[derive(Debug, Default)]
struct Told {
    calls: u32,
    parcels: u32,
}

impl Carrier {
    fn ship(&self, shipment: &Delivery) -> io::Result<()> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = all.entry(shipment.idempotency_key()).or_default();
        told.calls += 1;
        match told.calls {
            1 => Err(io::ErrorKind::ConnectionRefused.into()),
            2 => {
                told.parcels += 1;
                // It has shipped, but the response is lost.
                Err(io::ErrorKind::ConnectionReset.into())
            }
            _ if told.parcels > 0 => Ok(()), // the key is known: the parcel is on its way already
            _ => {
                told.parcels += 1;
                Ok(())
            }
        }
    }

    fn seen(&self) -> Seen {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (calls, parcels) = (all.values().map(|told| told.calls), all.values().map(|told| told.parcels));
        Seen { calls: calls.sum(), parcels: parcels.sum() }
    }
}
