//! An event: one intent that must take effect once.
//!
//! Its identity is `(tenant, queue, id)`. The id is minted by whoever has the intent, before the first
//! attempt, and never again: an order number, a message's id, the id of the event that caused it. What is
//! published twice under one identity is one event.
//!
//! Everything is bounded, because an event is kept until somebody has dealt with it; the bounds are in
//! [`bounds`].

use std::time::Duration;

use crate::moment::Moment;
use crate::policy::Tuning;

mod check;
mod derived;
pub mod identity;
pub mod state;
pub mod story;

pub use check::{EventError, check_queue_name};
pub use derived::EventId;
pub use identity::Fingerprint;
pub use state::{DeadReason, Mode, State};
pub use story::{Cause, Record, Story};

/// How large the parts of an event may be.
pub mod bounds {
    /// Bytes of an id: a URL fits, a document does not.
    pub const ID_BYTES_MAX: usize = 256;
    /// Bytes of the name of a queue; names become metric labels.
    pub const QUEUE_BYTES_MAX: usize = 100;
    /// Bytes of a tenant.
    pub const TENANT_BYTES_MAX: usize = 128;
    /// Bytes of an ordering key.
    pub const KEY_BYTES_MAX: usize = 256;
    /// Bytes of a payload. Larger things belong in a file or an object store, and their address here.
    pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
    /// Bytes of all headers, names and values, and of content type, correlation and causation together.
    pub const META_BYTES_MAX: usize = 16 << 10;
    /// Bytes of what a handler may leave behind for whoever publishes the same identity again.
    pub const RESULT_BYTES_MAX: usize = 16 << 10;
}

/// When an event may first run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// As soon as it is published.
    #[default]
    Now,
    /// So long after it is published.
    After(Duration),
    /// At this moment, in nanoseconds since the Unix epoch.
    At(Moment),
}

impl When {
    /// The moment, for an event that is published at `now`.
    #[must_use]
    pub fn moment(self, now: Moment) -> Moment {
        match self {
            Self::Now => now,
            Self::After(delay) => now + delay,
            Self::At(at) => at,
        }
    }
}

/// One intent that must take effect once.
///
/// ```
/// use redrive_core::Event;
/// use std::time::Duration;
///
/// let event = Event::new("orders", "order-17")
///     .key("customer-3") // events of one key run one at a time, in order
///     .payload(*b"{\"euro\": 17}")
///     .header("source", "shop")
///     .delay(Duration::from_secs(5));
/// assert!(event.check().is_ok());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Whose it is; empty where there is only one.
    pub tenant: String,
    /// The queue it goes through.
    pub queue: String,
    /// The identity of the intent within tenant and queue.
    pub id: String,
    /// Events of one key run one at a time, in the order in which they were published.
    pub key: Option<String>,
    /// What it says.
    pub payload: Vec<u8>,
    /// When it may first run.
    pub when: When,
    /// After this it is not needed any more, and is not run.
    pub expires: Option<Expiry>,
    /// What most events do not have.
    pub meta: Option<Box<Meta>>,
}

/// When an event is not needed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// So long after it was published.
    After(Duration),
    /// At this moment, in nanoseconds since the Unix epoch.
    At(Moment),
}

impl Expiry {
    /// The moment, for an event that is published at `now`.
    #[must_use]
    pub fn moment(self, now: Moment) -> Moment {
        match self {
            Self::After(delay) => now + delay,
            Self::At(at) => at,
        }
    }
}

/// What travels with an event and is seldom there.
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Meta {
    /// Names and values, as they were given.
    pub headers: Vec<(String, String)>,
    /// What kind of text or bytes the payload is.
    pub content_type: Option<String>,
    /// What this belongs to: the same for everything that one cause set off.
    pub correlation: Option<String>,
    /// The id of the event whose handler published this one.
    pub causation: Option<String>,
    /// What the policy of its queue is changed by for this event.
    pub tuning: Option<Tuning>,
}

impl Meta {
    /// What type of event it is, see [`Event::kind`].
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(name, _)| name.eq_ignore_ascii_case(crate::names::header::TYPE))?;
        Some(value)
    }
}

impl Event {
    /// An event with an empty payload, due at once.
    #[must_use]
    pub fn new(queue: impl Into<String>, id: impl Into<String>) -> Self {
        Self {
            tenant: String::new(),
            queue: queue.into(),
            id: id.into(),
            key: None,
            payload: Vec::new(),
            when: When::Now,
            expires: None,
            meta: None,
        }
    }

    /// Whose it is. Tenants share a queue fairly, and their ids are apart. Default: empty.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// The key within which order is kept. Default: none, and no order.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// What it says.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Not before so long after it is published.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.when = When::After(delay);
        self
    }

    /// Not before this time of day: a `SystemTime`, or a [`Moment`] in nanoseconds since the Unix epoch.
    #[must_use]
    pub fn at(mut self, at: impl Into<Moment>) -> Self {
        self.when = When::At(at.into());
        self
    }

    /// Not needed any more so long after it was published.
    #[must_use]
    pub fn expires_after(mut self, time: Duration) -> Self {
        self.expires = Some(Expiry::After(time));
        self
    }

    /// Not needed any more after this time of day: a `SystemTime`, or a [`Moment`] in nanoseconds since the Unix
    /// epoch.
    #[must_use]
    pub fn expires_at(mut self, at: impl Into<Moment>) -> Self {
        self.expires = Some(Expiry::At(at.into()));
        self
    }

    /// One more header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.meta_mut().headers.push((name.into(), value.into()));
        self
    }

    /// What kind of text or bytes the payload is, as in HTTP's `Content-Type`.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.meta_mut().content_type = Some(content_type.into());
        self
    }

    /// What it belongs to. Default: inherited from the event whose handler publishes it.
    #[must_use]
    pub fn correlation(mut self, correlation: impl Into<String>) -> Self {
        self.meta_mut().correlation = Some(correlation.into());
        self
    }

    /// What caused it. Default: the event whose handler publishes it.
    #[must_use]
    pub fn causation(mut self, causation: impl Into<String>) -> Self {
        self.meta_mut().causation = Some(causation.into());
        self
    }

    /// Changes the queue's policy for this event alone. Budget, breaker and limits stay the queue's: they
    /// belong to what is called.
    #[must_use]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.meta_mut().tuning = Some(tuning);
        self
    }

    /// What type of event it is, where it says so: its header `ce-type`, as CloudEvents have it.
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        self.meta.as_ref()?.kind()
    }

    /// The part that is seldom there, made if it is not.
    pub fn meta_mut(&mut self) -> &mut Meta {
        self.meta.get_or_insert_default()
    }
}
