//! What the scheduler continues with while the store does not answer.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_core::observe::Outcome;
use redrive_core::queue_entry::{EventProgress, FencingToken, QueueEntry, Seq, StreamId, TakenShard};
use redrive_core::scheduler::{Action, AttemptEnd, EndedAttempt, Input, QueuePlan, Scheduler, WINDOW_MIN};
use redrive_core::{Disposition, Event, Moment, Policy, SeededRandom};

const NOW: Moment = Moment::from_nanos(1 << 50);

fn entry(number: u64) -> QueueEntry {
    QueueEntry {
        seq: Seq(number),
        rev: 0,
        stream: StreamId(1),
        shard: 0,
        published: NOW,
        expires: None,
        event: Arc::new(Event::new("mail", number.to_string())),
        progress: EventProgress::fresh(NOW),
    }
}

#[test]
fn events_run_while_the_ends_of_others_are_being_written() {
    let mut random = SeededRandom::new(1);
    let mut scheduler = Scheduler::new();
    // Concurrency 1: how many events fit into memory does not depend on it, below a bound.
    scheduler.add_queue(QueuePlan::new("mail", Policy::builder().build().unwrap()).concurrency(1));
    let token = FencingToken { shard: 0, epoch: 1, incarnation: 1 };
    let taken = TakenShard { token, unclean: false, suspects: vec![], streams: vec![] };
    scheduler.handle(Input::Own(taken), NOW, &mut random);
    scheduler.handle(Input::Arrived((0..5_000).map(entry).collect()), NOW, &mut random);
    let (mut ran, mut actions) = (0, Vec::new());
    loop {
        scheduler.act(NOW, &mut actions);
        let attempts = actions.drain(..).filter_map(|action| match action {
            Action::Attempt(ticket) => Some(ticket.entry),
            // The store accepts settles and loads, and does not answer.
            _ => None,
        });
        let attempts: Vec<QueueEntry> = attempts.collect();
        if attempts.is_empty() {
            break;
        }
        for QueueEntry { seq, rev, .. } in attempts {
            ran += 1;
            let ended = EndedAttempt::new(AttemptEnd::Outcome(Outcome::Classified(Disposition::Ok)));
            scheduler.handle(Input::Ended { token, seq, rev, ended }, NOW, &mut random);
        }
    }
    assert_eq!(ran, WINDOW_MIN / 2, "half of the window is for those that have not run");
}
