//! `redrive move`: takes a store along, to another place.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use redrive::store::moving::{self, Go, MoveError, Moved, Options, Place, Progress, Step};
use redrive::store::postgres::Settings;
use serde_json::{Value, json};

use super::out::{Out, say, several, table, text};

/// The exit code of what was ended by Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;
/// What is said below the flags.
const FOOT: &str = "\
Both sides are refused to everybody while it runs. Cut off at any point, the same command goes on where it was; Ctrl-C \
lets a batch come to its end, and a second one does not. In the end both sides are read once more and compared, and the target can be used only if they are the same. The source then \
says where it went to whoever opens it; --undo takes that off again.

A password is best in PGPASSWORD or a password file: others see the command line.";

/// Take a whole store along: to PostgreSQL, to a file, or to another database
#[derive(Debug, clap::Args)]
#[command(after_help = FOOT)]
pub(super) struct Args {
    /// The store to move: sqlite:FILE or postgres://…; no server may run on it
    #[arg(long, value_name = "ADDRESS")]
    from: String,
    /// Where to: an empty place, or one to which this move was begun before
    #[arg(long, value_name = "ADDRESS", required_unless_present = "undo", conflicts_with = "undo")]
    to: Option<String>,
    /// How many shards the new store has, where it is a database
    #[arg(long, value_name = "NUMBER", default_value_t = 16)]
    shards: u32,
    /// Let the source be used again afterwards: a rehearsal, after which both have the same events
    #[arg(long, conflicts_with = "undo")]
    keep_source: bool,
    /// Also where rows are damaged. They are taken along as they are, not run, and told of by the server.
    #[arg(long, conflicts_with = "undo")]
    even_damaged: bool,
    /// Empty the target first, if all that is in it is a move of this source that was not finished
    #[arg(long, conflicts_with = "undo")]
    start_over: bool,
    /// Take the mark off a source that was moved, or is about to be, so that it can be used again
    #[arg(long)]
    undo: bool,
    /// Answer in JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args) -> Result<ExitCode> {
    let out = Out { json: args.json };
    let mut settings = Settings::default();
    settings.shards = args.shards;
    let from = place(&args.from, &settings).context("--from")?;
    let Some(to) = args.to.as_deref().filter(|_| !args.undo) else { return undo(from, out).await };
    let to = place(to, &settings).context("--to")?;
    let mut options = Options::default();
    (options.keep_source, options.even_damaged) = (args.keep_source, args.even_damaged);
    options.start_over = args.start_over;

    let is_stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&is_stopped);
    let bar = ProgressBar::no_length();
    let told = Bar(bar.clone());
    let moving = tokio::task::spawn_blocking(move || {
        moving::run(&from, &to, &options, |progress| {
            told.show(progress);
            if stop.load(Relaxed) { Go::Stop } else { Go::On }
        })
    });
    let shown = bar.clone();
    let heard = tokio::spawn(async move {
        // The first one lets a batch come to its end, a second one does not wait.
        let _ = tokio::signal::ctrl_c().await;
        is_stopped.store(true, Relaxed);
        shown.suspend(|| say("it stops after this batch; Ctrl-C again stops it at once"));
        let _ = tokio::signal::ctrl_c().await;
        std::process::exit(INTERRUPTED.into());
    });
    let moved = moving.await.context("the move")?;
    heard.abort();
    bar.finish_and_clear();
    match moved {
        Err(MoveError::Stopped) => {
            say(
                "stopped; the same command goes on where it was, and `redrive move --undo --from …` gives it up",
            );
            Ok(ExitCode::from(INTERRUPTED))
        }
        moved => tell(&moved?, args.keep_source, out),
    }
}

/// What an address means. One with a password in it is not repeated.
fn place(address: &str, settings: &Settings) -> Result<Place> {
    match address.split_once(':') {
        Some(("sqlite", path)) if !path.trim_start_matches("//").is_empty() => {
            Ok(Place::File(PathBuf::from(path.trim_start_matches("//"))))
        }
        Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
            Ok(Place::Database(address.to_owned(), settings.clone()))
        }
        Some(("memory", _)) => bail!("a store in memory cannot be moved: it is gone with its process"),
        _ => bail!("write sqlite:FILE or postgres://user@host/database"),
    }
}

async fn undo(from: Place, out: Out) -> Result<ExitCode> {
    let place = tokio::task::spawn_blocking(move || moving::undo(&from)).await.context("the move")??;
    let answer = json!({ "moved_to": place });
    out.answer(&answer, |_| match &place {
        Some(place) => {
            format!("It can be used again. What was moved to {place} is still there: use one of them.\n")
        }
        None => "It was not moved.\n".to_owned(),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn tell(moved: &Moved, is_kept: bool, out: Out) -> Result<ExitCode> {
    let Moved { from, to, tables, damaged: (named, damaged), left } = moved;
    let table_of = |is: &moving::Compared| json!({ "table": is.table, "rows": is.rows, "checksum": format!("{:032x}", is.sum) });
    let answer = json!({
        "from": from,
        "to": to,
        "tables": tables.iter().map(table_of).collect::<Vec<_>>(),
        "damaged": named,
        "damaged_rows": damaged,
        "left": left,
    });
    out.answer(&answer, |answer| {
        let row = |is: &Value| ["table", "rows", "checksum"].map(|name| text(is, name)).to_vec();
        let rows: Vec<_> = answer["tables"].as_array().into_iter().flatten().map(row).collect();
        if rows.is_empty() { String::new() } else { table(&["TABLE", "ROWS", "CHECKSUM"], &rows) }
    })?;
    for row in named {
        say(format_args!("damaged: {row}"));
    }
    if *damaged > named.len() as u64 {
        say(format_args!("and {} more", damaged - named.len() as u64));
    }
    if !left.is_empty() {
        let tables = several(left.len() as u64, "table");
        say(format_args!("{tables} of your own stay where they are: {}", left.join(", ")));
    }
    say(format_args!("moved from {from} to {to}; both were read again, and are the same"));
    if is_kept {
        say("the source can be used again: both have the same events, and would run them both");
    } else {
        say("whoever opens the source hears where it went; `redrive move --undo --from …` takes that off");
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows how far it is.
struct Bar(ProgressBar);

impl Bar {
    fn show(&self, Progress { step, table, rows, of }: &Progress) {
        let bar = &self.0;
        if bar.length().is_none() {
            let style = ProgressStyle::with_template("{msg:20} {bar:40} {pos}/{len} {eta}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        }
        let what = match step {
            Step::Copy => "copy",
            Step::Compare => "compare",
        };
        bar.set_length(*of);
        bar.set_position(*rows);
        bar.set_message(format!("{what} {table}"));
    }
}
