//! Sequence and epoch: a receiver with one row for its producer.
//!
//! Off, a producer that starts again gets an epoch whose numbers begin at one, and sends what it has not seen confirmed
//! under new numbers. On, numbering goes on behind what was applied. Producer and receiver have files of their own.

use anyhow::{Result, ensure};
use redrive::rusqlite::{Connection, TransactionBehavior};
use redrive::sequence::{OpenedProducer, SequenceVerdict, sqlite};

use crate::life::Life;

const STREAM: &str = "payments";
const SHOP: &str = "shop";

pub(super) fn live(life: &Life) -> Result<()> {
    let producer = Connection::open(life.folder.join("producer.db"))?;
    let mut receiver = Connection::open(life.folder.join("effects.db"))?;
    sqlite::create(&producer)?;
    sqlite::create(&receiver)?;
    receiver.execute_batch("CREATE TABLE IF NOT EXISTS effect (id TEXT)")?;
    let opened = open(life, &producer, &receiver)?;
    let mut next = 1;
    while let Some(message) = sqlite::pending(&producer, STREAM, SHOP, 0, 1)?.pop() {
        // Without the guard, an epoch has numbers of its own.
        let number = if life.is_guarded() { message.number } else { next };
        next += 1;
        life.crash_point();
        let tx = receiver.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let verdict = sqlite::accept(&tx, STREAM, SHOP, opened.epoch, number)?;
        ensure!(matches!(verdict, SequenceVerdict::Apply | SequenceVerdict::Duplicate), "{verdict:?}");
        if verdict == SequenceVerdict::Apply {
            let id = String::from_utf8(message.payload.unwrap_or_default())?;
            tx.execute("INSERT INTO effect VALUES (?1)", [id])?;
        }
        tx.commit()?;
        life.crash_point();
        sqlite::confirm(&producer, STREAM, SHOP, message.number)?;
        life.crash_point();
    }
    Ok(())
}

/// Opens the producer; in its first life it also decides what to send.
fn open(life: &Life, producer: &Connection, receiver: &Connection) -> Result<OpenedProducer> {
    let opened = match sqlite::open(receiver, STREAM, SHOP)? {
        Some(opened) => opened,
        None => sqlite::enrol(receiver, STREAM, SHOP)?,
    };
    if life.noted("decided").is_empty() {
        for item in Life::items() {
            sqlite::assign(producer, STREAM, SHOP, item.as_bytes())?;
        }
        life.note("decided", "all")?;
    }
    if life.is_guarded() {
        sqlite::opened(producer, STREAM, SHOP, opened)?;
    } else {
        receiver.execute("UPDATE redrive_producer SET last = 0", [])?;
    }
    Ok(opened)
}
