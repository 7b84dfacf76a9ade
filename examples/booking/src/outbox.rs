//! The outbox: the work that follows a booking's commit.
//!
//! Confirmations go to the email program; deposits of refused guests are voided at the provider. Both are queues in
//! the API's own store, written in the commit of the booking. One of the API's processes owns the file and runs them;
//! the others check now and then whether it is gone.

use std::time::Duration;

use redrive::engine::StartError;
use redrive::prelude::*;
use redrive::{Delivery, Failure, Redrive, StoreError};
use reqwest::RequestBuilder;

use crate::crash_points;

/// The queue of confirmations; a payload is the wish.
pub(crate) const CONFIRMATIONS: &str = "confirmations";
/// The queue of deposits to be voided; a payload is the key of one.
pub(crate) const VOIDS: &str = "voids";

/// How often a process that does not run the outbox tries to.
const AGAIN: Duration = Duration::from_millis(250);
/// How long an identity is remembered: longer than its policy may try.
const WINDOW: Duration = Duration::from_secs(7 * 86_400);
/// How long a call may take.
const CALL: Duration = Duration::from_secs(2);

/// Sets the queues up.
pub(crate) async fn set_up(redrive: &Redrive, provider: &str, mailer: &str) -> anyhow::Result<()> {
    // Longer than any unattended outage.
    let policy = Policy::builder()
        .attempts(1000)
        .backoff(Backoff::exponential(Duration::from_millis(20), 2.0, Duration::from_secs(1)))
        .no_budget()
        .build()?;
    let client = reqwest::Client::builder().no_proxy().timeout(CALL).build()?;

    let (emails, url) = (client.clone(), format!("{mailer}/emails"));
    let confirm = move |confirmation: Delivery| {
        let email = emails.post(&url).header("content-type", "application/json");
        async move {
            crash_points::pass("before-email");
            let body = confirmation.payload().to_vec();
            // The same key for all attempts and processes: the email program recognises duplicates.
            send(email.header("idempotency-key", confirmation.idempotency_key()).body(body)).await?;
            crash_points::pass("after-email");
            Ok::<_, Failure>(())
        }
    };
    redrive.queue(CONFIRMATIONS).policy(policy.clone()).window(WINDOW).handle(confirm).await?;

    let deposits = format!("{provider}/authorisations");
    let void = move |void: Delivery| {
        let (client, deposits) = (client.clone(), deposits.clone());
        async move {
            let key = std::str::from_utf8(void.payload())?;
            send(client.delete(format!("{deposits}/{key}"))).await
        }
    };
    redrive.queue(VOIDS).policy(policy).window(WINDOW).handle(void).await?;
    Ok(())
}

/// Runs the outbox as soon as no other process does.
pub(crate) async fn run(redrive: Redrive) {
    loop {
        match redrive.start().await {
            Ok(()) => break,
            Err(StartError::Store(StoreError::NotOwner { .. })) => {}
            Err(error) => eprintln!("cannot run the outbox yet: {error}"),
        }
        tokio::time::sleep(AGAIN).await;
    }
    eprintln!("the outbox stopped: {}", redrive.failed().await);
}

async fn send(request: RequestBuilder) -> Result<(), Failure> {
    let answer = request.send().await.map_err(Failure::transient)?;
    match answer.error_for_status() {
        Ok(_) => Ok(()),
        Err(error) if error.status().is_some_and(|status| status.is_server_error()) => {
            Err(Failure::transient(error))
        }
        Err(error) => Err(Failure::permanent(error)),
    }
}
