//! Traces: every attempt is linked to the trace of its publisher.
//!
//! An attempt may come days after the publish, so it is not part of that trace: it has its own trace, with a link to
//! the publishing span. All attempts of an event have the same link. Downstream calls get the attempt's own span, so
//! that their work appears below it.

use http::HeaderMap;
use redrive::names::header::{TRACEPARENT, TRACESTATE};
use redrive::{Delivery, Event};

#[cfg(feature = "otlp")]
mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "trace/disabled.rs"]
mod otlp;

pub(crate) mod http_spans;

pub(super) use otlp::{Exporting, exporting};

/// Stores the trace of a publishing request with its event, unless the event has one.
pub fn keep(event: &mut Event, request: &HeaderMap) {
    let has_own = |event: &Event| {
        let headers = event.meta.as_ref().map(|meta| meta.headers.as_slice()).unwrap_or_default();
        headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(TRACEPARENT))
    };
    let text = |name| request.get(name).and_then(|value| value.to_str().ok());
    let Some(parent) = text(TRACEPARENT).filter(|_| !has_own(event)) else { return };
    if !is_traceparent(parent) {
        return;
    }
    let state = text(TRACESTATE).map(|state| (TRACESTATE.to_owned(), state.to_owned()));
    let parent = (TRACEPARENT.to_owned(), parent.to_owned());
    let headers = &mut event.meta_mut().headers;
    // The state of another trace, or of none.
    headers.retain(|(name, _)| !name.eq_ignore_ascii_case(TRACESTATE));
    headers.extend(std::iter::once(parent).chain(state));
}

/// The trace headers of an attempt, which is linked to the publisher's trace. Call it in the handler, within the
/// attempt's span. If attempts are not traced here, the publisher's trace continues.
#[must_use]
pub fn for_attempt(delivery: &Delivery) -> Vec<(&'static str, String)> {
    let (parent, state) = (delivery.header(TRACEPARENT), delivery.header(TRACESTATE));
    let parent = parent.filter(|parent| is_traceparent(parent));
    if let Some(own) = otlp::link(parent, state) {
        return vec![(TRACEPARENT, own)];
    }
    let named = [(TRACEPARENT, parent), (TRACESTATE, parent.and(state))];
    named.into_iter().filter_map(|(name, value)| Some((name, value?.to_owned()))).collect()
}

/// Whether this is a valid W3C `version-trace-span-flags`.
fn is_traceparent(text: &str) -> bool {
    let is = |part: Option<&str>, digits: usize| {
        part.is_some_and(|part| {
            part.len() == digits && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        })
    };
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next(), parts.next(), parts.next(), parts.next());
    let is_some = |part: Option<&str>| part.is_some_and(|part| part.bytes().any(|byte| byte != b'0'));
    is(version, 2)
        && version != Some("ff")
        && (version != Some("00") || parts.next().is_none())
        && is(trace, 32)
        && is(span, 16)
        && is(flags, 2)
        && is_some(trace)
        && is_some(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn only_what_is_a_traceparent_is_one() {
        assert!(is_traceparent(PARENT));
        for wrong in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        ] {
            assert!(!is_traceparent(wrong), "{wrong}");
        }
    }

    #[test]
    fn an_events_own_trace_is_kept() {
        let mut request = HeaderMap::new();
        request.insert(TRACEPARENT, http::HeaderValue::from_static(PARENT));
        let headers =
            |event: &Event| event.meta.as_ref().map(|meta| meta.headers.clone()).unwrap_or_default();
        let mut event = Event::new("orders", "1");
        keep(&mut event, &request);
        assert_eq!(headers(&event), [(TRACEPARENT.to_owned(), PARENT.to_owned())]);
        let mut event = Event::new("orders", "1").header("Tracestate", "of=another");
        keep(&mut event, &request);
        assert_eq!(
            headers(&event),
            [(TRACEPARENT.to_owned(), PARENT.to_owned())],
            "a state has its own parent"
        );
        let mut event = Event::new("orders", "1").header("Traceparent", "its own");
        keep(&mut event, &request);
        assert_eq!(headers(&event), [("Traceparent".to_owned(), "its own".to_owned())]);
    }
}
