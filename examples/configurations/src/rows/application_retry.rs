//! Application retry: one identity for the intent, or one for each attempt.
//!
//! Off, every attempt mints a key, so that the receiver takes each for a new intent. On, the key derives from the item:
//! attempts and lives share it.

use anyhow::Result;
use redrive::http::Client;
use redrive::{Backoff, Policy};

use crate::life::Life;

pub(super) async fn live(life: &Life) -> Result<()> {
    let done = life.noted("done");
    let once = Policy::builder().attempts(1).build()?;
    let keyed = Policy::builder().attempts(3).backoff(Backoff::NONE).no_budget().build()?;
    let client = Client::new(reqwest::Client::new(), if life.is_guarded() { keyed } else { once });
    for item in Life::items().filter(|item| !done.contains(item)) {
        life.crash_point();
        // The application's own loop; the first answer of some items is lost.
        for attempt in 1..=3 {
            let is_lost = attempt == 1 && life.happens("lose", &item, 3);
            let post = client.post(life.witness.url("/effect")).with(|post| {
                let post = post.header("x-run", life.witness.run()).header("x-id", &item);
                if is_lost { post.header("x-lose", "1") } else { post }
            });
            let post = if life.is_guarded() { post.idempotency_key(&item) } else { post.mint_key() };
            if post.send().await.is_ok() {
                break;
            }
        }
        life.crash_point();
        life.note("done", &item)?;
        life.crash_point();
    }
    Ok(())
}
