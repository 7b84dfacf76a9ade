//! A request through the table, from its key to its answer.

pub(super) mod latency;
pub(super) mod permit;
pub(super) mod rekeyed;
pub(super) mod wait;
pub(super) mod wakeups;

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use redrive_core::ledger::{LedgerAnswer, LedgerClaim, LedgerRecord, RecordPhase, RenewResult, RunEnding};
use redrive_core::names::header;
use tokio::time::Instant;
use tower::Service;

use super::answer::{self, SOON, STATUS};
use super::body::{Body, BoxError};
use super::drain::Running;
use super::identify::{Identified, KeyedRequest, identify, remember};
use super::layer::{ClaimFlag, Shared};
use super::observe::RequestOutcome;
use super::operation::{Commit, KeyedOperation, RunMode};
use super::problem::Problem;
use super::run::{RunResult, run};
use crate::idempotent::endpoint::probe::ProbeOutcome;
use crate::idempotent::endpoint::rendered_reply::RenderRequest;
use crate::idempotent::replay_cache::CacheHit;
use crate::idempotent::run::lease::{ClaimedRecord, Lease};
use crate::idempotent::run::outcome::{in_doubt, is_uncommitted, kept, not_committed, respond};
use crate::idempotent::run::panic::CatchPanic;
use crate::idempotent::serve::permit::{Denied, permit};

/// Serves a request.
pub(super) async fn serve<S, B, R>(
    shared: Arc<Shared>,
    inner: S,
    request: Request<B>,
    entered: ClaimFlag,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let (known, body) = match identify(&shared, &parts, body).await {
        Ok(Identified::Keyed(known, body)) => (known, body),
        Ok(Identified::Unkeyed(scope, body)) => {
            let operation = KeyedOperation::free(&shared, scope, RunMode::Unkeyed);
            return Box::pin(unrecorded(&shared, inner, (parts, body), operation, "none")).await;
        }
        Err(problem) => return Ok(shared.refused(problem)),
    };
    // A cached reply needs no permit, and the ledger would decide the same.
    let recalled = known.ended.as_ref().and_then(|ended| ended.answer(&known.ask, shared.ledger.now()));
    match recalled {
        Some(CacheHit::Ready(ready)) => Ok(answer::ready(&shared, &known, ready)),
        Some(CacheHit::Decided(answer)) => Ok(Box::pin(said(&shared, &known, answer, false)).await),
        // Boxed, so that a replay does not carry the state of a run: small allocations are cheaper.
        None => Box::pin(looked_up(shared, inner, (parts, body), *known, entered)).await,
    }
}

/// Asks the ledger what to do with a request, and runs it if needed.
async fn looked_up<S, R>(
    shared: Arc<Shared>,
    inner: S,
    (parts, body): (Parts, Bytes),
    known: KeyedRequest,
    entered: ClaimFlag,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let patient = known.wait.map(|wait| Instant::now() + wait.min(shared.settings.wait_max));
    let mut waited = false;
    let (held, place) = loop {
        let place = match permit(&shared, &known).await {
            Ok(place) => place,
            Err(Denied::Refused(problem)) => return Ok(shared.refused(*problem)),
            Err(Denied::Answered(answer)) => match again(&shared, &known, answer, patient, waited).await {
                Some(answer) => return Ok(said(&shared, &known, answer, waited).await),
                None => {
                    waited = true;
                    continue;
                }
            },
        };
        entered.set(true);
        let began = Instant::now();
        match shared.ledger.claim(known.scope.clone(), known.ask.clone()).await {
            Ok(LedgerClaim::Run(record)) => break (ClaimedRecord { record, began, asked: began }, place),
            Ok(LedgerClaim::Probe(record)) => {
                let held = ClaimedRecord { record, began, asked: began };
                match probed(&shared, (&parts, &body), &known, &held, &place.running).await {
                    ProbeResult::Answer(response) => return Ok(response),
                    ProbeResult::Nothing(held) => break (held, place),
                }
            }
            Ok(LedgerClaim::Hold(_)) => {
                let since = shared.ledger.now();
                return Ok(answer::say(&shared, &known, LedgerAnswer::Unknown { since }, waited));
            }
            Ok(LedgerClaim::Say(answer)) => {
                entered.set(false);
                // A waiting request holds no permit, and does not wait for a disconnected client.
                drop(place);
                let patient = patient.filter(|_| !entered.is_detached());
                if let LedgerAnswer::Replay(record) = &answer {
                    remember(&shared, &known, &parts, &body, record);
                }
                match again(&shared, &known, answer, patient, waited).await {
                    Some(answer) => return Ok(said(&shared, &known, answer, waited).await),
                    None => waited = true,
                }
            }
            Err(error) if shared.settings.stay_open && error.is_down() => {
                shared.became(RequestOutcome::Bypassed);
                let operation = KeyedOperation::free(&shared, known.scope, RunMode::Bypassed);
                return unrecorded(&shared, inner, (parts, Body::from(body)), operation, "bypassed").await;
            }
            Err(_) => {
                let detail = "the ledger does not respond; nothing is run without it";
                let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ledger-down", detail);
                return Ok(shared.refused(problem.after(SOON)));
            }
        }
    };
    shared.begins(&known, held.record.attempt);
    match Box::pin(run(&shared, inner, (parts, body), &known, &held, place)).await {
        RunResult::Outgoing(sent) => sent,
        RunResult::Lost(fenced) => {
            entered.set(false);
            let patient = patient.filter(|_| !entered.is_detached());
            Ok(winners(&shared, &known, fenced.map(|fenced| *fenced.0), patient).await)
        }
    }
}

/// The response; `None` if the table must be asked again because the run in progress has ended.
async fn again(
    shared: &Shared,
    known: &KeyedRequest,
    answer: LedgerAnswer,
    patient: Option<Instant>,
    waited: bool,
) -> Option<LedgerAnswer> {
    let (LedgerAnswer::InFlight { .. }, Some(until)) = (&answer, patient) else { return Some(answer) };
    // It was over, and is not: whatever the reason, it is not asked in one go.
    if waited && wait::pause(until).await.is_break() {
        return Some(answer);
    }
    let is_over = wait::is_over(shared, known, until).await;
    (!is_over).then_some(answer)
}

/// The response for a ledger decision.
async fn said(shared: &Shared, known: &KeyedRequest, answer: LedgerAnswer, waited: bool) -> Response<Body> {
    if let (Some(render), LedgerAnswer::Gone(record)) = (&shared.settings.render, &answer)
        && let RecordPhase::Completed { reply, .. } = &record.phase
    {
        let (tenant, status) = (known.scope.tenant.clone(), reply.status);
        let (resource, location) = (record.resource.clone(), reply.location());
        let pointer = RenderRequest { tenant, status, resource, location };
        let rendering = CatchPanic::new(async { render.render(pointer).await });
        if let Some(Some(rendered)) = rendering.await {
            return answer::rendered(shared, known, record, rendered, waited);
        }
    }
    if answer == LedgerAnswer::Reused {
        // A mismatch is rare, so what it is about is looked up and not kept at hand.
        let record = shared.ledger.record(known.scope.clone()).await.ok().flatten();
        return answer::reused(shared, known, record.as_ref().map(|record| &record.print));
    }
    answer::say(shared, known, answer, waited)
}

/// The result of a probe.
enum ProbeResult {
    /// The response to send.
    Answer(Response<Body>),
    /// The effect did not happen: run the request, under a freshly renewed lease.
    Nothing(ClaimedRecord),
}

/// Probes whether the earlier run took effect, under a lease that is renewed meanwhile.
async fn probed(
    shared: &Arc<Shared>,
    (parts, body): (&Parts, &Bytes),
    known: &KeyedRequest,
    held: &ClaimedRecord,
    running: &Running,
) -> ProbeResult {
    let operation = KeyedOperation::claimed(shared, &known.scope, &held.record);
    let request = Request::from_parts(parts.clone(), body.clone());
    let probing = CatchPanic::new(async {
        match &shared.settings.probe {
            Some(probe) => probe.ask(operation, request).await,
            None => ProbeOutcome::StillUnknown,
        }
    });
    let (lease, too_long) = Lease::renewed(shared, &known.scope, held);
    let found = tokio::select! {
        biased;
        found = probing => found,
        _ = too_long => None,
        () = running.aborted() => None,
    };
    drop(lease);
    if found == Some(ProbeOutcome::DidNotHappen) {
        return did_not_happen(shared, known, held).await;
    }
    ProbeResult::Answer(settled(shared, known, &held.record, found).await)
}

/// Renews the lease, so that the run starts with a full one and was not taken over meanwhile.
async fn did_not_happen(shared: &Shared, known: &KeyedRequest, held: &ClaimedRecord) -> ProbeResult {
    let (scope, epoch) = (&known.scope, held.record.epoch);
    let (lease, max_run) = (shared.settings.lease, shared.settings.max_run);
    let asked = Instant::now();
    match shared.ledger.renew(scope.clone(), epoch, lease, max_run).await {
        Ok(Ok(RenewResult::On(record))) => {
            ProbeResult::Nothing(ClaimedRecord { record, began: held.began, asked })
        }
        Ok(Err(fenced)) => {
            ProbeResult::Answer(winners(shared, known, fenced.map(|fenced| *fenced.0), None).await)
        }
        Ok(Ok(RenewResult::TooLong)) | Err(_) => {
            // Neither the run before nor this one did anything.
            let _ = shared.ledger.end(scope.clone(), epoch, RunEnding::Retriable(None)).await;
            shared.hints.ended(scope);
            let detail =
                "the earlier attempt did not take effect, but the lease for a new run could not be renewed";
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ledger-down", detail);
            ProbeResult::Answer(shared.refused(problem.after(SOON)))
        }
    }
}

/// Records the result of a probe and responds with it.
async fn settled(
    shared: &Shared,
    known: &KeyedRequest,
    record: &LedgerRecord,
    found: Option<ProbeOutcome>,
) -> Response<Body> {
    let reply = match found {
        Some(ProbeOutcome::Completed(reply)) => Some(kept(shared, &known.scope, reply)),
        _ => None,
    };
    let end = match &reply {
        Some(reply) => RunEnding::Completed { reply: reply.clone(), resource: None },
        None => RunEnding::Unknown,
    };
    let ended = shared.ledger.end(known.scope.clone(), record.epoch, end).await;
    shared.hints.ended(&known.scope);
    if let Ok(Err(fenced)) = ended {
        return winners(shared, known, fenced.map(|fenced| *fenced.0), None).await;
    }
    let now = shared.ledger.now();
    let answer = match reply {
        Some(reply) => {
            ended_as(LedgerRecord { phase: RecordPhase::Completed { reply, at: now }, ..record.clone() })
        }
        None => LedgerAnswer::Unknown { since: now },
    };
    said(shared, known, answer, false).await
}

/// The answer of a record that ended.
fn ended_as(record: LedgerRecord) -> LedgerAnswer {
    match &record.phase {
        RecordPhase::Completed { reply, .. } if reply.body.is_some() => {
            LedgerAnswer::Replay(Box::new(record))
        }
        _ => LedgerAnswer::Gone(Box::new(record)),
    }
}

/// Another run owns the request: responds with its result, once there is one.
async fn winners(
    shared: &Shared,
    known: &KeyedRequest,
    mut record: Option<LedgerRecord>,
    patient: Option<Instant>,
) -> Response<Body> {
    let mut waited = false;
    loop {
        if record.is_none() {
            record = shared.ledger.record(known.scope.clone()).await.ok().flatten();
        }
        let now = shared.ledger.now();
        let answer = match record.take() {
            // Forgotten or unreadable: a repeated request finds out.
            None => LedgerAnswer::InFlight { left: SOON },
            // Forgotten, and used since for something else.
            Some(record) if !known.ask.is_same_as(&record.print) => LedgerAnswer::Reused,
            Some(record) => match record.phase {
                RecordPhase::Completed { .. } | RecordPhase::Tombstone { .. } => ended_as(record),
                RecordPhase::InFlight { until, .. } => LedgerAnswer::InFlight { left: until.since(now) },
                RecordPhase::Retriable { not_before, .. } => {
                    LedgerAnswer::BackingOff { until: not_before.unwrap_or(now + SOON) }
                }
                RecordPhase::Unknown { since } => LedgerAnswer::Unknown { since },
            },
        };
        if let (LedgerAnswer::InFlight { .. }, Some(until), false) = (&answer, patient, waited) {
            waited = wait::is_over(shared, known, until).await;
            if waited {
                continue;
            }
        }
        return said(shared, known, answer, waited).await;
    }
}

/// A run without a record.
async fn unrecorded<S, R>(
    shared: &Shared,
    mut inner: S,
    (mut parts, body): (Parts, Body),
    operation: KeyedOperation,
    status: &'static str,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    parts.extensions.insert(operation.clone());
    let response = inner.call(Request::from_parts(parts, body)).await?;
    let mut response = match operation.commit() {
        Commit::Done(reply) => respond(&reply),
        // A repeated request cannot learn the outcome: without a record it would be a new request.
        Commit::InDoubt => shared.problem(in_doubt()),
        Commit::None if is_uncommitted(shared, response.status()) => shared.problem(not_committed()),
        Commit::None => response.map(Body::stream),
    };
    response.headers_mut().remove(header::IDEMPOTENCY_OUTCOME);
    response.headers_mut().insert(STATUS, HeaderValue::from_static(status));
    Ok(response)
}
