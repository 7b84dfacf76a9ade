//! Which events are meant.

use super::CauseId;
use crate::event::{DeadReason, Event, Story};
use crate::moment::Moment;

/// Bytes of a text to look for.
const TEXT_BYTES_MAX: usize = 512;

/// Which events are meant: those that fit everything that is set. A word that it does not know is an error where it is
/// read, because without it everything would be meant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Filter {
    /// Of this queue.
    pub queue: Option<String>,
    /// Of this tenant.
    pub tenant: Option<String>,
    /// With this ordering key.
    pub key: Option<String>,
    /// With this id.
    pub id: Option<String>,
    /// Dead of this cause.
    pub cause: Option<CauseId>,
    /// Dead for this reason, as its word.
    pub reason: Option<String>,
    /// With so many attempts at least.
    pub attempts_min: Option<u32>,
    /// With so many attempts at most.
    pub attempts_max: Option<u32>,
    /// Not before, in nanoseconds since the Unix epoch: died, where it is dead, otherwise published.
    pub since_ns: Option<u64>,
    /// Before, in nanoseconds since the Unix epoch.
    pub before_ns: Option<u64>,
    /// With this text, whatever the case, in id, key, or the kind, code or message of its last cause.
    pub text: Option<String>,
}

/// What a filter looks at.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The event.
    pub event: &'a Event,
    /// When it died, or was published.
    pub at: Moment,
    /// Attempts that were settled.
    pub attempts: u32,
    /// What it died of.
    pub cause: Option<CauseId>,
    /// Why it died.
    pub reason: Option<DeadReason>,
    /// Its attempts.
    pub story: Option<&'a Story>,
}

impl Filter {
    /// Everything of a queue.
    #[must_use]
    pub fn queue(name: impl Into<String>) -> Self {
        Self { queue: Some(name.into()), ..Self::default() }
    }

    /// Whether its text is short enough to be looked for in every letter, and kept with a job.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        match self.text.as_ref().map(String::len) {
            Some(bytes) if bytes > TEXT_BYTES_MAX => Err(format!(
                "the text to look for has {bytes} bytes, and at most {TEXT_BYTES_MAX} are allowed"
            )),
            _ => Ok(()),
        }
    }

    /// Whether it says nothing but queue, tenant and cause: those are counted, and the rest has to be looked at.
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

    /// Whether an event is meant.
    #[must_use]
    pub fn matches(&self, subject: Subject<'_>) -> bool {
        let Subject { event, at, attempts, cause, reason, story } = subject;
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
            && self.text.as_deref().is_none_or(|text| has_text(text, event, story))
    }
}

fn has_text(text: &str, event: &Event, story: Option<&Story>) -> bool {
    let text = text.to_lowercase();
    let has = |place: &str| place.to_lowercase().contains(&text);
    let cause = story.and_then(|story| story.records().rev().find_map(|record| record.cause.as_ref()));
    has(&event.id)
        || event.key.as_deref().is_some_and(has)
        || cause.is_some_and(|cause| {
            has(&cause.kind) || has(&cause.message) || cause.code.as_deref().is_some_and(has)
        })
}
