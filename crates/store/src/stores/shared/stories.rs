//! Stories as text: JSON without names. There are as many stories as events that failed, and half of each would be the
//! names of its fields.
//!
//! Texts are in it as JSON writes them, so that whoever searches them need not read every story.

use std::sync::Arc;

use redrive_core::Executed;
use redrive_core::event::{Cause, Record, Story};

use super::cells::Damage;

/// How many attempts were left out, the first ones, the last ones.
type Whole<T> = (u32, Vec<Attempt<T>>, Vec<Attempt<T>>);

/// Number, mode, when, how long, disposition, effect, cause, the wait after it.
type Attempt<T> = (u32, T, u64, u64, T, Option<Executed>, Option<Why<T>>, Option<u64>);

/// Kind, code, message.
type Why<T> = (T, Option<T>, T);

/// What is in a story with an attempt whose effect is unknown. Within a text its quotes would have a backslash; but a
/// text that is this one word looks the same.
const UNKNOWN: &str = "\"unknown\"";

/// A story as it is stored.
pub(in crate::stores) fn write_story(story: Option<&Story>) -> Option<String> {
    let Story { first, left_out, last } = story?;
    let whole: Whole<&str> =
        (*left_out, first.iter().map(to_parts).collect(), last.iter().map(to_parts).collect());
    // Words and numbers: this does not fail.
    serde_json::to_string(&whole).ok()
}

/// A story as it was stored.
pub(in crate::stores) fn read_story(text: Option<&str>) -> Result<Option<Arc<Story>>, Damage> {
    let Some(text) = text else { return Ok(None) };
    let (left_out, first, last): Whole<String> = serde_json::from_str(text).map_err(|_| Damage)?;
    let all = |attempts: Vec<_>| attempts.into_iter().map(from_parts).collect();
    Ok(Some(Arc::new(Story { first: all(first), left_out, last: all(last) })))
}

/// Whether the effect of some attempt is unknown. What cannot be read says nothing.
pub(in crate::stores) fn is_unsure(text: &str) -> bool {
    text.contains(UNKNOWN)
        && read_story(Some(text)).is_ok_and(|story| story.is_some_and(|story| story.is_unsure()))
}

fn to_parts(record: &Record) -> Attempt<&str> {
    let Record { attempt, mode, at_ms, took_ms, disposition, executed, cause, delay_ms } = record;
    let cause = cause.as_ref().map(|cause| (&*cause.kind, cause.code.as_deref(), &*cause.message));
    (*attempt, mode, *at_ms, *took_ms, disposition, *executed, cause, *delay_ms)
}

fn from_parts(parts: Attempt<String>) -> Record {
    let (attempt, mode, at_ms, took_ms, disposition, executed, cause, delay_ms) = parts;
    let cause = cause.map(|(kind, code, message)| Cause { kind, code, message });
    Record { attempt, mode, at_ms, took_ms, disposition, executed, cause, delay_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(executed: Option<Executed>, cause: Option<Cause>) -> Record {
        Record {
            attempt: 7,
            mode: "redrive".to_owned(),
            at_ms: 1_700_000_000_123,
            took_ms: 45,
            disposition: "retry".to_owned(),
            executed,
            cause,
            delay_ms: Some(u64::MAX),
        }
    }

    fn written(record: Record) -> String {
        write_story(Some(&Story::default().with(record))).unwrap()
    }

    #[test]
    fn a_story_is_read_as_it_was_told() {
        let cause = Cause::new("Http \"quoted\"", "a \\ line\nand ö").code("404");
        let whole = (1..=100).fold(Story::default(), |story, attempt| {
            let executed = [None, Some(Executed::No), Some(Executed::Unknown)][attempt as usize % 3];
            let cause = (attempt % 2 == 0).then(|| cause.clone());
            story.with(Record { attempt, delay_ms: None, ..record(executed, cause) })
        });
        for story in [Story::default(), Story::default().with(record(None, None)), whole] {
            let text = write_story(Some(&story));
            assert_eq!(read_story(text.as_deref()).unwrap().as_deref(), Some(&story));
        }
        assert_eq!(read_story(None).unwrap(), None);
        assert_eq!(read_story(Some("[0,[],[]")), Err(Damage));
    }

    #[test]
    fn an_unknown_effect_is_not_mistaken_for_a_word() {
        assert!(is_unsure(&written(record(Some(Executed::Unknown), None))));
        assert!(!is_unsure(&written(record(Some(Executed::No), None))));
        let said = Cause::new("unknown", "unknown").code("unknown");
        assert!(!is_unsure(&written(record(None, Some(said)))));
        let quoted = Cause::new("Http", "\"executed\":\"unknown\"");
        assert!(!is_unsure(&written(record(None, Some(quoted)))));
    }
}
