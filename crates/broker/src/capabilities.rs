//! What a broker can do. Probed when a source is opened, never assumed.

use std::time::Duration;

use crate::source::SourceError;

/// What the broker behind a source can do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// How it keeps messages that wait for their retry.
    pub delay: DelaySupport,
    /// Which order survives a retry.
    pub order: OrderSupport,
    /// Whether a settle and the messages published with it are atomic.
    pub atomic_publish: bool,
    /// How long a received message stays with its consumer unless it is extended; `None` without leases.
    pub lease: Option<Duration>,
    /// The largest message.
    pub message_bytes_max: usize,
    /// Whether messages that wait survive a crash of the broker.
    pub survives_kill: bool,
}

impl Capabilities {
    /// A broker that can do nothing but deliver and forget.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            delay: DelaySupport::InPlace,
            order: OrderSupport::None,
            atomic_publish: false,
            lease: None,
            message_bytes_max: 1 << 20,
            survives_kill: false,
        }
    }

    /// Refuses a consumer that needs more.
    ///
    /// # Errors
    /// With what the broker lacks, and what to do instead.
    pub fn check(&self, order: MessageOrder, outputs: bool) -> Result<(), SourceError> {
        if order == MessageOrder::Key && self.order != OrderSupport::Key {
            return Err(SourceError::Unsupported(match self.delay {
                DelaySupport::Tiers => {
                    "the order of a key cannot be kept with retry tiers, because each tier has a \
                    consumer of its own; leave the tiers out, so that a failing key waits in place, or use \
                    `order = none`"
                        .to_owned()
                }
                _ => "this broker does not keep the order of a key; use `order = none`".to_owned(),
            }));
        }
        if outputs && !self.atomic_publish {
            return Err(SourceError::Unsupported(
                "this broker cannot publish outputs together with a settle; publish from the handler and make \
                 repeating it safe"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

/// How a broker keeps messages that wait for their retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelaySupport {
    /// It does not: the message waits, unsettled, in the consumer's memory.
    InPlace,
    /// In topics of rising delays.
    Tiers,
    /// Each by itself, for at most so long.
    Exact {
        /// The longest delay.
        max: Duration,
    },
}

/// Which order survives a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderSupport {
    /// None.
    None,
    /// Messages of one key, in the order in which they were published.
    Key,
}

/// Which order a consumer wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MessageOrder {
    /// None: every message is by itself.
    #[default]
    None,
    /// One message of a key at a time, in order; a failing key holds up itself alone.
    Key,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_with_tiers_is_refused_and_says_what_to_do() {
        let tiers = Capabilities { delay: DelaySupport::Tiers, ..Capabilities::none() };
        let error = tiers.check(MessageOrder::Key, false).unwrap_err().to_string();
        assert!(error.contains("tiers") && error.contains("in place"), "{error}");
        assert!(tiers.check(MessageOrder::None, false).is_ok());
        assert!(tiers.check(MessageOrder::None, true).is_err());
        let keyed = Capabilities { order: OrderSupport::Key, atomic_publish: true, ..tiers };
        assert!(keyed.check(MessageOrder::Key, true).is_ok());
    }
}
