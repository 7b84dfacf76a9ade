//! A booking API that may be killed at any point, and a campaign of faults that does so.
//!
//! `POST /bookings` takes a berth in a cabin, authorises a deposit at a payment provider, and has a confirmation emailed.
//! Two processes serve it from one store; provider and email program are others' programs, with files of their own.
//!
//! ```text
//! cargo run -p example-booking                                  # a short history, and its account
//! cargo run -p example-booking -- faults --faults 500 --seed 7  # a campaign
//! cargo run -p example-booking -- --store postgres://…          # either of them, in a database of its own on that server
//! ```
//!
//! Both end with 1 if the figures do not add up.

mod booking_request;

mod program;

mod crash_points;

mod effect_log;

mod provider;

mod mailer;

mod outbox;

mod ledger;

mod api;

mod faults;

mod walkthrough;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use faults::Campaign;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => return walkthrough::tell(None).await,
        ["--store", server] => return walkthrough::tell(Some(server)).await,
        ["faults", ref words @ ..] => return faults::run(campaign(words)?).await,
        // How this program starts its others.
        ["api", store, provider, mailer] => {
            program::end_with_stdin();
            api::run(store, provider, mailer).await?;
        }
        ["provider", folder] => {
            program::end_with_stdin();
            provider::run(Path::new(folder), api::lease()? / 2).await?;
        }
        ["mailer", folder] => {
            program::end_with_stdin();
            mailer::run(Path::new(folder)).await?;
        }
        _ => {
            eprintln!(
                "booking: there is no `{}`; try without, or with [faults [--faults N] [--seed S]] [--store postgres://…]",
                words.join(" ")
            );
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn campaign(mut words: &[&str]) -> anyhow::Result<Campaign> {
    let mut campaign = Campaign { faults: 500, seed: 1, store_points: &[], server: None };
    while let [word, rest @ ..] = words {
        words = rest;
        match *word {
            "--store-points" => campaign.store_points = faults::supervisor::STORE,
            "--store" => {
                let [server, rest @ ..] = words else { anyhow::bail!("--store wants a URL") };
                campaign.server = Some((*server).to_owned());
                words = rest;
            }
            "--faults" | "--seed" => {
                let [number, rest @ ..] = words else { anyhow::bail!("{word} wants a number") };
                let number =
                    number.parse().with_context(|| format!("{word} wants a number, not `{number}`"))?;
                *(if *word == "--faults" { &mut campaign.faults } else { &mut campaign.seed }) = number;
                words = rest;
            }
            other => anyhow::bail!(
                "there is no `{other}`; known: --faults N, --seed S, --store URL, --store-points"
            ),
        }
    }
    Ok(campaign)
}
