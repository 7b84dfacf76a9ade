//! Signing secrets: kept in the store and locked there, open in memory alone.
//!
//! A secret has versions. The newest signs first; the previous one keeps signing until its time is over or an
//! operator drops it, so that receivers can change over while events are sent. Only [`SecretValue::reveal`] shows a value,
//! and it is called only for a new one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use redrive::Redrive;
use redrive::engine::TransactError;
use tokio::time::{Instant, MissedTickBehavior};

use crate::audit::chain::ChainKey;
use crate::config::SecretSettings;

mod error;
pub(crate) mod master_key;
mod secret_value;
mod stored;

pub use error::{SecretError, SigningGap};
pub(crate) use master_key::check_private;
pub use secret_value::SecretValue;

use master_key::MasterKey;
use stored::Row;

/// How many secrets there may be: one for each destination of a large house.
const SECRETS_MAX: usize = 1000;
/// Maximum number of versions that sign at once; one signature each.
const VERSIONS_MAX: usize = 3;
/// Bytes of a name.
const NAME_MAX: usize = 64;

/// How long a copy of the stored secrets signs where other nodes may change them: a secret that is revoked on one
/// node signs nothing on any other after this time.
pub const FRESH: Duration = Duration::from_secs(5);
/// How often the copy is read again: several times within [`FRESH`], so that one slow read stops no signature.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The signing secrets of a server.
#[derive(Debug, Default)]
pub struct Secrets {
    opened: ArcSwap<UnlockedSecrets>,
    /// One change at a time, so that the version opened last is the one written last.
    changing: tokio::sync::Mutex<()>,
    /// Whether other nodes may change them.
    shared: AtomicBool,
}

#[derive(Debug, Default, Clone)]
struct UnlockedSecrets {
    keys: Keys,
    rows: Vec<Row>,
    secrets: BTreeMap<String, Vec<SecretVersion>>,
    /// When the store was asked for them.
    read: Option<Instant>,
}

#[derive(Debug, Default, Clone)]
struct Keys {
    new: Option<MasterKey>,
    old: Option<MasterKey>,
}

/// A version of a secret.
#[derive(Debug, Clone)]
pub struct SecretVersion {
    /// Which, from 1.
    pub version: u32,
    /// When it was set.
    pub created: SystemTime,
    /// Until when it signs, if a newer one replaced it.
    pub until: Option<SystemTime>,
    /// The value; `None` if no key opens it.
    value: Option<Arc<SecretValue>>,
}

impl SecretVersion {
    /// Whether a key opened it.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.value.is_some()
    }
}

/// Whether a secret can have this name.
///
/// # Errors
/// With the reason.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(plain) {
        return Err(format!(
            "`{}` is not a valid secret name; use up to {NAME_MAX} letters, digits, `.`, `_` and `-`",
            name.escape_debug()
        ));
    }
    Ok(())
}

/// Makes a file with a new key, which only its owner may read.
///
/// # Errors
/// If it cannot be created, or exists already.
pub fn make_key(path: &Path) -> Result<(), SecretError> {
    MasterKey::make(path)
}

/// Whether the keys can be read.
///
/// # Errors
/// With the file that cannot, and why.
pub fn check_keys(settings: &SecretSettings) -> Result<(), SecretError> {
    read_keys(settings).map(drop)
}

fn read_keys(settings: &SecretSettings) -> Result<Keys, SecretError> {
    let read = |path: &Option<PathBuf>| path.as_deref().map(MasterKey::read).transpose();
    Ok(Keys { new: read(&settings.key_file)?, old: read(&settings.old_key_file)? })
}

impl Secrets {
    /// Reads the keys and opens the stored secrets. Secrets of the old key are encrypted with the new one, so that
    /// the old one can be removed.
    ///
    /// # Errors
    /// If a key or the store cannot be read. A secret that no key opens is not an error here: its users report it.
    pub async fn load(&self, redrive: &Redrive, settings: &SecretSettings) -> Result<(), SecretError> {
        let _changing = self.changing.lock().await;
        let keys = read_keys(settings)?;
        let relocking = keys.clone();
        redrive.transact(move |tx| relock(tx, &relocking)).await?;
        self.open(redrive, keys).await
    }

    /// Says that other nodes may change the stored secrets. From now on [`watch`](Self::watch) has to run.
    pub fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// Reads the secrets again and again, so that a change on another node arrives here.
    pub async fn watch(&self, redrive: &Redrive) {
        let mut tick = tokio::time::interval(READ_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut in_trouble = false;
        loop {
            tick.tick().await;
            match self.refresh(redrive).await {
                Ok(()) if in_trouble => {
                    in_trouble = false;
                    tracing::info!("the signing secrets are confirmed again");
                }
                Ok(()) => {}
                Err(SecretError::Store(TransactError::Store(redrive::StoreError::Closed))) => return,
                Err(error) => {
                    if !in_trouble {
                        tracing::warn!(%error, "cannot confirm the signing secrets; soon nothing is signed");
                    }
                    in_trouble = true;
                }
            }
        }
    }

    /// Reads the secrets again.
    async fn refresh(&self, redrive: &Redrive) -> Result<(), SecretError> {
        let _changing = self.changing.lock().await;
        let read = Some(Instant::now());
        let rows = redrive.transact(stored::read).await?;
        let before = self.opened.load();
        if before.rows == rows {
            self.opened.store(Arc::new(UnlockedSecrets { read, ..UnlockedSecrets::clone(&before) }));
        } else {
            self.unlock(before.keys.clone(), rows, read);
        }
        Ok(())
    }

    /// The key of the audit log's chain, if there is a key.
    pub(crate) fn chain_key(&self) -> Option<ChainKey> {
        self.opened.load().keys.new.as_ref().map(|key| key.chain_key().clone())
    }

    /// All of them, by name and then by version.
    #[must_use]
    pub fn list(&self) -> Vec<(String, Vec<SecretVersion>)> {
        let opened = self.opened.load();
        opened.secrets.iter().map(|(name, versions)| (name.clone(), versions.clone())).collect()
    }

    /// What signs in this name now, the newest first.
    ///
    /// # Errors
    /// With why nothing can be signed.
    pub fn signing(&self, name: &str, now: SystemTime) -> Result<Vec<Arc<SecretValue>>, SigningGap> {
        let opened = self.opened.load();
        // By a clock that goes on while the process is stopped, and that is read after the secrets.
        let is_stale = opened.read.is_none_or(|read| read.elapsed() > FRESH);
        if is_stale && self.shared.load(Ordering::Relaxed) {
            return Err(SigningGap::Stale);
        }
        let mut versions = opened.secrets.get(name).ok_or(SigningGap::Unknown)?.iter().rev();
        let newest = versions.next().ok_or(SigningGap::Unknown)?;
        let newest = newest.value.clone().ok_or(SigningGap::Locked)?;
        let older = versions.filter(|version| version.until.is_none_or(|until| until > now));
        Ok(std::iter::once(newest).chain(older.filter_map(|version| version.value.clone())).collect())
    }

    /// Sets a secret, replacing all versions. Returns the new version.
    ///
    /// # Errors
    /// If there is no key, or the store failed.
    pub async fn set(&self, redrive: &Redrive, name: &str, value: &SecretValue) -> Result<u32, SecretError> {
        check_name(name).map_err(SecretError::Name)?;
        self.add(redrive, name, value, |_| Ok(Vec::new())).await
    }

    /// Rotates a secret; the previous version keeps signing for a time.
    ///
    /// # Errors
    /// If there is no previous version, no key, or the store failed.
    pub async fn rotate(
        &self,
        redrive: &Redrive,
        name: &str,
        value: &SecretValue,
        keep_old: Duration,
    ) -> Result<u32, SecretError> {
        let now = SystemTime::now();
        let until = millis(now.checked_add(keep_old).unwrap_or(now));
        let unknown = name.to_owned();
        self.add(redrive, name, value, move |mut rows| {
            let newest = rows.last_mut().ok_or_else(|| SecretError::Unknown(unknown.clone()))?;
            newest.until_ms = Some(until);
            rows.retain(|row| row.until_ms.is_some_and(|until| until > millis(now)));
            let surplus = rows.len().saturating_sub(VERSIONS_MAX - 1);
            rows.drain(..surplus);
            Ok(rows)
        })
        .await
    }

    /// Has the newest alone sign from now on.
    ///
    /// # Errors
    /// If there is no such secret, or the store failed.
    pub async fn drop_old(&self, redrive: &Redrive, name: &str) -> Result<(), SecretError> {
        self.keep(redrive, name, |rows| rows.pop().into_iter().collect()).await
    }

    /// Removes a secret with all its versions.
    ///
    /// # Errors
    /// If there is no such secret, or the store failed.
    pub async fn remove(&self, redrive: &Redrive, name: &str) -> Result<(), SecretError> {
        self.keep(redrive, name, |_| Vec::new()).await
    }

    /// Adds a version after the rows that `keep` retains.
    async fn add(
        &self,
        redrive: &Redrive,
        name: &str,
        value: &SecretValue,
        mut keep: impl FnMut(Vec<Row>) -> Result<Vec<Row>, SecretError> + Send + 'static,
    ) -> Result<u32, SecretError> {
        let _changing = self.changing.lock().await;
        let keys = self.opened.load().keys.clone();
        let key = keys.new.clone().ok_or(SecretError::NoKey)?;
        let (name, value, created_ms) = (name.to_owned(), value.clone(), millis(SystemTime::now()));
        let version = redrive
            .transact(move |tx| {
                let (rows, others) = split(stored::read(tx)?, &name);
                let mut names: Vec<_> = others.iter().map(|row| &row.name).collect();
                names.dedup();
                if rows.is_empty() && names.len() >= SECRETS_MAX {
                    return Err(SecretError::TooMany.into());
                }
                let version = rows.last().map_or(1, |row| row.version.saturating_add(1));
                let mut rows = keep(rows)?;
                let locked = key.lock(&name, version, value.bytes())?;
                rows.push(Row { name: name.clone(), version, created_ms, until_ms: None, locked });
                stored::write(tx, &name, &rows)?;
                Ok::<_, Failed>(version)
            })
            .await?;
        self.open(redrive, keys).await?;
        Ok(version)
    }

    /// Keeps of a secret's rows what `keep` leaves.
    async fn keep(
        &self,
        redrive: &Redrive,
        name: &str,
        mut keep: impl FnMut(&mut Vec<Row>) -> Vec<Row> + Send + 'static,
    ) -> Result<(), SecretError> {
        let _changing = self.changing.lock().await;
        let keys = self.opened.load().keys.clone();
        let name = name.to_owned();
        redrive
            .transact(move |tx| {
                let (mut rows, _) = split(stored::read(tx)?, &name);
                if rows.is_empty() {
                    return Err(SecretError::Unknown(name.clone()).into());
                }
                let rows = keep(&mut rows);
                stored::write(tx, &name, &rows)?;
                Ok::<_, Failed>(())
            })
            .await?;
        self.open(redrive, keys).await
    }

    /// Opens the stored secrets.
    async fn open(&self, redrive: &Redrive, keys: Keys) -> Result<(), SecretError> {
        let read = Some(Instant::now());
        let rows = redrive.transact(stored::read).await?;
        self.unlock(keys, rows, read);
        Ok(())
    }

    fn unlock(&self, keys: Keys, rows: Vec<Row>, read: Option<Instant>) {
        let mut secrets: BTreeMap<String, Vec<SecretVersion>> = BTreeMap::new();
        for row in &rows {
            let value = keys.open(row).and_then(|bytes| SecretValue::from_bytes(bytes).ok()).map(Arc::new);
            if value.is_none() {
                tracing::warn!(secret = row.name, version = row.version, "no key opens this secret");
            }
            secrets.entry(row.name.clone()).or_default().push(SecretVersion {
                version: row.version,
                created: time(row.created_ms),
                until: row.until_ms.map(time),
                value,
            });
        }
        self.opened.store(Arc::new(UnlockedSecrets { keys, rows, secrets, read }));
    }
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

impl Keys {
    fn open(&self, row: &Row) -> Option<Vec<u8>> {
        let keys = self.new.iter().chain(&self.old);
        keys.into_iter().find_map(|key| key.open(&row.name, row.version, &row.locked))
    }
}

/// Encrypts with the new key what only the old one opens.
fn relock(tx: &mut redrive::Transaction<'_>, keys: &Keys) -> Result<(), Failed> {
    let (Some(new), Some(old)) = (&keys.new, &keys.old) else { return Ok(()) };
    let all = stored::read(tx)?;
    let mut names: Vec<String> = all.iter().map(|row| row.name.clone()).collect();
    names.dedup();
    for name in names {
        let (mut rows, _) = split(all.clone(), &name);
        let mut changed = false;
        for row in &mut rows {
            let fresh = new.open(&name, row.version, &row.locked).is_some();
            if !fresh && let Some(bytes) = old.open(&name, row.version, &row.locked) {
                row.locked = new.lock(&name, row.version, &bytes)?;
                changed = true;
            }
        }
        if changed {
            stored::write(tx, &name, &rows)?;
        }
    }
    Ok(())
}

/// The rows of a name, by version, and the others.
fn split(rows: Vec<Row>, name: &str) -> (Vec<Row>, Vec<Row>) {
    rows.into_iter().partition(|row| row.name == name)
}

fn millis(at: SystemTime) -> i64 {
    i64::try_from(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}

fn time(millis: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_copy_that_the_store_did_not_confirm_for_five_seconds_signs_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let key_file = folder.path().join("key");
        make_key(&key_file).expect("a key");
        let settings = SecretSettings { key_file: Some(key_file), old_key_file: None };
        let redrive = redrive::testing::memory();
        let (here, there) = (Secrets::default(), Secrets::default());
        for secrets in [&here, &there] {
            secrets.load(&redrive, &settings).await.expect("loaded");
        }
        let signs = |secrets: &Secrets| secrets.signing("orders", SystemTime::now()).map(|all| all.len());
        let value = SecretValue::mint().expect("random bytes");
        here.set(&redrive, "orders", &value).await.expect("set");
        assert_eq!((signs(&here), signs(&there)), (Ok(1), Err(SigningGap::Unknown)));
        there.refresh(&redrive).await.expect("read");
        assert_eq!(signs(&there), Ok(1));
        there.share();
        tokio::time::advance(FRESH).await;
        assert_eq!(signs(&there), Ok(1));
        here.remove(&redrive, "orders").await.expect("removed");
        tokio::time::advance(Duration::from_millis(1)).await;
        // The other node alone can change a store that is not shared, and nothing of it is ever old.
        assert_eq!((signs(&here), signs(&there)), (Err(SigningGap::Unknown), Err(SigningGap::Stale)));
        there.refresh(&redrive).await.expect("read");
        assert_eq!(signs(&there), Err(SigningGap::Unknown));
    }
}
