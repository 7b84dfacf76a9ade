//! An event: one intent that must take effect once.
//!
//! Its identity is `(tenant, queue, id)`. The owner of the intent mints the id once, before the first
//! attempt: an order number, a message id, the id of the event that caused it. Two publishes under one
//! identity are one event.
//!
//! Every part has a limit, because a dead letter is kept until an operator has dealt with it; the limits are
//! in [`bounds`].

use std::time::Duration;

use crate::moment::Moment;
use crate::policy::Tuning;

mod check;
mod derived;
pub mod history;
pub mod identity;
pub mod state;

pub use check::{EventError, check_queue_name};
pub use derived::EventId;
pub use history::{AttemptHistory, AttemptRecord, Cause};
pub use identity::Fingerprint;
pub use state::{DeadReason, Mode, State};

/// The size limits of an event's parts.
pub mod bounds {
    /// Bytes of an id: a URL fits, a document does not.
    pub const ID_BYTES_MAX: usize = 256;
    /// Bytes of the name of a queue; names become metric labels.
    pub const QUEUE_BYTES_MAX: usize = 100;
    /// Bytes of a tenant.
    pub const TENANT_BYTES_MAX: usize = 128;
    /// Bytes of an ordering key.
    pub const KEY_BYTES_MAX: usize = 256;
    /// Bytes of a payload. Put larger data into a file or an object store and its address here.
    pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
    /// Bytes of all headers, names and values, and of content type, correlation and causation together.
    pub const META_BYTES_MAX: usize = 16 << 10;
    /// Bytes of a handler's result, which publishers that repeat the identity receive.
    pub const RESULT_BYTES_MAX: usize = 16 << 10;
}

/// When an event may first run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// As soon as it is published.
    #[default]
    Now,
    /// This long after it is published.
    After(Duration),
    /// At this moment, in nanoseconds since the Unix epoch.
    At(Moment),
}

impl When {
    /// The moment at which an event published at `now` may run.
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
    /// The tenant that owns it; empty in a system with one tenant.
    pub tenant: String,
    /// The queue it goes through.
    pub queue: String,
    /// The identity of the intent within tenant and queue.
    pub id: String,
    /// Events of one key run one at a time, in the order in which they were published.
    pub key: Option<String>,
    /// The payload.
    pub payload: Vec<u8>,
    /// When it may first run.
    pub when: When,
    /// When it expires. An expired event does not run.
    pub expires: Option<Expiry>,
    /// Headers and other optional parts; most events have none.
    pub meta: Option<Box<Meta>>,
}

/// When an event expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// This long after it was published.
    After(Duration),
    /// At this moment, in nanoseconds since the Unix epoch.
    At(Moment),
}

impl Expiry {
    /// The moment at which an event published at `now` expires.
    #[must_use]
    pub fn moment(self, now: Moment) -> Moment {
        match self {
            Self::After(delay) => now + delay,
            Self::At(at) => at,
        }
    }
}

/// The optional parts of an event.
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Meta {
    /// The headers as the publisher wrote them: names and values.
    pub headers: Vec<(String, String)>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// The correlation id: the same for all events that go back to one cause.
    pub correlation: Option<String>,
    /// The id of the event whose handler published this one.
    pub causation: Option<String>,
    /// Overrides of the queue's policy for this event.
    pub tuning: Option<Tuning>,
}

impl Meta {
    /// The type of the event; see [`Event::kind`].
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(name, _)| name.eq_ignore_ascii_case(crate::names::header::TYPE))?;
        Some(value)
    }
}

impl Event {
    /// An event with an empty payload that is due immediately.
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

    /// The tenant that owns it. Tenants share a queue fairly, and each has its own id space. Default: empty.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// The ordering key. Default: none, and no order.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The payload.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.payload = payload.into();
        self
    }

    /// The earliest time to run: this long after it is published.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.when = When::After(delay);
        self
    }

    /// The earliest time to run: a `SystemTime`, or a [`Moment`] in nanoseconds since the Unix epoch.
    #[must_use]
    pub fn at(mut self, at: impl Into<Moment>) -> Self {
        self.when = When::At(at.into());
        self
    }

    /// Expires this long after it is published.
    #[must_use]
    pub fn expires_after(mut self, time: Duration) -> Self {
        self.expires = Some(Expiry::After(time));
        self
    }

    /// Expires at this time: a `SystemTime`, or a [`Moment`] in nanoseconds since the Unix epoch.
    #[must_use]
    pub fn expires_at(mut self, at: impl Into<Moment>) -> Self {
        self.expires = Some(Expiry::At(at.into()));
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.meta_mut().headers.push((name.into(), value.into()));
        self
    }

    /// The media type of the payload, as in HTTP's `Content-Type`.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.meta_mut().content_type = Some(content_type.into());
        self
    }

    /// The correlation id. Default: inherited from the event whose handler publishes this one.
    #[must_use]
    pub fn correlation(mut self, correlation: impl Into<String>) -> Self {
        self.meta_mut().correlation = Some(correlation.into());
        self
    }

    /// The id of the event that caused it. Default: the event whose handler publishes this one.
    #[must_use]
    pub fn causation(mut self, causation: impl Into<String>) -> Self {
        self.meta_mut().causation = Some(causation.into());
        self
    }

    /// Overrides the queue's policy for this event. Budget, breaker and limits stay the queue's, because they
    /// belong to the downstream.
    #[must_use]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.meta_mut().tuning = Some(tuning);
        self
    }

    /// The type of the event, if it has one: its CloudEvents header `ce-type`.
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        self.meta.as_ref()?.kind()
    }

    /// The optional parts, created if absent.
    pub fn meta_mut(&mut self) -> &mut Meta {
        self.meta.get_or_insert_default()
    }
}
