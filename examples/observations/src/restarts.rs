//! The runs of the pipeline: a process each, on the same file, and all but the last end by `SIGKILL`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::archive::{Archive, FailureSettings, Mood, Seen};
use crate::pipeline;
use crate::readings::Size;
use crate::subscriber::Sink;

/// How long the archive asks to be left alone.
const BUSY: Duration = Duration::from_millis(500);

/// The figures of one run of the pipeline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PipelineRun {
    /// When it was killed.
    pub(crate) killed: Option<&'static str>,
    /// The archive's counters at its end, over all runs.
    pub(crate) seen: Seen,
    /// What went to the subscriber.
    pub(crate) told: u64,
    /// Duplicates that the sink recognised.
    pub(crate) again: u64,
    /// Events that were between two stages when it ended.
    pub(crate) between: u64,
}

/// Runs until everything is read and delivered. Each run is killed after a certain event, not at a time, so that slow
/// and fast machines behave alike.
pub(crate) async fn all(
    size: Size,
    folder: &Path,
    weather: &FailureSettings,
    archive: &Archive,
    sink: &Sink,
) -> anyhow::Result<Vec<PipelineRun>> {
    let mut lives = Vec::new();
    let start = || start(size, folder, archive, sink);
    let events = size.events();

    let pipeline = start()?;
    let some_arrived = sink.until(events / 20);
    lives.push(kill(pipeline, some_arrived, "before the outage", (folder, archive, sink)).await?);

    let (pipeline, served) = (start()?, archive.seen().served);
    let mut down_since = Instant::now();
    let everybody_failed = async {
        archive.until(|seen| seen.served >= served + size.stations).await;
        weather.turn(Mood::Down);
        down_since = Instant::now();
        archive.until(|seen| seen.while_down >= size.stations).await;
    };
    lives.push(kill(pipeline, everybody_failed, "while it was down", (folder, archive, sink)).await?);

    let (pipeline, failed) = (start()?, archive.seen().while_down);
    let some_were_sent_away = async {
        archive.until(|seen| seen.while_down >= failed + size.stations).await;
        tokio::time::sleep_until(down_since + size.outage).await;
        weather.turn(Mood::Busy);
        archive.until(|seen| seen.while_busy >= size.stations / 4).await;
    };
    lives.push(kill(pipeline, some_were_sent_away, "while it said 429", (folder, archive, sink)).await?);

    let (pipeline, told) = (start()?, sink.told());
    let more_arrived = async {
        tokio::time::sleep(BUSY).await;
        weather.turn(Mood::Calm);
        sink.until(told + events / 5).await;
    };
    lives.push(kill(pipeline, more_arrived, "after the outage", (folder, archive, sink)).await?);

    let mut pipeline = start()?;
    let status = pipeline.wait().await?;
    ensure!(status.success(), "the last pipeline ended with {status}");
    lives.push(look(None, (folder, archive, sink)).await?);
    Ok(lives)
}

fn start(size: Size, folder: &Path, archive: &Archive, sink: &Sink) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("pipeline").arg(folder).args([archive.url(), sink.url(), size.stations.to_string()]);
    command.kill_on_drop(true).spawn().context("cannot start the pipeline")
}

/// Kills a pipeline when something has happened. It has no time to tidy up.
async fn kill(
    mut pipeline: Child,
    happened: impl Future<Output = ()>,
    when: &'static str,
    others: (&Path, &Archive, &Sink),
) -> anyhow::Result<PipelineRun> {
    tokio::select! {
        status = pipeline.wait() => anyhow::bail!("it ended by itself ({}), and was to be killed {when}", status?),
        () = happened => pipeline.kill().await?,
    }
    let status = pipeline.wait().await?;
    ensure!(status.code().is_none(), "it ended with {status}, and was to be killed {when}");
    look(Some(when), others).await
}

/// The figures a run left behind. The subscriber's side is restarted too: it knows its deliveries from its own file.
async fn look(
    killed: Option<&'static str>,
    (folder, archive, sink): (&Path, &Archive, &Sink),
) -> anyhow::Result<PipelineRun> {
    let between = pipeline::left(folder).await?.between;
    let figures = sink.restart().await?;
    Ok(PipelineRun { killed, seen: archive.seen(), told: figures.committed, again: figures.seen, between })
}
