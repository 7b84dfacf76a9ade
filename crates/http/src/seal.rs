//! Authenticated encryption at rest, with keys that are never printed.
//!
//! XChaCha20-Poly1305, because its nonces are long enough to be random, across any number of independent processes.
//! Each ciphertext is bound to a text that describes it: moved elsewhere, it does not open. Only [`random_bytes`]
//! uses randomness.

use std::fmt;

use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};

/// Bytes of a nonce: enough for random nonces.
pub const NONCE: usize = 24;

/// Never twice under one key.
pub type Nonce = [u8; NONCE];

/// The id of a key, without revealing it.
pub type SealKeyId = [u8; 8];

/// The context for deriving a key's id.
const CONTEXT: &str = "redrive 2026 seal key id v1";

/// The system gave no random bytes, or the cipher no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gave no random bytes, or no memory")]
pub struct NotSealed;

/// A key. It shows its id, and never itself.
#[derive(Clone)]
pub struct SealKey {
    id: SealKeyId,
    cipher: XChaCha20Poly1305,
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(…)")
    }
}

impl SealKey {
    /// The key that these bytes are. They are best drawn by chance.
    #[must_use]
    pub fn new(bytes: &[u8; 32]) -> Self {
        let hash = blake3::derive_key(CONTEXT, bytes);
        let mut id = SealKeyId::default();
        id.copy_from_slice(&hash[..8]);
        Self { id, cipher: XChaCha20Poly1305::new(&(*bytes).into()) }
    }

    /// The id: the same in every process.
    #[must_use]
    pub const fn id(&self) -> SealKeyId {
        self.id
    }

    /// Seals `plain`; it opens only with the same `about`.
    ///
    /// # Errors
    /// Where the cipher has no memory.
    pub fn seal(&self, nonce: &Nonce, about: &[u8], plain: &[u8]) -> Result<Vec<u8>, NotSealed> {
        self.cipher.encrypt(&XNonce::from(*nonce), Payload { msg: plain, aad: about }).map_err(|_| NotSealed)
    }

    /// Opens a seal; `None` if `about`, the key or the bytes differ.
    #[must_use]
    pub fn open(&self, nonce: &Nonce, about: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        self.cipher.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: about }).ok()
    }
}

/// How many keys open, at most: one a year for longer than anything is kept.
pub const KEYS_MAX: usize = 16;

/// Why keys are no ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyRingError {
    /// There are none.
    #[error("a key ring needs at least one key")]
    Empty,
    /// There are too many.
    #[error("a key ring has at most {KEYS_MAX} keys; remove those whose replies have expired")]
    TooMany,
    /// A key occurs twice.
    #[error("the same key occurs twice in the key ring")]
    Twice,
}

/// A ring of keys: the first seals, all open. Put a new key first; remove an old one when everything it sealed has
/// expired.
///
/// ```
/// use redrive_http::seal::{SealKey, KeyRing};
///
/// let (new, old) = (SealKey::new(&[2; 32]), SealKey::new(&[1; 32]));
/// let sealed = old.seal(&[0; 24], b"a note", b"plain").unwrap();
/// let ring = KeyRing::new([new, old.clone()]).unwrap();
/// assert_eq!(ring.by_id(old.id()).unwrap().open(&[0; 24], b"a note", &sealed).unwrap(), b"plain");
/// ```
#[derive(Debug, Clone)]
pub struct KeyRing {
    keys: Vec<SealKey>,
}

impl KeyRing {
    /// A ring of these keys; the first one seals.
    ///
    /// # Errors
    /// If there are no keys, a duplicate, or too many.
    pub fn new(keys: impl IntoIterator<Item = SealKey>) -> Result<Self, KeyRingError> {
        let keys: Vec<SealKey> = keys.into_iter().take(KEYS_MAX + 1).collect();
        match keys.len() {
            0 => return Err(KeyRingError::Empty),
            many if many > KEYS_MAX => return Err(KeyRingError::TooMany),
            _ => {}
        }
        let twice =
            keys.iter().enumerate().any(|(at, key)| keys[..at].iter().any(|other| other.id == key.id));
        if twice { Err(KeyRingError::Twice) } else { Ok(Self { keys }) }
    }

    /// The key that seals.
    #[must_use]
    pub fn first(&self) -> &SealKey {
        &self.keys[0]
    }

    /// The key with this id.
    #[must_use]
    pub fn by_id(&self, id: SealKeyId) -> Option<&SealKey> {
        self.keys.iter().find(|key| key.id == id)
    }
}

/// Random bytes from the system.
///
/// # Errors
/// If the system has none.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], NotSealed> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| NotSealed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_with_its_own_key_nonce_and_text_alone() {
        let (ours, other) = (SealKey::new(&[1; 32]), SealKey::new(&[2; 32]));
        let sealed = ours.seal(&[7; NONCE], b"about", b"plain").expect("sealed");
        assert_eq!(ours.open(&[7; NONCE], b"about", &sealed).as_deref(), Some(&b"plain"[..]));
        assert_eq!(ours.open(&[8; NONCE], b"about", &sealed), None);
        assert_eq!(ours.open(&[7; NONCE], b"abouT", &sealed), None);
        assert_eq!(other.open(&[7; NONCE], b"about", &sealed), None);
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert_eq!(ours.open(&[7; NONCE], b"about", &damaged), None, "byte {at}");
        }
        assert_eq!(ours.open(&[7; NONCE], b"about", b""), None);
    }

    #[test]
    fn a_key_shows_nothing_and_has_the_same_id_everywhere() {
        let key = SealKey::new(&[0xab; 32]);
        assert_eq!(format!("{key:?}"), "SealKey(…)");
        assert_eq!(key.id(), SealKey::new(&[0xab; 32]).id());
        assert_ne!(key.id(), SealKey::new(&[0xac; 32]).id());
        assert_ne!(key.id(), [0xab; 8]);
    }

    #[test]
    fn a_ring_has_a_first_key_and_none_twice() {
        let key = |n: usize| SealKey::new(&[u8::try_from(n).expect("small"); 32]);
        assert_eq!(KeyRing::new([]).unwrap_err(), KeyRingError::Empty);
        assert_eq!(KeyRing::new([key(1), key(2), key(1)]).unwrap_err(), KeyRingError::Twice);
        assert_eq!(KeyRing::new((0..=KEYS_MAX).map(key)).unwrap_err(), KeyRingError::TooMany);
        let ring = KeyRing::new((0..KEYS_MAX).map(key)).expect("a ring");
        assert_eq!(ring.first().id(), key(0).id());
        assert!(ring.by_id(key(KEYS_MAX - 1).id()).is_some());
        assert!(ring.by_id(key(KEYS_MAX).id()).is_none());
    }
}
