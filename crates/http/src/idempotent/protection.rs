//! Redaction and encryption of stored replies.
//!
//! A reply is stored to be replayed, perhaps for days, in a file that is backed up and read by others. So two
//! protections exist. Parts can be redacted, by header name or JSON pointer: they are never stored, and a replay
//! lists them in `Idempotency-Redacted`. The rest can be sealed with a key ring.
//!
//! Status and `Location` stay readable: a record outlives its reply and reports both with a 410. Both are bound into
//! the seal, as are tenant, operation and key, so that a sealed reply that is moved to another record, or whose
//! status is changed, does not open. A reply that no key opens is answered like an expired one, and is never run
//! again. A reply stored unsealed is replayed even if there is a key ring now: it was stored earlier, or by an
//! operator.
//!
//! Everything here is a pure function of its inputs, randomness included. Cost: one pass over the body if there are
//! pointers, and one pass of the cipher, each way.

use redrive_core::ledger::{RequestScope, StoredReply};

use crate::json::spans;

#[cfg(feature = "seal")]
mod sealed;

/// What names the parts that were left out. Stored with the answer.
pub const REDACTED: &str = redrive_core::names::header::IDEMPOTENCY_REDACTED;

/// The header that marks a sealed reply in the store.
pub(crate) const SEALED: &str = "redrive-sealed";

/// Headers that no longer fit a changed body.
const OF_THE_BODY: [&str; 5] = ["content-length", "content-digest", "repr-digest", "digest", "content-md5"];

/// Maximum number of headers and pointers, and bytes of each.
const PARTS_MAX: usize = 64;
const PART_MAX: usize = 256;

/// Why something cannot be left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtectionError {
    /// It is no name of a header.
    #[error("`{0}` is not a valid header name")]
    Header(String),
    /// It is no pointer.
    #[error("`{0}` is not a JSON pointer (RFC 6901) to a part of a body; it must begin with a slash")]
    Pointer(String),
    /// There are too many.
    #[error("too many redacted parts; at most {PARTS_MAX} of at most {PART_MAX} bytes each")]
    TooMany,
}

/// A reply that no key opens, or that was moved or changed; with the readable rest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no key opens the stored reply")]
pub struct UnsealError {
    /// Its status.
    pub status: u16,
    /// The location of the created resource.
    pub location: Option<String>,
}

/// The reply could not be sealed and must not be stored unsealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reply could not be sealed")]
pub struct SealError;

/// The protection of stored replies. By default everything is stored as plain text.
///
/// ```
/// use redrive_core::ledger::{StoredReply, RequestScope};
/// use redrive_http::idempotent::protection::ReplyProtection;
///
/// let keep = ReplyProtection::new().without_headers(["x-token"])?.without(["/card/number"])?;
/// let scope = RequestScope { tenant: "acme".into(), operation: "POST /cards".into(), key: "k".into() };
/// let body = br#"{"card": {"number": "4111", "brand": "V"}}"#.to_vec();
/// let reply = StoredReply { status: 201, headers: vec![("x-token".into(), b"t".to_vec())], body: Some(body) };
/// let kept = keep.store(&scope, reply, [0; 24])?;
/// assert_eq!(kept.body.unwrap(), br#"{"card": {"number": null, "brand": "V"}}"#);
/// assert_eq!(kept.headers, [("idempotency-redacted".into(), br#""x-token", "/card/number""#.to_vec())]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct ReplyProtection {
    headers: Vec<String>,
    pointers: Vec<String>,
    #[cfg(feature = "seal")]
    ring: Option<std::sync::Arc<crate::seal::KeyRing>>,
}

impl ReplyProtection {
    /// All of it, in clear.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// All but these headers.
    ///
    /// # Errors
    /// If a name is invalid, or there are too many.
    pub fn without_headers<N: AsRef<str>>(
        mut self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self, ProtectionError> {
        for name in names {
            let name = name.as_ref();
            let known = http::HeaderName::from_bytes(name.as_bytes());
            self.headers
                .push(known.map_err(|_| ProtectionError::Header(name.to_owned()))?.as_str().to_owned());
        }
        self.check()
    }

    /// Redacts the values at these JSON pointers; `null` is stored instead. The step `*` matches every item of a
    /// list. A body that is not JSON is then not stored at all, because its contents are unknown: a replay is 410.
    ///
    /// # Errors
    /// If a pointer is invalid or points to the whole body, or there are too many.
    pub fn without<P: AsRef<str>>(
        mut self,
        pointers: impl IntoIterator<Item = P>,
    ) -> Result<Self, ProtectionError> {
        for pointer in pointers {
            let pointer = pointer.as_ref();
            if !spans::is_pointer(pointer) || pointer.is_empty() {
                return Err(ProtectionError::Pointer(pointer.to_owned()));
            }
            self.pointers.push(pointer.to_owned());
        }
        self.check()
    }

    /// Sealed with the first key of a ring; opened with any.
    #[cfg(feature = "seal")]
    #[must_use]
    pub fn sealed(mut self, ring: impl Into<std::sync::Arc<crate::seal::KeyRing>>) -> Self {
        self.ring = Some(ring.into());
        self
    }

    /// Whether nothing is left out, and nothing sealed.
    pub(super) const fn keeps_all(&self) -> bool {
        !self.seals() && self.headers.is_empty() && self.pointers.is_empty()
    }

    /// Whether answers are sealed.
    #[must_use]
    pub const fn seals(&self) -> bool {
        #[cfg(feature = "seal")]
        return self.ring.is_some();
        #[cfg(not(feature = "seal"))]
        false
    }

    /// The stored form of a reply. The nonce is used for sealing and must be random for each reply.
    ///
    /// # Errors
    /// If it could not be sealed: store it without headers and body then.
    pub fn store(
        &self,
        scope: &RequestScope,
        reply: StoredReply,
        nonce: [u8; 24],
    ) -> Result<StoredReply, SealError> {
        self.seal(scope, self.redact(reply), nonce)
    }

    /// The same with a random nonce from the system. A reply that cannot be sealed is stored like an expired one.
    #[must_use]
    pub fn kept(&self, scope: &RequestScope, reply: StoredReply) -> StoredReply {
        let nonce = if self.seals() { chance() } else { Some([0; 24]) };
        self.kept_by(scope, reply, nonce)
    }

    fn kept_by(&self, scope: &RequestScope, reply: StoredReply, nonce: Option<[u8; 24]>) -> StoredReply {
        // Redacted parts are in neither.
        let reply = self.redact(reply);
        let (status, location) = (reply.status, self.seals().then(|| reply.location()).flatten());
        let stored = nonce.and_then(|nonce| self.seal(scope, reply, nonce).ok());
        stored.unwrap_or_else(|| {
            let location = location.map(|location| ("location".to_owned(), location.into_bytes()));
            StoredReply { status, headers: location.into_iter().collect(), body: None }
        })
    }

    #[cfg_attr(
        not(feature = "seal"),
        expect(
            unused_variables,
            clippy::unused_self,
            clippy::unnecessary_wraps,
            reason = "nothing is sealed without the feature"
        )
    )]
    fn seal(
        &self,
        scope: &RequestScope,
        reply: StoredReply,
        nonce: [u8; 24],
    ) -> Result<StoredReply, SealError> {
        #[cfg(feature = "seal")]
        if let Some(ring) = &self.ring {
            return sealed::seal(ring.first(), scope, reply, &nonce).map_err(|_| SealError);
        }
        Ok(reply)
    }

    /// The original form of a stored reply.
    ///
    /// # Errors
    /// If it is sealed and no key opens it, or it belongs to another request.
    #[cfg_attr(
        not(feature = "seal"),
        expect(unused_variables, reason = "nothing is opened without the feature")
    )]
    pub fn replay(&self, scope: &RequestScope, reply: StoredReply) -> Result<StoredReply, UnsealError> {
        if !is_sealed(&reply) {
            return Ok(reply);
        }
        #[cfg(feature = "seal")]
        if let Some(ring) = &self.ring {
            return sealed::open(ring, scope, &reply).ok_or_else(|| unopened(&reply));
        }
        Err(unopened(&reply))
    }

    fn check(self) -> Result<Self, ProtectionError> {
        let parts = || self.headers.iter().chain(&self.pointers);
        let few = parts().count() <= PARTS_MAX && parts().all(|part| part.len() <= PART_MAX);
        if few { Ok(self) } else { Err(ProtectionError::TooMany) }
    }

    /// Redacts a reply.
    fn redact(&self, mut reply: StoredReply) -> StoredReply {
        // A handler that could set it would control what the store is asked to open.
        reply.headers.retain(|(name, _)| !name.eq_ignore_ascii_case(SEALED));
        let mut left_out: Vec<&str> = Vec::new();
        for name in &self.headers {
            let before = reply.headers.len();
            reply.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
            if reply.headers.len() < before {
                left_out.push(name);
            }
        }
        let body = reply.body.take_if(|body| !self.pointers.is_empty() && !body.is_empty());
        if let Some(body) = body {
            // A body that cannot be parsed may contain any of them.
            if let Ok(found) = spans::of(&body, &self.pointers) {
                let mut pointers: Vec<usize> = found.iter().map(|(pointer, _)| *pointer).collect();
                pointers.sort_unstable();
                pointers.dedup();
                left_out.extend(pointers.iter().map(|at| self.pointers[*at].as_str()));
                let ranges = found.into_iter().map(|(_, range)| range);
                reply.body = Some(spans::replaced(&body, ranges, b"null"));
            }
            if reply.body.as_ref() != Some(&body) {
                reply.headers.retain(|(name, _)| !is_one_of(name, &OF_THE_BODY));
            }
        }
        if !left_out.is_empty() {
            reply.headers.push((REDACTED.to_owned(), list(&left_out).into_bytes()));
        }
        reply
    }
}

#[cfg(feature = "seal")]
fn chance() -> Option<[u8; 24]> {
    crate::seal::random_bytes().ok()
}

/// Nothing is sealed without the feature, so none is needed.
#[cfg(not(feature = "seal"))]
const fn chance() -> Option<[u8; 24]> {
    None
}

/// Whether a stored answer is sealed.
#[must_use]
pub fn is_sealed(reply: &StoredReply) -> bool {
    reply.headers.first().is_some_and(|(name, _)| name == SEALED)
}

fn unopened(reply: &StoredReply) -> UnsealError {
    UnsealError { status: reply.status, location: reply.location() }
}

fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Structured-field strings (RFC 9651) are ASCII: other characters are percent-encoded.
fn list(parts: &[&str]) -> String {
    let quoted = parts.iter().map(|part| {
        let mut text = String::from("\"");
        for byte in part.bytes() {
            match byte {
                b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
                b' '..=b'~' => text.push(char::from(byte)),
                other => text.push_str(&format!("%{other:02X}")),
            }
        }
        text + "\""
    });
    quoted.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
