//! A worker whose jobs fail in every way.
//!
//! Some pictures are rendered at once. Some meet a busy renderer, and are retried. Some name a missing template:
//! retrying does not help, so they are dead letters until the template is added. Some fail with an unclassified
//! error, which is permanent as well. Then the template is added, and an operator redrives the dead letters of that
//! cause: two first, and the others when these have succeeded.
//!
//! ```text
//! cargo run -p example-worker             # the whole history, a few seconds
//! cargo run -p example-worker -- --wait   # then waits for a job that is due in an hour; Ctrl-C ends it at once
//! ```
//!
//! It ends with figures, and with 1 if they do not add up; with 130 if it was interrupted.

mod print;
mod renderer;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use redrive::desk::{Desk, Filter, Group, GroupQuery, How, Job, JobAct, JobPlan, JobStrategy};
use redrive::prelude::*;
use redrive::{Budget, Delivery, Event, Redrive, testing};

use renderer::Renderer;

/// How many jobs of each kind.
const PLAIN: u32 = 12;
const BUSY: u32 = 6;
const MISSING: u32 = 8;
const ODD: u32 = 2;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let waits = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--wait") => true,
        Some(other) => {
            eprintln!("worker: there is no `{other}`; try without, or with --wait");
            return Ok(ExitCode::from(2));
        }
    };
    let folder = tempfile::tempdir()?;
    let redrive = Redrive::open(&format!("sqlite:{}", folder.path().join("jobs.db").display())).await?;
    // A signal ends any wait at once. Published events continue at the next start.
    let ended = tokio::select! {
        ended = work(&redrive, waits) => ended,
        signal = tokio::signal::ctrl_c() => {
            signal?;
            println!("\ninterrupted: what is not done goes on after the next start");
            Ok(ExitCode::from(130))
        }
    };
    redrive.shutdown(Duration::ZERO).await?;
    ended
}

async fn work(redrive: &Redrive, waits: bool) -> anyhow::Result<ExitCode> {
    let renderer = Renderer::default();
    set_up(redrive, &renderer).await?;
    redrive.start().await?;
    publish(redrive).await?;
    testing::drain(redrive).await;

    let desk = redrive.desk("ada", "example");
    println!("dead letters by cause:");
    let before = desk.groups(GroupQuery::default()).await?;
    before.iter().for_each(print::group);
    let missing = group(&before, "template").context("the missing template is a cause")?;
    let cause = Filter { cause: missing.cause, ..Filter::default() };
    let letter = desk.letters(cause.clone(), None).await?.events.into_iter().next();
    print::letter(&letter.context("the group has letters")?);

    println!("\nthe template is added; an operator puts back what died of its absence");
    renderer.add_template();
    let job = redrive_all(&desk, cause).await?;

    let after = desk.groups(GroupQuery::default()).await?;
    println!("\ndead letters left:");
    after.iter().for_each(print::group);
    print::audit(&desk.audit(None, 0).await?);
    if waits {
        redrive.publish(Event::new("pictures", "tomorrow").delay(Duration::from_secs(3600))).await?;
        println!("\nwaiting for a job that is due in an hour; Ctrl-C ends this at once");
        testing::drain(redrive).await;
    }
    let left: u64 = after.iter().map(|group| group.letters).sum();
    Ok(print::add_up(&[
        ("pictures rendered", renderer.rendered(), u64::from(PLAIN + BUSY + MISSING)),
        ("pictures rendered twice", renderer.rendered_twice(), 0),
        ("letters put back", job.taken, u64::from(MISSING)),
        ("of them, done", job.done, u64::from(MISSING)),
        ("dead letters left, of an unclassified error", left, u64::from(ODD)),
    ]))
}

async fn set_up(redrive: &Redrive, renderer: &Renderer) -> anyhow::Result<()> {
    let policy = Policy::builder()
        .name("renderer")
        .attempts(4)
        .backoff(Backoff::exponential(Duration::from_millis(20), 2.0, Duration::from_millis(200)))
        // Over all jobs: retries add at most a half to the load, and five a second to begin with.
        .budget(Budget::new(redrive::budget::BudgetSettings {
            share: 0.5,
            floor: 5.0,
            window: Duration::from_secs(10),
        })?)
        .build()?;
    let renderer = renderer.clone();
    let handler = move |job: Delivery| {
        let rendered = renderer.render(&job);
        async move { rendered }
    };
    redrive.queue("pictures").policy(policy).concurrency(4).handle(handler).await?;
    Ok(())
}

async fn publish(redrive: &Redrive) -> anyhow::Result<()> {
    let kinds = [("plain", PLAIN), ("busy", BUSY), ("missing", MISSING), ("odd", ODD)];
    for (kind, jobs) in kinds {
        for number in 1..=jobs {
            let event = Event::new("pictures", format!("{kind}-{number}")).payload(kind);
            redrive.publish(event).await?;
        }
    }
    Ok(())
}

/// Plans a redrive, starts it, and waits for its end.
async fn redrive_all(desk: &Desk, filter: Filter) -> anyhow::Result<Job> {
    let strategy =
        JobStrategy { rate: Some(20.0), canary: Some(2), stop_at: Some(0.2), ..JobStrategy::default() };
    let plan = JobPlan { filter, act: JobAct::Redrive(How::default()), strategy };
    print::plan(&desk.plan(&plan).await?);
    let id = desk.start(plan).await?;
    loop {
        let job = desk.job(id).await?.context("a job is remembered")?;
        if job.state.is_over() {
            print::job(&job);
            return Ok(job);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn group<'a>(groups: &'a [Group], text: &str) -> Option<&'a Group> {
    groups.iter().find(|group| group.title.contains(text))
}
