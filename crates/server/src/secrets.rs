//! Signing secrets: kept in the store and locked there, open in memory alone.
//!
//! A secret has versions. The newest signs first; one before it goes on signing until its time is over or somebody
//! drops it, so that receivers can change over while events are sent. Nothing here shows a value but
//! [`Value::reveal`], and that is called where one was just made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use redrive::Redrive;
use redrive::engine::TransactError;

use crate::config::SecretSettings;

mod kept;
pub(crate) mod key;
mod value;

pub use value::Value;

use kept::Row;
use key::Key;

/// How many secrets there may be: one for each destination of a large house.
const SECRETS_MAX: usize = 1000;
/// How many versions of one sign at once; a signature each.
const VERSIONS_MAX: usize = 3;
/// Bytes of a name.
const NAME_MAX: usize = 64;

/// The signing secrets of a server.
#[derive(Debug, Default)]
pub struct Secrets {
    opened: ArcSwap<Opened>,
    /// One change at a time, so that what is opened last is what was written last.
    changing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Opened {
    keys: Keys,
    secrets: BTreeMap<String, Vec<Version>>,
}

#[derive(Debug, Default, Clone)]
struct Keys {
    new: Option<Key>,
    old: Option<Key>,
}

/// A version of a secret.
#[derive(Debug, Clone)]
pub struct Version {
    /// Which, from 1.
    pub version: u32,
    /// When it was set.
    pub created: SystemTime,
    /// Until when it signs, where a newer one has taken its place.
    pub until: Option<SystemTime>,
    /// What it is; nothing where no key opens it.
    value: Option<Arc<Value>>,
}

impl Version {
    /// Whether a key opened it.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.value.is_some()
    }
}

/// Why nothing can be signed with a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// There is none of that name.
    Unknown,
    /// It is there, and no key opens it: they are of another store, or were changed without the old one beside.
    Locked,
}

impl Lack {
    /// What is to be said of a secret of this name, and done about it.
    #[must_use]
    pub fn told(self, name: &str) -> String {
        match self {
            Self::Unknown => {
                format!("the secret `{name}` is not known; set it with `redrive secret set {name}`")
            }
            Self::Locked => format!(
                "the secret `{name}` is there, and the key does not open it; set secrets.key_file or \
                 secrets.old_key_file to the one that it was locked with, or set it anew with `redrive secret set {name}`"
            ),
        }
    }
}

/// Why something cannot be done with a secret. Never with the secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// There is no key to lock it with.
    #[error(
        "there is no key to lock secrets with; make one with `redrive secret key FILE` and set secrets.key_file"
    )]
    NoKey,
    /// The key cannot be read or made.
    #[error("{}: {why}", path.display())]
    KeyFile {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// There is none of that name.
    #[error("there is no secret `{0}`")]
    Unknown(String),
    /// It cannot have that name.
    #[error("{0}")]
    Name(String),
    /// It is none.
    #[error("a secret is `whsec_` and 24 to 64 bytes in base64")]
    Value,
    /// There are too many.
    #[error("there are {SECRETS_MAX} secrets already; remove one first")]
    TooMany,
    /// The system gave no random bytes, or a cipher failed for want of memory.
    #[error("the system gave no random bytes")]
    Chance,
    /// Keys that are no ring.
    #[error("ledger.key_files: {0}")]
    Ring(redrive::http::seal::RingError),
    /// The store could not.
    #[error(transparent)]
    Store(TransactError),
}

impl From<TransactError> for SecretError {
    fn from(error: TransactError) -> Self {
        match error {
            TransactError::Work(error) => match error.downcast::<Self>() {
                Ok(error) => *error,
                Err(error) => Self::Store(TransactError::Work(error)),
            },
            error => Self::Store(error),
        }
    }
}

/// Whether a secret can have this name.
///
/// # Errors
/// With what is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(plain) {
        return Err(format!(
            "`{}` is no name for a secret; use up to {NAME_MAX} letters, digits, `.`, `_` and `-`",
            name.escape_debug()
        ));
    }
    Ok(())
}

/// Makes a file with a new key, which only its owner may read.
///
/// # Errors
/// Where it cannot be made, or is there already.
pub fn make_key(path: &Path) -> Result<(), SecretError> {
    Key::make(path)
}

/// Whether the keys can be read.
///
/// # Errors
/// With the file that cannot, and why.
pub fn check_keys(settings: &SecretSettings) -> Result<(), SecretError> {
    read_keys(settings).map(drop)
}

fn read_keys(settings: &SecretSettings) -> Result<Keys, SecretError> {
    let read = |path: &Option<PathBuf>| path.as_deref().map(Key::read).transpose();
    Ok(Keys { new: read(&settings.key_file)?, old: read(&settings.old_key_file)? })
}

impl Secrets {
    /// Reads the keys, and opens what is in the store. What the old key had locked is locked with the new one, so
    /// that the old one can go.
    ///
    /// # Errors
    /// Where a key or the store cannot be read. A secret that no key opens is none: what needs it says so.
    pub async fn load(&self, redrive: &Redrive, settings: &SecretSettings) -> Result<(), SecretError> {
        let _changing = self.changing.lock().await;
        let keys = read_keys(settings)?;
        let relocking = keys.clone();
        redrive.transact(move |tx| relock(tx, &relocking)).await?;
        self.open(redrive, keys).await
    }

    /// All of them, by name and then by version.
    #[must_use]
    pub fn list(&self) -> Vec<(String, Vec<Version>)> {
        let opened = self.opened.load();
        opened.secrets.iter().map(|(name, versions)| (name.clone(), versions.clone())).collect()
    }

    /// Why nothing can be signed with it; nothing where it can.
    #[must_use]
    pub fn lacks(&self, name: &str) -> Option<Lack> {
        let opened = self.opened.load();
        match opened.secrets.get(name).and_then(|versions| versions.last()) {
            None => Some(Lack::Unknown),
            Some(newest) if !newest.is_open() => Some(Lack::Locked),
            Some(_) => None,
        }
    }

    /// What signs in this name now, the newest first. `None` where the newest is not there, or not open.
    #[must_use]
    pub fn signing(&self, name: &str, now: SystemTime) -> Option<Vec<Arc<Value>>> {
        let opened = self.opened.load();
        let mut versions = opened.secrets.get(name)?.iter().rev();
        let newest = versions.next()?.value.clone()?;
        let older = versions.filter(|version| version.until.is_none_or(|until| until > now));
        Some(std::iter::once(newest).chain(older.filter_map(|version| version.value.clone())).collect())
    }

    /// Sets a secret, in place of all its versions. Tells the new one's number.
    ///
    /// # Errors
    /// Where there is no key, or the store could not.
    pub async fn set(&self, redrive: &Redrive, name: &str, value: &Value) -> Result<u32, SecretError> {
        check_name(name).map_err(SecretError::Name)?;
        self.add(redrive, name, value, |_| Ok(Vec::new())).await
    }

    /// Sets a newer one, beside which the one before signs for so long.
    ///
    /// # Errors
    /// Where there is none before it, no key, or the store could not.
    pub async fn rotate(
        &self,
        redrive: &Redrive,
        name: &str,
        value: &Value,
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
    /// Where there is none of that name, or the store could not.
    pub async fn drop_old(&self, redrive: &Redrive, name: &str) -> Result<(), SecretError> {
        self.keep(redrive, name, |rows| rows.pop().into_iter().collect()).await
    }

    /// Removes a secret with all its versions.
    ///
    /// # Errors
    /// Where there is none of that name, or the store could not.
    pub async fn remove(&self, redrive: &Redrive, name: &str) -> Result<(), SecretError> {
        self.keep(redrive, name, |_| Vec::new()).await
    }

    /// Adds a version after those of the rows that `keep` keeps.
    async fn add(
        &self,
        redrive: &Redrive,
        name: &str,
        value: &Value,
        mut keep: impl FnMut(Vec<Row>) -> Result<Vec<Row>, SecretError> + Send + 'static,
    ) -> Result<u32, SecretError> {
        let _changing = self.changing.lock().await;
        let keys = self.opened.load().keys.clone();
        let key = keys.new.clone().ok_or(SecretError::NoKey)?;
        let (name, value, created_ms) = (name.to_owned(), value.clone(), millis(SystemTime::now()));
        let version = redrive
            .transact(move |tx| {
                let (rows, others) = split(kept::read(tx)?, &name);
                let mut names: Vec<_> = others.iter().map(|row| &row.name).collect();
                names.dedup();
                if rows.is_empty() && names.len() >= SECRETS_MAX {
                    return Err(SecretError::TooMany.into());
                }
                let version = rows.last().map_or(1, |row| row.version.saturating_add(1));
                let mut rows = keep(rows)?;
                let locked = key.lock(&name, version, value.bytes())?;
                rows.push(Row { name: name.clone(), version, created_ms, until_ms: None, locked });
                kept::write(tx, &name, &rows)?;
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
                let (mut rows, _) = split(kept::read(tx)?, &name);
                if rows.is_empty() {
                    return Err(SecretError::Unknown(name.clone()).into());
                }
                let rows = keep(&mut rows);
                kept::write(tx, &name, &rows)?;
                Ok::<_, Failed>(())
            })
            .await?;
        self.open(redrive, keys).await
    }

    /// Opens what is in the store.
    async fn open(&self, redrive: &Redrive, keys: Keys) -> Result<(), SecretError> {
        let rows = redrive.transact(kept::read).await?;
        let mut secrets: BTreeMap<String, Vec<Version>> = BTreeMap::new();
        for row in rows {
            let value = keys.open(&row).and_then(|bytes| Value::from_bytes(bytes).ok()).map(Arc::new);
            if value.is_none() {
                tracing::warn!(secret = row.name, version = row.version, "no key opens this secret");
            }
            secrets.entry(row.name).or_default().push(Version {
                version: row.version,
                created: time(row.created_ms),
                until: row.until_ms.map(time),
                value,
            });
        }
        self.opened.store(Arc::new(Opened { keys, secrets }));
        Ok(())
    }
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

impl Keys {
    fn open(&self, row: &Row) -> Option<Vec<u8>> {
        let keys = self.new.iter().chain(&self.old);
        keys.into_iter().find_map(|key| key.open(&row.name, row.version, &row.locked))
    }
}

/// Locks with the new key what only the old one opens.
fn relock(tx: &mut redrive::Transaction<'_>, keys: &Keys) -> Result<(), Failed> {
    let (Some(new), Some(old)) = (&keys.new, &keys.old) else { return Ok(()) };
    let all = kept::read(tx)?;
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
            kept::write(tx, &name, &rows)?;
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
