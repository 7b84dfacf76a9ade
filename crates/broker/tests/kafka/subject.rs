//! A topic of its own for each promise, on a server that all tests of a version share.

use std::collections::HashSet;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use redrive_broker::capabilities::MessageOrder;
use redrive_broker::sources::kafka::{KafkaSettings, KafkaSource};
use redrive_broker::{Message, MessageSource};
use redrive_testkit::broker::BrokerSubject;
use redrive_testkit::kafka::Kafka;

/// Which server, and which way to retry.
pub(crate) trait Setup: Send + Sync + 'static {
    const VERSION: &'static str;
    const TIERS: bool;
}

pub(crate) struct Subject<W> {
    kafka: Arc<Kafka>,
    topic: String,
    tiers: bool,
    producer: BaseProducer,
    way: PhantomData<W>,
}

impl<W: Setup> Subject<W> {
    pub(crate) fn in_runtime(promise: impl FnOnce() -> Pin<Box<dyn Future<Output = ()>>>) {
        if Kafka::shared(W::VERSION).is_none() {
            return;
        }
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(promise());
        runtime.shutdown_timeout(Duration::from_secs(1));
    }

    fn settings(&self) -> KafkaSettings {
        let settings =
            KafkaSettings::new(&self.kafka.servers(), &self.topic, &format!("{}-consumer", self.topic))
                .client("session.timeout.ms", "6000");
        let tiers = [Duration::from_millis(100), Duration::from_secs(60)];
        if self.tiers { settings.tiers(tiers) } else { settings }
    }
}

/// Everything in a topic, as a reader of committed messages sees it.
pub(crate) fn read(servers: &str, topic: &str, partitions: i32) -> Vec<Message> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("group.id", "reader")
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&list).unwrap();
    let (mut found, mut ends) = (Vec::new(), HashSet::new());
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(borrowed)) => {
                let (key, body) =
                    (borrowed.key().map(<[u8]>::to_vec), borrowed.payload().map(<[u8]>::to_vec));
                let mut message = Message { key, body, ..Message::default() };
                for header in borrowed.headers().into_iter().flat_map(|headers| headers.iter()) {
                    message.headers.push(header.key, header.value.map(<[u8]>::to_vec));
                }
                ends.remove(&borrowed.partition());
                found.push(message);
            }
            Some(Err(rdkafka::error::KafkaError::PartitionEOF(partition))) => {
                ends.insert(partition);
                if ends.len() == usize::try_from(partitions).unwrap() {
                    return found;
                }
            }
            Some(Err(_)) | None => {}
        }
    }
    panic!("{topic} has no end");
}

/// Creates topics.
pub(crate) async fn create(servers: &str, topics: &[&str], partitions: i32) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
    let new: Vec<_> =
        topics.iter().map(|name| NewTopic::new(name, partitions, TopicReplication::Fixed(1))).collect();
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let made = admin.create_topics(&new, &options).await.unwrap();
        // A server that has just started may have no broker for them yet.
        let is_early =
            made.iter().any(|made| matches!(made, Err((_, RDKafkaErrorCode::InvalidReplicationFactor))));
        if is_early && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        }
        made.into_iter().for_each(|made| drop(made.unwrap()));
        return;
    }
}

impl<W: Setup> BrokerSubject for Subject<W> {
    async fn fresh(order: MessageOrder) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let kafka = Kafka::shared(W::VERSION).unwrap();
        let topic = format!("orders-{}", COUNT.fetch_add(1, Relaxed));
        create(&kafka.servers(), &[&topic, &format!("{topic}.out")], 1).await;
        let producer = ClientConfig::new()
            .set("bootstrap.servers", kafka.servers())
            .set("linger.ms", "0")
            .create()
            .unwrap();
        // Order is kept by retries in place; with tiers it is refused.
        Self { kafka, topic, tiers: W::TIERS && order == MessageOrder::None, producer, way: PhantomData }
    }

    async fn source(&self) -> Arc<dyn MessageSource> {
        Arc::new(KafkaSource::open(self.settings()).await.unwrap())
    }

    async fn kill(&self, source: Arc<dyn MessageSource>) {
        source.close(Duration::ZERO).await.unwrap();
    }

    async fn kill_broker(&self) -> bool {
        // The server is shared: tests of a broker that is killed have their own.
        false
    }

    async fn publish(&self, message: Message) {
        let mut headers = OwnedHeaders::new();
        for (key, value) in message.headers.iter() {
            headers = headers.insert(Header { key, value });
        }
        let mut record: BaseRecord<'_, [u8], [u8]> =
            BaseRecord::to(&self.topic).partition(0).headers(headers);
        if let Some(key) = &message.key {
            record = record.key(key);
        }
        if let Some(body) = &message.body {
            record = record.payload(body);
        }
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        while self.producer.in_flight_count() > 0 {
            self.producer.poll(Duration::from_millis(1));
        }
    }

    async fn dead(&self) -> Vec<Message> {
        read(&self.kafka.servers(), &format!("{}.dlq", self.topic), 1)
    }

    async fn outputs(&self) -> Vec<Message> {
        read(&self.kafka.servers(), &self.output_topic(), 1)
    }

    fn output_topic(&self) -> String {
        format!("{}.out", self.topic)
    }

    async fn break_dead_place(&self, _: bool) -> bool {
        // A source creates its dead-letter topic when it is opened.
        false
    }

    async fn reassign(&self, _: &Arc<dyn MessageSource>) -> bool {
        false
    }

    async fn lose_answer(&self) -> bool {
        false
    }

    fn late_max() -> Duration {
        Duration::from_secs(5)
    }
}
