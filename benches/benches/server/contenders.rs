//! The sides, each a process of its own: with `--side` this program is that side.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::routing::post;
use redrive::{Event, Redrive};
use redrive_benches::turn::{WARM_UP, id, payload, value};
use redrive_server::config::Config;
use redrive_server::serve::Server;

use crate::{BATCH, CONNECTIONS};

/// What makes this program a side.
pub(crate) const FLAG: &str = "--side";

/// A side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// An axum server that reads the body and answers 202.
    Plain,
    /// Ours.
    Server,
    /// The engine alone, called from the same process.
    Engine,
    /// A client that posts to the receiver, and keeps nothing.
    Sender,
    /// Ours, delivering to the receiver what was published before.
    Push,
}

impl Side {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Plain, "plain"),
        (Self::Server, "server"),
        (Self::Engine, "engine"),
        (Self::Sender, "sender"),
        (Self::Push, "push"),
    ];

    fn word(self) -> &'static str {
        Self::ALL.into_iter().find(|(side, _)| *side == self).map_or("?", |(_, word)| word)
    }
}

/// A side that runs. Ends when it is dropped.
pub(crate) struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    /// What it says next.
    pub(crate) fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.lines.read_line(&mut line).map_err(|error| error.to_string())?;
        let line = line.trim().to_owned();
        if line.is_empty() { Err("a side ended without a word".to_owned()) } else { Ok(line) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn start(side: Side, folder: &Path, words: &[&str]) -> Result<Running, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .args([FLAG, side.word(), "--folder"])
        .arg(folder)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let lines = BufReader::new(child.stdout.take().ok_or("no output")?);
    Ok(Running { child, lines })
}

/// Runs as a contender until the benchmark closes the pipe.
pub(crate) fn be(side: &str, args: &[String]) -> Result<(), String> {
    let (side, _) = Side::ALL.into_iter().find(|(_, word)| *word == side).ok_or("no such side")?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        match side {
            Side::Plain => plain().await,
            Side::Server => server(args).await,
            Side::Engine => engine(args).await,
            Side::Sender => sender(args).await,
            Side::Push => push(args).await,
        }
    })
}

fn say(line: impl std::fmt::Display) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

/// Waits until the one that started this is gone.
async fn until_alone() {
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
}

async fn plain() -> Result<(), String> {
    async fn answer(body: Bytes) -> (StatusCode, [(header::HeaderName, &'static str); 1], &'static str) {
        std::hint::black_box(body);
        let json = [(header::CONTENT_TYPE, "application/json")];
        (
            StatusCode::ACCEPTED,
            json,
            "{\"id\":\"00000000-0000-0000-0000-000000000000\",\"result\":\"accepted\"}",
        )
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
    say(listener.local_addr().map_err(|error| error.to_string())?);
    let router = Router::new().route("/v1/queues/orders/events", post(answer));
    // As much as ours may read.
    let router = router.layer(axum::extract::DefaultBodyLimit::max(8 << 20));
    tokio::select! {
        served = async { axum::serve(listener, router).await } => served.map_err(|error| error.to_string()),
        () = until_alone() => Ok(()),
    }
}

fn settings(args: &[String], queue: &str) -> Result<Config, String> {
    let mut config: Config = toml::from_str(queue).map_err(|error| error.to_string())?;
    config.server.listen.set_port(0);
    config.store.address = format!("sqlite:{}/redrive.db", value(args, "--folder")?);
    Ok(config)
}

async fn server(args: &[String]) -> Result<(), String> {
    let config = settings(args, "[queues.orders.pull]\n")?;
    let server = Server::start(config).await.map_err(|error| format!("{error:#}"))?;
    say(server.address());
    until_alone().await;
    Ok(())
}

async fn engine(args: &[String]) -> Result<(), String> {
    let number = |word| value(args, word)?.parse::<u64>().map_err(|error| format!("{word}: {error}"));
    let (millis, batch) = (number("--millis")?, number("--batch")?);
    let address = format!("sqlite:{}/redrive.db", value(args, "--folder")?);
    let redrive = Redrive::open(&address).await.map_err(|error| error.to_string())?;
    redrive.queue("orders").pull().await.map_err(|error| error.to_string())?;
    redrive.start().await.map_err(|error| error.to_string())?;
    let start = Instant::now() + WARM_UP;
    let end = start + Duration::from_millis(millis);
    let counted = Arc::new(AtomicU64::new(0));
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CONNECTIONS {
        let (redrive, counted) = (redrive.clone(), counted.clone());
        let mut next = u64::try_from(caller).unwrap_or_default() << 40;
        callers.spawn(async move {
            while Instant::now() < end {
                let event = |number| Event::new("orders", id(number)).payload(payload(number));
                let events: Vec<Event> = (next..next + batch).map(event).collect();
                next += batch;
                let published = redrive.publish_all(events).await.map_err(|error| error.to_string())?;
                if published.iter().any(Result::is_err) {
                    return Err("an event was refused".to_owned());
                }
                if (start..end).contains(&Instant::now()) {
                    counted.fetch_add(batch, Ordering::Relaxed);
                }
            }
            Ok(())
        });
    }
    while let Some(done) = callers.join_next().await {
        done.map_err(|error| error.to_string())??;
    }
    #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52 events")]
    say(counted.load(Ordering::Relaxed) as f64 * 1000.0 / millis as f64);
    until_alone().await;
    Ok(())
}

async fn sender(args: &[String]) -> Result<(), String> {
    let count = value(args, "--count")?.parse::<u64>().map_err(|error| error.to_string())?;
    let url = value(args, "--url")?.to_owned();
    let client = reqwest::Client::builder().no_proxy().build().map_err(|error| error.to_string())?;
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (client, url, next) = (client.clone(), url.clone(), next.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<(), reqwest::Error>(());
                }
                client.post(&url).body(payload(number)).send().await?.error_for_status()?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    }
    say("done");
    until_alone().await;
    Ok(())
}

async fn push(args: &[String]) -> Result<(), String> {
    let count = value(args, "--count")?.parse::<u64>().map_err(|error| error.to_string())?;
    let queue = format!(
        "[push]\nallow = [\"127.0.0.0/8\"]\n[queues.orders]\nconcurrency = {CONNECTIONS}\n\
         [queues.orders.push]\nurl = \"{}\"\n",
        value(args, "--url")?
    );
    let server = Server::start(settings(args, &queue)?).await.map_err(|error| format!("{error:#}"))?;
    let redrive = &server.app().redrive;
    let desk = redrive.desk("bench", "bench");
    desk.pause("orders", None).await.map_err(|error| error.to_string())?;
    let batch = u64::try_from(BATCH).unwrap_or(1);
    for first in (0..count).step_by(BATCH) {
        let event = |number| Event::new("orders", id(number)).payload(payload(number));
        let events = (first..(first + batch).min(count)).map(event);
        redrive.publish_all(events).await.map_err(|error| error.to_string())?;
    }
    desk.resume("orders").await.map_err(|error| error.to_string())?;
    redrive.idle().await;
    say("done");
    until_alone().await;
    Ok(())
}
