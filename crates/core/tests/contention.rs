//! A hundred clients, one row: what jitter is for.
//!
//! The model of the AWS architecture blog's "Exponential Backoff And Jitter". Every client reads the row and
//! then writes it, and a write succeeds only if no other client wrote since that read; a client that loses
//! backs off and starts again with the read. Each message takes a normally distributed time (mean 10 ms,
//! deviation 2 ms); base 5 ms, cap 2 s. The test counts the writes until all clients have succeeded, and the
//! time until then.
//!
//! The results, as the mean of a hundred seeds, beside the figures of AWS's own simulator:
//!
//! | waits | calls | ms | AWS calls | AWS ms |
//! |---|---|---|---|---|
//! | none | 2426 | 2025 | 2425 | 2030 |
//! | exponential, no jitter | 1857 | 63290 | 1851 | 63472 |
//! | equal | 813 | 6660 | 813 | 6686 |
//! | full | 796 | 4937 | 795 | 4937 |
//! | decorrelated | 1004 | 4300 | 1003 | 4733 |
//!
//! Decorrelated jitter finishes sooner than AWS's because ours does not pile up on the cap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use redrive_core::{Backoff, Jitter, Moment, RandomSource, SeededRandom};

const CLIENTS: usize = 100;
const SEEDS: u64 = 100;
const BASE: Duration = Duration::from_millis(5);
const CAP: Duration = Duration::from_millis(2_000);

/// A message when it arrives at the server, ordered by its time and then by the order of sending.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    at: Moment,
    sent: u64,
    client: usize,
    /// The version that the client read and wants to replace; `None` for a read.
    replaces: Option<u64>,
}

#[derive(Default, Clone)]
struct Client {
    retries: u32,
    previous: Duration,
}

/// The cost of one contest.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    calls: f64,
    millis: f64,
}

struct Contest {
    random: SeededRandom,
    messages: BinaryHeap<Reverse<Message>>,
    sent: u64,
}

impl Contest {
    fn new(seed: u64) -> Self {
        Self { random: SeededRandom::new(seed), messages: BinaryHeap::new(), sent: 0 }
    }

    /// How long one message takes (Box and Muller's normal deviate).
    fn network(&mut self) -> Duration {
        let mut unit = || (self.random.roll() >> 11) as f64 / (1u64 << 53) as f64;
        let (radius, angle) = (1.0 - unit(), unit() * std::f64::consts::TAU);
        let normal = (-2.0 * radius.ln()).sqrt() * angle.cos();
        Duration::from_secs_f64((10.0 + 2.0 * normal).abs() / 1e3)
    }

    fn send(&mut self, at: Moment, client: usize, replaces: Option<u64>) {
        let at = at + self.network();
        self.sent += 1;
        self.messages.push(Reverse(Message { at, sent: self.sent, client, replaces }));
    }

    /// Runs until every client has written once.
    fn run(mut self, backoff: &Backoff, jitter: Jitter) -> Cost {
        let start = Moment::from_nanos(0);
        let mut clients = vec![Client::default(); CLIENTS];
        let (mut version, mut calls, mut end) = (0, 0u32, start);
        (0..CLIENTS).for_each(|client| self.send(start, client, None));
        while let Some(Reverse(message)) = self.messages.pop() {
            let answered = message.at + self.network();
            end = end.max(answered);
            let Some(replaces) = message.replaces else {
                self.send(answered, message.client, Some(version));
                continue;
            };
            calls += 1;
            if replaces == version {
                version += 1;
                continue;
            }
            let client = &mut clients[message.client];
            client.retries += 1;
            client.previous = jitter.draw(backoff, client.retries, client.previous, &mut self.random);
            let again = answered + client.previous;
            self.send(again, message.client, None);
        }
        Cost { calls: f64::from(calls), millis: end.since(start).as_secs_f64() * 1e3 }
    }
}

fn mean_cost(backoff: &Backoff, jitter: Jitter) -> Cost {
    let costs = (0..SEEDS).map(|seed| Contest::new(seed).run(backoff, jitter));
    costs.fold(Cost::default(), |sum, cost| Cost {
        calls: sum.calls + cost.calls / SEEDS as f64,
        millis: sum.millis + cost.millis / SEEDS as f64,
    })
}

#[test]
fn jitter_saves_two_calls_of_three_when_a_hundred_contend() {
    // AWS counts the first failure as one doubling; its decorrelated form starts from the base itself.
    let grows = Backoff::exponential(BASE * 2, 2.0, CAP);
    let from_base = Backoff::exponential(BASE, 2.0, CAP);
    let [none, exponential, equal, full, decorrelated] = [
        ("none", &Backoff::NONE, Jitter::None, 2425.0, 2030.0),
        ("exponential", &grows, Jitter::None, 1851.0, 63_472.0),
        ("equal", &grows, Jitter::Equal, 813.0, 6686.0),
        ("full", &grows, Jitter::Full, 795.0, 4937.0),
        ("decorrelated", &from_base, Jitter::Decorrelated, 1003.0, 4733.0),
    ]
    .map(|(name, backoff, jitter, aws_calls, aws_millis)| {
        let cost = mean_cost(backoff, jitter);
        println!("{name:<13}{:>7.0} calls {:>7.0} ms", cost.calls, cost.millis);
        assert!((cost.calls / aws_calls - 1.0).abs() < 0.05, "{name}: AWS has {aws_calls} calls");
        assert!((cost.millis / aws_millis - 1.0).abs() < 0.15, "{name}: AWS has {aws_millis} ms");
        cost.calls
    });
    assert!(full.max(equal) < decorrelated && decorrelated < exponential && exponential < none);
    assert!(full < none * 0.35, "{full} of {none}");
}
