//! What a worker says of an attempt.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use redrive::event::Cause;
use redrive::event::bounds::RESULT_BYTES_MAX;
use redrive::{Executed, Failure, Fault, Reply};
use serde::Deserialize;

use super::Which;

/// Bytes of the kind and of the code of an error: both become names of groups.
const WORD_BYTES_MAX: usize = 128;
/// Bytes of an error's message that are taken; fewer are kept.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// One lease, and what became of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Item {
    id: String,
    tenant: Option<String>,
    attempt: u32,
    token: String,
    pub(super) say: Say,
    /// Not to be tried again before.
    #[serde(default, with = "redrive::config::optional")]
    after: Option<Duration>,
    error: Option<Wrong>,
    executed: Option<Executed>,
    result: Option<Told>,
}

/// The four words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Say {
    /// It worked.
    Ok,
    /// Trying again may help.
    Retry,
    /// Trying again will not help.
    Permanent,
    /// It is not needed any more.
    Discard,
}

/// Why it failed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wrong {
    kind: Option<String>,
    code: Option<String>,
    message: Option<String>,
}

/// What it leaves behind: text, or bytes.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text, or {\"base64\": \"…\"}")]
enum Told {
    Text(String),
    Bytes { base64: String },
}

impl Item {
    /// Which lease is meant, and what is said.
    pub(super) fn read(self) -> Result<(Which, Reply), String> {
        let Self { id, tenant, attempt, token, say, after, error, executed, result } = self;
        let failed = matches!(say, Say::Retry | Say::Permanent);
        if after.is_some() && say != Say::Retry {
            return Err("`after` goes with `retry` alone".to_owned());
        }
        if (error.is_some() || executed.is_some()) && !failed {
            return Err("`error` and `executed` go with `retry` and `permanent` alone".to_owned());
        }
        if result.is_some() && say != Say::Ok {
            return Err("`result` goes with `ok` alone".to_owned());
        }
        let reply = match say {
            Say::Ok => match result.map(Told::bytes).transpose()? {
                Some(result) => Reply::with_result(result),
                None => Reply::ok(),
            },
            Say::Discard => Reply::discard(),
            Say::Retry | Say::Permanent => {
                let fault = if say == Say::Retry { Fault::transient() } else { Fault::permanent() };
                let fault = fault.executed(executed.unwrap_or_default());
                let fault = after.map_or(fault, |after| fault.not_before(after));
                Failure::new(fault, error.unwrap_or_default().cause()?).into()
            }
        };
        Ok((Which { id, tenant, attempt, token }, reply))
    }
}

impl Wrong {
    fn cause(self) -> Result<Cause, String> {
        let Self { kind, code, message } = self;
        let word = |name: &str, word: Option<String>| match word {
            Some(word) if word.len() > WORD_BYTES_MAX || word.chars().any(char::is_control) => {
                Err(format!("`error.{name}` has at most {WORD_BYTES_MAX} bytes and no control characters"))
            }
            word => Ok(word.filter(|word| !word.is_empty())),
        };
        let message = message.unwrap_or_default();
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(format!("`error.message` has at most {MESSAGE_BYTES_MAX} bytes"));
        }
        let cause = Cause::new(word("kind", kind)?.unwrap_or_else(|| "worker".to_owned()), message);
        Ok(match word("code", code)? {
            Some(code) => cause.code(code),
            None => cause,
        })
    }
}

impl Told {
    fn bytes(self) -> Result<Vec<u8>, String> {
        let bytes = match self {
            Self::Text(text) => text.into_bytes(),
            Self::Bytes { base64 } => {
                STANDARD.decode(base64.as_bytes()).map_err(|error| format!("`result.base64`: {error}"))?
            }
        };
        if bytes.len() > RESULT_BYTES_MAX {
            return Err(format!("`result` has {} bytes, and {RESULT_BYTES_MAX} are kept", bytes.len()));
        }
        Ok(bytes)
    }
}
