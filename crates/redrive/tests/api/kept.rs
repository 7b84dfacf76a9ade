//! Whether an answer is stored, by its status, the endpoint's effects and the handler's own decision.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use redrive::api::{Effects, Endpoint, OnUnknown, Tenant};
use tokio::io::AsyncReadExt;

use crate::shop::{BOOK, Calls, keyed, memory, records, serve};
use crate::spy::{Gate, within};
use crate::wire::post;

const HOLD: Effects = Effects::Opaque(OnUnknown::Hold);
const RERUN: Effects = Effects::Opaque(OnUnknown::Rerun);

/// Sends one request, and returns what is stored then, and the status of the answer.
async fn kept(effects: Effects, status: u16, outcome: Option<&'static str>) -> (&'static str, u16) {
    let (redrive, store) = memory();
    let handler = move || async move {
        let mut response = Response::builder().status(status);
        if let Some(outcome) = outcome {
            response = response.header("Idempotency-Outcome", outcome);
        }
        response.body(Body::from("said")).unwrap()
    };
    let endpoint = Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(effects);
    let server = serve(&redrive, endpoint, handler).await;
    let answer = server.ask(&post("{}").key("k")).await;
    assert_eq!(answer.header("idempotency-outcome"), None, "it goes no further");
    let kept = records(&redrive, &store).await;
    (kept.first().map_or("nothing", |(_, record)| record.phase.as_str()), answer.status)
}

#[tokio::test]
async fn by_status_and_effects() {
    for status in [200, 201, 204, 303, 304, 400, 401, 403, 404, 409, 410, 422] {
        for effects in [Effects::Keyed, HOLD, RERUN] {
            assert_eq!(kept(effects, status, None).await, ("completed", status), "{effects:?}");
        }
    }
    for status in [408, 425, 429, 500, 502, 503, 504, 599] {
        for effects in [Effects::Keyed, Effects::Transactional, RERUN] {
            assert_eq!(kept(effects, status, None).await, ("retriable", status), "{effects:?}");
        }
        assert_eq!(kept(HOLD, status, None).await, ("unknown", status), "it may have charged before");
    }
}

#[tokio::test]
async fn a_transactional_success_without_a_commit_is_none_and_nothing_is_kept() {
    for status in [200, 201, 303] {
        assert_eq!(kept(Effects::Transactional, status, None).await, ("nothing", 500));
        assert_eq!(kept(Effects::Transactional, status, Some("final")).await, ("nothing", 500));
    }
    // It was rolled back, so nothing happened.
    for status in [400, 404, 409] {
        assert_eq!(kept(Effects::Transactional, status, None).await, ("nothing", status));
    }
}

#[tokio::test]
async fn a_handler_may_say_otherwise() {
    for effects in [Effects::Keyed, HOLD] {
        assert_eq!(kept(effects, 500, Some("final")).await, ("completed", 500));
        assert_eq!(kept(effects, 503, Some("none")).await, ("nothing", 503));
        assert_eq!(kept(effects, 201, Some("unknown")).await, ("unknown", 201));
        assert_eq!(kept(effects, 201, Some("whatever")).await, ("completed", 201));
    }
}

/// A body that yields `first`, stops at the gate, and then yields the rest.
fn halting(gate: &Gate, first: Vec<u8>) -> Body {
    let gate = gate.clone();
    let chunks = futures_util::stream::unfold(0, move |step| {
        let (gate, first) = (gate.clone(), first.clone());
        async move {
            match step {
                0 => Some((Ok::<_, std::io::Error>(Bytes::from(first)), 1)),
                1 => {
                    gate.pass().await;
                    Some((Ok(Bytes::from_static(b"the end")), 2))
                }
                _ => None,
            }
        }
    });
    Body::from_stream(chunks)
}

#[tokio::test]
async fn an_answer_over_the_cap_is_passed_on_as_it_comes_and_completes_without_its_body() {
    let (redrive, _) = memory();
    let (gate, calls) = (Gate::default(), Calls::default());
    let (at, counted) = (gate.clone(), calls.clone());
    let handler = move || async move {
        counted.add();
        Response::new(halting(&at, vec![b'x'; 2000]))
    };
    let server = serve(&redrive, keyed().reply_max(1000), handler).await;
    let mut client = server.send(&post("{}").key("k")).await;
    // The first part arrives before the second was made: the layer does not hold it back.
    let mut bytes = Vec::new();
    while bytes.iter().filter(|byte| **byte == b'x').count() < 2000 {
        within(client.read_buf(&mut bytes)).await.unwrap();
    }
    gate.reached.wait().await;
    assert_eq!(server.ask(&post("{}").key("k")).await.code(), "response-expired", "it has ended already");
    gate.open.give();
    within(client.read_to_end(&mut bytes)).await.unwrap();
    assert!(String::from_utf8_lossy(&bytes).contains("the end"));
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn an_event_stream_is_not_held_back_and_completes_without_its_body() {
    let (redrive, _) = memory();
    let gate = Gate::default();
    let at = gate.clone();
    let handler = move || async move {
        let events = halting(&at, b"data: 1\n\n".to_vec());
        Response::builder().header("content-type", "text/event-stream; charset=utf-8").body(events).unwrap()
    };
    let server = serve(&redrive, keyed(), handler).await;
    let mut client = server.send(&post("{}").key("k")).await;
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains("data: 1") {
        within(client.read_buf(&mut bytes)).await.unwrap();
    }
    let again = server.ask(&post("{}").key("k")).await;
    assert_eq!((again.status, again.json()["original_status"].as_u64()), (410, Some(200)));
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_no_answer() {
    let (redrive, store) = memory();
    let handler = || async {
        let chunks = [Ok("half"), Err(std::io::Error::other("the upstream went away"))];
        Response::new(Body::from_stream(futures_util::stream::iter(chunks)))
    };
    let server = serve(&redrive, keyed(), handler).await;
    let answer = server.ask(&post("{}").key("k")).await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "handler-failed"));
    assert_eq!(records(&redrive, &store).await[0].1.phase.as_str(), "retriable");
}

#[tokio::test]
async fn an_empty_answer_is_replayed_as_one() {
    let (redrive, _) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move {
        counted.add();
        StatusCode::NO_CONTENT
    };
    let server = Arc::new(serve(&redrive, keyed(), handler).await);
    for _ in 0..2 {
        let answer = server.ask(&post("{}").key("k")).await;
        assert_eq!((answer.status, answer.body.len()), (204, 0));
    }
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn the_headers_of_an_answer_count_towards_its_cap() {
    let (redrive, store) = memory();
    let handler = || async {
        let mut response = Response::new(Body::from("x"));
        *response.status_mut() = StatusCode::CREATED;
        response.headers_mut().insert("location", "/bookings/7".parse().unwrap());
        response.headers_mut().insert("x-large", "y".repeat(2000).parse().unwrap());
        response
    };
    let server = serve(&redrive, keyed().reply_max(1000), handler).await;
    let first = server.ask(&post("{}").key("k")).await;
    assert_eq!((first.text().as_str(), first.header("x-large").unwrap().len()), ("x", 2000));
    let kept = format!("{:?}", records(&redrive, &store).await);
    assert!(!kept.contains("x-large"), "{kept}");
    let again = server.ask(&post("{}").key("k")).await;
    assert_eq!((again.status, again.json()["original_status"].as_u64()), (410, Some(201)));
    assert_eq!(again.header("location").as_deref(), Some("/bookings/7"));
}
