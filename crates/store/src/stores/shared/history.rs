//! Attempt histories as text: JSON without field names. Every event that failed has one, and half of each would be the
//! names of its fields.
//!
//! Its texts are escaped as in any JSON, so that a search need not parse every history.

use std::sync::Arc;

use redrive_core::Executed;
use redrive_core::event::{AttemptHistory, AttemptRecord, Cause};

use super::cells::Damage;

/// The number of attempts left out, the first attempts, the last attempts.
type Whole<T> = (u32, Vec<Attempt<T>>, Vec<Attempt<T>>);

/// Number, mode, when, how long, disposition, effect, cause, the wait after it.
type Attempt<T> = (u32, T, u64, u64, T, Option<Executed>, Option<Why<T>>, Option<u64>);

/// Kind, code, message.
type Why<T> = (T, Option<T>, T);

/// Found in an attempt history with an attempt of unknown effect. Inside a text its quotes would have a backslash; but
/// a text that is only this word looks the same.
const UNKNOWN: &str = "\"unknown\"";

/// An attempt history as it is stored.
pub(in crate::stores) fn write_history(history: Option<&AttemptHistory>) -> Option<String> {
    let AttemptHistory { first, left_out, last } = history?;
    let whole: Whole<&str> =
        (*left_out, first.iter().map(to_parts).collect(), last.iter().map(to_parts).collect());
    // Words and numbers: this does not fail.
    serde_json::to_string(&whole).ok()
}

/// An attempt history as it was stored.
pub(in crate::stores) fn read_history(text: Option<&str>) -> Result<Option<Arc<AttemptHistory>>, Damage> {
    let Some(text) = text else { return Ok(None) };
    let (left_out, first, last): Whole<String> = serde_json::from_str(text).map_err(|_| Damage)?;
    let all = |attempts: Vec<_>| attempts.into_iter().map(from_parts).collect();
    Ok(Some(Arc::new(AttemptHistory { first: all(first), left_out, last: all(last) })))
}

/// Whether the effect of some attempt is unknown. `false` if it cannot be read.
pub(in crate::stores) fn is_unsure(text: &str) -> bool {
    text.contains(UNKNOWN)
        && read_history(Some(text)).is_ok_and(|history| history.is_some_and(|history| history.is_unsure()))
}

fn to_parts(record: &AttemptRecord) -> Attempt<&str> {
    let AttemptRecord { attempt, mode, at_ms, took_ms, disposition, executed, cause, delay_ms } = record;
    let cause = cause.as_ref().map(|cause| (&*cause.kind, cause.code.as_deref(), &*cause.message));
    (*attempt, mode, *at_ms, *took_ms, disposition, *executed, cause, *delay_ms)
}

fn from_parts(parts: Attempt<String>) -> AttemptRecord {
    let (attempt, mode, at_ms, took_ms, disposition, executed, cause, delay_ms) = parts;
    let cause = cause.map(|(kind, code, message)| Cause { kind, code, message });
    AttemptRecord { attempt, mode, at_ms, took_ms, disposition, executed, cause, delay_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(executed: Option<Executed>, cause: Option<Cause>) -> AttemptRecord {
        AttemptRecord {
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

    fn written(record: AttemptRecord) -> String {
        write_history(Some(&AttemptHistory::default().with(record))).unwrap()
    }

    #[test]
    fn a_story_is_read_as_it_was_told() {
        let cause = Cause::new("Http \"quoted\"", "a \\ line\nand ö").code("404");
        let whole = (1..=100).fold(AttemptHistory::default(), |history, attempt| {
            let executed = [None, Some(Executed::No), Some(Executed::Unknown)][attempt as usize % 3];
            let cause = (attempt % 2 == 0).then(|| cause.clone());
            history.with(AttemptRecord { attempt, delay_ms: None, ..record(executed, cause) })
        });
        for history in [AttemptHistory::default(), AttemptHistory::default().with(record(None, None)), whole]
        {
            let text = write_history(Some(&history));
            assert_eq!(read_history(text.as_deref()).unwrap().as_deref(), Some(&history));
        }
        assert_eq!(read_history(None).unwrap(), None);
        assert_eq!(read_history(Some("[0,[],[]")), Err(Damage));
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
