//! Topics: created if they are missing, checked if they are there.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::types::RDKafkaErrorCode;

use super::settings::KafkaSettings;
use crate::source::SourceError;

/// How long to wait for an answer about topics.
const ANSWER: Duration = Duration::from_secs(30);
/// How long an outage may last before messages that wait for their retry are deleted.
const OUTAGE: Duration = Duration::from_hours(24 * 7);
/// Room for the headers of a copy.
const HEADERS_MORE: usize = 16 << 10;

/// What was found out about the topics.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) message_bytes_max: usize,
}

/// Creates what is missing and checks what is there.
pub(super) async fn prepare(settings: &KafkaSettings) -> Result<Checked, SourceError> {
    let admin: AdminClient<DefaultClientContext> = {
        let mut config = settings.base();
        for name in super::settings::CONSUMER_ONLY {
            config.remove(name);
        }
        config.create().map_err(unavailable)?
    };
    let partitions = source_partitions(&admin, settings).await?;
    let limits = configs(&admin, &settings.topic).await?;
    let source_bytes = limits.message_bytes_max;
    let bytes = (source_bytes + HEADERS_MORE).to_string();
    let keep = (settings.horizon + OUTAGE).as_millis().to_string();
    let tiers = settings.tier_topics();
    let mut topics: Vec<NewTopic<'_>> = Vec::new();
    for tier in &tiers {
        topics.push(
            NewTopic::new(tier, partitions, TopicReplication::Fixed(settings.replicas))
                .set("cleanup.policy", "delete")
                .set("retention.ms", &keep)
                .set("max.message.bytes", &bytes),
        );
    }
    topics.push(
        NewTopic::new(&settings.dead_topic, partitions, TopicReplication::Fixed(settings.replicas))
            .set("cleanup.policy", "delete")
            .set("retention.ms", "-1")
            .set("max.message.bytes", &bytes),
    );
    let options = AdminOptions::new().operation_timeout(Some(ANSWER)).request_timeout(Some(ANSWER));
    let mut message_bytes_max = usize::MAX;
    for result in admin.create_topics(&topics, &options).await.map_err(unavailable)? {
        match result {
            Ok(_) => message_bytes_max = message_bytes_max.min(source_bytes + HEADERS_MORE),
            Err((topic, RDKafkaErrorCode::TopicAlreadyExists)) => {
                let found = configs(&admin, &topic).await?;
                let count = partition_count(&admin, topic.clone()).await?;
                let need = Need { partitions, is_dead: topic == settings.dead_topic, keep: settings.horizon };
                check(&topic, count, &found, &need)?;
                message_bytes_max = message_bytes_max.min(found.message_bytes_max);
            }
            Err((topic, code)) => {
                return Err(SourceError::Misconfigured(format!("topic `{topic}` cannot be created: {code}")));
            }
        }
    }
    Ok(Checked { message_bytes_max })
}

/// What a topic must be like.
#[derive(Debug)]
struct Need {
    partitions: i32,
    is_dead: bool,
    keep: Duration,
}

/// What a topic is like.
#[derive(Debug, Clone)]
struct TopicConfig {
    cleanup: String,
    retention_ms: i64,
    message_bytes_max: usize,
}

/// Refuses a topic that would lose messages.
fn check(topic: &str, partitions: i32, found: &TopicConfig, need: &Need) -> Result<(), SourceError> {
    let refuse = |text: String| Err(SourceError::Misconfigured(format!("topic `{topic}` {text}")));
    if found.cleanup.contains("compact") {
        return refuse(
            "is compacted, which deletes retries and dead letters of one key; set `cleanup.policy=delete`"
                .to_owned(),
        );
    }
    if partitions < need.partitions {
        return refuse(format!(
            "has {partitions} partitions, fewer than the {} of its source; a copy keeps its partition number, so add \
             partitions",
            need.partitions
        ));
    }
    let is_forever = found.retention_ms < 0;
    if !need.is_dead && !is_forever && u128::from(found.retention_ms.unsigned_abs()) < need.keep.as_millis() {
        return refuse(format!(
            "keeps messages for {} ms, less than the {} ms until the last retry; raise `retention.ms`",
            found.retention_ms,
            need.keep.as_millis()
        ));
    }
    if need.is_dead && !is_forever {
        crate::log::warn(&format!(
            "topic `{topic}` deletes dead letters after {} ms; set `retention.ms=-1` to keep them until they are dealt with",
            found.retention_ms
        ));
    }
    Ok(())
}

async fn source_partitions(
    admin: &AdminClient<DefaultClientContext>,
    settings: &KafkaSettings,
) -> Result<i32, SourceError> {
    match partition_count(admin, settings.topic.clone()).await? {
        0 => Err(SourceError::Misconfigured(format!(
            "topic `{}` does not exist; create it first",
            settings.topic
        ))),
        count => Ok(count),
    }
}

async fn partition_count(
    admin: &AdminClient<DefaultClientContext>,
    topic: String,
) -> Result<i32, SourceError> {
    // Blocking, for as long as the broker takes; a source is opened once.
    let metadata = admin.inner().fetch_metadata(Some(&topic), ANSWER);
    let metadata = metadata.map_err(unavailable)?;
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let count = found.filter(|found| found.error().is_none()).map_or(0, |found| found.partitions().len());
    Ok(i32::try_from(count).unwrap_or(i32::MAX))
}

async fn configs(admin: &AdminClient<DefaultClientContext>, topic: &str) -> Result<TopicConfig, SourceError> {
    let options = AdminOptions::new().request_timeout(Some(ANSWER));
    let mut found =
        admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await.map_err(unavailable)?;
    let resource = found.pop().transpose().map_err(|code| {
        SourceError::Unavailable(format!("the settings of topic `{topic}` cannot be read: {code}"))
    })?;
    let get = |name: &str| {
        let entry = resource.as_ref().and_then(|resource| resource.get(name));
        entry.and_then(|entry| entry.value.clone()).unwrap_or_default()
    };
    Ok(TopicConfig {
        cleanup: get("cleanup.policy"),
        retention_ms: get("retention.ms").parse().unwrap_or(-1),
        message_bytes_max: get("max.message.bytes").parse().unwrap_or(1 << 20),
    })
}

fn unavailable(error: impl std::fmt::Display) -> SourceError {
    SourceError::Unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_that_would_lose_messages_are_refused() {
        let good = TopicConfig { cleanup: "delete".to_owned(), retention_ms: -1, message_bytes_max: 1 << 20 };
        let need = Need { partitions: 3, is_dead: false, keep: Duration::from_secs(60) };
        let refused =
            |partitions, found: &TopicConfig| check("t", partitions, found, &need).unwrap_err().to_string();
        assert!(check("t", 3, &good, &need).is_ok());
        assert!(refused(2, &good).contains("fewer"));
        let compacted = TopicConfig { cleanup: "compact,delete".to_owned(), ..good };
        assert!(refused(3, &compacted).contains("compacted"));
        let short = TopicConfig { retention_ms: 59_999, ..good };
        assert!(refused(3, &short).contains("retention.ms"));
        assert!(check("t", 3, &short, &Need { is_dead: true, ..need }).is_ok());
    }
}
