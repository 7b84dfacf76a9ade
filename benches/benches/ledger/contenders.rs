//! The sides, each a process of its own: with `--side` this program is that side.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::routing::{get, post};
use redrive::Redrive;
use redrive::api::{Effects, Endpoint, Idempotent, StoredReply, Tenant};
use redrive::http::idempotent::{ClaimRequest, Ledger, LedgerClaim, RequestScope, Retention, RunEnding};
use redrive_benches::server_process::{Running, say, until_alone};
use redrive_benches::turn::{WARM_UP, value};
use redrive_core::ledger::RequestFingerprint;

use crate::{CONNECTIONS, rival, sqlite_baseline};

/// What makes this program a side.
pub(crate) const FLAG: &str = "--side";

/// A side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The handler alone.
    Bare,
    /// Behind the layer, over a file.
    File,
    /// Behind the layer, over memory.
    Memory,
    /// The ledger's own verbs over a file, called from the same process.
    Verbs,
    /// The same rows by plain SQL.
    Raw,
    /// Behind another layer.
    Rival,
}

impl Side {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Bare, "bare"),
        (Self::File, "file"),
        (Self::Memory, "memory"),
        (Self::Verbs, "verbs"),
        (Self::Raw, "raw"),
    ];
}

pub(crate) fn start(side: Side, folder: &Path, time: Duration) -> Result<Running, String> {
    let Some((_, word)) = Side::ALL.into_iter().find(|(known, _)| *known == side) else {
        return Running::start(&mut Command::new(rival::program()));
    };
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args([FLAG, word, "--folder"]).arg(folder).args(["--millis", &time.as_millis().to_string()]);
    Running::start(&mut command)
}

/// Runs as a contender until the benchmark closes the pipe.
pub(crate) fn be(side: &str, args: &[String]) -> Result<(), String> {
    let (side, _) = Side::ALL.into_iter().find(|(_, word)| *word == side).ok_or("no such side")?;
    let time =
        value(args, "--millis")?.parse().map(Duration::from_millis).map_err(|error| error.to_string())?;
    let folder = value(args, "--folder")?;
    let file = format!("sqlite:{folder}/redrive.db");
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        match side {
            Side::Bare | Side::Rival => serve(post(book)).await,
            Side::File => layered(&file).await,
            Side::Memory => layered("memory:").await,
            Side::Verbs => verbs(&file, time).await,
            Side::Raw => {
                say(sqlite_baseline::rate(Path::new(folder), time)?);
                Ok(())
            }
        }
    })
}

/// The handler: reads the body, and answers.
async fn book(body: Bytes) -> (StatusCode, [(header::HeaderName, &'static str); 2], &'static str) {
    std::hint::black_box(body);
    (
        StatusCode::CREATED,
        [(header::CONTENT_TYPE, "application/json"), (header::LOCATION, "/bookings/0000000017")],
        sqlite_baseline::ANSWER,
    )
}

async fn serve(handler: axum::routing::MethodRouter) -> Result<(), String> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
    say(listener.local_addr().map_err(|error| error.to_string())?);
    let app = Router::new().route("/bookings", handler).route("/session", get(|| async { "none" }));
    tokio::select! {
        served = async { axum::serve(listener, app).await } => served.map_err(|error| error.to_string()),
        _ = tokio::task::spawn_blocking(until_alone) => Ok(()),
    }
}

async fn layered(address: &str) -> Result<(), String> {
    let redrive = Redrive::open(address).await.map_err(|error| error.to_string())?;
    let endpoint = Endpoint::new("POST /bookings").tenant(Tenant::fixed("acme")).effects(Effects::Keyed);
    let layer = Idempotent::new(Arc::new(redrive.ledger()), endpoint).map_err(|error| error.to_string())?;
    serve(post(book).layer(layer)).await
}

/// As many callers as there are connections, each of which claims a fresh key and ends it.
async fn verbs(address: &str, time: Duration) -> Result<(), String> {
    let redrive = Redrive::open(address).await.map_err(|error| error.to_string())?;
    let counted = Arc::new(AtomicU64::new(0));
    let start = Instant::now() + WARM_UP;
    let end = start + time;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CONNECTIONS {
        let (ledger, counted) = (redrive.ledger(), Arc::clone(&counted));
        callers.spawn(async move {
            for turn in 0_u64.. {
                request(&ledger, format!("{caller:04}-{turn:012}")).await?;
                let now = Instant::now();
                if now >= end {
                    break;
                }
                counted.fetch_add(u64::from(now >= start), Ordering::Relaxed);
            }
            Ok::<_, String>(())
        });
    }
    while let Some(done) = callers.join_next().await {
        done.map_err(|error| error.to_string())??;
    }
    #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
    let count = counted.load(Ordering::Relaxed) as f64;
    say(count / time.as_secs_f64());
    Ok(())
}

async fn request(ledger: &impl Ledger, key: String) -> Result<(), String> {
    let scope = RequestScope { tenant: "acme".to_owned(), operation: "POST /bookings".to_owned(), key };
    let ask = ClaimRequest {
        print: RequestFingerprint { version: 1, hash: [7; 32] },
        older: Vec::new(),
        effects: Effects::Keyed,
        lease: Duration::from_secs(60),
        retention: Retention { answer: Duration::from_secs(86_400) },
        first_sent: None,
        skew: Duration::ZERO,
    };
    let claim = ledger.claim(scope.clone(), ask).await.map_err(|error| error.to_string())?;
    let LedgerClaim::Run(record) = claim else { return Err(format!("not to be run: {claim:?}")) };
    let reply =
        StoredReply::new(201).header("content-type", "application/json").body(sqlite_baseline::ANSWER);
    let end =
        RunEnding::Completed { reply: reply.header("location", "/bookings/0000000017"), resource: None };
    let ended = ledger.end(scope, record.epoch, end).await.map_err(|error| error.to_string())?;
    ended.map_err(|fenced| format!("taken over: {fenced:?}"))
}
