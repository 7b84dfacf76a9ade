//! The keys that seal stored answers, as the configuration names them.

use redrive::http::idempotent::keep::Keep;
use redrive::http::seal::Ring;

use crate::config::LedgerSettings;
use crate::secrets::SecretError;
use crate::secrets::key::Key;

/// What is kept of answers: sealed where there are keys, and in clear where there are none.
///
/// The files are read each time. Operators look at answers rarely, a reload needs nothing swapped, and whoever may
/// not read the keys can still do everything else.
///
/// # Errors
/// With the file that cannot be read, and why.
pub fn keep(settings: &LedgerSettings) -> Result<Keep, SecretError> {
    if settings.key_files.is_empty() {
        return Ok(Keep::new());
    }
    let keys = settings.key_files.iter().map(|path| Ok(Key::read(path)?.into_inner()));
    let ring = Ring::new(keys.collect::<Result<Vec<_>, SecretError>>()?).map_err(SecretError::Ring)?;
    Ok(Keep::new().sealed(ring))
}
