//! A resource with an ETag is compared and set, and what cannot be known is said.
#![cfg(feature = "reqwest")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use redrive_core::Policy;
use redrive_http::Client;
use redrive_http::cas::{HttpCasError, HttpResource};
use redrive_retry::cas::{Cas, CasError};
use redrive_testkit::{Reply, Scripted};

fn resource(server: &Scripted) -> HttpResource {
    let client = Client::new(reqwest::Client::new(), Policy::default());
    HttpResource::new(&client, server.url("/page"))
}

fn page(etag: &str) -> Reply {
    Reply::status(200).header("etag", etag).body("text")
}

fn signed(text: &Vec<u8>) -> Vec<u8> {
    [text.as_slice(), b" Ada"].concat()
}

#[tokio::test]
async fn another_writer_was_faster_and_the_change_is_made_again_on_what_it_wrote() {
    let server =
        Scripted::start([page("\"1\""), Reply::status(412), page("\"2\""), Reply::status(204)]).await;
    let applied = Cas::new("ada").change(&mut resource(&server), signed).await.unwrap();
    assert_eq!((applied.value, applied.attempts), (b"text Ada".to_vec(), 2));
    let requests = server.asked();
    let sent: Vec<_> = requests.iter().filter(|request| request.head.method == "PUT").collect();
    let matches: Vec<_> = sent.iter().map(|request| request.header("if-match").unwrap()).collect();
    assert_eq!(matches, ["\"1\"", "\"2\""]);
    assert_ne!(sent[0].header("idempotency-key"), sent[1].header("idempotency-key"));
}

#[tokio::test]
async fn a_weak_or_missing_version_is_refused_before_anything_is_sent() {
    for (reply, what) in [(page("W/\"1\""), "weak"), (Reply::status(200), "no ETag")] {
        let server = Scripted::start([reply]).await;
        let ended = Cas::new("ada").change(&mut resource(&server), signed).await.unwrap_err();
        let CasError::Refused(error) = ended else { panic!("{ended:?}") };
        assert!(error.to_string().contains(what), "{error}");
        assert!(matches!(error, HttpCasError::WeakVersion(_) | HttpCasError::NoVersion));
        assert_eq!(server.asked().len(), 1);
    }
}

#[tokio::test]
async fn a_lost_answer_is_unknown_because_an_etag_may_return() {
    let server = Scripted::start([page("\"1\""), Reply::Cut]).await;
    let ended = Cas::new("ada").change(&mut resource(&server), signed).await.unwrap_err();
    assert!(matches!(ended, CasError::Unknown { attempts: 1, .. }), "{ended:?}");
    assert_eq!(server.asked().len(), 2, "the PUT was sent once");
}

#[tokio::test]
async fn a_server_that_remembers_is_asked_again_under_the_same_key() {
    let server = Scripted::start([page("\"1\""), Reply::Cut, Reply::status(204)]).await;
    let mut page = resource(&server).server_remembers();
    let applied = Cas::new("ada").change(&mut page, signed).await.unwrap();
    assert_eq!(applied.attempts, 2);
    let requests = server.asked();
    assert_eq!(requests[1].header("idempotency-key"), requests[2].header("idempotency-key"));
    assert_eq!(requests[1].header("if-match"), requests[2].header("if-match"));
}

#[tokio::test]
async fn a_refusal_ends_it() {
    let server = Scripted::start([page("\"1\""), Reply::status(403)]).await;
    let ended = Cas::new("ada").change(&mut resource(&server), signed).await.unwrap_err();
    assert!(matches!(ended, CasError::Refused(HttpCasError::Status(status)) if status == 403));
}
