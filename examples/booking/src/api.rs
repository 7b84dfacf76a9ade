//! The API: one endpoint, on a store that two processes share: a file, or a database.
//!
//! Its effects are `keyed`: the deposit is authorised by a payment provider, under a key derived from the request's
//! own, so that a repeated run gets the same deposit. Everything else (the berth, the confirmation on the outbox, the
//! reply itself) is one commit, under the fence of the run. So a process may die anywhere:
//!
//! | it dies | what is there | the next request under the key |
//! |---|---|---|
//! | before the claim | nothing | runs |
//! | before the provider has heard | the key, in flight | runs when the lease is over |
//! | after the provider has | the same, and a deposit | runs, and is given the same deposit |
//! | after the commit | berth, confirmation and answer | is given that answer |

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use redrive::api::{Effects, Endpoint, Idempotent, StoredReply, Tenant};
use redrive::engine::{OpenOptions, Transaction};
use redrive::http::Client;
use redrive::postgres::PostgresSettings;
use redrive::prelude::*;
use redrive::{Event, Operation, Redrive};
use serde_json::{Value, json};

use crate::booking_request::BookingRequest;
use crate::ledger::Mortal;
use crate::{crash_points, outbox, program};

/// The variable with the lease of a run, in milliseconds.
pub(crate) const LEASE: &str = "BOOKING_LEASE_MS";

/// How long a run may take in all.
const RUN_MAX: Duration = Duration::from_secs(20);
/// How long the provider has for an answer.
const PROVIDER: Duration = Duration::from_secs(2);

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The lease of a run.
pub(crate) fn lease() -> anyhow::Result<Duration> {
    let millis = std::env::var(LEASE).unwrap_or_else(|_| "10000".to_owned());
    Ok(Duration::from_millis(millis.parse().with_context(|| format!("{LEASE} is no number"))?))
}

/// Runs it, on the store with this address: `sqlite:booking.db`, `postgres://…`.
pub(crate) async fn run(store: &str, provider: &str, mailer: &str) -> anyhow::Result<()> {
    let redrive = open(store).await?;
    // In PostgreSQL two processes that create the same table at once conflict; the later one then finds it.
    if redrive.transact(make_tables).await.is_err() {
        redrive.transact(make_tables).await?;
    }
    outbox::set_up(&redrive, provider, mailer).await?;
    tokio::spawn(outbox::run(redrive.clone()));

    let endpoint = Endpoint::new("POST /bookings")
        .tenant(Tenant::fixed("ferry"))
        .effects(Effects::Keyed)
        .lease(lease()?)
        .max_run(RUN_MAX);
    let layer = Idempotent::new(Arc::new(Mortal(redrive.ledger())), endpoint)?;
    let provider = Provider::at(provider)?;
    program::serve(Router::new().route("/bookings", post(book).layer(layer)).with_state(provider)).await
}

/// Opens the store. Of several processes on one database each runs a part of the outbox, and takes over the part of
/// another one that was silent for two leases.
async fn open(store: &str) -> anyhow::Result<Redrive> {
    let mut settings = PostgresSettings::default();
    settings.lease = lease()? * 2;
    Ok(OpenOptions::new().postgres(settings).open(store).await?)
}

fn make_tables(tx: &mut Transaction<'_>) -> Result<(), Error> {
    tx.execute("CREATE TABLE IF NOT EXISTS cabin (name TEXT PRIMARY KEY, guest TEXT NOT NULL)", &[])?;
    // No primary key on purpose: a double booking would be two rows.
    let booking = "CREATE TABLE IF NOT EXISTS booking (number TEXT, guest TEXT, cabin TEXT, deposit BIGINT)";
    tx.execute(booking, &[])?;
    Ok(())
}

async fn book(State(provider): State<Provider>, op: Operation, Json(wish): Json<BookingRequest>) -> Response {
    let key = op.derive("deposit");
    crash_points::pass("before-provider");
    let deposit = match provider.authorise(&key, &wish).await {
        Ok(deposit) => deposit,
        // A 5xx of a keyed endpoint is not stored: the same request runs again.
        Err(error) => return problem(StatusCode::BAD_GATEWAY, "no-deposit", &error.to_string()),
    };
    crash_points::pass("after-provider");
    let confirmation = op.event(outbox::CONFIRMATIONS, "confirmation").payload(json!(wish).to_string());
    let void = op.event(outbox::VOIDS, "void").payload(key);
    let this = op.clone();
    let committed = op.commit(move |tx| take(tx, &this, &wish, deposit, &confirmation, &void)).await;
    if committed.is_ok() {
        crash_points::pass("after-commit");
    }
    committed.into_response()
}

/// Takes a berth and has it confirmed, or refuses and has the deposit voided. The reply is stored with either.
fn take(
    tx: &mut Transaction<'_>,
    op: &Operation,
    BookingRequest { guest, cabin }: &BookingRequest,
    deposit: u32,
    confirmation: &Event,
    void: &Event,
) -> Result<StoredReply, Error> {
    // Of two guests at once the second waits here, and then finds the first.
    let take = "INSERT INTO cabin (name, guest) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
    tx.execute(take, &[cabin.into(), guest.into()])?;
    let whose = tx.query("SELECT guest FROM cabin WHERE name = $1", &[cabin.into()])?;
    let whose: String = whose.first().ok_or("a cabin has no owner")?.get(0)?;
    let reply = if whose != *guest {
        // Not checked before: asking first would save a deposit, but close no race.
        tx.publish(void.clone())?;
        let why = json!({ "code": "cabin-taken", "title": "the cabin is taken" });
        StoredReply::new(409).header("content-type", "application/problem+json").body(why.to_string())
    } else {
        let number = op.derive("booking");
        let booking = "INSERT INTO booking (number, guest, cabin, deposit) VALUES ($1, $2, $3, $4)";
        tx.execute(booking, &[(&number).into(), guest.into(), cabin.into(), deposit.into()])?;
        op.resource(format!("booking-{number}"));
        tx.publish(confirmation.clone())?;
        let booked = json!({ "booking": number, "guest": guest, "cabin": cabin });
        StoredReply::new(201)
            .header("location", format!("/bookings/{number}"))
            .header("content-type", "application/json")
            .body(booked.to_string())
    };
    crash_points::pass("in-commit");
    Ok(reply)
}

fn problem(status: StatusCode, code: &str, title: &str) -> Response {
    (status, Json(json!({ "code": code, "title": title }))).into_response()
}

/// The payment provider, as the API calls it.
#[derive(Debug, Clone)]
struct Provider {
    client: Client,
    url: String,
}

impl Provider {
    fn at(url: &str) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder().no_proxy().timeout(PROVIDER).build()?;
        let policy = Policy::builder()
            .name("provider")
            .attempts(3)
            .backoff(Backoff::exponential(Duration::from_millis(20), 2.0, Duration::from_millis(200)))
            .build()?;
        Ok(Self { client: Client::new(client, policy), url: format!("{url}/authorisations") })
    }

    /// Authorises a deposit: a new one, or the existing one of this key.
    async fn authorise(&self, key: &str, wish: &BookingRequest) -> anyhow::Result<u32> {
        let body = json!(wish).to_string();
        let call = self.client.post(&self.url).idempotency_key(key);
        let call = call.with(move |request| request.header("content-type", "application/json").body(body));
        let answer = call.send().await?;
        ensure!(answer.status().is_success(), "the provider said {}", answer.status());
        let said: Value = serde_json::from_str(&answer.text().await?)?;
        let number = said["authorisation"].as_u64().context("the provider gave no number")?;
        Ok(u32::try_from(number)?)
    }
}
