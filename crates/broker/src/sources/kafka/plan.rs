//! Which records a settled message becomes. Pure.

use redrive_core::Moment;
use redrive_core::names::header;

use super::settings::KafkaSettings;
use crate::due::tier_for;
use crate::message::{Message, Outgoing};
use crate::source::{MessageOutcome, Settlement};

/// Why a dead letter has no body.
const TOO_LARGE: &str = "too_large";

/// The records that are produced with a settle: the retry or the dead letter, or the outputs.
///
/// A copy keeps its partition number. A copy that has become too large for its topic is a dead letter without a body: its
/// headers say where the original is.
pub(super) fn records(
    settings: &KafkaSettings,
    settlement: &Settlement,
    now: Moment,
    bytes_max: usize,
) -> Vec<Outgoing> {
    let copy = |topic: &str, headers: &crate::Headers| Outgoing {
        topic: topic.into(),
        partition: Some(settlement.receipt.partition.number),
        message: Message { headers: headers.clone(), timestamp: None, ..(*settlement.message).clone() },
    };
    match &settlement.outcome {
        MessageOutcome::Done | MessageOutcome::Park => settlement.outputs.clone(),
        MessageOutcome::Retry { at, headers } => {
            let topics = settings.tier_topics();
            let tier = tier_for(&settings.tiers, at.since(now));
            let Some(topic) = topics.get(tier) else { return Vec::new() };
            let retry = copy(topic, headers);
            if retry.message.size() <= bytes_max {
                return vec![retry];
            }
            let mut dead = copy(&settings.dead_topic, headers);
            dead.message.headers.set(header::DEAD_REASON, TOO_LARGE);
            vec![by_reference(dead)]
        }
        MessageOutcome::Dead { headers } => {
            let dead = copy(&settings.dead_topic, headers);
            vec![if dead.message.size() <= bytes_max { dead } else { by_reference(dead) }]
        }
    }
}

fn by_reference(mut dead: Outgoing) -> Outgoing {
    dead.message.body = None;
    dead.message
        .headers
        .set(header::DEAD_MESSAGE, "the message is too large to be copied; read it at its origin");
    dead
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::{Headers, Partition, Receipt};

    fn settled(outcome: MessageOutcome, body: usize) -> Settlement {
        Settlement {
            receipt: Receipt { partition: Partition::new("orders", 2), position: 7, epoch: 1, delivery: 0 },
            message: Arc::new(Message::new(vec![b'x'; body]).key("k")),
            outcome,
            outputs: vec![Outgoing::new("projections", Message::new(*b"out"))],
        }
    }

    #[test]
    fn a_copy_keeps_its_partition_and_goes_into_the_tier_of_its_wait() {
        let settings = KafkaSettings::new("", "orders", "g").tiers([10, 60].map(Duration::from_secs));
        let now = Moment::default();
        for (wait, topic) in [(5, "orders.retry.10s"), (11, "orders.retry.1m"), (600, "orders.retry.1m")] {
            let outcome =
                MessageOutcome::Retry { at: now + Duration::from_secs(wait), headers: Headers::default() };
            let records = records(&settings, &settled(outcome, 10), now, 1_000);
            assert_eq!((records.len(), &*records[0].topic, records[0].partition), (1, topic, Some(2)));
        }
        let dead = records(
            &settings,
            &settled(MessageOutcome::Dead { headers: Headers::default() }, 10),
            now,
            1_000,
        );
        assert_eq!((&*dead[0].topic, dead[0].message.body.as_ref().map(Vec::len)), ("orders.dlq", Some(10)));
        let done = records(&settings, &settled(MessageOutcome::Done, 10), now, 1_000);
        assert_eq!((done.len(), &*done[0].topic), (1, "projections"));
    }

    #[test]
    fn what_is_too_large_to_copy_is_dead_by_reference() {
        let settings = KafkaSettings::new("", "orders", "g").tiers([Duration::from_secs(10)]);
        let headers = Headers::default();
        for outcome in [
            MessageOutcome::Retry { at: Moment::default(), headers: headers.clone() },
            MessageOutcome::Dead { headers },
        ] {
            let records = records(&settings, &settled(outcome, 2_000), Moment::default(), 1_000);
            assert_eq!((records.len(), &*records[0].topic), (1, "orders.dlq"));
            assert_eq!(
                (&records[0].message.body, records[0].message.key.as_deref()),
                (&None, Some(&b"k"[..]))
            );
        }
    }
}
