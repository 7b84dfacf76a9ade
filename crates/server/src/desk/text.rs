//! Numbers, durations and times, as pages print them.

use std::time::{Duration, SystemTime};

use serde_json::Value;

/// A number with separators: `12,412`.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 key`, `2 keys`.
pub(crate) fn several(count: u64, noun: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{} {noun}{end}", number(count))
}

/// A share in per cent; one digit after the point below ten.
pub(crate) fn share(part: u64, whole: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "a share for the eye")]
    let share = if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
    if share > 0.0 && share < 9.95 { format!("{share:.1} %") } else { format!("{share:.0} %") }
}

/// A duration in two units: `2 h 14 m`.
pub(crate) fn duration(time: Duration) -> String {
    let (seconds, millis) = (time.as_secs(), time.subsec_millis());
    match seconds {
        0 => format!("{millis} ms"),
        1..10 => format!("{seconds}.{} s", millis / 100),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} m {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A time, for `<time>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Time {
    /// RFC 3339, for machines; empty if there is none.
    pub(crate) at: String,
    /// `14:03:22` today, `Nov 14 14:03` before.
    pub(crate) short: String,
}

impl Time {
    /// A time of the API.
    pub(crate) fn of(at: &str) -> Self {
        Self::seen(at, SystemTime::now())
    }

    fn seen(at: &str, now: SystemTime) -> Self {
        let today = humantime::format_rfc3339_seconds(now).to_string();
        let (Some(day), Some(hour)) = (at.get(..10), at.get(11..19)) else { return Self::default() };
        let short = if today.get(..10) == Some(day) {
            hour.to_owned()
        } else {
            format!("{} {}", month_and_day(day), &hour[..5])
        };
        Self { at: at.to_owned(), short }
    }

    /// A member of an answer; empty if absent.
    pub(crate) fn member(value: &Value, name: &str) -> Self {
        value[name].as_str().map(Self::of).unwrap_or_default()
    }

    /// Whether there is one.
    pub(crate) fn is_some(&self) -> bool {
        !self.at.is_empty()
    }
}

fn month_and_day(day: &str) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = day[5..7].parse::<usize>().ok().and_then(|month| MONTHS.get(month.checked_sub(1)?));
    format!("{} {}", month.unwrap_or(&"?"), day[8..10].trim_start_matches('0'))
}

/// How long ago a time of the API was; nothing if it is to come.
pub(crate) fn since(at: &str) -> Option<Duration> {
    SystemTime::now().duration_since(humantime::parse_rfc3339(at).ok()?).ok()
}

/// How long it is until then; nothing if it is past.
pub(crate) fn until(at: &str) -> Option<Duration> {
    humantime::parse_rfc3339(at).ok()?.duration_since(SystemTime::now()).ok()
}

/// A member as text; empty if absent.
pub(crate) fn member(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A member as a number; 0 if absent.
pub(crate) fn count(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_default()
}

/// The members of a list; none if absent.
pub(crate) fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_shares_and_durations_are_short() {
        let numbers = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        for (value, told) in numbers {
            assert_eq!(number(value), told);
        }
        let shares = [((9, 688), "1.3 %"), ((0, 5), "0 %"), ((94, 100), "94 %"), ((1, 0), "0 %")];
        for ((part, whole), told) in shares {
            assert_eq!(share(part, whole), told);
        }
        let durations = [
            (88, "88 ms"),
            (1900, "1.9 s"),
            (65_000, "1 m 05 s"),
            (8_040_000, "2 h 14 m"),
            (90_000_000, "1 d 1 h"),
        ];
        for (millis, told) in durations {
            assert_eq!(duration(Duration::from_millis(millis)), told);
        }
    }

    #[test]
    fn a_time_of_today_has_no_day() {
        let now = humantime::parse_rfc3339("2026-11-18T20:00:00Z").expect("a time");
        assert_eq!(Time::seen("2026-11-18T14:03:22.120Z", now).short, "14:03:22");
        assert_eq!(Time::seen("2026-11-04T14:03:22.120Z", now).short, "Nov 4 14:03");
        assert_eq!(Time::seen("nonsense", now), Time::default());
    }
}
