//! The value of a signing secret. It is shown only on explicit request.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::{SecretError, master_key};

/// What Standard Webhooks' secrets begin with.
const PREFIX: &str = "whsec_";

/// The bytes of a secret, 24 to 64, as in Standard Webhooks.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Vec<u8>);

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(…)")
    }
}

impl SecretValue {
    /// A new one, by chance.
    ///
    /// # Errors
    /// Where the system has no chance to give.
    pub fn mint() -> Result<Self, SecretError> {
        Ok(Self(master_key::random::<32>()?.to_vec()))
    }

    /// Parses base64, with `whsec_` before it or without, as verifiers' libraries do.
    ///
    /// # Errors
    /// With the expected form.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        let encoded = text.strip_prefix(PREFIX).unwrap_or(text);
        let bytes = STANDARD.decode(encoded).or_else(|_| STANDARD_NO_PAD.decode(encoded));
        Self::from_bytes(bytes.map_err(|_| SecretError::Value)?)
    }

    pub(super) fn from_bytes(bytes: Vec<u8>) -> Result<Self, SecretError> {
        if (24..=64).contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(SecretError::Value) }
    }

    /// The form for receivers.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}", STANDARD.encode(&self.0))
    }

    /// What signs.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_as_it_is_told_and_shows_nothing_unasked() {
        let value = SecretValue::mint().expect("chance");
        assert_eq!(SecretValue::parse(&value.reveal()).expect("a secret"), value);
        assert_eq!(format!("{value:?}"), "SecretValue(…)");
        for wrong in ["", "whsec_", "whsec_MfKQ", "MfKQ", "a secret of my own!", "whsec_ä"] {
            let told = SecretValue::parse(wrong).unwrap_err().to_string();
            assert!(wrong.is_empty() || !told.contains("MfKQ"), "{told}");
        }
        let with_prefix = SecretValue::parse(" whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").expect("a secret");
        let bare = SecretValue::parse("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("as libraries take it");
        assert_eq!(bare, with_prefix);
    }
}
