//! `redrive move`: takes a store along, to another place.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use redrive::store::moving::{
    self, MoveControl, MoveError, MoveOptions, MoveProgress, MoveReport, MoveStep, StoreLocation,
};
use redrive::store::postgres::PostgresSettings;
use serde_json::{Value, json};

use super::output::{Output, say, several, table, text};

/// The exit code after Ctrl-C, as in shells.
const INTERRUPTED: u8 = 130;
/// The text below the flags in `--help`.
const FOOT: &str = "\
Neither store can be opened while the move runs. If the move is interrupted at any point, run the same command to \
continue; Ctrl-C finishes the current batch first, a second Ctrl-C does not. At the end both stores are read again and \
compared, and the target becomes usable only if they are identical. After that the source refuses to open and names \
its new location; --undo reverts that.

Put the password into PGPASSWORD or a password file: other users can see the command line.";

/// Move a whole store to PostgreSQL, to a file, or to another database
#[derive(Debug, clap::Args)]
#[command(after_help = FOOT)]
pub(super) struct Args {
    /// The store to move: sqlite:FILE or postgres://…; no server may be running on it
    #[arg(long, value_name = "ADDRESS")]
    from: String,
    /// The target: an empty store, or one to which this move was started before
    #[arg(long, value_name = "ADDRESS", required_unless_present = "undo", conflicts_with = "undo")]
    to: Option<String>,
    /// The number of shards of a new database store
    #[arg(long, value_name = "NUMBER", default_value_t = 16)]
    shards: u32,
    /// Keep the source usable afterwards: a rehearsal, after which both stores hold the same events
    #[arg(long, conflicts_with = "undo")]
    keep_source: bool,
    /// Move even if rows are damaged. Damaged events are copied unchanged and not run; the server reports them.
    #[arg(long, conflicts_with = "undo")]
    even_damaged: bool,
    /// Empty the target first, if it holds only an unfinished move of this source
    #[arg(long, conflicts_with = "undo")]
    start_over: bool,
    /// Make a moved source usable again
    #[arg(long)]
    undo: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args) -> Result<ExitCode> {
    let out = Output { json: args.json };
    let mut settings = PostgresSettings::default();
    settings.shards = args.shards;
    let from = place(&args.from, &settings).context("--from")?;
    let Some(to) = args.to.as_deref().filter(|_| !args.undo) else { return undo(from, out).await };
    let to = place(to, &settings).context("--to")?;
    let mut options = MoveOptions::default();
    (options.keep_source, options.even_damaged) = (args.keep_source, args.even_damaged);
    options.start_over = args.start_over;

    let is_stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&is_stopped);
    let bar = ProgressBar::no_length();
    let told = MoveBar(bar.clone());
    let moving = tokio::task::spawn_blocking(move || {
        moving::run(&from, &to, &options, |progress| {
            told.show(progress);
            if stop.load(Relaxed) { MoveControl::Stop } else { MoveControl::On }
        })
    });
    let shown = bar.clone();
    let heard = tokio::spawn(async move {
        // The first one lets a batch come to its end, a second one does not wait.
        let _ = tokio::signal::ctrl_c().await;
        is_stopped.store(true, Relaxed);
        shown.suspend(|| say("stopping after this batch; press Ctrl-C again to stop at once"));
        let _ = tokio::signal::ctrl_c().await;
        std::process::exit(INTERRUPTED.into());
    });
    let moved = moving.await.context("the move")?;
    heard.abort();
    bar.finish_and_clear();
    match moved {
        Err(MoveError::Stopped) => {
            say(
                "stopped; run the same command to continue, or `redrive move --undo --from …` to abandon the move",
            );
            Ok(ExitCode::from(INTERRUPTED))
        }
        moved => tell(&moved?, args.keep_source, out),
    }
}

/// Parses a store address. Errors never repeat an address with a password.
fn place(address: &str, settings: &PostgresSettings) -> Result<StoreLocation> {
    match address.split_once(':') {
        Some(("sqlite", path)) if !path.trim_start_matches("//").is_empty() => {
            Ok(StoreLocation::File(PathBuf::from(path.trim_start_matches("//"))))
        }
        Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
            Ok(StoreLocation::Database(address.to_owned(), settings.clone()))
        }
        Some(("memory", _)) => bail!("a store in memory cannot be moved; it ends with its process"),
        _ => bail!("write sqlite:FILE or postgres://user@host/database"),
    }
}

async fn undo(from: StoreLocation, out: Output) -> Result<ExitCode> {
    let place = tokio::task::spawn_blocking(move || moving::undo(&from)).await.context("the move")??;
    let answer = json!({ "moved_to": place });
    out.answer(&answer, |_| match &place {
        Some(place) => {
            format!("The store can be used again. The copy at {place} still exists: use only one of them.\n")
        }
        None => "The store was not moved.\n".to_owned(),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn tell(moved: &MoveReport, is_kept: bool, out: Output) -> Result<ExitCode> {
    let MoveReport { from, to, tables, damaged: (named, damaged), left } = moved;
    let table_of = |is: &moving::ComparedTable| json!({ "table": is.table, "rows": is.rows, "checksum": format!("{:032x}", is.sum) });
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
        say(format_args!("{tables} of your own were not moved: {}", left.join(", ")));
    }
    say(format_args!("moved from {from} to {to}; both were read again and are identical"));
    if is_kept {
        say("the source can be used again; both stores hold the same events and both would run them");
    } else {
        say(
            "the source now refuses to open and names its new location; `redrive move --undo --from …` reverts that",
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the progress of a move.
struct MoveBar(ProgressBar);

impl MoveBar {
    fn show(&self, MoveProgress { step, table, rows, of }: &MoveProgress) {
        let bar = &self.0;
        if bar.length().is_none() {
            let style = ProgressStyle::with_template("{msg:20} {bar:40} {pos}/{len} {eta}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        }
        let what = match step {
            MoveStep::Copy => "copy",
            MoveStep::Compare => "compare",
        };
        bar.set_length(*of);
        bar.set_position(*rows);
        bar.set_message(format!("{what} {table}"));
    }
}
