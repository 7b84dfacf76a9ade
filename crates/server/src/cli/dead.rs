//! `redrive dead`: inspect dead letters and act on them.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::client::{DeskClient, QueryParams, read};
use super::connect::ConnectArgs;
use super::event::{self, EventIds, Page, Show};
use super::job;
use super::output::{Output, ago, plain, say, several, table, text};
use super::selector::{self, EventLocation, EventSelector};
use crate::api::wire::PlanJson;

mod edit;
mod import_export;

/// Events restored per request.
const AT_ONCE: usize = 500;

/// Inspect and act on dead letters: group, list, show, redrive, edit, discard, restore, export, import
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Group dead letters by cause, largest group first
    Groups(Groups),
    /// List dead letters
    Ls(Ls),
    /// Show one event with its attempts and the events blocked behind it
    Show(Show),
    /// Preview a redrive
    Plan(Plan),
    /// Put dead letters back: same identity, attempts counted anew
    Redrive(Redrive),
    /// Put a dead letter back with another payload, under a new id
    Edit(edit::Args),
    /// Discard dead letters; they can be restored for a time
    Discard(Discard),
    /// Restore discarded events as dead letters
    Restore(Restore),
    /// Write dead letters to stdout as JSON lines
    Export(import_export::Export),
    /// Import dead letters from JSON lines; known events are left alone
    Import(import_export::Import),
}

#[derive(Debug, clap::Args)]
struct Groups {
    /// The property to group by
    #[arg(long, value_name = "WORD", default_value = "cause")]
    #[arg(value_parser = ["cause", "queue", "tenant", "type", "key"])]
    by: String,
    /// Only events of this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Only events of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Maximum number of results
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

#[derive(Debug, clap::Args)]
struct Ls {
    /// List discarded events that can be restored
    #[arg(long)]
    discarded: bool,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    which: EventSelector,
}

/// How dead letters are put back.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Redrive options")]
struct RedriveOptions {
    /// Run them with the handler of another queue
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,
    /// Keep their attempt counts; each gets one more attempt
    #[arg(long)]
    keep_attempts: bool,
    /// Put back even if later events of the same key may have run
    #[arg(long)]
    out_of_order: bool,
    /// Maximum rate, e.g. 50/s or 10/m
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<f64>,
    /// Time over which the rate ramps up from zero
    #[arg(long, value_name = "TIME", requires = "rate", value_parser = duration)]
    ramp: Option<String>,
    /// Redrive this many first; continue only if they do not fail again
    #[arg(long, value_name = "N")]
    canary: Option<u32>,
    /// Stop when more than this share fails again, e.g. 20%
    #[arg(long, value_name = "SHARE", value_parser = share)]
    stop_at: Option<f64>,
}

impl RedriveOptions {
    /// Whether it has options that only a job supports.
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
    how: RedriveOptions,
    #[command(flatten)]
    which: EventSelector,
}

/// Dead letters by id, or all that match a filter.
#[derive(Debug, clap::Args)]
struct DeadSelection {
    /// Event ids; without any, all that match the filter
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Act only if the event still has this `rev`
    #[arg(long, value_name = "REV")]
    rev: Option<u32>,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Confirm an action on more than one event
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    which: EventSelector,
}

impl DeadSelection {
    /// The ids, if any; the filter may then give queue and tenant only.
    fn by_ids(&self) -> Result<Option<EventIds>> {
        if self.ids.is_empty() {
            ensure!(self.rev.is_none(), "--rev needs exactly one id");
            return Ok(None);
        }
        let place = EventLocation { queue: self.which.queue.clone(), tenant: self.which.tenant.clone() };
        ensure!(self.which.is_place(), "select dead letters by id or by filter, not both");
        Ok(Some(EventIds { ids: self.ids.clone(), place, rev: self.rev }))
    }
}

#[derive(Debug, clap::Args)]
struct Redrive {
    /// Watch the job until it ends
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    those: DeadSelection,
    #[command(flatten)]
    how: RedriveOptions,
}

#[derive(Debug, clap::Args)]
struct Discard {
    /// Watch the job until it ends
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    those: DeadSelection,
}

#[derive(Debug, clap::Args)]
struct Restore {
    #[command(flatten)]
    those: DeadSelection,
}

pub(super) async fn run(Args { command, connect }: Args) -> Result<ExitCode> {
    connect
        .run(async |client, out| match command {
            Command::Groups(args) => groups(client, out, args).await,
            Command::Ls(Ls { discarded, page, which }) => {
                let state = if discarded { "discarded" } else { "dead" };
                event::list(client, out, &which, Some(state), page).await
            }
            Command::Show(args) => event::show(client, out, args).await,
            Command::Plan(Plan { how, which }) => {
                let wanted = how.job(&which.filter(client).await?);
                job::put_plan(out, &client.post("/v1/jobs/plan", &wanted).await?)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Redrive(args) => redrive(client, out, args).await,
            Command::Edit(args) => edit::run(client, out, args).await,
            Command::Discard(args) => discard(client, out, args).await,
            Command::Restore(args) => restore(client, out, args).await,
            Command::Export(args) => import_export::export(client, args).await,
            Command::Import(args) => import_export::import(client, out, args).await,
        })
        .await
}

async fn groups(client: &DeskClient, out: &Output, args: Groups) -> Result<ExitCode> {
    let mut query: QueryParams = vec![("by", args.by), ("limit", args.limit.to_string())];
    query.extend(args.queue.map(|queue| ("queue", queue)));
    query.extend(args.tenant.map(|tenant| ("tenant", tenant)));
    let answer = client.get("/v1/dead/groups", &query).await?;
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
            &["GROUP", "LETTERS", "KEYS BLOCKED", "FIRST", "LAST", "LAST REDRIVE", "QUEUES", "TITLE"],
            &rows,
        )
    })?;
    if answer["more"] == true {
        say("more groups exist; raise --limit");
    }
    if let Some(looked) = answer["looked"].as_u64() {
        say(format!("counts cover the newest {looked} dead letters; use --queue or --tenant to count all"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn redrive(
    client: &DeskClient,
    out: &Output,
    Redrive { those, how, watch }: Redrive,
) -> Result<ExitCode> {
    let Some(ids) = those.by_ids()? else {
        let wanted = how.job(&those.which.filter(client).await?);
        return many(client, out, &those, wanted, watch).await;
    };
    ensure!(
        !how.is_for_many() && !watch,
        "--rate, --canary, --stop-at and --watch apply to jobs; do not combine them with ids"
    );
    let targets = event::targets(client, &ids).await?;
    if those.dry_run {
        return would(out, "redrive", &targets);
    }
    let RedriveOptions { to, keep_attempts, out_of_order, .. } = how;
    let body = json!({
        "targets": targets, "to": to, "keep_attempts": keep_attempts, "out_of_order": out_of_order,
    });
    event::order(client, out, "redrive", body, "put back").await
}

async fn discard(client: &DeskClient, out: &Output, Discard { those, watch }: Discard) -> Result<ExitCode> {
    let Some(ids) = those.by_ids()? else {
        let wanted = json!({ "act": "discard", "filter": those.which.filter(client).await? });
        return many(client, out, &those, wanted, watch).await;
    };
    ensure!(!watch, "--watch applies to jobs; do not combine it with ids");
    let mut targets = event::targets(client, &ids).await?;
    for target in &mut targets {
        let rev = rev_of_dead(client, target).await?;
        if target["rev"].is_null() {
            target["rev"] = rev;
        }
    }
    if those.dry_run {
        return would(out, "discard", &targets);
    }
    event::order(client, out, "discard", json!({ "targets": targets }), "discarded").await
}

/// The rev of a dead letter. An event that is not dead is refused, so that it is not discarded by mistake.
async fn rev_of_dead(client: &DeskClient, target: &Value) -> Result<Value> {
    let mut query: QueryParams = vec![("queue", text(target, "queue")), ("id", text(target, "id"))];
    query.extend(target["tenant"].as_str().map(|tenant| ("tenant", tenant.to_owned())));
    let event = client.get("/v1/event", &query).await?;
    ensure!(
        event["state"] == "dead",
        "{} is {}, not a dead letter; use `redrive event skip` to discard it anyway",
        plain(&text(target, "id")),
        text(&event, "state")
    );
    Ok(event["rev"].clone())
}

/// Shows the targets of a dry run.
fn would(out: &Output, verb: &str, targets: &[Value]) -> Result<ExitCode> {
    out.answer(&json!({ "would": verb, "targets": targets }), |_| {
        let row = |target: &Value| ["queue", "tenant", "id"].map(|name| text(target, name)).to_vec();
        let rows: Vec<Vec<String>> = targets.iter().map(row).collect();
        table(&["QUEUE", "TENANT", "ID"], &rows)
    })?;
    say(format_args!("would {verb} {}; nothing was done", several(targets.len() as u64, "event")));
    Ok(ExitCode::SUCCESS)
}

/// Starts a job over all matching events, after confirmation.
async fn many(
    client: &DeskClient,
    out: &Output,
    those: &DeadSelection,
    mut wanted: Value,
    watch: bool,
) -> Result<ExitCode> {
    let answer = client.post("/v1/jobs/plan", &wanted).await?;
    let planned: PlanJson = read(&answer)?;
    let letters = planned.letters;
    if those.dry_run {
        job::put_plan(out, &answer)?;
        say("nothing was done");
        return Ok(ExitCode::SUCCESS);
    }
    if letters == 0 {
        let that = if those.which.is_everything() { "" } else { " that match" };
        out.answer(&answer, |_| String::new())?;
        say(format_args!("no dead letters{that}"));
        return Ok(ExitCode::SUCCESS);
    }
    if !those.yes && (letters > 1 || those.which.is_everything()) {
        eprint!("{}", job::plan(&planned));
        bail!("this affects {}; confirm with --yes", several(letters, "dead letter"));
    }
    job::warn(&planned);
    wanted["yes"] = true.into();
    let begun = client.post("/v1/jobs", &wanted).await?;
    job::started(client, out, &begun, watch).await
}

async fn restore(client: &DeskClient, out: &Output, Restore { those }: Restore) -> Result<ExitCode> {
    if let Some(ids) = those.by_ids()? {
        if those.dry_run {
            return would(out, "restore", &event::targets(client, &ids).await?);
        }
        return event::by_ids(client, out, "restore", ids, "restored").await;
    }
    let query = those.which.pairs(client).await?;
    if !those.yes || those.dry_run {
        let page = selector::events(client, query.clone(), Some("discarded"), None, AT_ONCE).await?;
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
            bail!("this affects {about}; confirm with --yes");
        }
    }
    let bar = ProgressBar::new_spinner();
    let (mut changed, mut refused, mut after) = (0, Vec::new(), None);
    loop {
        let mut page = selector::events(client, query.clone(), Some("discarded"), after, AT_ONCE).await?;
        let name =
            |event: &Value| json!({ "queue": event["queue"], "tenant": event["tenant"], "id": event["id"] });
        let targets: Vec<Value> = page["events"].as_array().into_iter().flatten().map(name).collect();
        if !targets.is_empty() {
            let mut answer = client.post("/v1/events/restore", &json!({ "targets": targets })).await?;
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

/// Parses `50/s`, `10/m`, `1/h` or a number per second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = match unit {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("write a rate as 50/s, 10/m or 1/h".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "write a rate as 50/s, 10/m or 1/h".to_owned())?;
    if number.is_finite() && number > 0.0 {
        Ok(number / seconds)
    } else {
        Err("a rate must be above 0".to_owned())
    }
}

/// Parses `20%`, or a number from 0 to 1.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let (number, whole) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.parse::<f64>().map(|number| number / whole);
    share
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "write a share as 20% or 0.2".to_owned())
}

/// Checks a duration and returns it as written.
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
