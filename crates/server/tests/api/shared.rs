//! Queues that send to one destination, and what they share.

use redrive::breaker::BreakerState;
use redrive::engine::DownstreamLoad;
use redrive::event::State;
use serde_json::json;

use crate::observe::scrape;
use crate::receiver::{Receiver, status};
use crate::test_server::TestServer;

/// Two queues to one address, under this policy.
fn two(receiver: &Receiver, policy: &str) -> String {
    let queue = |name: &str| {
        format!(
            "[queues.{name}.push]\nurl = \"http://{}/{name}\"\n[queues.{name}.policy]\nattempts = 100\n\
             not_before_max = \"1m\"\nbackoff.constant.delay = \"1ms\"\n{policy}\n",
            receiver.address
        )
    };
    format!("push.allow = [\"127.0.0.0/8\"]\n{}{}", queue("orders"), queue("mails"))
}

impl TestServer {
    async fn send(&self, queue: &str, ids: &[&str]) {
        let events: Vec<_> = ids.iter().map(|id| json!({ "id": id })).collect();
        let told = self.post(&format!("/v1/queues/{queue}/events"), json!({ "events": events })).await;
        assert_eq!(told.0, 202, "{told:?}");
    }

    fn pressure(&self, queue: &str) -> DownstreamLoad {
        let pressures = self.server.as_ref().expect("it runs").app().redrive.pressures();
        pressures.into_iter().find(|pressure| pressure.queue == queue).expect("a queue")
    }
}

#[tokio::test]
async fn retries_of_two_queues_to_one_destination_are_bounded_together() {
    let mut receiver = Receiver::open(|_| status(500, "")).await;
    // One retry is there at once, and the next in a thousand seconds.
    let server = TestServer::open(&two(&receiver, "budget = { share = 0.0, floor = 0.001 }")).await;
    server.send("orders", &["1", "2", "3"]).await;
    let mut attempts = Vec::new();
    for _ in 0..4 {
        attempts.push(receiver.next().await.text("redrive-attempt").to_owned());
    }
    attempts.sort_unstable();
    assert_eq!(attempts, ["1", "1", "1", "2"]);
    let spent = |queue| {
        let DownstreamLoad { target, budget_tokens, budget_spent, .. } = server.pressure(queue);
        (target, budget_tokens, budget_spent)
    };
    let origin = format!("http://{}", receiver.address);
    for queue in ["orders", "mails"] {
        assert_eq!(spent(queue), (origin.clone(), Some(0), Some(1)), "{queue}");
    }
    // First attempts of the other go on; it has no retry of its own.
    server.send("mails", &["1", "2", "3"]).await;
    for _ in 0..3 {
        let got = receiver.next().await;
        assert_eq!((got.path.as_str(), got.text("redrive-attempt")), ("/mails", "1"));
    }
    assert_eq!(spent("mails"), (origin.clone(), Some(0), Some(1)));
    assert!(receiver.is_quiet());
    let text = scrape(&server).await;
    let line = format!("redrive_budget_spent_total{{target=\"{origin}\"}} 1");
    let told: Vec<&str> =
        text.lines().filter(|line| line.starts_with("redrive_budget_spent_total")).collect();
    assert_eq!(told, [line]);
}

#[tokio::test]
async fn a_breaker_that_one_queue_opens_is_open_for_the_other() {
    let mut receiver = Receiver::open(|_| status(500, "")).await;
    let breaker = "breaker = { failing = 0.5, window = 4, least_calls = 2, open_for = \"1h\" }";
    let server = TestServer::open(&two(&receiver, breaker)).await;
    server.send("orders", &["1"]).await;
    let _ = (receiver.next().await, receiver.next().await);
    let redrive = &server.server.as_ref().expect("it runs").app().redrive;
    while redrive.event("", "orders", "1").await.expect("the store").expect("it is there").attempts < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.pressure("mails").breaker, Some(BreakerState::Open));
    server.send("mails", &["1"]).await;
    let found = redrive.event("", "mails", "1").await.expect("the store").expect("it is there");
    assert_eq!((found.state, found.attempts), (State::Ready, 0));
    assert!(receiver.is_quiet());
}
