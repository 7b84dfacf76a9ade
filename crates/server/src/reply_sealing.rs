//! The keys that seal stored answers, as the configuration names them.

use redrive::http::idempotent::protection::ReplyProtection;
use redrive::http::seal::KeyRing;

use crate::config::LedgerSettings;
use crate::secrets::SecretError;
use crate::secrets::master_key::MasterKey;

/// The protection of stored replies: sealed if there are keys, otherwise plain text.
///
/// The files are read each time. Operators rarely look at replies, a reload needs no swap, and a user who may not
/// read the keys can still do everything else.
///
/// # Errors
/// With the file that cannot be read, and why.
pub fn reply_protection(settings: &LedgerSettings) -> Result<ReplyProtection, SecretError> {
    if settings.key_files.is_empty() {
        return Ok(ReplyProtection::new());
    }
    let keys = settings.key_files.iter().map(|path| Ok(MasterKey::read(path)?.into_inner()));
    let ring = KeyRing::new(keys.collect::<Result<Vec<_>, SecretError>>()?).map_err(SecretError::Ring)?;
    Ok(ReplyProtection::new().sealed(ring))
}
