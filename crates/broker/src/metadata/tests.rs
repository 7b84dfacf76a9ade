use proptest::prelude::*;

use super::*;

fn place() -> (Partition, i64, Moment) {
    (Partition::new("orders", 3), 17, Moment::default() + Duration::from_secs(1_700_000_000))
}

fn read(message: &Message) -> Metadata {
    let (partition, position, now) = place();
    Metadata::read(message, &partition, position, now)
}

#[test]
fn a_message_without_headers_is_known_by_its_place() {
    let metadata = read(&Message::new(*b"x"));
    assert_eq!((metadata.id.as_str(), metadata.attempts, metadata.mode), ("orders/3/17", 0, Mode::Live));
    assert_eq!((metadata.origin.as_str(), metadata.due), ("orders/3/17", None));
    assert_eq!(metadata.first_seen, place().2);
}

#[test]
fn retries_keep_identity_origin_and_first_sight_and_count_once() {
    let first = Message::new(*b"x").header("ce_id", "order-9").header("own", "kept");
    let mut message = first;
    for attempts in 1..=20 {
        let metadata = read(&message);
        assert_eq!((metadata.id.as_str(), metadata.attempts), ("order-9", attempts - 1));
        let due = place().2 + Duration::from_millis(u64::from(attempts));
        let delay = Duration::from_millis(250);
        message.headers = metadata.retry_headers(&message.headers, attempts, delay, due);
        let again = read(&message);
        assert_eq!((again.due, again.delay, again.mode), (Some(due), delay, Mode::Retry));
        assert_eq!((again.origin, again.first_seen), (metadata.origin, metadata.first_seen));
    }
    assert_eq!(message.headers.text("own"), Some("kept"));
    for (name, _) in message.headers.iter() {
        assert_eq!(message.headers.count(name), 1, "{name}");
    }
}

#[test]
fn a_dead_letter_says_why_and_a_redrive_starts_anew() {
    let metadata = read(&Message::new(*b"x"));
    let cause = Cause::new("Timeout", "ö".repeat(2_000));
    let message = Message {
        headers: metadata.dead_headers(&Headers::default(), 6, "attempts_spent", Some(&cause)),
        ..Message::default()
    };
    let dead = DeadCause::read(&message.headers);
    assert_eq!((dead.reason.as_str(), dead.kind.as_str(), dead.attempts), ("attempts_spent", "Timeout", 6));
    assert!(dead.message.len() <= 512 && !dead.message.is_empty());
    let back = Message { headers: read(&message).redrive_headers(&message.headers, place().2), ..message };
    let again = read(&back);
    assert_eq!((again.id, again.attempts, again.mode), (metadata.id, 0, Mode::Redrive));
    assert_eq!(back.headers.get(header::DEAD_REASON), None);
}

#[test]
fn malformed_counters_are_clamped() {
    for (text, attempts) in [
        ("banana", 0),
        ("-3", 0),
        ("0", 0),
        ("1", 0),
        ("3", 2),
        (" 4 ", 3),
        ("99999999999999999999999", ATTEMPTS_MAX - 1),
    ] {
        let message = Message::new(*b"x").header(header::ATTEMPT, text);
        assert_eq!(read(&message).attempts, attempts, "{text}");
    }
    assert_eq!(read(&Message::new(*b"x").header("retry_topic-attempts", vec![0xff; 4])).attempts, 0);
    let absurd = Message::new(*b"x").header("retry_topic-attempts", vec![0x7f, 0xff, 0xff, 0xff]);
    assert_eq!(read(&absurd).attempts, ATTEMPTS_MAX - 1);
}

#[test]
fn headers_of_spring_connect_and_streams_are_read() {
    let spring = Message::new(*b"x")
        .header("retry_topic-attempts", 4_u32.to_be_bytes())
        .header("retry_topic-backoff-timestamp", 1_700_000_010_000_u64.to_be_bytes())
        .header("retry_topic-original-timestamp", 1_700_000_000_000_u64.to_be_bytes()[2..].to_vec())
        .header("kafka_original-topic", "payments")
        .header("kafka_original-partition", 2_u32.to_be_bytes())
        .header("kafka_original-offset", 99_u64.to_be_bytes())
        .header("kafka_exception-fqcn", "java.io.IOException")
        .header("kafka_exception-message", "connection reset");
    let metadata = read(&spring);
    assert_eq!((metadata.attempts, metadata.origin.as_str()), (3, "payments/2/99"));
    assert_eq!(metadata.due, Some(Moment::default() + Duration::from_secs(1_700_000_010)));
    assert_eq!(metadata.first_seen, Moment::default() + Duration::from_secs(1_700_000_000));
    let dead = DeadCause::read(&spring.headers);
    assert_eq!(
        (dead.attempts, dead.kind.as_str(), dead.message.as_str()),
        (3, "java.io.IOException", "connection reset")
    );

    let connect = Message::new(*b"x")
        .header("__connect.errors.topic", "payments")
        .header("__connect.errors.partition", "1")
        .header("__connect.errors.offset", "5")
        .header("__connect.errors.exception.class.name", "org.apache.kafka.connect.errors.DataException");
    assert_eq!(read(&connect).origin, "payments/1/5");
    assert!(DeadCause::read(&connect.headers).kind.ends_with("DataException"));

    let streams = Message::new(*b"x").header("__streams.errors.message", "no such account");
    assert_eq!(DeadCause::read(&streams.headers).message, "no such account");
    let first = Message::new(*b"x").header("redrive-first-seen", "2023-11-14T22:13:20Z");
    assert_eq!(read(&first).first_seen, Moment::default() + Duration::from_secs(1_700_000_000));
}

#[test]
fn a_long_identity_is_hashed_and_stays_the_same() {
    let message = Message::new(*b"x").header(header::ID, "i".repeat(5_000));
    let id = read(&message).id;
    assert!(id.len() <= ID_BYTES_MAX && id == read(&message).id, "{id}");
}

proptest! {
    #[test]
    fn any_header_is_read_without_a_panic_and_stays_bounded(
        pairs in prop::collection::vec((prop::sample::select(vec![
            header::ATTEMPT, header::DUE, header::FIRST_SEEN, header::ORIGIN, header::ID, header::NEXT_DELAY_MS,
            "retry_topic-attempts", "retry_topic-backoff-timestamp", "kafka_original-topic", "kafka_original-offset",
            "x-delivery-count", "__connect.errors.topic",
        ]), prop::collection::vec(any::<u8>(), 0..40)), 0..8)
    ) {
        let mut message = Message::new(*b"x");
        for (name, value) in pairs {
            message.headers.push(name, Some(value));
        }
        let metadata = read(&message);
        prop_assert!(metadata.id.len() <= ID_BYTES_MAX && metadata.attempts < ATTEMPTS_MAX);
        let headers = metadata.retry_headers(&message.headers, metadata.attempts + 1, metadata.delay, place().2);
        let again = read(&Message { headers, ..message });
        prop_assert_eq!((again.id, again.attempts), (metadata.id, (metadata.attempts + 1).min(ATTEMPTS_MAX - 1)));
    }
}
