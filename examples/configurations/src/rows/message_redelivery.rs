//! Message redelivery: a transport that delivers again until it hears an acknowledgement.
//!
//! Off, the effect commits and the acknowledgement follows. On, a marker with the message's id commits with the effect,
//! so that the second delivery finds it.

use anyhow::Result;
use redrive::Redrive;

use crate::life::Life;

pub(super) async fn live(life: &Life) -> Result<()> {
    let redrive = Redrive::open(&life.address("effects.db")).await?;
    redrive.transact(|tx| tx.execute("CREATE TABLE IF NOT EXISTS effect (id TEXT)", &[])).await?;
    let acknowledged = life.noted("acknowledged");
    for item in Life::items().filter(|item| !acknowledged.contains(item)) {
        let deliveries = if life.happens("twice", &item, 3) { 2 } else { 1 };
        for _ in 0..deliveries {
            life.crash_point();
            let (id, is_guarded) = (item.clone(), life.is_guarded());
            let consume = move |tx: &mut redrive::Transaction<'_>| {
                if !is_guarded || tx.first_time("consumer.v1", &id)? {
                    tx.execute("INSERT INTO effect VALUES ($1)", &[id.as_str().into()])?;
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            };
            redrive.transact(consume).await?;
        }
        life.crash_point();
        life.note("acknowledged", &item)?;
        life.crash_point();
    }
    Ok(())
}
