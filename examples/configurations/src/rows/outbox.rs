//! Outbox: a row of your own, and an event about it.
//!
//! Off, the row commits and the event is published next. On, both are one commit. The handler sends the event to the
//! witness under its key.

use std::time::Duration;

use anyhow::Result;
use redrive::{Delivery, Event, Failure, Redrive};

use crate::life::Life;

pub(super) async fn live(life: &Life) -> Result<()> {
    let redrive = Redrive::open(&life.address("shop.db")).await?;
    redrive.transact(|tx| tx.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY)", &[])).await?;
    let witness = life.witness.clone();
    let send = move |email: Delivery| {
        let witness = witness.clone();
        async move {
            let sent = witness.effect(email.id(), Some(&email.idempotency_key()), false);
            sent.map_err(|error| Failure::transient_text(error.to_string()))
        }
    };
    redrive.queue("emails").handle(send).await?;
    redrive.start().await?;
    for item in Life::items() {
        let rows = {
            let id = item.clone();
            redrive
                .transact(move |tx| tx.query("SELECT id FROM orders WHERE id = $1", &[id.as_str().into()]))
                .await?
        };
        if !rows.is_empty() {
            continue; // The order is there, so its email was published: so the program believes.
        }
        life.crash_point();
        let (id, is_guarded) = (item.clone(), life.is_guarded());
        let order = move |tx: &mut redrive::Transaction<'_>| {
            tx.execute("INSERT INTO orders VALUES ($1)", &[id.as_str().into()])?;
            if is_guarded {
                tx.publish(Event::new("emails", id.as_str()))?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        redrive.transact(order).await?;
        life.crash_point();
        if !life.is_guarded() {
            redrive.publish(Event::new("emails", item.as_str())).await?;
        }
        life.crash_point();
    }
    redrive.idle().await;
    redrive.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}
