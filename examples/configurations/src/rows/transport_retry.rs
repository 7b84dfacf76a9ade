//! Transport retry: which requests a client may send again by itself.
//!
//! Off, the transport repeats every request that got no answer. On, Redrive's client repeats only what is idempotent,
//! and a POST without a key ends as unknown. Both note what they are about to send, and never send it in a second life.

use anyhow::Result;
use redrive::http::Client;
use redrive::{Executed, Policy};

use crate::life::Life;

pub(super) async fn live(life: &Life) -> Result<()> {
    let sent = life.noted("sent");
    let client = Client::new(reqwest::Client::new(), Policy::default());
    for item in Life::items().filter(|item| !sent.contains(item)) {
        life.note("sent", &item)?;
        life.crash_point();
        let is_lost = life.happens("lose", &item, 2);
        if life.is_guarded() {
            let post = client.post(life.witness.url("/effect"));
            let answer = post.with(|post| {
                let post = post.header("x-run", life.witness.run()).header("x-id", &item);
                if is_lost { post.header("x-lose", "1") } else { post }
            });
            if let Err(stopped) = answer.send().await {
                assert_eq!((stopped.report.attempts, stopped.report.executed), (1, Executed::Unknown));
                life.note("unknown", &item)?;
            }
        } else if life.witness.effect(&item, None, is_lost).is_err() {
            life.witness.effect(&item, None, false)?;
        }
        life.crash_point();
        life.note("done", &item)?;
        life.crash_point();
    }
    Ok(())
}
