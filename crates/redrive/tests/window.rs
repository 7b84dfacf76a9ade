//! The dedupe window as a user meets it.
#![cfg(feature = "engine")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{Error, ErrorKind};
use std::time::Duration;

use redrive::engine::EventClock;
use redrive::window::{Claim, Once, OnceError, Ticket, Window, WindowSettings};
use redrive::{Failure, Fault, Moment};

const SECOND: Duration = Duration::from_secs(1);

fn settings() -> WindowSettings {
    WindowSettings { time: 60 * SECOND, count: 1_000, claim: 10 * SECOND }
}

async fn memory() -> Window {
    let clock = EventClock::paused_at(Moment::from_nanos(1_790_000_000_000_000_000));
    Window::open_with("memory:", settings(), clock).await.unwrap()
}

async fn first(window: &Window, id: &str) -> Ticket {
    match window.claim(id).await {
        Ok(Claim::First(ticket)) => ticket,
        other => panic!("{id} is not free: {other:?}"),
    }
}

async fn is_busy(window: &Window, id: &str) -> bool {
    matches!(window.claim(id).await, Ok(Claim::Busy { .. }))
}

async fn is_seen(window: &Window, id: &str) -> bool {
    matches!(window.claim(id).await, Ok(Claim::Seen { .. }))
}

#[tokio::test(start_paused = true)]
async fn a_dropped_ticket_is_not_given_back_but_runs_out() {
    let window = memory().await;
    drop(first(&window, "1").await);
    tokio::time::advance(9 * SECOND).await;
    assert!(is_busy(&window, "1").await);
    tokio::time::advance(SECOND).await;
    assert!(first(&window, "1").await.release());
    first(&window, "1").await.commit().await.unwrap();
    assert!(is_seen(&window, "1").await);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_may_be_committed_twice() {
    let window = memory().await;
    let ticket = first(&window, "1").await;
    ticket.commit().await.unwrap();
    ticket.commit().await.unwrap();
    assert_eq!(window.figures().committed, 1);
    assert_eq!(window.figures().late, 0);
}

#[tokio::test(start_paused = true)]
async fn scopes_are_apart() {
    let window = memory().await;
    for scope in ["charge", "refund"] {
        let Ok(Claim::First(ticket)) = window.claim_in(scope, "17").await else { panic!("{scope}") };
        ticket.commit().await.unwrap();
    }
    assert!(matches!(window.claim_in("charge", "17").await, Ok(Claim::Seen { .. })));
    first(&window, "17").await.release();
}

#[tokio::test(start_paused = true)]
async fn once_commits_what_worked_and_releases_what_certainly_did_not_happen() {
    let window = memory().await;
    let refused = || Error::from(ErrorKind::ConnectionRefused);
    let cases: [(&str, Failure, bool); 5] = [
        ("transient", Failure::transient(refused()), false),
        ("not executed", Failure::transient(refused()).not_executed(), true),
        ("permanent", Failure::permanent(refused()), false),
        ("unclassified", Failure::from(refused()), false),
        ("overload", Failure::new(Fault::overload(), redrive::event::Cause::new("text", "busy")), true),
    ];
    for (name, failure, is_free) in cases {
        let failed = window.once::<()>(name, async { Err(failure) }).await;
        assert!(matches!(failed, Err(OnceError::Effect(_))), "{failed:?}");
        assert_eq!(!is_busy(&window, name).await, is_free, "{name}");
    }
    assert!(matches!(window.once("worked", async { Ok(17) }).await, Ok(Once::Done(17))));
    let again = window.once("worked", async { panic!("it is not begun") });
    assert!(matches!(again.await, Ok(Once::<()>::Seen { .. })));
}

#[tokio::test(start_paused = true)]
async fn once_that_is_cancelled_holds_its_claim_until_it_runs_out() {
    let window = memory().await;
    let never = window.once("1", std::future::pending::<Result<(), Failure>>());
    assert!(tokio::time::timeout(SECOND, never).await.is_err());
    assert!(matches!(window.once("1", async { Ok(()) }).await, Ok(Once::Busy { .. })));
    tokio::time::advance(9 * SECOND).await;
    assert!(matches!(window.once("1", async { Ok(()) }).await, Ok(Once::Done(()))));
}

#[tokio::test(start_paused = true)]
async fn once_that_took_too_long_says_that_it_is_not_marked() {
    let window = memory().await;
    let slow = async {
        tokio::time::advance(10 * SECOND).await;
        let other = first(&window, "1").await;
        other.commit().await.unwrap();
        Ok(17)
    };
    let slow = window.once("1", slow).await;
    assert!(matches!(slow, Ok(Once::Unmarked { value: 17, .. })), "{slow:?}");
}

#[tokio::test]
async fn what_is_wrong_with_an_address_or_a_setting_is_said() {
    let none = WindowSettings { count: 0, ..settings() };
    for (address, settings, says) in [
        ("memory:", none, "`count` is between 1 and"),
        ("redis:", settings(), "there is no such store; use `sqlite:FILE`"),
        ("sqlite:", settings(), "names no file"),
    ] {
        let error = Window::open(address, settings).await.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[cfg(feature = "sqlite")]
mod in_a_file {
    use super::*;
    use redrive::window::blocking;

    #[tokio::test]
    async fn what_was_committed_is_seen_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("sqlite:{}", folder.path().join("seen.db").display());
        let window = Window::open(&address, settings()).await.unwrap();
        first(&window, "1").await.commit().await.unwrap();
        drop(first(&window, "2").await);
        assert_eq!(window.syncs(), 1);
        let taken = Window::open(&address, settings()).await.unwrap_err().to_string();
        assert!(taken.contains("another process has it"), "{taken}");
        window.close().await;
        assert!(window.claim("3").await.is_err());

        let window = Window::open(&address, settings()).await.unwrap();
        assert!(is_seen(&window, "1").await);
        first(&window, "2").await.release();
        assert_eq!(window.damaged(), [""; 0]);
    }

    #[test]
    fn without_async_it_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("sqlite:{}", folder.path().join("seen.db").display());
        let window = blocking::Window::open(&address, settings()).unwrap();
        let blocking::Claim::First(ticket) = window.claim("1").unwrap() else { panic!("it is new") };
        assert!(matches!(window.claim("1").unwrap(), blocking::Claim::Busy { .. }));
        ticket.commit().unwrap();
        assert!(matches!(window.once("2", || Ok(17)), Ok(Once::Done(17))));
        let refused = || Err::<(), _>(Failure::transient_text("refused").not_executed());
        assert!(matches!(window.once("3", refused), Err(OnceError::Effect(_))));
        assert!(matches!(window.once("3", || Ok(())), Ok(Once::Done(()))));
        window.close();
        let window = blocking::Window::open(&address, settings()).unwrap();
        assert!(matches!(window.claim("1").unwrap(), blocking::Claim::Seen { .. }));
        assert_eq!(window.figures().ids, 3);
    }
}

#[cfg(feature = "metrics")]
#[test]
fn duplicates_and_what_is_forgotten_early_are_counted() {
    use metrics_util::debugging::DebugValue::Counter;

    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let small = WindowSettings { count: 3, ..settings() };
        let window = redrive::window::blocking::Window::open("memory:", small).unwrap();
        for id in ["1", "2", "2", "3", "4", "5"] {
            if let redrive::window::blocking::Claim::First(ticket) = window.claim(id).unwrap() {
                ticket.commit().unwrap();
            }
        }
        assert_eq!(window.figures().evicted_early, 2);
    });
    let snapshot = snapshotter.snapshot().into_vec();
    let all: Vec<_> = snapshot.iter().map(|(key, _, _, value)| (key.key().name(), value)).collect();
    assert!(all.contains(&("redrive_duplicates_total", &Counter(1))), "{all:?}");
    assert!(all.contains(&("redrive_window_evicted_total", &Counter(2))), "{all:?}");
}
