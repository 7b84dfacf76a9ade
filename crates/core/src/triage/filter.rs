//! Selects events.

use super::CauseId;
use crate::event::{AttemptHistory, DeadReason, Event};
use crate::moment::Moment;

/// The most bytes of a text to search for.
const TEXT_BYTES_MAX: usize = 512;

/// Selects the events that match every field that is set. An unknown field is an error when a filter is read,
/// because without it the filter would match everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Filter {
    /// With this queue.
    pub queue: Option<String>,
    /// With this tenant.
    pub tenant: Option<String>,
    /// With this ordering key.
    pub key: Option<String>,
    /// With this id.
    pub id: Option<String>,
    /// Dead with this cause.
    pub cause: Option<CauseId>,
    /// Dead for this reason, as its word.
    pub reason: Option<String>,
    /// With at least this many attempts.
    pub attempts_min: Option<u32>,
    /// With at most this many attempts.
    pub attempts_max: Option<u32>,
    /// At or after this, in nanoseconds since the Unix epoch: when it died if it is dead, otherwise when it
    /// was published.
    pub since_ns: Option<u64>,
    /// Before, in nanoseconds since the Unix epoch.
    pub before_ns: Option<u64>,
    /// With this text, ignoring case, in id, key, or the kind, code or message of its last cause.
    pub text: Option<String>,
}

/// The parts of an event that a filter looks at.
#[derive(Debug, Clone, Copy)]
pub struct FilterSubject<'a> {
    /// The event.
    pub event: &'a Event,
    /// When it died, or was published.
    pub at: Moment,
    /// The attempts that are settled.
    pub attempts: u32,
    /// Its cause.
    pub cause: Option<CauseId>,
    /// Why it died.
    pub reason: Option<DeadReason>,
    /// Its attempt history.
    pub history: Option<&'a AttemptHistory>,
}

impl Filter {
    /// Selects all events of a queue.
    #[must_use]
    pub fn queue(name: impl Into<String>) -> Self {
        Self { queue: Some(name.into()), ..Self::default() }
    }

    /// Checks that its text is short enough to search for in every event and to keep with a job.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        match self.text.as_ref().map(String::len) {
            Some(bytes) if bytes > TEXT_BYTES_MAX => {
                Err(format!("the search text has {bytes} bytes; the limit is {TEXT_BYTES_MAX}"))
            }
            _ => Ok(()),
        }
    }

    /// Whether it uses only queue, tenant and cause: the store has counts by those, and must scan for the
    /// rest.
    #[must_use]
    pub fn is_coarse(&self) -> bool {
        let coarse = Self {
            queue: self.queue.clone(),
            tenant: self.tenant.clone(),
            cause: self.cause,
            ..Self::default()
        };
        *self == coarse
    }

    /// Whether it selects this event.
    #[must_use]
    pub fn matches(&self, subject: FilterSubject<'_>) -> bool {
        let FilterSubject { event, at, attempts, cause, reason, history } = subject;
        let same = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
        let at = at.as_nanos();
        same(&self.queue, &event.queue)
            && same(&self.tenant, &event.tenant)
            && same(&self.id, &event.id)
            && self.key.as_ref().is_none_or(|key| event.key.as_ref() == Some(key))
            && self.cause.is_none_or(|wanted| cause == Some(wanted))
            && self.reason.as_deref().is_none_or(|word| reason.is_some_and(|reason| reason.as_str() == word))
            && self.attempts_min.is_none_or(|min| attempts >= min)
            && self.attempts_max.is_none_or(|max| attempts <= max)
            && self.since_ns.is_none_or(|since| at >= since)
            && self.before_ns.is_none_or(|before| at < before)
            && self.text.as_deref().is_none_or(|text| has_text(text, event, history))
    }
}

fn has_text(text: &str, event: &Event, history: Option<&AttemptHistory>) -> bool {
    let text = text.to_lowercase();
    let has = |place: &str| place.to_lowercase().contains(&text);
    let cause = history.and_then(|history| history.records().rev().find_map(|record| record.cause.as_ref()));
    has(&event.id)
        || event.key.as_deref().is_some_and(has)
        || cause.is_some_and(|cause| {
            has(&cause.kind) || has(&cause.message) || cause.code.as_deref().is_some_and(has)
        })
}
