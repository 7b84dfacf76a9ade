//! Plain words for debug output: event names for numbers, fencing tokens and times in words.
//!
//! Checks and steps format values with `{:?}`, which needs no lookup. Texts for people pass through here
//! once, where the names are known.

use redrive_core::queue_entry::Seq;

use super::model::Model;
use super::world::START;

/// The text with its values in words.
pub(super) fn plain(text: &str, model: &Model) -> String {
    let mut words = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        // Values begin with a capital letter.
        let start = rest.find(|letter: char| letter.is_ascii_uppercase()).unwrap_or(rest.len());
        words.push_str(&rest[..start]);
        rest = &rest[start..];
        if let Some((word, after)) = value(rest, model) {
            words.push_str(&word);
            rest = after;
        } else {
            let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(rest.len());
            words.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    words
}

/// The value at the beginning of a text in words, and what follows it.
fn value<'a>(text: &'a str, model: &Model) -> Option<(String, &'a str)> {
    if let Some((seq, rest)) = wrapped(text, "Seq(") {
        let known = model.events.get(&Seq(seq)).map(|record| format!("e{}", record.intent));
        return Some((known.unwrap_or_else(|| place(seq)), rest));
    }
    if let Some((nanos, rest)) = wrapped(text, "Moment(") {
        return Some((format!("{} ms", millis(nanos)), rest));
    }
    if let Some((stream, rest)) = wrapped(text, "StreamId(") {
        return Some((format!("stream {stream}"), rest));
    }
    if let Some((job, rest)) = wrapped(text, "JobId(") {
        return Some((format!("job {job}"), rest));
    }
    let (shard, rest) = number(text.strip_prefix("FencingToken { shard: ")?)?;
    let (epoch, rest) = number(rest.strip_prefix(", epoch: ")?)?;
    let (_, rest) = number(rest.strip_prefix(", incarnation: ")?)?;
    Some((format!("epoch {epoch} of shard {shard}"), rest.strip_prefix(" }")?))
}

/// An event without a name: its stream, and its number there.
fn place(seq: u64) -> String {
    format!("{}.{}", seq >> 40, seq & ((1 << 40) - 1))
}

/// Milliseconds since the run began. Clocks may have been set back to before that.
pub(super) fn millis(nanos: u64) -> i128 {
    (i128::from(nanos) - START.as_nanos().cast_signed()) / 1_000_000
}

fn wrapped<'a>(text: &'a str, name: &str) -> Option<(u64, &'a str)> {
    let (number, rest) = number(text.strip_prefix(name)?)?;
    Some((number, rest.strip_prefix(')')?))
}

fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

#[cfg(test)]
mod tests {
    use redrive_core::Moment;
    use redrive_core::queue_entry::{FencingToken, Seq, StreamId};

    use super::{START, plain};
    use crate::simulation::model::Model;

    #[test]
    fn values_are_put_in_words() {
        let token = FencingToken { shard: 1, epoch: 7, incarnation: 3 };
        let at = Moment::from_nanos(0) + START + std::time::Duration::from_millis(1500);
        let text = format!(
            "{:?} of {:?} under {token:?} at {at:?}, Sequences (é) too",
            Seq((2 << 40) + 5),
            StreamId(2)
        );
        let model = Model::new(0, Vec::new(), 1, Vec::new());
        let expected = "2.5 of stream 2 under epoch 7 of shard 1 at 1500 ms, Sequences (é) too";
        assert_eq!(plain(&text, &model), expected);
    }
}
