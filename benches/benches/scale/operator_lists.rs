//! What an operator sees first: groups of dead letters, and pages of them by filter.
//!
//! Each question is asked once, in a process that has just opened the file, so that nothing is in SQLite's memory
//! yet but what the questions before left there.

use std::time::Instant;

use redrive::store::operate::{GroupBy, GroupQuery};
use redrive::triage::Filter;
use redrive::{Delivery, Redrive};
use serde_json::{Map, Value, json};

use crate::dead_letters::{Letter, QUEUES};
use crate::subprocess::PartArgs;
use crate::{Fallible, memory};

pub(crate) async fn measure(told: &PartArgs<'_>) -> Fallible<Value> {
    let redrive = Redrive::open(&format!("sqlite:{}", told.file.display())).await?;
    for queue in QUEUES {
        redrive.queue(queue).handle(|_: Delivery| std::future::ready(())).await?;
    }
    redrive.start().await?;
    let desk = redrive.desk("bench", "scale");
    let mut groups = Map::new();
    let mut rare = None;
    for (name, by) in [("cause", GroupBy::Cause), ("queue", GroupBy::Queue), ("tenant", GroupBy::Tenant)] {
        let began = Instant::now();
        let page = desk.groups(GroupQuery { by, ..GroupQuery::default() }).await?;
        groups.insert(format!("groups by {name}"), ms(began));
        rare = rare.or_else(|| page.iter().find(|group| Letter::is_rare(&group.title))?.cause);
    }
    let of_tenant = Filter { tenant: Some("tenant-7".to_owned()), ..Filter::queue(QUEUES[1]) };
    let text = |text: &str| Filter { text: Some(text.to_owned()), ..Filter::default() };
    let many = Filter { attempts_min: Some(2), ..Filter::default() };
    let mut lists = Map::new();
    for (name, filter, is_found) in [
        ("letters of all", Filter::default(), true),
        ("letters of a queue and a tenant", of_tenant, true),
        ("letters of a rare cause", Filter { cause: rare, ..Filter::default() }, true),
        ("letters by a text that many have", text("Not Found"), true),
        ("letters by a text that few have", text("eclipse"), false),
        ("letters by attempts that none has", many, false),
    ] {
        let began = Instant::now();
        let page = desk.letters(filter, None).await?;
        lists.insert(name.to_owned(), ms(began));
        if is_found && page.events.is_empty() {
            return Err(format!("{name}: nothing was found").into());
        }
    }
    redrive.shutdown(std::time::Duration::from_secs(10)).await?;
    Ok(json!({ "groups_ms": groups, "lists_ms": lists, "most_mb": memory::most_mb()? }))
}

fn ms(began: Instant) -> Value {
    json!(began.elapsed().as_secs_f64() * 1e3)
}
