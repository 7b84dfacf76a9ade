//! Checks an event before it is published.

use std::time::Duration;

use super::bounds::{
    ID_BYTES_MAX, KEY_BYTES_MAX, META_BYTES_MAX, PAYLOAD_BYTES_MAX, QUEUE_BYTES_MAX, TENANT_BYTES_MAX,
};
use super::{Event, Expiry, Meta, When};

/// Why an event is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// It has no id.
    #[error("an event needs an id, minted by the owner of the intent; use the same id for a retry")]
    NoId,
    /// A part is too long.
    #[error("the {part} has {bytes} bytes; the limit is {max}")]
    TooLong {
        /// The part's name.
        part: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest length allowed.
        max: usize,
    },
    /// A part contains a control character, which logs and tables cannot show.
    #[error("the {part} `{}` contains a control character", text.escape_debug())]
    ActiveRule {
        /// The part's name.
        part: &'static str,
        /// Its text.
        text: String,
    },
    /// It expires before it may run.
    #[error("it may run {delay:?} after it is published and expires after {expires:?}: it would never run")]
    Stillborn {
        /// When it may run.
        delay: Duration,
        /// When it expires.
        expires: Duration,
    },
    /// The name of a queue has characters that a metric label or a path cannot have.
    #[error("`{}` is not a valid queue name; use letters, digits, `.`, `_` and `-`", name.escape_debug())]
    QueueName {
        /// The name.
        name: String,
    },
}

impl Event {
    /// Checks its parts against the limits in [`bounds`](super::bounds).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), EventError> {
        check_queue_name(&self.queue)?;
        if self.id.is_empty() {
            return Err(EventError::NoId);
        }
        text("id", &self.id, ID_BYTES_MAX)?;
        text("tenant", &self.tenant, TENANT_BYTES_MAX)?;
        text("key", self.key.as_deref().unwrap_or_default(), KEY_BYTES_MAX)?;
        length("payload", self.payload.len(), PAYLOAD_BYTES_MAX)?;
        if let (When::After(delay), Some(Expiry::After(expires))) = (self.when, self.expires)
            && expires <= delay
        {
            return Err(EventError::Stillborn { delay, expires });
        }
        self.meta.as_deref().map_or(Ok(()), check_meta)
    }
}

/// Checks the name of a queue.
///
/// # Errors
/// What is wrong with it.
pub fn check_queue_name(name: &str) -> Result<(), EventError> {
    length("queue", name.len(), QUEUE_BYTES_MAX)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || !name.bytes().all(plain) {
        return Err(EventError::QueueName { name: name.to_owned() });
    }
    Ok(())
}

fn check_meta(meta: &Meta) -> Result<(), EventError> {
    let Meta { headers, content_type, correlation, causation, tuning: _ } = meta;
    let named = [("content type", content_type), ("correlation", correlation), ("causation", causation)];
    let mut bytes = 0;
    for (part, value) in named {
        let value = value.as_deref().unwrap_or_default();
        text(part, value, META_BYTES_MAX)?;
        bytes += value.len();
    }
    for (name, value) in headers {
        text("name of a header", name, META_BYTES_MAX)?;
        text("value of a header", value, META_BYTES_MAX)?;
        bytes += name.len() + value.len();
    }
    length("headers", bytes, META_BYTES_MAX)
}

fn text(part: &'static str, text: &str, max: usize) -> Result<(), EventError> {
    length(part, text.len(), max)?;
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(EventError::ActiveRule { part, text: text.to_owned() });
    }
    Ok(())
}

fn length(part: &'static str, bytes: usize, max: usize) -> Result<(), EventError> {
    if bytes > max { Err(EventError::TooLong { part, bytes, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_kept_is_refused_with_its_reason() {
        let good = || Event::new("orders", "order-17");
        let cases: Vec<(Event, &str)> = vec![
            (Event::new("orders", ""), "needs an id"),
            (Event::new("", "1"), "not a valid queue name"),
            (Event::new("or/ders", "1"), "use letters"),
            (Event::new("q".repeat(101), "1"), "the limit is 100"),
            (Event::new("orders", "i".repeat(257)), "the id has 257 bytes"),
            (Event::new("orders", "a\nb"), "control character"),
            (good().key("k".repeat(257)), "the key has 257 bytes"),
            (good().tenant("t\0"), "the tenant"),
            (good().payload(vec![0; (1 << 20) + 1]), "the payload has 1048577 bytes"),
            (good().header("a", "b".repeat(16 << 10)), "the headers have"),
        ];
        for (event, part) in cases {
            let error = event.check().unwrap_err().to_string();
            let part = part.replace("have", "has");
            assert!(error.contains(&part), "{error} should say {part}");
        }
        assert_eq!(good().header("a", "b").content_type("text/plain").check(), Ok(()));
    }
}
