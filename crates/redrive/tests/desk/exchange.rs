//! Dead letters out of one store and into another.

use redrive::engine::desk::ExchangeError;
use redrive::event::{Expiry, State};
use redrive::store::operate::Refusal;
use redrive::triage::{Filter, RedriveOptions as How};
use redrive::{Event, testing};

use crate::{SECOND, Service, desk, mail, started};

const HOUR: std::time::Duration = SECOND.saturating_mul(3600);

#[tokio::test(start_paused = true)]
async fn letters_travel_with_their_stories() {
    let service = Service::default();
    service.breaks(&["text", "bytes"]);
    let here = started(&service).await;
    let bytes = [0xff, 0x00, 0xfe];
    here.publish(
        Event::new("mails", "text").payload(*b"{\"euro\": 17}").header("a", "b").expires_after(HOUR),
    )
    .await
    .unwrap();
    here.publish(Event::new("mails", "bytes").payload(bytes).tenant("t")).await.unwrap();
    testing::drain(&here).await;
    let mut file = Vec::new();
    let exported = desk(&here).export(Filter::default(), &mut file).await.unwrap();
    assert_eq!((exported.written, exported.damaged.len()), (2, 0));
    let text = String::from_utf8(file.clone()).unwrap();
    assert!(text.contains(r#""payload":"{\"euro\": 17}""#) && text.contains("payload_base64"), "{text}");

    let service = Service::default();
    let there = started(&service).await;
    let imported = desk(&there).import(&mut file.as_slice()).await.unwrap();
    assert_eq!((imported.kept, imported.refused.len()), (2, 0));
    let before = testing::expect_dead(&here, "mails", "text").await;
    let after = testing::expect_dead(&there, "mails", "text").await;
    assert_eq!(
        (before.history, before.reason, before.attempts),
        (after.history, after.reason, after.attempts)
    );
    let shown = desk(&there).show("", "mails", "text").await.unwrap().unwrap();
    assert!(matches!(shown.event.unwrap().expires, Some(Expiry::At(_))));
    let again = desk(&there).import(&mut file.as_slice()).await.unwrap();
    assert!(again.kept == 0 && matches!(again.refused[..], [(_, Refusal::IdTaken { .. }), _]), "{again:?}");

    desk(&there).redrive(mail("text"), How::default()).await.unwrap();
    testing::drain(&there).await;
    assert_eq!(service.calls(), ["text"]);
    assert_eq!(testing::fate(&there, "mails", "text").await.state, State::Done);
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_no_letter_is_named_and_those_before_it_are_kept() {
    let service = Service::default();
    service.breaks(&["1"]);
    let here = started(&service).await;
    here.publish(Event::new("mails", "1")).await.unwrap();
    testing::drain(&here).await;
    let mut file = Vec::new();
    desk(&here).export(Filter::default(), &mut file).await.unwrap();
    file.extend_from_slice(b"\n{\"queue\": \"mails\"}\n");
    let there = started(&service).await;
    let refused = desk(&there).import(&mut file.as_slice()).await;
    assert!(matches!(&refused, Err(ExchangeError::Line { line: 3, .. })), "{refused:?}");
    testing::expect_dead(&there, "mails", "1").await;
}

#[tokio::test(start_paused = true)]
async fn the_largest_letter_that_is_written_can_be_read() {
    let service = Service::default();
    service.breaks(&["control", "quotes"]);
    let here = started(&service).await;
    for (id, byte) in [("control", 1), ("quotes", b'"')] {
        here.publish(Event::new("mails", id).payload(vec![byte; 1 << 20])).await.unwrap();
    }
    testing::drain(&here).await;
    let mut file = Vec::new();
    let exported = desk(&here).export(Filter::default(), &mut file).await.unwrap();
    assert_eq!((exported.written, exported.damaged.len()), (2, 0));
    let there = started(&service).await;
    assert_eq!(desk(&there).import(&mut file.as_slice()).await.unwrap().kept, 2);
}
