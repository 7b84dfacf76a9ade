//! A pipeline of observations, from a flaky archive to a subscriber that counts, and killed on the way.
//!
//! A hundred pollers read ten pages each from an archive on loopback. The archive is down for a while, then asks for
//! a pause (429, `Retry-After`), changes its schema half way, and has some unreadable records.
//!
//! The pipeline is a separate process. It is killed (`SIGKILL`) before the outage, during it, while the archive
//! answers 429, and after that, each time with work in progress, and started again on the same file. The archive and
//! the subscriber are external, and outlive it.
//!
//! ```text
//! cargo run --release -p example-observations              # less than half a minute
//! cargo run --release -p example-observations -- --small   # a fifth of it
//! ```
//!
//! It prints figures, and exits with 1 if they do not add up; with 130 if it was interrupted. For comparison, naive
//! pollers read another archive that fails at the same time.

mod reconciliation;

mod archive;

mod restarts;

mod pipeline;

mod pollers;

mod readings;

mod subscriber;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use archive::{Archive, FailureSettings};
use readings::Size;
use subscriber::Sink;

/// Far more than needed: a wait for something that does not come fails with a message.
const TOO_LONG: Duration = Duration::from_secs(120);

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => conduct(Size::FULL).await,
        ["--small"] => conduct(Size::SMALL).await,
        // How this program starts its pipeline.
        ["pipeline", folder, archive, sink, stations] => {
            let size = Size { stations: stations.parse()?, ..Size::FULL };
            pipeline::run(folder.as_ref(), archive, sink, size).await?;
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprintln!("observations: there is no `{}`; try without, or with --small", words.join(" "));
            Ok(ExitCode::from(2))
        }
    }
}

/// Everybody but the pipeline.
async fn conduct(size: Size) -> anyhow::Result<ExitCode> {
    let folder = tempfile::tempdir()?;
    let weather = FailureSettings::default();
    let (archive, other) = (Archive::start(&weather).await?, Archive::start(&weather).await?);
    let sink = Sink::start(folder.path()).await?;

    let ours = restarts::all(size, folder.path(), &weather, &archive, &sink);
    let naive = async {
        archive.until(|seen| seen.firsts > 0).await;
        pollers::naive(&other.url(), size).await
    };
    let both = async { tokio::join!(ours, naive) };
    let (lives, naive_polls) = tokio::select! {
        both = tokio::time::timeout(TOO_LONG, both) => both.context("nothing happens any more")?,
        signal = tokio::signal::ctrl_c() => {
            signal?;
            println!("stopped; what was accepted would go on where it was");
            return Ok(ExitCode::from(130));
        }
    };
    let dead = pipeline::left(folder.path()).await?.dead;
    let (seen, naive) = (archive.seen(), other.seen());
    Ok(reconciliation::settle(&reconciliation::Facts {
        size,
        seen,
        naive,
        naive_polls,
        sink: &sink,
        lives: lives?,
        dead,
    }))
}
