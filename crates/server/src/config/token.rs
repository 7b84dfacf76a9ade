//! Access tokens: their settings, and which are refused.
//!
//! A token that is not one of `redrive token new` has no known strength. The server sees only its hash, so it refuses
//! the hashes of the words that attackers try first, among them those of documentation and of other products.

use std::time::SystemTime;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};

use super::ConfigError;

/// Words whose hashes are refused, in lower case, capitalised and in upper case.
const WELL_KNOWN: &[&str] = &[
    "",
    "0",
    "1",
    "1234",
    "12345",
    "123456",
    "1234567",
    "12345678",
    "123456789",
    "1234567890",
    "abc",
    "abc123",
    "access",
    "admin",
    "administrator",
    "api",
    "apikey",
    "api-key",
    "auth",
    "bearer",
    "bearer-token",
    "change-me",
    "change_me",
    "changeit",
    "changeme",
    "default",
    "demo",
    "dev",
    "development",
    "example",
    "foo",
    "foobar",
    "guest",
    "hello",
    "hunter2",
    "key",
    "letmein",
    "local",
    "login",
    "master",
    "my-secret",
    "my-secret-token",
    "my-token",
    "none",
    "null",
    "p@ssw0rd",
    "pass",
    "passw0rd",
    "password",
    "password1",
    "password123",
    "prod",
    "production",
    "qwerty",
    "rdt_",
    "redrive",
    "root",
    "s3cr3t",
    "s3cret",
    "sample",
    "secret",
    "secret-token",
    "secrettoken",
    "supersecret",
    "swordfish",
    "sysadmin",
    "system",
    "test",
    "test-token",
    "test123",
    "testing",
    "testtoken",
    "token",
    "token123",
    "undefined",
    "user",
    "welcome",
    "your-secret",
    "your-token",
    "your_token",
    "xxx",
];

/// An access token.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenSettings {
    /// `sha256:` and 64 hexadecimal digits. `redrive token new` makes a token and says its hash.
    pub hash: String,
    /// Its rights.
    pub rights: Vec<Right>,
    /// The only tenant it may access; all by default.
    pub tenant: Option<String>,
    /// The only queues it may access; all by default.
    pub queues: Option<Vec<String>>,
    /// When it ends, as `2027-01-31T00:00:00Z`; never by default.
    #[serde(default, deserialize_with = "optional_time")]
    pub expires: Option<SystemTime>,
}

/// A time as `2027-01-31T00:00:00Z`.
fn optional_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = |_| D::Error::custom(format!("`{text}` is not a time; write it as \"2027-01-31T00:00:00Z\""));
    humantime::parse_rfc3339_weak(&text).map(Some).map_err(wrong)
}

/// A right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Publish events.
    Publish,
    /// Lease and settle them.
    Consume,
    /// Look at events, groups, jobs, the audit, metrics.
    Read,
    /// Change them: redrive, discard, pause.
    Operate,
    /// Scrape metrics, and nothing else: no event can be read.
    Metrics,
}

impl Right {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Publish, Self::Consume, Self::Read, Self::Operate, Self::Metrics];

    /// The word in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Consume => "consume",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Metrics => "metrics",
        }
    }
}

impl TokenSettings {
    /// Whether it can be used.
    ///
    /// # Errors
    /// With the reason, and what to do.
    pub(super) fn check(&self, name: &str) -> Result<(), ConfigError> {
        let wrong = |what: &str| ConfigError::value(format!("tokens.{name}{what}"));
        let digits = self.hash.strip_prefix("sha256:").unwrap_or_default();
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong(
                ".hash must be `sha256:` and 64 hexadecimal digits; `redrive token new` prints one",
            ));
        }
        if is_well_known(digits) {
            return Err(wrong(
                ".hash is that of a word that attackers try first; create a token with `redrive token new`",
            ));
        }
        if self.rights.is_empty() {
            let all: Vec<&str> = Right::ALL.iter().map(|right| right.as_str()).collect();
            return Err(wrong(&format!(" has no rights; grant some of {}", all.join(", "))));
        }
        if self.queues.as_ref().is_some_and(Vec::is_empty) {
            return Err(wrong(".queues is empty; name the queues, or remove it for all queues"));
        }
        Ok(())
    }
}

/// Whether these digits are the hash of a well-known word.
fn is_well_known(digits: &str) -> bool {
    let is = |word: &str| {
        let hash = Sha256::digest(word.as_bytes());
        hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>().eq_ignore_ascii_case(digits)
    };
    WELL_KNOWN.iter().any(|word| {
        let capital = word.get(..1).map_or(String::new(), |first| first.to_uppercase() + &word[1..]);
        is(word) || is(&capital) || is(&word.to_uppercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hash: &str) -> Result<(), String> {
        let token = TokenSettings {
            hash: format!("sha256:{hash}"),
            rights: vec![Right::Read],
            tenant: None,
            queues: None,
            expires: None,
        };
        token.check("shop").map_err(|error| error.to_string())
    }

    #[test]
    fn the_hash_of_a_well_known_word_is_refused() {
        // Of "test", which was the sample of our own documentation, in both cases of its digits; and of "Secret".
        let test = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        let secret = Sha256::digest(b"Secret").iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        for hash in [test, &test.to_uppercase(), &secret] {
            let told = check(hash).unwrap_err();
            assert!(told.starts_with("tokens.shop.hash") && told.contains("redrive token new"), "{told}");
        }
        assert_eq!(check(&"0".repeat(64)), Ok(()), "no known token has it");
    }

    #[test]
    fn a_time_is_read_as_it_is_written() {
        let token = |expires: &str| {
            let text = format!("hash = \"\"\nrights = []\nexpires = \"{expires}\"");
            toml::from_str::<TokenSettings>(&text).map(|token| token.expires)
        };
        let is = humantime::parse_rfc3339("2027-01-31T00:00:00Z").expect("a time");
        assert_eq!(token("2027-01-31T00:00:00Z").expect("a time"), Some(is));
        assert!(token("soon").unwrap_err().to_string().contains("is not a time"));
    }
}
