//! A pipeline of observations, from a flaky archive to a subscriber that counts.
//!
//! A hundred pollers read ten pages each from an archive on loopback. The archive is down for a while, then asks to be
//! left alone (429, `Retry-After`), changes its schema half way, and has some records that nobody can read. The
//! pipeline is stopped in the middle, without mercy, and opened again on the same files; its pollers begin anew.
//!
//! ```text
//! cargo run --release -p example-observations
//! ```
//!
//! It ends with figures, and with 1 if they do not add up. Beside it, pollers that retry as one does without thinking
//! read another archive that fails in the same way.

mod account;

mod archive;

mod pipeline;

mod pollers;

mod readings;

mod subscriber;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tokio::sync::watch;

use archive::Archive;
use pipeline::Pipeline;
use pollers::Polite;
use subscriber::Subscriber;

/// When the pipeline is stopped for the first time: with events in every stage.
const FIRST_LIFE: Duration = Duration::from_millis(900);
/// How long a stop on request waits for what is under way.
const GRACE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stop.send_replace(true);
        }
        // Held until the end: who waits for a signal must not take its end for one.
        std::future::pending::<()>().await;
        drop(stop);
    });
    let folder = tempfile::tempdir()?;
    let (archive, other) = (Archive::start().await?, Archive::start().await?);
    let (subscriber, polite) = (Subscriber::default(), Polite::new()?);

    let ours = lives(folder.path(), &archive, &polite, &subscriber, stopped.clone());
    let naive = pollers::naive(other.url(), stopped.clone());
    let (lives, naive_polls) = tokio::join!(ours, naive);
    let Some((lives, dead)) = lives? else {
        println!("stopped; what was accepted goes on where it was, the next time");
        return Ok(ExitCode::from(130));
    };
    Ok(account::settle(&account::Facts {
        seen: archive.seen(),
        naive: other.seen(),
        polls: polite.polls(),
        naive_polls,
        share: polite.share(),
        subscriber: &subscriber,
        lives,
        dead,
    }))
}

/// Two lives of the pipeline on the same files, and how many dead letters there are then. Nothing where it was told
/// to stop.
async fn lives(
    folder: &Path,
    archive: &Archive,
    polite: &Polite,
    subscriber: &Subscriber,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<Option<(Vec<pipeline::Figures>, u64)>> {
    let (mut lives, mut dead) = (Vec::new(), 0);
    for time in [Some(FIRST_LIFE), None] {
        let pipeline = Pipeline::open(folder, subscriber).await?;
        let ended = tokio::select! {
            read = pollers::polite(polite, archive.url(), &pipeline) => {
                read?;
                tokio::select! {
                    () = pipeline.drained() => true,
                    () = told(stopped.clone()) => false,
                }
            }
            () = sleep(time) => true,
            () = told(stopped.clone()) => false,
        };
        // The first time as a crash would be, as far as that can be had within a process: nothing is waited for.
        let grace = if time.is_some() { Duration::ZERO } else { GRACE };
        if time.is_none() {
            dead = pipeline.dead().await?;
        }
        lives.push(pipeline.close(grace).await?);
        if !ended {
            return Ok(None);
        }
    }
    Ok(Some((lives, dead)))
}

async fn told(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}
