//! A sealed answer, byte for byte.
//!
//! All headers and the body are sealed together, so that parts of two replies cannot be combined. The stored form is
//! a reply again: the status; a header `redrive-sealed` with the format version, the key id and the nonce; `Location`
//! in plain text, if there was one; and the sealed bytes as the body. A reply without a body must stay one, so its
//! sealed bytes go into the header.

use redrive_core::ledger::{RequestScope, StoredReply};

use super::SEALED;
use crate::seal::{KeyRing, Nonce, NotSealed, SealKey, SealKeyId};

/// The current format version.
const VERSION: u8 = 1;

/// Seals an answer.
pub(super) fn seal(
    key: &SealKey,
    scope: &RequestScope,
    reply: StoredReply,
    nonce: &Nonce,
) -> Result<StoredReply, NotSealed> {
    let location = location(&reply).map(<[u8]>::to_vec);
    let about = about(scope, reply.status, location.as_deref());
    let sealed = key.seal(nonce, &about, &written(&reply))?;
    let mut mark = [&[VERSION][..], &key.id(), nonce].concat();
    let body = match reply.body {
        Some(_) => Some(sealed),
        None => {
            mark.extend(sealed);
            None
        }
    };
    let mut headers = vec![(SEALED.to_owned(), mark)];
    headers.extend(location.map(|location| ("location".to_owned(), location)));
    Ok(StoredReply { status: reply.status, headers, body })
}

/// Opens a sealed answer.
pub(super) fn open(ring: &KeyRing, scope: &RequestScope, reply: &StoredReply) -> Option<StoredReply> {
    let (_, mark) = reply.headers.first()?;
    let (version, mark) = mark.split_first()?;
    let (id, mark) = mark.split_first_chunk::<{ size_of::<SealKeyId>() }>()?;
    let (nonce, rest) = mark.split_first_chunk()?;
    if *version != VERSION {
        return None;
    }
    let sealed = reply.body.as_deref().unwrap_or(rest);
    let about = about(scope, reply.status, location(reply));
    let plain = ring.by_id(*id)?.open(nonce, &about, sealed)?;
    read(reply.status, &plain)
}

fn location(reply: &StoredReply) -> Option<&[u8]> {
    let found = reply.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("location"));
    found.map(|(_, value)| value.as_slice())
}

/// The associated data of a seal. Every field is preceded by its length, so that fields cannot run together.
fn about(scope: &RequestScope, status: u16, location: Option<&[u8]>) -> Vec<u8> {
    let RequestScope { tenant, operation, key } = scope;
    let mut about = b"redrive answer\0".to_vec();
    about.push(VERSION);
    for field in [tenant.as_bytes(), operation.as_bytes(), key.as_bytes(), &status.to_be_bytes()] {
        put(&mut about, field);
    }
    about.push(u8::from(location.is_some()));
    put(&mut about, location.unwrap_or_default());
    about
}

fn put(to: &mut Vec<u8>, field: &[u8]) {
    to.extend(u64::try_from(field.len()).unwrap_or(u64::MAX).to_be_bytes());
    to.extend(field);
}

/// Headers and body in one sequence: the number of headers, each name and value, and the body after a byte that says
/// whether there is one.
fn written(reply: &StoredReply) -> Vec<u8> {
    let mut plain = u64::try_from(reply.headers.len()).unwrap_or(u64::MAX).to_be_bytes().to_vec();
    for (name, value) in &reply.headers {
        put(&mut plain, name.as_bytes());
        put(&mut plain, value);
    }
    plain.push(u8::from(reply.body.is_some()));
    plain.extend(reply.body.as_deref().unwrap_or_default());
    plain
}

fn read(status: u16, plain: &[u8]) -> Option<StoredReply> {
    let mut rest = plain;
    let count = number(&mut rest)?;
    let mut headers = Vec::new();
    for _ in 0..count {
        let name = String::from_utf8(field(&mut rest)?.to_vec()).ok()?;
        headers.push((name, field(&mut rest)?.to_vec()));
    }
    let (has_body, body) = rest.split_first()?;
    Some(StoredReply { status, headers, body: (*has_body == 1).then(|| body.to_vec()) })
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    let (bytes, after) = rest.split_first_chunk::<8>()?;
    *rest = after;
    usize::try_from(u64::from_be_bytes(*bytes)).ok()
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = number(rest)?;
    let (field, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(field)
}
