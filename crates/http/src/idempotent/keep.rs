//! What is kept of an answer, and in which form.
//!
//! An answer is kept so that it can be given again, perhaps for days, in a file that is backed up and read by others.
//! So two things can be said of it. Parts can be left out, by the name of a header or by a JSON pointer: they are
//! never stored, and the replay says which in `Idempotency-Redacted`. And the rest can be sealed, with a ring of keys.
//!
//! The status and `Location` stay in clear: a record outlives its answer, and has to tell both when the answer is
//! gone (410). Both are bound into the seal, as are tenant, operation and key, so that a sealed answer that is moved
//! to another record, or has its status changed, does not open. What no key opens is answered like what is gone, and
//! is never run again. An answer that is stored in clear is replayed although there is a ring now: it was kept before
//! the ring was, or by an operator.
//!
//! Everything is a function of what is given, chance too. It costs one walk over the body where pointers are given,
//! and one pass of the cipher, each way.

use redrive_core::ledger::{Reply, Scope};

use super::super::json::spans;

#[cfg(feature = "seal")]
mod sealed;

/// What names the parts that were left out. Stored with the answer.
pub const REDACTED: &str = redrive_core::names::header::IDEMPOTENCY_REDACTED;

/// What a sealed answer carries in the store, and nowhere else.
pub(crate) const SEALED: &str = "redrive-sealed";

/// Headers that are wrong once the body is another.
const OF_THE_BODY: [&str; 5] = ["content-length", "content-digest", "repr-digest", "digest", "content-md5"];

/// How many headers and pointers there are, at most, and bytes in each.
const PARTS_MAX: usize = 64;
const PART_MAX: usize = 256;

/// Why something cannot be left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// It is no name of a header.
    #[error("`{0}` is no name of a header")]
    Header(String),
    /// It is no pointer.
    #[error("`{0}` is no JSON pointer (RFC 6901) to a part of a body; one begins with a slash")]
    Pointer(String),
    /// There are too many.
    #[error("at most {PARTS_MAX} parts are left out, each named in at most {PART_MAX} bytes")]
    TooMany,
}

/// An answer that no key opens, or that was moved or changed: what can still be told of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no key opens the stored answer")]
pub struct Unopened {
    /// Its status.
    pub status: u16,
    /// Where what was made is.
    pub location: Option<String>,
}

/// The answer could not be sealed, and must not be stored as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer could not be sealed")]
pub struct Unsealed;

/// What is kept of answers: all of it, in clear, unless it says otherwise.
///
/// ```
/// use redrive_core::ledger::{Reply, Scope};
/// use redrive_http::idempotent::keep::Keep;
///
/// let keep = Keep::new().without_headers(["x-token"])?.without(["/card/number"])?;
/// let scope = Scope { tenant: "acme".into(), operation: "POST /cards".into(), key: "k".into() };
/// let body = br#"{"card": {"number": "4111", "brand": "V"}}"#.to_vec();
/// let reply = Reply { status: 201, headers: vec![("x-token".into(), b"t".to_vec())], body: Some(body) };
/// let kept = keep.store(&scope, reply, [0; 24])?;
/// assert_eq!(kept.body.unwrap(), br#"{"card": {"number": null, "brand": "V"}}"#);
/// assert_eq!(kept.headers, [("idempotency-redacted".into(), br#""x-token", "/card/number""#.to_vec())]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Keep {
    headers: Vec<String>,
    pointers: Vec<String>,
    #[cfg(feature = "seal")]
    ring: Option<std::sync::Arc<crate::seal::Ring>>,
}

impl Keep {
    /// All of it, in clear.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// All but these headers.
    ///
    /// # Errors
    /// Where one is no name, or there are too many.
    pub fn without_headers<N: AsRef<str>>(
        mut self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self, KeepError> {
        for name in names {
            let name = name.as_ref();
            let known = http::HeaderName::from_bytes(name.as_bytes());
            self.headers.push(known.map_err(|_| KeepError::Header(name.to_owned()))?.as_str().to_owned());
        }
        self.check()
    }

    /// All but what these JSON pointers point to, in whose place `null` is kept. The step `*` means every item of a
    /// list. A body that is no JSON is then not kept at all, because nobody can tell what is in it: a replay is 410.
    ///
    /// # Errors
    /// Where one is no pointer, or points to the whole body, or there are too many.
    pub fn without<P: AsRef<str>>(
        mut self,
        pointers: impl IntoIterator<Item = P>,
    ) -> Result<Self, KeepError> {
        for pointer in pointers {
            let pointer = pointer.as_ref();
            if !spans::is_pointer(pointer) || pointer.is_empty() {
                return Err(KeepError::Pointer(pointer.to_owned()));
            }
            self.pointers.push(pointer.to_owned());
        }
        self.check()
    }

    /// Sealed with the first key of a ring; opened with any.
    #[cfg(feature = "seal")]
    #[must_use]
    pub fn sealed(mut self, ring: impl Into<std::sync::Arc<crate::seal::Ring>>) -> Self {
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

    /// An answer as it is to be stored. The nonce is used where it is sealed, and is to be drawn by chance for each.
    ///
    /// # Errors
    /// Where it could not be sealed: it must not be stored then, but as one without headers and body.
    pub fn store(&self, scope: &Scope, reply: Reply, nonce: [u8; 24]) -> Result<Reply, Unsealed> {
        self.seal(scope, self.redact(reply), nonce)
    }

    /// The same with chance from the system. What cannot be sealed is stored as an answer that is gone.
    #[must_use]
    pub fn kept(&self, scope: &Scope, reply: Reply) -> Reply {
        let nonce = if self.seals() { chance() } else { Some([0; 24]) };
        self.kept_by(scope, reply, nonce)
    }

    fn kept_by(&self, scope: &Scope, reply: Reply, nonce: Option<[u8; 24]>) -> Reply {
        // What is left out is in neither.
        let reply = self.redact(reply);
        let (status, location) = (reply.status, self.seals().then(|| reply.location()).flatten());
        let stored = nonce.and_then(|nonce| self.seal(scope, reply, nonce).ok());
        stored.unwrap_or_else(|| {
            let location = location.map(|location| ("location".to_owned(), location.into_bytes()));
            Reply { status, headers: location.into_iter().collect(), body: None }
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
    fn seal(&self, scope: &Scope, reply: Reply, nonce: [u8; 24]) -> Result<Reply, Unsealed> {
        #[cfg(feature = "seal")]
        if let Some(ring) = &self.ring {
            return sealed::seal(ring.first(), scope, reply, &nonce).map_err(|_| Unsealed);
        }
        Ok(reply)
    }

    /// An answer as it is to be given again.
    ///
    /// # Errors
    /// Where it is sealed and no key opens it, or it belongs to another request.
    #[cfg_attr(
        not(feature = "seal"),
        expect(unused_variables, reason = "nothing is opened without the feature")
    )]
    pub fn replay(&self, scope: &Scope, reply: Reply) -> Result<Reply, Unopened> {
        if !is_sealed(&reply) {
            return Ok(reply);
        }
        #[cfg(feature = "seal")]
        if let Some(ring) = &self.ring {
            return sealed::open(ring, scope, &reply).ok_or_else(|| unopened(&reply));
        }
        Err(unopened(&reply))
    }

    fn check(self) -> Result<Self, KeepError> {
        let parts = || self.headers.iter().chain(&self.pointers);
        let few = parts().count() <= PARTS_MAX && parts().all(|part| part.len() <= PART_MAX);
        if few { Ok(self) } else { Err(KeepError::TooMany) }
    }

    /// Leaves out what is not to be stored.
    fn redact(&self, mut reply: Reply) -> Reply {
        // A handler that could say so would decide what the store is asked to open.
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
            // What cannot be looked into may hold any of them.
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
    crate::seal::chance().ok()
}

/// Nothing is sealed without the feature, so none is needed.
#[cfg(not(feature = "seal"))]
const fn chance() -> Option<[u8; 24]> {
    None
}

/// Whether a stored answer is sealed.
#[must_use]
pub fn is_sealed(reply: &Reply) -> bool {
    reply.headers.first().is_some_and(|(name, _)| name == SEALED)
}

fn unopened(reply: &Reply) -> Unopened {
    Unopened { status: reply.status, location: reply.location() }
}

fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Strings of a structured field (RFC 9651), which are ASCII: other letters are told as in an address.
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
