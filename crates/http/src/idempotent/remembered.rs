//! A request that ended, as a ledger may have it in its process' memory: its answer ready to be sent, and how it was
//! asked, letter for letter.
//!
//! Whoever repeats a request sends the same bytes again, nearly always. Then its fingerprint is the one of the last time,
//! and neither is JSON read nor a hash made; what differs in a single byte is fingerprinted like any other. So nothing is
//! taken for the same that is not.
//!
//! Where answers are sealed or parts of them left out, what was asked may be as delicate: it is not kept then, and what
//! is sealed stays sealed here, too.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use redrive_core::Moment;
use redrive_core::ledger::{self, Answer, Ask, Claim, Phase, Print, Record, Reply};

use super::answer;
use super::keep::is_sealed;
use super::outcome::headers_of;
use crate::fingerprint::{Asked, Parts};

/// What one takes beside its own bytes, roughly; and a header.
const OVERHEAD: usize = 512;
const HEADER: usize = 96;

/// A longer request is not kept: to read it again costs less than its room is worth.
const ASKED_MAX: usize = 16 << 10;

/// A request that ended, and its answer.
pub struct Remembered {
    /// Of one that is ready, only what is told when it is gone.
    record: Record,
    ready: Option<Ready>,
    spelling: Option<Spelling>,
}

/// An answer but for what differs from one time to the next.
pub(super) struct Ready {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Until when.
    ends: Moment,
}

/// How it was asked, and what that came to.
pub(super) struct Spelling {
    principal: Box<str>,
    path: Box<str>,
    query: Box<str>,
    headers: Vec<(Box<str>, Box<[u8]>)>,
    media_type: Box<str>,
    body: Box<[u8]>,
    /// By which rules.
    parts: Parts,
    print: Print,
    older: Vec<Print>,
}

/// What is answered from memory.
pub(super) enum Recalled<'a> {
    /// This.
    Ready(&'a Ready),
    /// What the ledger would say.
    Said(Answer),
}

impl Remembered {
    /// None where it is not over, or has no answer.
    #[must_use]
    pub fn new(record: &Record) -> Option<Self> {
        let Phase::Completed { reply, at } = &record.phase else { return None };
        let body = reply.body.as_ref()?;
        if is_sealed(reply) {
            return Some(Self { record: record.clone(), ready: None, spelling: None });
        }
        let (ends, _) = record.ends()?;
        let mut headers = headers_of(&reply.headers);
        answer::replayed(&mut headers, record.first, ends, false);
        let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let ready = Ready { status, headers, body: Bytes::copy_from_slice(body), ends };
        let is_location = |(name, _): &&(String, Vec<u8>)| name.eq_ignore_ascii_case("location");
        let location = reply.headers.iter().find(is_location).cloned();
        let slim =
            Reply { status: reply.status, headers: location.into_iter().collect(), body: Some(Vec::new()) };
        let resource = record.resource.clone();
        let record = Record { phase: Phase::Completed { reply: slim, at: *at }, resource, ..*record };
        Some(Self { record, ready: Some(ready), spelling: None })
    }

    /// With how it was asked.
    pub(super) fn asked(self, spelling: Option<Spelling>) -> Self {
        Self { spelling, ..self }
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
            Phase::Completed { reply, .. } => {
                let headers = reply.headers.iter().map(|(name, value)| name.len() + value.len() + HEADER);
                headers.sum::<usize>() + reply.body.as_ref().map_or(0, Vec::len)
            }
            _ => 0,
        };
        OVERHEAD + ready + stored + self.spelling.as_ref().map_or(0, Spelling::size)
    }

    /// The fingerprints of a request that is the same, letter for letter.
    pub(super) fn prints(&self, asked: &Asked<'_>, parts: &Parts) -> Option<(Print, Vec<Print>)> {
        let spelling = self.spelling.as_ref().filter(|spelling| spelling.is(asked, parts))?;
        Some((spelling.print, spelling.older.clone()))
    }

    /// What a request is answered, as the ledger would answer it; none where that has the last word, because its time is
    /// over.
    pub(super) fn answer(&self, ask: &Ask, now: Moment) -> Option<Recalled<'_>> {
        if let Some(ready) = &self.ready
            && ready.ends > now
            && ask.is_same_as(&self.record.print)
        {
            return Some(Recalled::Ready(ready));
        }
        match ledger::claim(Some(&self.record), ask, now) {
            Claim::Say(answer) => Some(Recalled::Said(answer)),
            Claim::Run(_) | Claim::Probe(_) | Claim::Hold(_) => None,
        }
    }
}

impl Spelling {
    /// Nothing where that is too much to keep.
    pub(super) fn of(asked: &Asked<'_>, parts: &Parts, ask: &Ask) -> Option<Self> {
        let headers = asked.headers.iter().map(|(name, value)| (Box::from(*name), Box::from(*value)));
        let spelling = Self {
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
        (spelling.size() <= ASKED_MAX).then_some(spelling)
    }

    /// The tenant is not compared: what is remembered is found by it.
    fn is(&self, asked: &Asked<'_>, parts: &Parts) -> bool {
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

/// Without what was asked and answered.
impl fmt::Debug for Remembered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { record, ready, .. } = self;
        let mut it = f.debug_struct("Remembered");
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

    fn ask(hash: u8) -> Ask {
        Ask {
            print: Print { version: 1, hash: [hash; 32] },
            older: vec![Print { version: 0, hash: [9; 32] }],
            effects: Effects::Keyed,
            lease: HOUR,
            retention: Retention { answer: HOUR },
            first_sent: None,
            skew: Duration::ZERO,
        }
    }

    fn ended(headers: &[(&str, &str)]) -> Record {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()));
        let reply = Reply { status: 201, headers: headers.collect(), body: Some(b"booked".to_vec()) };
        Record {
            print: ask(1).print,
            first: at(0),
            epoch: 7,
            attempt: 2,
            phase: Phase::Completed { reply, at: at(1) },
            retention: Retention { answer: HOUR },
            resource: Some("7".to_owned()),
        }
    }

    #[test]
    fn what_is_remembered_says_what_the_ledger_would() {
        let plain = ended(&[("location", "/bookings/7"), ("x-twice", "1"), ("x-twice", "2")]);
        let sealed = ended(&[(super::super::keep::SEALED, "1"), ("location", "/bookings/7")]);
        for record in [plain, sealed] {
            let remembered = Remembered::new(&record).expect("it is over");
            for (hash, now) in [1, 2].into_iter().flat_map(|hash| [1, 2, 4, 5, 9].map(|now| (hash, at(now))))
            {
                let wanted = ledger::claim(Some(&record), &ask(hash), now);
                match (remembered.answer(&ask(hash), now), &wanted) {
                    (None, Claim::Run(_)) => {}
                    (Some(Recalled::Ready(ready)), Claim::Say(Answer::Replay(_))) => {
                        assert_eq!((ready.status, &ready.body[..]), (StatusCode::CREATED, &b"booked"[..]));
                        assert_eq!(ready.headers.get_all("x-twice").iter().collect::<Vec<_>>(), ["1", "2"]);
                    }
                    (Some(Recalled::Said(answer)), Claim::Say(wanted)) => assert_eq!(answer, *wanted),
                    (_, wanted) => panic!("{hash} at {now:?}: {wanted:?}"),
                }
            }
        }
    }

    #[test]
    fn what_is_not_over_or_has_no_answer_is_not_remembered() {
        let (began, until) = (at(0), at(1));
        let gone = Reply { body: None, ..Reply::new(201) };
        for phase in [
            Phase::InFlight { began, until },
            Phase::Unknown { since: began },
            Phase::Retriable { not_before: None, since: began },
            Phase::Tombstone { status: None, location: None, until },
            Phase::Completed { reply: gone, at: began },
        ] {
            assert!(Remembered::new(&Record { phase, ..ended(&[]) }).is_none());
        }
    }

    #[test]
    fn only_the_same_letters_are_taken_for_the_same() {
        let asked = Asked {
            tenant: "t",
            principal: "p",
            path: "/x",
            query: "q",
            headers: &[("a", b"1"), ("b", b"2")],
            media_type: "application/json",
            body: b"{}",
        };
        let parts = Parts { only: vec!["/a".to_owned()], without: Vec::new() };
        let spelling = Spelling::of(&asked, &parts, &ask(1));
        let remembered = Remembered::new(&ended(&[])).expect("it is over").asked(spelling);
        assert_eq!(remembered.prints(&asked, &parts), Some((ask(1).print, ask(1).older)));
        for other in [
            Asked { principal: "o", ..asked },
            Asked { path: "/y", ..asked },
            Asked { query: "", ..asked },
            Asked { headers: &[("a", b"1"), ("b", b"3")], ..asked },
            Asked { headers: &[("a", b"1"), ("c", b"2")], ..asked },
            Asked { headers: &[("a", b"1")], ..asked },
            Asked { headers: &[("a", b"1"), ("b", b"2"), ("b", b"2")], ..asked },
            Asked { media_type: "text/plain", ..asked },
            Asked { body: b"{ }", ..asked },
            Asked { body: b"", ..asked },
        ] {
            assert_eq!(remembered.prints(&other, &parts), None, "{other:?}");
        }
        for other in [Parts::default(), Parts { without: vec!["/b".to_owned()], ..parts }] {
            assert_eq!(remembered.prints(&asked, &other), None, "by other rules");
        }
    }

    #[test]
    fn what_it_takes_is_counted_and_a_long_request_is_not_kept() {
        let bare = Remembered::new(&ended(&[])).expect("it is over").size();
        let with = |body: &[u8]| {
            let asked = Asked { body, ..Asked::default() };
            let spelling = Spelling::of(&asked, &Parts::default(), &ask(1));
            let kept = spelling.is_some();
            (Remembered::new(&ended(&[("a", "b")])).expect("it is over").asked(spelling).size(), kept)
        };
        let (small, kept) = with(&[b'x'; 1000]);
        assert!(kept && small >= bare + 1000, "{small} of {bare}");
        let (large, kept) = with(&[b'x'; ASKED_MAX + 1]);
        assert!(!kept && large < small, "{large}");
    }
}
