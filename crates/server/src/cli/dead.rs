//! `redrive dead`: dead letters, from looking at them to having dealt with them.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::event::{self, Ids, Page, Show};
use super::job;
use super::line::{Line, Pairs};
use super::out::{Out, ago, plain, say, several, table, text};
use super::reach::Reach;
use super::which::{self, Place, Which};

mod edit;
mod exchange;

/// How many events are restored by one order.
const AT_ONCE: usize = 500;

/// Dead letters: group, list, show, redrive, edit, discard, restore, export, import
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// What letters died of, those with most letters first
    Groups(Groups),
    /// List them
    Ls(Ls),
    /// Show one with its attempts and what waits behind it
    Show(Show),
    /// What a redrive would do
    Plan(Plan),
    /// Put letters back: same identity, attempts counted anew
    Redrive(Redrive),
    /// Put one back with another payload, under a new id
    Edit(edit::Args),
    /// Take letters away; they can be restored for a time
    Discard(Discard),
    /// Make dead letters again of what was discarded
    Restore(Restore),
    /// Write them to stdout as JSON lines
    Export(exchange::Export),
    /// Read them from JSON lines; what is known already is left alone
    Import(exchange::Import),
}

#[derive(Debug, clap::Args)]
struct Groups {
    /// By what
    #[arg(long, value_name = "WORD", default_value = "cause")]
    #[arg(value_parser = ["cause", "queue", "tenant", "type", "key"])]
    by: String,
    /// Of this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

#[derive(Debug, clap::Args)]
struct Ls {
    /// Those that were discarded and can be restored
    #[arg(long)]
    discarded: bool,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    which: Which,
}

/// How letters are put back.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "How")]
struct How {
    /// Have them run by the handler of another queue
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,
    /// Count their attempts on, so that each has one more
    #[arg(long)]
    keep_attempts: bool,
    /// Also where later events of their key may have run already
    #[arg(long)]
    out_of_order: bool,
    /// How many a second, as 50/s, 10/m
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<f64>,
    /// Over how long the rate grows from nothing
    #[arg(long, value_name = "TIME", requires = "rate", value_parser = duration)]
    ramp: Option<String>,
    /// How many go first; the others follow when these have not failed again
    #[arg(long, value_name = "N")]
    canary: Option<u32>,
    /// Stop when more than this share fails again, as 20%
    #[arg(long, value_name = "SHARE", value_parser = share)]
    stop_at: Option<f64>,
}

impl How {
    /// Whether it says what only a job does.
    const fn is_for_many(&self) -> bool {
        self.rate.is_some() || self.canary.is_some() || self.stop_at.is_some()
    }

    fn job(&self, filter: &Value) -> Value {
        json!({
            "act": "redrive", "filter": filter, "to": self.to, "keep_attempts": self.keep_attempts,
            "out_of_order": self.out_of_order, "rate": self.rate, "ramp": self.ramp, "canary": self.canary,
            "stop_at": self.stop_at,
        })
    }
}

#[derive(Debug, clap::Args)]
struct Plan {
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    which: Which,
}

/// One letter by one, or all that fit.
#[derive(Debug, clap::Args)]
struct Those {
    /// Their ids; without any, all that fit
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Only if it was not changed since: the `rev` that was shown
    #[arg(long, value_name = "REV")]
    rev: Option<u32>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Do it although it is about more than one
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    which: Which,
}

impl Those {
    /// The ids, where there are some. What else is said then is where they are.
    fn by_ids(&self) -> Result<Option<Ids>> {
        if self.ids.is_empty() {
            ensure!(self.rev.is_none(), "--rev is of one letter; name it");
            return Ok(None);
        }
        let place = Place { queue: self.which.queue.clone(), tenant: self.which.tenant.clone() };
        ensure!(self.which.is_place(), "name letters by id or by what they have in common, not both");
        Ok(Some(Ids { ids: self.ids.clone(), place, rev: self.rev }))
    }
}

#[derive(Debug, clap::Args)]
struct Redrive {
    /// Watch the job until it is over
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    those: Those,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, clap::Args)]
struct Discard {
    /// Watch the job until it is over
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    those: Those,
}

#[derive(Debug, clap::Args)]
struct Restore {
    #[command(flatten)]
    those: Those,
}

pub(super) async fn run(Args { command, reach }: Args) -> Result<ExitCode> {
    reach
        .run(async |line, out| match command {
            Command::Groups(args) => groups(line, out, args).await,
            Command::Ls(Ls { discarded, page, which }) => {
                let state = if discarded { "discarded" } else { "dead" };
                event::list(line, out, &which, Some(state), page).await
            }
            Command::Show(args) => event::show(line, out, args).await,
            Command::Plan(Plan { how, which }) => {
                let wanted = how.job(&which.filter(line).await?);
                job::put_plan(out, &line.post("/v1/jobs/plan", &wanted).await?)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Redrive(args) => redrive(line, out, args).await,
            Command::Edit(args) => edit::run(line, out, args).await,
            Command::Discard(args) => discard(line, out, args).await,
            Command::Restore(args) => restore(line, out, args).await,
            Command::Export(args) => exchange::export(line, args).await,
            Command::Import(args) => exchange::import(line, out, args).await,
        })
        .await
}

async fn groups(line: &Line, out: &Out, args: Groups) -> Result<ExitCode> {
    let mut query: Pairs = vec![("by", args.by), ("limit", args.limit.to_string())];
    query.extend(args.queue.map(|queue| ("queue", queue)));
    query.extend(args.tenant.map(|tenant| ("tenant", tenant)));
    let answer = line.get("/v1/dead/groups", &query).await?;
    out.answer(&answer, |answer| {
        let row = |group: &Value| {
            let queues = group["queues"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let blocked = Some(text(group, "keys_blocked")).filter(|keys| keys != "0").unwrap_or_default();
            let again = match group["redriven"]["letters"].as_u64() {
                Some(letters) => format!("{} of {letters} failed again", group["redriven"]["failed"]),
                None => String::new(),
            };
            vec![
                text(group, "cause"),
                text(group, "letters"),
                blocked,
                ago(&text(group, "first")),
                ago(&text(group, "last")),
                again,
                queues.collect::<Vec<_>>().join(","),
                text(group, "title"),
            ]
        };
        let rows: Vec<Vec<String>> = answer["groups"].as_array().into_iter().flatten().map(row).collect();
        if rows.is_empty() {
            say("no dead letters");
            return String::new();
        }
        table(
            &["GROUP", "LETTERS", "KEYS HELD UP", "FIRST", "LAST", "LAST REDRIVE", "QUEUES", "TITLE"],
            &rows,
        )
    })?;
    if answer["more"] == true {
        say("there are more groups; see --limit");
    }
    if let Some(looked) = answer["looked"].as_u64() {
        say(format!("counted are the newest {looked} letters; for all of them name a --queue or a --tenant"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn redrive(line: &Line, out: &Out, Redrive { those, how, watch }: Redrive) -> Result<ExitCode> {
    let Some(ids) = those.by_ids()? else {
        let wanted = how.job(&those.which.filter(line).await?);
        return many(line, out, &those, wanted, watch).await;
    };
    ensure!(
        !how.is_for_many() && !watch,
        "--rate, --canary, --stop-at and --watch are for jobs; name no ids"
    );
    let targets = event::targets(line, &ids).await?;
    if those.dry_run {
        return would(out, "redrive", &targets);
    }
    let How { to, keep_attempts, out_of_order, .. } = how;
    let body = json!({
        "targets": targets, "to": to, "keep_attempts": keep_attempts, "out_of_order": out_of_order,
    });
    event::order(line, out, "redrive", body, "put back").await
}

async fn discard(line: &Line, out: &Out, Discard { those, watch }: Discard) -> Result<ExitCode> {
    let Some(ids) = those.by_ids()? else {
        let wanted = json!({ "act": "discard", "filter": those.which.filter(line).await? });
        return many(line, out, &those, wanted, watch).await;
    };
    ensure!(!watch, "--watch is for jobs; name no ids");
    let mut targets = event::targets(line, &ids).await?;
    for target in &mut targets {
        let rev = rev_of_dead(line, target).await?;
        if target["rev"].is_null() {
            target["rev"] = rev;
        }
    }
    if those.dry_run {
        return would(out, "discard", &targets);
    }
    event::order(line, out, "discard", json!({ "targets": targets }), "discarded").await
}

/// The rev of a dead letter. An event that lives is not taken away by mistake: what was looked at is what is discarded.
async fn rev_of_dead(line: &Line, target: &Value) -> Result<Value> {
    let mut query: Pairs = vec![("queue", text(target, "queue")), ("id", text(target, "id"))];
    query.extend(target["tenant"].as_str().map(|tenant| ("tenant", tenant.to_owned())));
    let event = line.get("/v1/event", &query).await?;
    ensure!(
        event["state"] == "dead",
        "{} is no dead letter, it is {}; `redrive event skip` takes it away all the same",
        plain(&text(target, "id")),
        text(&event, "state")
    );
    Ok(event["rev"].clone())
}

/// What an order by ids would be about.
fn would(out: &Out, verb: &str, targets: &[Value]) -> Result<ExitCode> {
    out.answer(&json!({ "would": verb, "targets": targets }), |_| {
        let row = |target: &Value| ["queue", "tenant", "id"].map(|name| text(target, name)).to_vec();
        let rows: Vec<Vec<String>> = targets.iter().map(row).collect();
        table(&["QUEUE", "TENANT", "ID"], &rows)
    })?;
    say(format_args!("would {verb} {}; nothing was done", several(targets.len() as u64, "event")));
    Ok(ExitCode::SUCCESS)
}

/// Starts a job over all that fit, once somebody has said that it is meant.
async fn many(line: &Line, out: &Out, those: &Those, mut wanted: Value, watch: bool) -> Result<ExitCode> {
    let planned = line.post("/v1/jobs/plan", &wanted).await?;
    let letters = planned["letters"].as_u64().unwrap_or_default();
    if those.dry_run {
        job::put_plan(out, &planned)?;
        say("nothing was done");
        return Ok(ExitCode::SUCCESS);
    }
    if letters == 0 {
        let that = if those.which.is_everything() { "" } else { " that fit" };
        out.answer(&planned, |_| String::new())?;
        say(format_args!("no dead letters{that}"));
        return Ok(ExitCode::SUCCESS);
    }
    if !those.yes && (letters > 1 || those.which.is_everything()) {
        eprint!("{}", job::plan(&planned));
        bail!("this is about {}; add --yes to do it", several(letters, "dead letter"));
    }
    job::warn(&planned);
    wanted["yes"] = true.into();
    let begun = line.post("/v1/jobs", &wanted).await?;
    job::started(line, out, &begun, watch).await
}

async fn restore(line: &Line, out: &Out, Restore { those }: Restore) -> Result<ExitCode> {
    if let Some(ids) = those.by_ids()? {
        if those.dry_run {
            return would(out, "restore", &event::targets(line, &ids).await?);
        }
        return event::by_ids(line, out, "restore", ids, "restored").await;
    }
    let query = those.which.pairs(line).await?;
    if !those.yes || those.dry_run {
        let page = which::events(line, query.clone(), Some("discarded"), None, AT_ONCE).await?;
        let found = page["events"].as_array().map_or(0, Vec::len) as u64;
        let least = if page["next"].is_null() { "" } else { "at least " };
        let about = format!("{least}{}", several(found, "discarded event"));
        if those.dry_run || found == 0 {
            out.answer(&json!({ "would": "restore", "events": found }), |_| String::new())?;
            match found {
                0 => say("no discarded events to restore"),
                _ => say(format_args!("would restore {about}; nothing was done")),
            }
            return Ok(ExitCode::SUCCESS);
        }
        if found > 1 || !page["next"].is_null() || those.which.is_everything() {
            bail!("this is about {about}; add --yes to do it");
        }
    }
    let bar = ProgressBar::new_spinner();
    let (mut changed, mut refused, mut after) = (0, Vec::new(), None);
    loop {
        let mut page = which::events(line, query.clone(), Some("discarded"), after, AT_ONCE).await?;
        let name =
            |event: &Value| json!({ "queue": event["queue"], "tenant": event["tenant"], "id": event["id"] });
        let targets: Vec<Value> = page["events"].as_array().into_iter().flatten().map(name).collect();
        if !targets.is_empty() {
            let mut answer = line.post("/v1/events/restore", &json!({ "targets": targets })).await?;
            changed += answer["changed"].as_u64().unwrap_or_default();
            if let Value::Array(more) = answer["refused"].take() {
                refused.extend(more);
            }
            bar.set_message(format!("{} restored", several(changed, "event")));
            bar.tick();
        }
        match page["next"].take() {
            Value::String(next) => after = Some(next),
            _ => break,
        }
    }
    bar.finish_and_clear();
    let answer = json!({ "changed": changed, "refused": refused });
    out.answer(&answer, |_| format!("{} restored\n", several(changed, "event")))?;
    Ok(event::refusals(&answer))
}

/// `50/s`, `10/m`, `1/h` or a number a second.
fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = match unit {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("a rate is as 50/s, 10/m or 1/h".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "a rate is as 50/s, 10/m or 1/h".to_owned())?;
    if number.is_finite() && number > 0.0 {
        Ok(number / seconds)
    } else {
        Err("a rate is above 0".to_owned())
    }
}

/// `20%`, or a number from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let (number, whole) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.parse::<f64>().map(|number| number / whole);
    share
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "a share is as 20% or 0.2".to_owned())
}

/// A duration, as it was written.
pub(super) fn duration(text: &str) -> Result<String, String> {
    let told = |error| format!("{error}; write it as 250ms, 10s, 1h 30m");
    humantime::parse_duration(text).map(|_| text.to_owned()).map_err(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_shares_are_read_as_people_write_them() {
        assert_eq!([rate("50/s"), rate("30/m"), rate("2")], [Ok(50.0), Ok(0.5), Ok(2.0)]);
        assert!(rate("0").is_err() && rate("5/d").is_err() && rate("x").is_err() && rate("inf").is_err());
        assert_eq!([share("20%"), share("0.2"), share("100%")], [Ok(0.2), Ok(0.2), Ok(1.0)]);
        assert!(share("120%").is_err() && share("2").is_err() && share("-1%").is_err());
    }
}
