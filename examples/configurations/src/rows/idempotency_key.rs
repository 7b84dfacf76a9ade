//! Idempotency key: an API whose clients repeat requests that got no answer.
//!
//! Off, the handler looks the key up, has its effect, and keeps the key in a second commit. On, Redrive's layer keeps
//! key, answer and effect in one commit, and gives the first answer again.

use std::sync::Arc;

use anyhow::{Result, ensure};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use redrive::api::{CommitError, Effects, Endpoint, Idempotent, StoredReply, Tenant};
use redrive::{CommittedReply, Operation, Redrive, Transaction};
use tower::ServiceExt;

use crate::life::Life;

type Refused = Box<dyn std::error::Error + Send + Sync>;

pub(super) async fn live(life: &Life) -> Result<()> {
    let redrive = Redrive::open(&life.address("effects.db")).await?;
    redrive.transact(|tx| tx.execute("CREATE TABLE IF NOT EXISTS effect (id TEXT)", &[])).await?;
    let api = api(&redrive)?;
    let answered = life.noted("answered");
    for item in Life::items().filter(|item| !answered.contains(item)) {
        let requests = if life.happens("again", &item, 3) { 2 } else { 1 };
        for _ in 0..requests {
            life.crash_point();
            if life.is_guarded() {
                let request = Request::post("/bookings").header("idempotency-key", format!("\"{item}\""));
                let answer = api.clone().oneshot(request.body(Body::from(item.clone()))?).await?;
                ensure!(answer.status() == 201, "answered {}", answer.status());
            } else {
                check_then_act(life, &redrive, &item).await?;
            }
            life.crash_point();
        }
        life.note("answered", &item)?;
        life.crash_point();
    }
    Ok(())
}

fn insert(tx: &mut Transaction<'_>, item: &str) -> Result<(), Refused> {
    tx.execute("INSERT INTO effect VALUES ($1)", &[item.into()])?;
    Ok(())
}

fn api(redrive: &Redrive) -> Result<Router> {
    let endpoint = Endpoint::new("POST /bookings")
        .tenant(Tenant::from(|_| Some("shop".to_owned())))
        .effects(Effects::Transactional)
        .required();
    let layer = Idempotent::new(Arc::new(redrive.ledger()), endpoint)?;
    Ok(Router::new().route("/bookings", post(book).layer(layer)))
}

async fn book(op: Operation, item: String) -> Result<CommittedReply, CommitError> {
    op.commit(move |tx| {
        insert(tx, &item)?;
        Ok::<_, Refused>(StoredReply::new(201))
    })
    .await
}

/// The key is looked up, the effect commits, and the key is kept: three steps with room in between.
async fn check_then_act(life: &Life, redrive: &Redrive, item: &str) -> Result<()> {
    if life.noted("keys").contains(item) {
        return Ok(());
    }
    let id = item.to_owned();
    redrive.transact(move |tx| insert(tx, &id)).await?;
    life.crash_point();
    life.note("keys", item)
}
