//! Dedupe store: a window of ids beside a transport of its own.
//!
//! Off, the id is kept before the effect, and a crash in between loses the effect: the next delivery is "seen". On, the
//! id is claimed, the effect happens under a key, and the id is kept after it.

use anyhow::{Result, bail};
use redrive::window::{Claim, Window, WindowSettings};

use crate::life::Life;

pub(super) async fn live(life: &Life) -> Result<()> {
    let window = Window::open(&life.address("seen.db"), WindowSettings::default()).await?;
    let acknowledged = life.noted("acknowledged");
    for item in Life::items().filter(|item| !acknowledged.contains(item)) {
        life.crash_point();
        match window.claim(&item).await? {
            Claim::First(ticket) if life.is_guarded() => {
                life.witness.effect(&item, Some(&item), false)?;
                life.crash_point();
                ticket.commit().await?;
            }
            Claim::First(ticket) => {
                ticket.commit().await?;
                life.crash_point();
                life.witness.effect(&item, Some(&item), false)?;
            }
            Claim::Seen { .. } => {}
            Claim::Busy { .. } => bail!("another worker has {item}"),
        }
        life.crash_point();
        life.note("acknowledged", &item)?;
    }
    Ok(())
}
