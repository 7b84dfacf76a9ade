//! The key that encrypts secrets at rest: 32 random bytes in their own file. Keys that seal stored replies have the
//! same form.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use redrive::http::seal::{self, NONCE};

use super::SecretError;
use crate::audit::chain::ChainKey;

/// A key.
#[derive(Clone)]
pub(crate) struct MasterKey {
    seal: seal::SealKey,
    chain: ChainKey,
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(…)")
    }
}

impl MasterKey {
    /// The key in a file.
    pub(crate) fn read(path: &Path) -> Result<Self, SecretError> {
        let cannot = |why: String| SecretError::KeyFile { path: path.to_owned(), why };
        let text = std::fs::read_to_string(path).map_err(|error| cannot(error.to_string()))?;
        check_private(path).map_err(cannot)?;
        let bytes = STANDARD.decode(text.trim()).ok().filter(|bytes| bytes.len() == 32);
        let key = bytes.and_then(|bytes| {
            let seal = seal::SealKey::new(bytes.as_slice().try_into().ok()?);
            Some(Self { seal, chain: ChainKey::derived_from(&bytes) })
        });
        key.ok_or_else(|| {
            cannot(
                "the file does not contain 32 bytes in base64; `redrive secret key` creates one".to_owned(),
            )
        })
    }

    /// Creates a key file that only its owner may read. An existing file is left alone.
    pub(super) fn make(path: &Path) -> Result<(), SecretError> {
        let cannot = |error: std::io::Error| {
            let why = match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    "the key file exists already; secrets locked with it would be lost".to_owned()
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

    /// Encrypts a value, bound to this name and version.
    pub(super) fn lock(&self, name: &str, version: u32, plain: &[u8]) -> Result<Vec<u8>, SecretError> {
        let nonce = random::<NONCE>()?;
        let aad = about(name, version);
        let locked = self.seal.seal(&nonce, &aad, plain).map_err(|_| SecretError::Chance)?;
        Ok([nonce.as_slice(), &locked].concat())
    }

    /// Decrypts a value bound to this name and version; `None` for another name, version or key.
    pub(super) fn open(&self, name: &str, version: u32, locked: &[u8]) -> Option<Vec<u8>> {
        let (nonce, locked) = locked.split_first_chunk::<NONCE>()?;
        let aad = about(name, version);
        self.seal.open(nonce, &aad, locked)
    }

    /// As a key of a ring.
    pub(crate) fn into_inner(self) -> seal::SealKey {
        self.seal
    }

    /// The key of the audit log's chain.
    pub(crate) const fn chain_key(&self) -> &ChainKey {
        &self.chain
    }
}

/// Refuses a file that other users can write, and warns of one that they can read: Kubernetes mounts those.
pub(crate) fn check_private(path: &Path) -> Result<(), String> {
    let mode = std::fs::metadata(path).map_or(0, |known| known.permissions().mode());
    if mode & 0o022 != 0 {
        return Err(format!(
            "{} can be written by other users; run `chmod 600 {}`",
            path.display(),
            path.display()
        ));
    }
    if mode & 0o044 != 0 {
        tracing::warn!(file = %path.display(), "other users can read this file; restrict it to its owner");
    }
    Ok(())
}

fn about(name: &str, version: u32) -> Vec<u8> {
    format!("redrive secret\0{name}\0{version}").into_bytes()
}

/// Random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], SecretError> {
    seal::random_bytes().map_err(|_| SecretError::Chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_owners_alone_and_is_never_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        MasterKey::make(&path).expect("a key");
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let before = std::fs::read(&path).expect("a file");
        assert!(MasterKey::make(&path).unwrap_err().to_string().contains("exists already"));
        assert_eq!(std::fs::read(&path).expect("a file"), before);
        let key = MasterKey::read(&path).expect("a key");
        assert_eq!(format!("{key:?}"), "MasterKey(…)");
    }

    #[test]
    fn a_key_file_that_others_can_write_is_refused_and_one_that_they_can_read_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        MasterKey::make(&path).expect("a key");
        for (mode, fine) in [(0o600, true), (0o644, true), (0o440, true), (0o660, false), (0o602, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("permissions");
            let read = MasterKey::read(&path);
            assert_eq!(read.is_ok(), fine, "{mode:o}: {read:?}");
        }
    }

    #[test]
    fn what_is_locked_opens_under_its_own_name_version_and_key_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = |name: &str| {
            let path = folder.path().join(name);
            MasterKey::make(&path).expect("a key");
            MasterKey::read(&path).expect("a key")
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
