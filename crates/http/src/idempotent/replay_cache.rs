//! The cached reply of a completed request: ready to send, together with the exact bytes of the request.
//!
//! A client that repeats a request nearly always sends the same bytes. Then the cached fingerprint applies, without
//! parsing JSON or hashing. A request that differs in a single byte is fingerprinted as usual, so two different
//! requests are never confused.
//!
//! If replies are sealed or redacted, the request may be as sensitive: it is then not cached, and sealed replies stay
//! sealed here too.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use redrive_core::Moment;
use redrive_core::ledger::{
    self, ClaimRequest, LedgerAnswer, LedgerClaim, LedgerRecord, RecordPhase, RequestFingerprint, StoredReply,
};

use super::answer;
use crate::fingerprint::{FingerprintInput, FingerprintParts};
use crate::idempotent::protection::is_sealed;
use crate::idempotent::run::outcome::headers_of;

/// The approximate overhead of an entry, and of a header.
const OVERHEAD: usize = 512;
const HEADER: usize = 96;

/// A longer request is not kept: to read it again costs less than its room is worth.
const ASKED_MAX: usize = 16 << 10;

/// A request that ended, and its answer.
pub struct CachedReply {
    /// If `ready` is set, only what a 410 needs.
    record: LedgerRecord,
    ready: Option<ReadyReply>,
    exact: Option<ExactRequest>,
}

/// An answer but for what differs from one time to the next.
pub(super) struct ReadyReply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Until when.
    ends: Moment,
}

/// How it was asked, and what that came to.
pub(super) struct ExactRequest {
    principal: Box<str>,
    path: Box<str>,
    query: Box<str>,
    headers: Vec<(Box<str>, Box<[u8]>)>,
    media_type: Box<str>,
    body: Box<[u8]>,
    /// By which rules.
    parts: FingerprintParts,
    print: RequestFingerprint,
    older: Vec<RequestFingerprint>,
}

/// A cache hit.
pub(super) enum CacheHit<'a> {
    /// This.
    Ready(&'a ReadyReply),
    /// The ledger's decision.
    Decided(LedgerAnswer),
}

impl CachedReply {
    /// `None` if the request has not completed or has no stored reply.
    #[must_use]
    pub fn new(record: &LedgerRecord) -> Option<Self> {
        let RecordPhase::Completed { reply, at } = &record.phase else { return None };
        let body = reply.body.as_ref()?;
        if is_sealed(reply) {
            return Some(Self { record: record.clone(), ready: None, exact: None });
        }
        let (ends, _) = record.ends()?;
        let mut headers = headers_of(&reply.headers);
        answer::replayed(&mut headers, record.first, ends, false);
        let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let ready = ReadyReply { status, headers, body: Bytes::copy_from_slice(body), ends };
        let is_location = |(name, _): &&(String, Vec<u8>)| name.eq_ignore_ascii_case("location");
        let location = reply.headers.iter().find(is_location).cloned();
        let slim = StoredReply {
            status: reply.status,
            headers: location.into_iter().collect(),
            body: Some(Vec::new()),
        };
        let resource = record.resource.clone();
        let record =
            LedgerRecord { phase: RecordPhase::Completed { reply: slim, at: *at }, resource, ..*record };
        Some(Self { record, ready: Some(ready), exact: None })
    }

    /// With how it was asked.
    pub(super) fn asked(self, exact: Option<ExactRequest>) -> Self {
        Self { exact, ..self }
    }

    /// How many bytes it takes, roughly.
    #[must_use]
    pub fn size(&self) -> usize {
        let ready = self.ready.as_ref().map_or(0, |ready| {
            let headers =
                ready.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER);
            ready.body.len() + headers.sum::<usize>()
        });
        let stored = match &self.record.phase {
            RecordPhase::Completed { reply, .. } => {
                let headers = reply.headers.iter().map(|(name, value)| name.len() + value.len() + HEADER);
                headers.sum::<usize>() + reply.body.as_ref().map_or(0, Vec::len)
            }
            _ => 0,
        };
        OVERHEAD + ready + stored + self.exact.as_ref().map_or(0, ExactRequest::size)
    }

    /// The fingerprints of a byte-identical request.
    pub(super) fn prints(
        &self,
        asked: &FingerprintInput<'_>,
        parts: &FingerprintParts,
    ) -> Option<(RequestFingerprint, Vec<RequestFingerprint>)> {
        let exact = self.exact.as_ref().filter(|exact| exact.is(asked, parts))?;
        Some((exact.print, exact.older.clone()))
    }

    /// The response to a request, as the ledger would decide; `None` if the reply has expired, so that the ledger
    /// decides.
    pub(super) fn answer(&self, ask: &ClaimRequest, now: Moment) -> Option<CacheHit<'_>> {
        if let Some(ready) = &self.ready
            && ready.ends > now
            && ask.is_same_as(&self.record.print)
        {
            return Some(CacheHit::Ready(ready));
        }
        match ledger::claim(Some(&self.record), ask, now) {
            LedgerClaim::Say(answer) => Some(CacheHit::Decided(answer)),
            LedgerClaim::Run(_) | LedgerClaim::Probe(_) | LedgerClaim::Hold(_) => None,
        }
    }
}

impl ExactRequest {
    /// `None` if the request is too large to cache.
    pub(super) fn of(
        asked: &FingerprintInput<'_>,
        parts: &FingerprintParts,
        ask: &ClaimRequest,
    ) -> Option<Self> {
        let headers = asked.headers.iter().map(|(name, value)| (Box::from(*name), Box::from(*value)));
        let exact = Self {
            principal: asked.principal.into(),
            path: asked.path.into(),
            query: asked.query.into(),
            headers: headers.collect(),
            media_type: asked.media_type.into(),
            body: asked.body.into(),
            parts: parts.clone(),
            print: ask.print,
            older: ask.older.clone(),
        };
        (exact.size() <= ASKED_MAX).then_some(exact)
    }

    /// The tenant is part of the cache key and not compared.
    fn is(&self, asked: &FingerprintInput<'_>, parts: &FingerprintParts) -> bool {
        let Self { principal, path, query, headers, media_type, body, .. } = self;
        let headers = headers.iter().map(|(name, value)| (&**name, &**value));
        **body == *asked.body
            && **path == *asked.path
            && **query == *asked.query
            && **principal == *asked.principal
            && **media_type == *asked.media_type
            && headers.eq(asked.headers.iter().copied())
            && self.parts == *parts
    }

    fn size(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len() + HEADER);
        let parts = self.parts.only.iter().chain(&self.parts.without).map(|part| part.len() + HEADER);
        let texts = [&self.principal, &self.path, &self.query, &self.media_type].map(|text| text.len());
        texts.iter().sum::<usize>() + self.body.len() + headers.sum::<usize>() + parts.sum::<usize>()
    }
}

/// Omits request and reply.
impl fmt::Debug for CachedReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { record, ready, .. } = self;
        let mut it = f.debug_struct("CachedReply");
        it.field("first", &record.first).field("attempt", &record.attempt).field("ready", &ready.is_some());
        it.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redrive_core::ledger::{Effects, Retention};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(hours: u32) -> Moment {
        Moment::from_nanos(1_000_000_000_000) + HOUR * hours
    }

    fn ask(hash: u8) -> ClaimRequest {
        ClaimRequest {
            print: RequestFingerprint { version: 1, hash: [hash; 32] },
            older: vec![RequestFingerprint { version: 0, hash: [9; 32] }],
            effects: Effects::Keyed,
            lease: HOUR,
            retention: Retention { answer: HOUR },
            first_sent: None,
            skew: Duration::ZERO,
        }
    }

    fn ended(headers: &[(&str, &str)]) -> LedgerRecord {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()));
        let reply = StoredReply { status: 201, headers: headers.collect(), body: Some(b"booked".to_vec()) };
        LedgerRecord {
            print: ask(1).print,
            first: at(0),
            epoch: 7,
            attempt: 2,
            phase: RecordPhase::Completed { reply, at: at(1) },
            retention: Retention { answer: HOUR },
            resource: Some("7".to_owned()),
        }
    }

    #[test]
    fn what_is_remembered_says_what_the_ledger_would() {
        let plain = ended(&[("location", "/bookings/7"), ("x-twice", "1"), ("x-twice", "2")]);
        let sealed = ended(&[(crate::idempotent::protection::SEALED, "1"), ("location", "/bookings/7")]);
        for record in [plain, sealed] {
            let remembered = CachedReply::new(&record).expect("it is over");
            for (hash, now) in [1, 2].into_iter().flat_map(|hash| [1, 2, 4, 5, 9].map(|now| (hash, at(now))))
            {
                let wanted = ledger::claim(Some(&record), &ask(hash), now);
                match (remembered.answer(&ask(hash), now), &wanted) {
                    (None, LedgerClaim::Run(_)) => {}
                    (Some(CacheHit::Ready(ready)), LedgerClaim::Say(LedgerAnswer::Replay(_))) => {
                        assert_eq!((ready.status, &ready.body[..]), (StatusCode::CREATED, &b"booked"[..]));
                        assert_eq!(ready.headers.get_all("x-twice").iter().collect::<Vec<_>>(), ["1", "2"]);
                    }
                    (Some(CacheHit::Decided(answer)), LedgerClaim::Say(wanted)) => {
                        assert_eq!(answer, *wanted);
                    }
                    (_, wanted) => panic!("{hash} at {now:?}: {wanted:?}"),
                }
            }
        }
    }

    #[test]
    fn what_is_not_over_or_has_no_answer_is_not_remembered() {
        let (began, until) = (at(0), at(1));
        let gone = StoredReply { body: None, ..StoredReply::new(201) };
        for phase in [
            RecordPhase::InFlight { began, until },
            RecordPhase::Unknown { since: began },
            RecordPhase::Retriable { not_before: None, since: began },
            RecordPhase::Tombstone { status: None, location: None, until },
            RecordPhase::Completed { reply: gone, at: began },
        ] {
            assert!(CachedReply::new(&LedgerRecord { phase, ..ended(&[]) }).is_none());
        }
    }

    #[test]
    fn only_the_same_letters_are_taken_for_the_same() {
        let asked = FingerprintInput {
            tenant: "t",
            principal: "p",
            path: "/x",
            query: "q",
            headers: &[("a", b"1"), ("b", b"2")],
            media_type: "application/json",
            body: b"{}",
        };
        let parts = FingerprintParts { only: vec!["/a".to_owned()], without: Vec::new() };
        let exact = ExactRequest::of(&asked, &parts, &ask(1));
        let remembered = CachedReply::new(&ended(&[])).expect("it is over").asked(exact);
        assert_eq!(remembered.prints(&asked, &parts), Some((ask(1).print, ask(1).older)));
        for other in [
            FingerprintInput { principal: "o", ..asked },
            FingerprintInput { path: "/y", ..asked },
            FingerprintInput { query: "", ..asked },
            FingerprintInput { headers: &[("a", b"1"), ("b", b"3")], ..asked },
            FingerprintInput { headers: &[("a", b"1"), ("c", b"2")], ..asked },
            FingerprintInput { headers: &[("a", b"1")], ..asked },
            FingerprintInput { headers: &[("a", b"1"), ("b", b"2"), ("b", b"2")], ..asked },
            FingerprintInput { media_type: "text/plain", ..asked },
            FingerprintInput { body: b"{ }", ..asked },
            FingerprintInput { body: b"", ..asked },
        ] {
            assert_eq!(remembered.prints(&other, &parts), None, "{other:?}");
        }
        for other in
            [FingerprintParts::default(), FingerprintParts { without: vec!["/b".to_owned()], ..parts }]
        {
            assert_eq!(remembered.prints(&asked, &other), None, "by other rules");
        }
    }

    #[test]
    fn what_it_takes_is_counted_and_a_long_request_is_not_kept() {
        let bare = CachedReply::new(&ended(&[])).expect("it is over").size();
        let with = |body: &[u8]| {
            let asked = FingerprintInput { body, ..FingerprintInput::default() };
            let exact = ExactRequest::of(&asked, &FingerprintParts::default(), &ask(1));
            let kept = exact.is_some();
            (CachedReply::new(&ended(&[("a", "b")])).expect("it is over").asked(exact).size(), kept)
        };
        let (small, kept) = with(&[b'x'; 1000]);
        assert!(kept && small >= bare + 1000, "{small} of {bare}");
        let (large, kept) = with(&[b'x'; ASKED_MAX + 1]);
        assert!(!kept && large < small, "{large}");
    }
}
