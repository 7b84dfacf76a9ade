//! A worker's settlement of an attempt.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use redrive::event::Cause;
use redrive::event::bounds::RESULT_BYTES_MAX;
use redrive::{Executed, Failure, Fault, Reply};
use serde::Deserialize;

use super::LeaseRef;

/// Bytes of the kind and of the code of an error: both become names of groups.
const WORD_BYTES_MAX: usize = 128;
/// Maximum bytes of an error message accepted; fewer are stored.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// One lease and its settlement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settlement {
    id: String,
    tenant: Option<String>,
    attempt: u32,
    token: String,
    pub(super) disposition: DispositionWord,
    /// Not to be tried again before.
    #[serde(default, with = "redrive::config::optional")]
    after: Option<Duration>,
    error: Option<ErrorDetails>,
    executed: Option<Executed>,
    result: Option<ResultBytes>,
}

/// The four words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DispositionWord {
    /// It worked.
    Ok,
    /// Trying again may help.
    Retry,
    /// Trying again will not help.
    Permanent,
    /// It is not needed any more.
    Drop,
}

/// Why it failed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ErrorDetails {
    kind: Option<String>,
    code: Option<String>,
    message: Option<String>,
}

/// The result: text or bytes.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text, or {\"base64\": \"…\"}")]
enum ResultBytes {
    Text(String),
    Bytes { base64: String },
}

impl Settlement {
    /// The lease and the settlement.
    pub(super) fn read(self) -> Result<(LeaseRef, Reply), String> {
        let Self { id, tenant, attempt, token, disposition, after, error, executed, result } = self;
        let failed = matches!(disposition, DispositionWord::Retry | DispositionWord::Permanent);
        if after.is_some() && disposition != DispositionWord::Retry {
            return Err("`after` applies to `retry` only".to_owned());
        }
        if (error.is_some() || executed.is_some()) && !failed {
            return Err("`error` and `executed` apply to `retry` and `permanent` only".to_owned());
        }
        if result.is_some() && disposition != DispositionWord::Ok {
            return Err("`result` applies to `ok` only".to_owned());
        }
        let reply = match disposition {
            DispositionWord::Ok => match result.map(ResultBytes::bytes).transpose()? {
                Some(result) => Reply::with_result(result),
                None => Reply::ok(),
            },
            DispositionWord::Drop => Reply::drop(),
            DispositionWord::Retry | DispositionWord::Permanent => {
                let fault = if disposition == DispositionWord::Retry {
                    Fault::transient()
                } else {
                    Fault::permanent()
                };
                let fault = fault.executed(executed.unwrap_or_default());
                let fault = after.map_or(fault, |after| fault.not_before(after));
                Failure::new(fault, error.unwrap_or_default().cause()?).into()
            }
        };
        Ok((LeaseRef { id, tenant, attempt, token }, reply))
    }
}

impl ErrorDetails {
    fn cause(self) -> Result<Cause, String> {
        let Self { kind, code, message } = self;
        let word = |name: &str, word: Option<String>| match word {
            Some(word) if word.len() > WORD_BYTES_MAX || word.chars().any(char::is_control) => Err(format!(
                "`error.{name}` must have at most {WORD_BYTES_MAX} bytes and no control characters"
            )),
            word => Ok(word.filter(|word| !word.is_empty())),
        };
        let message = message.unwrap_or_default();
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(format!("`error.message` must have at most {MESSAGE_BYTES_MAX} bytes"));
        }
        let cause = Cause::new(word("kind", kind)?.unwrap_or_else(|| "worker".to_owned()), message);
        Ok(match word("code", code)? {
            Some(code) => cause.code(code),
            None => cause,
        })
    }
}

impl ResultBytes {
    fn bytes(self) -> Result<Vec<u8>, String> {
        let bytes = match self {
            Self::Text(text) => text.into_bytes(),
            Self::Bytes { base64 } => {
                STANDARD.decode(base64.as_bytes()).map_err(|error| format!("`result.base64`: {error}"))?
            }
        };
        if bytes.len() > RESULT_BYTES_MAX {
            return Err(format!("`result` has {} bytes; the limit is {RESULT_BYTES_MAX}", bytes.len()));
        }
        Ok(bytes)
    }
}
