//! Consumers in processes of their own that are killed and frozen, and a broker that is killed, while messages fail and
//! are retried. A reader of committed messages then finds one output or one dead letter for each message.
//!
//! `REDRIVE_FAULTS` says how many faults there are, `REDRIVE_SEED` which; `cargo xtask faults kafka` sets both.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use redrive_broker::sources::kafka::{KafkaSettings, KafkaSource};
use redrive_broker::{Consumer, Handled, IncomingMessage, Message, Outgoing};
use redrive_core::{RandomSource, SeededRandom};
use redrive_testkit::broker::worker::{ok, permanent, policy, retry};
use redrive_testkit::kafka::Kafka;

use super::subject::{create, read};

const SERVERS: &str = "REDRIVE_TEST_KAFKA";
const PARTITIONS: i32 = 3;
/// Messages before each fault.
const MESSAGES: u64 = 60;

/// Every twentieth message cannot succeed, every third one fails at first.
fn outcome(number: u64, attempt: u32) -> Handled {
    match number {
        _ if number.is_multiple_of(20) => permanent(),
        _ if number.is_multiple_of(3) && attempt == 1 => retry(),
        _ => ok(),
    }
}

/// A consumer, until it is killed. Does nothing unless it is started by the test below.
#[test]
fn a_consumer_in_a_process_of_its_own() {
    let Ok(servers) = std::env::var(SERVERS) else { return };
    let handle = |incoming: IncomingMessage| async move {
        let number = String::from_utf8_lossy(incoming.body()).parse().unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let handled = outcome(number, incoming.attempt());
        Handled { outputs: vec![Outgoing::new("out", Message::new(number.to_string()))], ..handled }
    };
    let run = async {
        let settings = KafkaSettings::new(&servers, "orders", "orders-consumer")
            .tiers([Duration::from_millis(200)])
            .client("session.timeout.ms", "6000");
        let source = Arc::new(KafkaSource::open(settings).await.unwrap());
        Consumer::new(source, "orders", policy(5, Duration::from_millis(200)), handle)
            .with_outputs()
            .run(std::future::pending())
            .await
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let end = runtime.block_on(run);
    panic!("the consumer stopped by itself: {end:?}");
}

struct Process(Child);

impl Process {
    fn start(servers: &str) -> Self {
        let name = "faults::a_consumer_in_a_process_of_its_own";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture"]).env(SERVERS, servers);
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn every_message_has_one_end_whatever_is_killed() {
    if std::env::var(SERVERS).is_ok() {
        return;
    }
    let Some(kafka) = Kafka::start("4.3.1") else { return };
    let (faults, seed) = (number("REDRIVE_FAULTS", 3), number("REDRIVE_SEED", 1));
    let (servers, mut random) = (kafka.servers(), SeededRandom::new(seed));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(create(&servers, &["orders", "out"], PARTITIONS));
    let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", &servers).create().unwrap();
    let mut processes = [Process::start(&servers), Process::start(&servers)];
    let mut hit: BTreeMap<&str, u32> = BTreeMap::new();
    let mut published = 0;
    for fault in 0..=faults {
        for _ in 0..MESSAGES {
            let (key, body) = ((published % 7).to_string(), published.to_string());
            producer
                .send(BaseRecord::to("orders").key(&key).payload(&body))
                .map_err(|(error, _)| error)
                .unwrap();
            published += 1;
        }
        while producer.in_flight_count() > 0 {
            producer.poll(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(500 + random.roll() % 2_000));
        if fault == faults {
            break;
        }
        let which = usize::try_from(random.roll() % 2).unwrap();
        // The first faults are one of each kind.
        let kind = if fault < 3 { fault } else { random.roll() % 3 };
        match kind {
            0 => {
                processes[which].signal("-KILL");
                processes[which] = Process::start(&servers);
                *hit.entry("consumer killed").or_default() += 1;
            }
            1 => {
                // Longer than its session: it wakes up as a zombie.
                processes[which].signal("-STOP");
                std::thread::sleep(Duration::from_secs(8));
                processes[which].signal("-CONT");
                *hit.entry("consumer frozen").or_default() += 1;
            }
            _ => {
                kafka.kill();
                kafka.start_again().unwrap();
                *hit.entry("broker killed").or_default() += 1;
            }
        }
    }
    let end = Instant::now() + Duration::from_secs(180);
    let found = loop {
        let found = ends(&servers);
        if found.len() as u64 == published || Instant::now() > end {
            break found;
        }
        for process in &mut processes {
            assert!(process.0.try_wait().unwrap().is_none(), "a consumer stopped by itself");
        }
        std::thread::sleep(Duration::from_millis(500));
    };
    let lost: Vec<u64> = (0..published).filter(|number| !found.contains_key(number)).collect();
    assert!(lost.is_empty(), "seed {seed}: no end: {lost:?}");
    // Whatever still comes would be a second one.
    std::thread::sleep(Duration::from_secs(2));
    for (number, found) in ends(&servers) {
        let expected = if number.is_multiple_of(20) { (0, 1) } else { (1, 0) };
        assert_eq!(found, expected, "seed {seed}: outputs and dead letters of {number}");
    }
    eprintln!("{published} messages, {hit:?}: each has one end");
}

/// Outputs and dead letters of each message.
fn ends(servers: &str) -> BTreeMap<u64, (u32, u32)> {
    let mut ends: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
    let number = |message: &Message| -> u64 {
        String::from_utf8_lossy(message.body.as_deref().unwrap_or_default()).parse().unwrap()
    };
    read(servers, "out", PARTITIONS)
        .iter()
        .for_each(|message| ends.entry(number(message)).or_default().0 += 1);
    let dead = read(servers, "orders.dlq", PARTITIONS);
    dead.iter().for_each(|message| ends.entry(number(message)).or_default().1 += 1);
    ends
}
