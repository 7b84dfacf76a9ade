//! A request through the table, from its key to its answer.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use redrive_core::ledger::{Answer, Claim, End, Phase, Record, Renewed};
use redrive_core::names::header;
use tokio::time::Instant;
use tower::Service;

use super::answer::{self, SOON, STATUS};
use super::body::{Body, BoxError};
use super::caught::Caught;
use super::drain::Running;
use super::identify::{Identified, Known, identify, remember};
use super::layer::{Entered, Shared};
use super::lease::{Held, Lease};
use super::observe::Became;
use super::operation::{Commit, Mode, Operation};
use super::outcome::{in_doubt, is_uncommitted, kept, not_committed, respond};
use super::place::{Turned, place};
use super::probe::Probed;
use super::problem::Problem;
use super::remembered::Recalled;
use super::render::Pointer;
use super::run::{Ran, run};
use super::wait;

/// Serves a request.
pub(super) async fn serve<S, B, R>(
    shared: Arc<Shared>,
    inner: S,
    request: Request<B>,
    entered: Entered,
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
        Ok(Identified::Known(known, body)) => (known, body),
        Ok(Identified::Unkeyed(scope, body)) => {
            let operation = Operation::free(&shared, scope, Mode::Unkeyed);
            return Box::pin(unrecorded(&shared, inner, (parts, body), operation, "none")).await;
        }
        Err(problem) => return Ok(shared.refused(problem)),
    };
    // What is over needs no room, and the ledger would say the same.
    let recalled = known.ended.as_ref().and_then(|ended| ended.answer(&known.ask, shared.ledger.now()));
    match recalled {
        Some(Recalled::Ready(ready)) => Ok(answer::ready(&shared, &known, ready)),
        Some(Recalled::Said(answer)) => Ok(Box::pin(said(&shared, &known, answer, false)).await),
        // Boxed, so that a replay does not carry about what a run needs: an allocator is quick with small pieces alone.
        None => Box::pin(looked_up(shared, inner, (parts, body), *known, entered)).await,
    }
}

/// Asks the ledger what becomes of a request, and has it run where it is to.
async fn looked_up<S, R>(
    shared: Arc<Shared>,
    inner: S,
    (parts, body): (Parts, Bytes),
    known: Known,
    entered: Entered,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let patient = known.wait.map(|wait| Instant::now() + wait.min(shared.settings.wait_max));
    let mut waited = false;
    let (held, place) = loop {
        let place = match place(&shared, &known).await {
            Ok(place) => place,
            Err(Turned::Away(problem)) => return Ok(shared.refused(*problem)),
            Err(Turned::Answered(answer)) => match again(&shared, &known, answer, patient, waited).await {
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
            Ok(Claim::Run(record)) => break (Held { record, began, asked: began }, place),
            Ok(Claim::Probe(record)) => {
                let held = Held { record, began, asked: began };
                match probed(&shared, (&parts, &body), &known, &held, &place.running).await {
                    Found::Answer(response) => return Ok(response),
                    Found::Nothing(held) => break (held, place),
                }
            }
            Ok(Claim::Hold(_)) => {
                let since = shared.ledger.now();
                return Ok(answer::say(&shared, &known, Answer::Unknown { since }, waited));
            }
            Ok(Claim::Say(answer)) => {
                entered.set(false);
                // Whoever waits takes nobody's room; and nobody waits for a client that is gone.
                drop(place);
                let patient = patient.filter(|_| !entered.is_detached());
                if let Answer::Replay(record) = &answer {
                    remember(&shared, &known, &parts, &body, record);
                }
                match again(&shared, &known, answer, patient, waited).await {
                    Some(answer) => return Ok(said(&shared, &known, answer, waited).await),
                    None => waited = true,
                }
            }
            Err(error) if shared.settings.stay_open && error.is_down() => {
                shared.became(Became::Bypassed);
                let operation = Operation::free(&shared, known.scope, Mode::Bypassed);
                return unrecorded(&shared, inner, (parts, Body::from(body)), operation, "bypassed").await;
            }
            Err(_) => {
                let detail = "the ledger does not answer, and without it nothing is run";
                let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ledger-down", detail);
                return Ok(shared.refused(problem.after(SOON)));
            }
        }
    };
    shared.begins(&known, held.record.attempt);
    match Box::pin(run(&shared, inner, (parts, body), &known, &held, place)).await {
        Ran::Sent(sent) => sent,
        Ran::Lost(fenced) => {
            entered.set(false);
            let patient = patient.filter(|_| !entered.is_detached());
            Ok(winners(&shared, &known, fenced.map(|fenced| *fenced.0), patient).await)
        }
    }
}

/// What is to be answered; nothing where the table is to be asked again, because what ran is over.
async fn again(
    shared: &Shared,
    known: &Known,
    answer: Answer,
    patient: Option<Instant>,
    waited: bool,
) -> Option<Answer> {
    let (Answer::InFlight { .. }, Some(until)) = (&answer, patient) else { return Some(answer) };
    // It was over, and is not: whatever the reason, it is not asked in one go.
    if waited && wait::pause(until).await.is_break() {
        return Some(answer);
    }
    let is_over = wait::is_over(shared, known, until).await;
    (!is_over).then_some(answer)
}

/// What the ledger answers.
async fn said(shared: &Shared, known: &Known, answer: Answer, waited: bool) -> Response<Body> {
    if let (Some(render), Answer::Gone(record)) = (&shared.settings.render, &answer)
        && let Phase::Completed { reply, .. } = &record.phase
    {
        let (tenant, status) = (known.scope.tenant.clone(), reply.status);
        let (resource, location) = (record.resource.clone(), reply.location());
        let pointer = Pointer { tenant, status, resource, location };
        let rendering = Caught::new(async { render.render(pointer).await });
        if let Some(Some(rendered)) = rendering.await {
            return answer::rendered(shared, known, record, rendered, waited);
        }
    }
    answer::say(shared, known, answer, waited)
}

/// What a probe came to.
enum Found {
    /// This is to be sent.
    Answer(Response<Body>),
    /// It did not happen: it is to run, under a lease that was just renewed.
    Nothing(Held),
}

/// Asks whether the run before happened, under a lease that is renewed meanwhile.
async fn probed(
    shared: &Arc<Shared>,
    (parts, body): (&Parts, &Bytes),
    known: &Known,
    held: &Held,
    running: &Running,
) -> Found {
    let operation = Operation::claimed(shared, &known.scope, &held.record);
    let request = Request::from_parts(parts.clone(), body.clone());
    let probing = Caught::new(async {
        match &shared.settings.probe {
            Some(probe) => probe.ask(operation, request).await,
            None => Probed::StillUnknown,
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
    if found == Some(Probed::DidNotHappen) {
        return did_not_happen(shared, known, held).await;
    }
    Found::Answer(settled(shared, known, &held.record, found).await)
}

/// What is to run has a whole lease, and nobody took it over meanwhile.
async fn did_not_happen(shared: &Shared, known: &Known, held: &Held) -> Found {
    let (scope, epoch) = (&known.scope, held.record.epoch);
    let (lease, max_run) = (shared.settings.lease, shared.settings.max_run);
    let asked = Instant::now();
    match shared.ledger.renew(scope.clone(), epoch, lease, max_run).await {
        Ok(Ok(Renewed::On(record))) => Found::Nothing(Held { record, began: held.began, asked }),
        Ok(Err(fenced)) => Found::Answer(winners(shared, known, fenced.map(|fenced| *fenced.0), None).await),
        Ok(Ok(Renewed::TooLong)) | Err(_) => {
            // Neither the run before nor this one did anything.
            let _ = shared.ledger.end(scope.clone(), epoch, End::Retriable(None)).await;
            shared.hints.ended(scope);
            let detail = "it did not happen, and its lease could not be renewed to run it";
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ledger-down", detail);
            Found::Answer(shared.refused(problem.after(SOON)))
        }
    }
}

/// Records what a probe found, or that it found nothing, and says so.
async fn settled(shared: &Shared, known: &Known, record: &Record, found: Option<Probed>) -> Response<Body> {
    let reply = match found {
        Some(Probed::Completed(reply)) => Some(kept(shared, &known.scope, reply)),
        _ => None,
    };
    let end = match &reply {
        Some(reply) => End::Completed { reply: reply.clone(), resource: None },
        None => End::Unknown,
    };
    let ended = shared.ledger.end(known.scope.clone(), record.epoch, end).await;
    shared.hints.ended(&known.scope);
    if let Ok(Err(fenced)) = ended {
        return winners(shared, known, fenced.map(|fenced| *fenced.0), None).await;
    }
    let now = shared.ledger.now();
    let answer = match reply {
        Some(reply) => ended_as(Record { phase: Phase::Completed { reply, at: now }, ..record.clone() }),
        None => Answer::Unknown { since: now },
    };
    said(shared, known, answer, false).await
}

/// The answer of a record that ended.
fn ended_as(record: Record) -> Answer {
    match &record.phase {
        Phase::Completed { reply, .. } if reply.body.is_some() => Answer::Replay(Box::new(record)),
        _ => Answer::Gone(Box::new(record)),
    }
}

/// Another run has the request: what it says is what is sent, once it says something.
async fn winners(
    shared: &Shared,
    known: &Known,
    mut record: Option<Record>,
    patient: Option<Instant>,
) -> Response<Body> {
    let mut waited = false;
    loop {
        if record.is_none() {
            record = shared.ledger.record(known.scope.clone()).await.ok().flatten();
        }
        let now = shared.ledger.now();
        let answer = match record.take() {
            // Forgotten, or not to be read: whoever asks again finds out.
            None => Answer::InFlight { left: SOON },
            // Forgotten, and used since for something else.
            Some(record) if !known.ask.is_same_as(&record.print) => Answer::Reused,
            Some(record) => match record.phase {
                Phase::Completed { .. } | Phase::Tombstone { .. } => ended_as(record),
                Phase::InFlight { until, .. } => Answer::InFlight { left: until.since(now) },
                Phase::Retriable { not_before, .. } => {
                    Answer::BackingOff { until: not_before.unwrap_or(now + SOON) }
                }
                Phase::Unknown { since } => Answer::Unknown { since },
            },
        };
        if let (Answer::InFlight { .. }, Some(until), false) = (&answer, patient, waited) {
            waited = wait::is_over(shared, known, until).await;
            if waited {
                continue;
            }
        }
        return said(shared, known, answer, waited).await;
    }
}

/// A run of which nothing is remembered.
async fn unrecorded<S, R>(
    shared: &Shared,
    mut inner: S,
    (mut parts, body): (Parts, Body),
    operation: Operation,
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
        // Nobody can find out by asking again: without a record that would be another request.
        Commit::InDoubt => shared.problem(in_doubt()),
        Commit::None if is_uncommitted(shared, response.status()) => shared.problem(not_committed()),
        Commit::None => response.map(Body::stream),
    };
    response.headers_mut().remove(header::IDEMPOTENCY_OUTCOME);
    response.headers_mut().insert(STATUS, HeaderValue::from_static(status));
    Ok(response)
}
