//! How a Kafka source is set up.

use std::time::Duration;

use rdkafka::ClientConfig;

use crate::source::SourceError;

/// How long a transaction may stay open. A transaction whose process died holds up every reader of its partitions for so
/// long, so it is far below Kafka's default of a minute.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// How a Kafka source is set up.
///
/// ```
/// use redrive_broker::sources::kafka::KafkaSettings;
/// use std::time::Duration;
///
/// let settings = KafkaSettings::new("127.0.0.1:9092", "orders", "orders-consumer")
///     .tiers([Duration::from_secs(10), Duration::from_secs(60)]);
/// assert_eq!(settings.tier_topics(), ["orders.retry.10s", "orders.retry.1m"]);
/// assert_eq!(settings.dead_topic, "orders.dlq");
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KafkaSettings {
    /// The brokers to ask first, as `host:port,host:port`.
    pub servers: String,
    /// The topic.
    pub topic: String,
    /// The consumer group of the topic.
    pub group: String,
    /// The consumer group of the retry topics. Default: the group and `-retry`.
    pub retry_group: String,
    /// The waits of the retry topics, shortest first. None: retries wait in place.
    pub tiers: Vec<Duration>,
    /// The topic of dead letters. Default: the topic and `.dlq`.
    pub dead_topic: String,
    /// The name of this process among those of its group; part of transactional ids. Default: a random one. A name that
    /// is the same after a restart ends what the process before left open at once, instead of after ten seconds.
    pub instance: String,
    /// How many messages of a partition are kept in memory, waiting or running.
    pub read_ahead: usize,
    /// The replicas of topics that are created. Default: the broker's.
    pub replicas: i32,
    /// The longest time from a message's first attempt to its last; retry topics keep messages for that and a week.
    pub horizon: Duration,
    /// Settings of librdkafka that are not Redrive's own: TLS, SASL, `group.protocol`.
    pub client: Vec<(String, String)>,
}

impl KafkaSettings {
    /// The defaults, for a topic and a consumer group.
    #[must_use]
    pub fn new(servers: &str, topic: &str, group: &str) -> Self {
        Self {
            servers: servers.to_owned(),
            topic: topic.to_owned(),
            group: group.to_owned(),
            retry_group: format!("{group}-retry"),
            tiers: Vec::new(),
            dead_topic: format!("{topic}.dlq"),
            instance: random_name(),
            read_ahead: 1_000,
            replicas: -1,
            horizon: Duration::from_hours(24 * 7),
            client: Vec::new(),
        }
    }

    /// Sets the waits of the retry topics.
    #[must_use]
    pub fn tiers(mut self, tiers: impl IntoIterator<Item = Duration>) -> Self {
        self.tiers = tiers.into_iter().collect();
        self.tiers.sort();
        self.tiers.dedup();
        self
    }

    /// Sets the topic of dead letters.
    #[must_use]
    pub fn dead_topic(mut self, topic: &str) -> Self {
        topic.clone_into(&mut self.dead_topic);
        self
    }

    /// Sets the consumer group of the retry topics.
    #[must_use]
    pub fn retry_group(mut self, group: &str) -> Self {
        group.clone_into(&mut self.retry_group);
        self
    }

    /// Names this process among those of its group.
    #[must_use]
    pub fn instance(mut self, name: &str) -> Self {
        name.clone_into(&mut self.instance);
        self
    }

    /// Sets a setting of librdkafka, such as `security.protocol`.
    #[must_use]
    pub fn client(mut self, name: &str, value: &str) -> Self {
        self.client.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The retry topics, shortest wait first.
    #[must_use]
    pub fn tier_topics(&self) -> Vec<String> {
        self.tiers.iter().map(|tier| format!("{}.retry.{}", self.topic, short(*tier))).collect()
    }

    pub(super) fn check(&self) -> Result<(), SourceError> {
        let mut topics = self.tier_topics();
        topics.push(self.dead_topic.clone());
        let twice = topics.iter().find(|topic| **topic == self.topic);
        if let Some(topic) = twice {
            return Err(SourceError::Misconfigured(format!(
                "`{topic}` is the topic that is consumed; its retries and dead letters need topics of their own, or \
                 they would be consumed again at once"
            )));
        }
        if self.group == self.retry_group {
            return Err(SourceError::Misconfigured(format!(
                "the group of `{}` and of its retry topics are both `{}`; give the retry topics a group of their own, so \
                 that a rebalance of one does not stop the other",
                self.topic, self.group
            )));
        }
        let own = self.client.iter().find(|(name, _)| OWN.contains(&name.as_str()));
        if let Some((name, _)) = own {
            return Err(SourceError::Misconfigured(format!(
                "`{name}` cannot be set: Redrive's guarantees depend on its own value; leave it out"
            )));
        }
        Ok(())
    }

    pub(super) fn base(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.servers);
        // A broker that restarts is back soon.
        config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "1000");
        for (name, value) in &self.client {
            config.set(name, value);
        }
        config
    }

    pub(super) fn consumer(&self, group: &str) -> ClientConfig {
        let mut config = self.base();
        config
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("isolation.level", "read_committed")
            .set("auto.offset.reset", "earliest")
            .set("fetch.wait.max.ms", "50")
            .set("queued.max.messages.kbytes", "16384");
        let is_set = |name: &str| self.client.iter().any(|(known, _)| known == name);
        let is_new_protocol = self.client.contains(&("group.protocol".to_owned(), "consumer".to_owned()));
        if !is_set("partition.assignment.strategy") && !is_new_protocol {
            config.set("partition.assignment.strategy", "cooperative-sticky");
        }
        config
    }

    pub(super) fn producer(&self, transactional_id: &str) -> ClientConfig {
        let mut config = self.base();
        for name in CONSUMER_ONLY {
            config.remove(name);
        }
        config
            .set("transactional.id", transactional_id)
            .set("transaction.timeout.ms", TRANSACTION_TIMEOUT.as_millis().to_string())
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", "0")
            // With the default of 100 ms a second transaction waits for the markers of the first.
            .set("retry.backoff.ms", "2");
        config
    }
}

/// Settings that Redrive chooses.
const OWN: [&str; 9] = [
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "isolation.level",
    "transactional.id",
    "transaction.timeout.ms",
    "enable.idempotence",
    "acks",
];

/// Settings that a producer does not know.
pub(super) const CONSUMER_ONLY: [&str; 5] = [
    "group.protocol",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
];

/// A duration as a part of a topic's name: `250ms`, `10s`, `1m`, `2h`.
fn short(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        0 => "0s".to_owned(),
        _ if millis.is_multiple_of(3_600_000) => format!("{}h", millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) => format!("{}m", millis / 60_000),
        _ if millis.is_multiple_of(1_000) => format!("{}s", millis / 1_000),
        _ => format!("{millis}ms"),
    }
}

/// A name that no other process has.
pub(super) fn random_name() -> String {
    format!("{:016x}", random())
}

pub(super) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tiers_can_be_said() {
        for (millis, name) in
            [(250, "250ms"), (10_000, "10s"), (60_000, "1m"), (90_000, "90s"), (7_200_000, "2h")]
        {
            assert_eq!(short(Duration::from_millis(millis)), name);
        }
    }

    #[test]
    fn settings_that_would_loop_or_lie_are_refused() {
        let settings = || KafkaSettings::new("127.0.0.1:1", "orders", "g").tiers([Duration::from_secs(1)]);
        assert!(settings().check().is_ok());
        let refused = |settings: KafkaSettings| settings.check().unwrap_err().to_string();
        assert!(refused(settings().dead_topic("orders")).contains("consumed again"));
        assert!(refused(settings().retry_group("g")).contains("group of their own"));
        assert!(refused(settings().client("acks", "1")).contains("`acks` cannot be set"));
    }
}
