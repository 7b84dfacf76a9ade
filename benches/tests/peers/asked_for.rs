//! What users ask other libraries for, and have here. One small test a wish; the thread that asks for it
//! stands above.
//!
//! The classifier for Kafka (rust-rdkafka#718) needs a C library to build and is tested where it is written:
//! `crates/retry/src/classify/kafka.rs`.

use std::cell::RefCell;
use std::time::Duration;

use redrive_core::{Backoff, Budget, Policy, StopReason};
use redrive_http::Client;
use redrive_retry::{Attempt, Retry, Start, Stopped, classify};
use redrive_testkit::{Reply, Scripted};
use tokio::time::{Instant, sleep};

use crate::redrive_helpers::policy;

const SECOND: Duration = Duration::from_secs(1);

async fn down() -> Result<(), &'static str> {
    Err("down")
}

/// resilience4j#172, Polly#2348, opendal#7376.
#[tokio::test]
async fn a_budget_that_all_callers_of_a_downstream_share() {
    let budget = Budget::share_of(0.5).unwrap();
    let policy = || Policy::builder().backoff(Backoff::NONE).budget(budget.clone()).build().unwrap();
    let (one, other) = (policy(), policy());
    let mut attempts = 0;
    for policy in [&one, &other, &one, &other] {
        attempts += down.retry(policy).classify(classify::all).await.unwrap_err().report.attempts;
    }
    assert_eq!(attempts, 4 + 2);
}

/// reqwest-middleware#146.
#[tokio::test(start_paused = true)]
async fn retry_after_of_a_server_is_honoured() {
    let server = Scripted::start([Reply::status(503).header("retry-after", "3")]).await;
    let client = Client::new(crate::reqwest::builder().build().unwrap(), Policy::default());
    let response = client.get(server.url("/")).send().await.unwrap();
    assert!(Client::report(&response).unwrap().waited >= 3 * SECOND);
}

/// backon#43.
#[tokio::test(start_paused = true)]
async fn a_limit_on_the_time_in_all_that_counts_the_calls() {
    let slow = || async {
        sleep(2 * SECOND).await;
        down().await
    };
    let start = Instant::now();
    let policy = policy(10).backoff(Backoff::NONE).time(5 * SECOND).build().unwrap();
    let stopped = slow.retry(&policy).classify(classify::all).await.unwrap_err();
    assert_eq!((stopped.report.reason, start.elapsed()), (StopReason::TimeSpent, 5 * SECOND));
}

/// backon#242.
#[tokio::test]
async fn the_number_of_the_attempt_inside_the_call() {
    let (told, found) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let policy = policy(3).backoff(Backoff::NONE).build().unwrap();
    let asking = |attempt: Attempt| {
        let (told, found) = (&told, &found);
        async move {
            told.borrow_mut().push(attempt.number());
            found.borrow_mut().push(Attempt::current().unwrap().number());
            down().await
        }
    };
    asking.retry(&policy).classify(classify::all).await.unwrap_err();
    assert_eq!((told.into_inner(), found.into_inner()), (vec![1, 2, 3], vec![1, 2, 3]));
}

/// backon#49.
#[tokio::test]
async fn an_operation_that_borrows_self_mutably() {
    struct Reader {
        policy: Policy,
        position: u32,
    }
    impl Reader {
        async fn read(&mut self) -> Result<u32, &'static str> {
            self.position += 1;
            if self.position < 3 { Err("not yet") } else { Ok(self.position) }
        }
        async fn read_with_retries(&mut self) -> Result<u32, Stopped<&'static str>> {
            let mut session = self.policy.start();
            while session.next().await.is_some() {
                if let Some(read) = session.run(self.read(), classify::all).await {
                    return Ok(read);
                }
            }
            Err(session.stopped())
        }
    }
    let mut reader = Reader { policy: policy(3).backoff(Backoff::NONE).build().unwrap(), position: 0 };
    assert_eq!(reader.read_with_retries().await.unwrap(), 3);
}

/// traefik#8990.
#[tokio::test(start_paused = true)]
async fn only_what_is_idempotent_is_repeated_unless_one_says_so() {
    use http::Method;
    let client = Client::new(crate::reqwest::builder().build().unwrap(), Policy::default());
    for (method, sent) in [
        (Method::GET, 2),
        (Method::HEAD, 2),
        (Method::PUT, 2),
        (Method::DELETE, 2),
        (Method::OPTIONS, 2),
        (Method::POST, 1),
        (Method::PATCH, 1),
    ] {
        let server = Scripted::start([Reply::status(500)]).await;
        client.request(method.clone(), server.url("/")).send().await.unwrap();
        assert_eq!(server.asked().len(), sent, "{method}");
    }
}

/// Outside of HTTP: an unclassified error is not repeated.
#[tokio::test]
async fn nothing_is_repeated_that_nobody_said_was_safe_to_repeat() {
    let report = down.retry(&Policy::default()).await.unwrap_err().report;
    assert_eq!((report.attempts, report.reason), (1, StopReason::Unclassified));
}

/// sqlx#482.
#[tokio::test]
async fn a_classifier_that_reads_sqlstate() {
    let policy = policy(3).backoff(Backoff::NONE).build().unwrap();
    for (code, attempts, reason) in [
        ("40001", 3, StopReason::AttemptsSpent),
        ("40P01", 3, StopReason::AttemptsSpent),
        ("08006", 3, StopReason::AttemptsSpent),
        ("23505", 1, StopReason::Permanent),
        ("42P01", 1, StopReason::Permanent),
        ("XX000", 1, StopReason::Unclassified),
    ] {
        let query = || async move { Err::<(), _>(code) };
        let report =
            query.retry(&policy).classify(|code: &&str| classify::sqlstate(code)).await.unwrap_err().report;
        assert_eq!((report.attempts, report.reason), (attempts, reason), "{code}");
    }
}

/// envoy#6001.
#[tokio::test]
async fn layers_that_do_not_multiply() {
    let policy = policy(3).backoff(Backoff::NONE).build().unwrap();
    let calls = RefCell::new(0);
    let inner = || async {
        *calls.borrow_mut() += 1;
        down().await
    };
    let outer = || async { inner.retry(&policy).classify(classify::all).await };
    let stopped = outer.retry(&policy).classify(classify::all).await.unwrap_err();
    assert_eq!(calls.into_inner(), 3);
    assert_eq!(stopped.report.attempts, 3, "the outermost layer is the one that retries");
}
