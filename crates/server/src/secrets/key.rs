//! The key that locks secrets at rest: 32 random bytes, in a file of their own. Those that seal stored answers are
//! files of the same form.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use redrive::http::seal::{self, NONCE};

use super::SecretError;

/// A key.
#[derive(Clone)]
pub(crate) struct Key(seal::Key);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// The key in a file.
    pub(crate) fn read(path: &Path) -> Result<Self, SecretError> {
        let cannot = |why: String| SecretError::KeyFile { path: path.to_owned(), why };
        let text = std::fs::read_to_string(path).map_err(|error| cannot(error.to_string()))?;
        let mode = std::fs::metadata(path).map_or(0, |known| known.permissions().mode());
        if mode & 0o077 != 0 {
            tracing::warn!(file = %path.display(), "others than its owner may read this key");
        }
        let bytes = STANDARD.decode(text.trim()).ok().filter(|bytes| bytes.len() == 32);
        let key = bytes.and_then(|bytes| Some(seal::Key::new(bytes.as_slice().try_into().ok()?)));
        key.map(Self).ok_or_else(|| {
            cannot("it does not hold 32 bytes in base64; `redrive secret key` makes one".to_owned())
        })
    }

    /// Makes a file with a new key, which only its owner may read. One that is there is left alone.
    pub(super) fn make(path: &Path) -> Result<(), SecretError> {
        let cannot = |error: std::io::Error| {
            let why = match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    "there is one already; what it locked would be lost without it".to_owned()
                }
                _ => error.to_string(),
            };
            SecretError::KeyFile { path: path.to_owned(), why }
        };
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(cannot)?;
        let text = format!("{}\n", STANDARD.encode(random::<32>()?));
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(cannot)
    }

    /// Locks what may be read under this name and version alone.
    pub(super) fn lock(&self, name: &str, version: u32, plain: &[u8]) -> Result<Vec<u8>, SecretError> {
        let nonce = random::<NONCE>()?;
        let aad = about(name, version);
        let locked = self.0.seal(&nonce, &aad, plain).map_err(|_| SecretError::Chance)?;
        Ok([nonce.as_slice(), &locked].concat())
    }

    /// What was locked under this name and version; `None` where it was not, or by another key.
    pub(super) fn open(&self, name: &str, version: u32, locked: &[u8]) -> Option<Vec<u8>> {
        let (nonce, locked) = locked.split_first_chunk::<NONCE>()?;
        let aad = about(name, version);
        self.0.open(nonce, &aad, locked)
    }

    /// As a key of a ring.
    pub(crate) fn into_inner(self) -> seal::Key {
        self.0
    }
}

fn about(name: &str, version: u32) -> Vec<u8> {
    format!("redrive secret\0{name}\0{version}").into_bytes()
}

/// So many bytes by chance.
pub(super) fn random<const N: usize>() -> Result<[u8; N], SecretError> {
    seal::chance().map_err(|_| SecretError::Chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_owners_alone_and_is_never_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        Key::make(&path).expect("a key");
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let before = std::fs::read(&path).expect("a file");
        assert!(Key::make(&path).unwrap_err().to_string().contains("there is one already"));
        assert_eq!(std::fs::read(&path).expect("a file"), before);
        let key = Key::read(&path).expect("a key");
        assert_eq!(format!("{key:?}"), "Key(…)");
    }

    #[test]
    fn what_is_locked_opens_under_its_own_name_version_and_key_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = |name: &str| {
            let path = folder.path().join(name);
            Key::make(&path).expect("a key");
            Key::read(&path).expect("a key")
        };
        let (ours, other) = (key("a"), key("b"));
        let locked = ours.lock("orders", 1, b"plain").expect("locked");
        assert_eq!(ours.open("orders", 1, &locked).as_deref(), Some(&b"plain"[..]));
        assert_eq!(ours.open("orders", 2, &locked), None);
        assert_eq!(ours.open("order", 1, &locked), None);
        assert_eq!(other.open("orders", 1, &locked), None);
        let mut damaged = locked.clone();
        *damaged.last_mut().expect("bytes") ^= 1;
        assert_eq!(ours.open("orders", 1, &damaged), None);
        assert_eq!(ours.open("orders", 1, b"short"), None);
        assert_ne!(ours.lock("orders", 1, b"plain").expect("locked"), locked);
    }
}
