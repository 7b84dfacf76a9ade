//! A lock for what is stored: 32 bytes that nobody prints, and a cipher that notices every change.
//!
//! XChaCha20-Poly1305, because its nonces are long enough to be drawn by chance, by any number of processes that know
//! nothing of each other. What is locked is bound to a text that says what it is: moved elsewhere, it does not open.
//! Nothing here has chance of its own but [`chance`].

use std::fmt;

use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};

/// Bytes of a nonce: so many that they can be drawn by chance.
pub const NONCE: usize = 24;

/// Never twice under one key.
pub type Nonce = [u8; NONCE];

/// Which key, without telling what it is.
pub type KeyId = [u8; 8];

/// What a key's id is derived for.
const CONTEXT: &str = "redrive 2026 seal key id v1";

/// The system gave no random bytes, or the cipher no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gave no random bytes, or no memory")]
pub struct NotSealed;

/// A key. It shows its id, and never itself.
#[derive(Clone)]
pub struct Key {
    id: KeyId,
    cipher: XChaCha20Poly1305,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// The key that these bytes are. They are best drawn by chance.
    #[must_use]
    pub fn new(bytes: &[u8; 32]) -> Self {
        let hash = blake3::derive_key(CONTEXT, bytes);
        let mut id = KeyId::default();
        id.copy_from_slice(&hash[..8]);
        Self { id, cipher: XChaCha20Poly1305::new(&(*bytes).into()) }
    }

    /// Its id: the same wherever the key is.
    #[must_use]
    pub const fn id(&self) -> KeyId {
        self.id
    }

    /// Seals what opens with the same `about` alone.
    ///
    /// # Errors
    /// Where the cipher has no memory.
    pub fn seal(&self, nonce: &Nonce, about: &[u8], plain: &[u8]) -> Result<Vec<u8>, NotSealed> {
        self.cipher.encrypt(&XNonce::from(*nonce), Payload { msg: plain, aad: about }).map_err(|_| NotSealed)
    }

    /// What was sealed; `None` where it was about something else, by another key, or was changed.
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
pub enum RingError {
    /// There are none.
    #[error("a ring needs a key to seal with")]
    Empty,
    /// There are too many.
    #[error("a ring has {KEYS_MAX} keys at most; drop those whose answers are gone")]
    TooMany,
    /// One stands there twice.
    #[error("the same key stands in the ring twice")]
    Twice,
}

/// Keys, of which the first seals and all open. A new one is put before the others; one goes when everything that it
/// sealed is gone.
///
/// ```
/// use redrive_http::seal::{Key, Ring};
///
/// let (new, old) = (Key::new(&[2; 32]), Key::new(&[1; 32]));
/// let sealed = old.seal(&[0; 24], b"a note", b"plain").unwrap();
/// let ring = Ring::new([new, old.clone()]).unwrap();
/// assert_eq!(ring.by_id(old.id()).unwrap().open(&[0; 24], b"a note", &sealed).unwrap(), b"plain");
/// ```
#[derive(Debug, Clone)]
pub struct Ring {
    keys: Vec<Key>,
}

impl Ring {
    /// These keys, the one that seals first.
    ///
    /// # Errors
    /// Where there is none, or one twice, or too many.
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Result<Self, RingError> {
        let keys: Vec<Key> = keys.into_iter().take(KEYS_MAX + 1).collect();
        match keys.len() {
            0 => return Err(RingError::Empty),
            many if many > KEYS_MAX => return Err(RingError::TooMany),
            _ => {}
        }
        let twice =
            keys.iter().enumerate().any(|(at, key)| keys[..at].iter().any(|other| other.id == key.id));
        if twice { Err(RingError::Twice) } else { Ok(Self { keys }) }
    }

    /// The key that seals.
    #[must_use]
    pub fn first(&self) -> &Key {
        &self.keys[0]
    }

    /// The key with this id.
    #[must_use]
    pub fn by_id(&self, id: KeyId) -> Option<&Key> {
        self.keys.iter().find(|key| key.id == id)
    }
}

/// So many bytes by chance, from the system.
///
/// # Errors
/// Where it has none to give.
pub fn chance<const N: usize>() -> Result<[u8; N], NotSealed> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| NotSealed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_with_its_own_key_nonce_and_text_alone() {
        let (ours, other) = (Key::new(&[1; 32]), Key::new(&[2; 32]));
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
        let key = Key::new(&[0xab; 32]);
        assert_eq!(format!("{key:?}"), "Key(…)");
        assert_eq!(key.id(), Key::new(&[0xab; 32]).id());
        assert_ne!(key.id(), Key::new(&[0xac; 32]).id());
        assert_ne!(key.id(), [0xab; 8]);
    }

    #[test]
    fn a_ring_has_a_first_key_and_none_twice() {
        let key = |n: usize| Key::new(&[u8::try_from(n).expect("small"); 32]);
        assert_eq!(Ring::new([]).unwrap_err(), RingError::Empty);
        assert_eq!(Ring::new([key(1), key(2), key(1)]).unwrap_err(), RingError::Twice);
        assert_eq!(Ring::new((0..=KEYS_MAX).map(key)).unwrap_err(), RingError::TooMany);
        let ring = Ring::new((0..KEYS_MAX).map(key)).expect("a ring");
        assert_eq!(ring.first().id(), key(0).id());
        assert!(ring.by_id(key(KEYS_MAX - 1).id()).is_some());
        assert!(ring.by_id(key(KEYS_MAX).id()).is_none());
    }
}
