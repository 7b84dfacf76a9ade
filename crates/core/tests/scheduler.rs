//! What the scheduler goes on with while the store does not answer.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_core::entry::{Entry, Grant, Progress, Seq, StreamId, Taken};
use redrive_core::observe::Outcome;
use redrive_core::scheduler::{Action, Ending, Input, QueuePlan, Said, Scheduler, WINDOW_MIN};
use redrive_core::{Disposition, Event, Moment, Policy, Seeded};

const NOW: Moment = Moment::from_nanos(1 << 50);

fn entry(number: u64) -> Entry {
    Entry {
        seq: Seq(number),
        rev: 0,
        stream: StreamId(1),
        shard: 0,
        published: NOW,
        expires: None,
        event: Arc::new(Event::new("mail", number.to_string())),
        progress: Progress::fresh(NOW),
    }
}

#[test]
fn events_run_while_the_ends_of_others_are_being_written() {
    let mut dice = Seeded::new(1);
    let mut scheduler = Scheduler::new();
    // One at a time: what is in memory does not depend on it, below a bound.
    scheduler.add_queue(QueuePlan::new("mail", Policy::builder().build().unwrap()).concurrency(1));
    let grant = Grant { shard: 0, epoch: 1, incarnation: 1 };
    let taken = Taken { grant, unclean: false, suspects: vec![], streams: vec![] };
    scheduler.handle(Input::Own(taken), NOW, &mut dice);
    scheduler.handle(Input::Arrived((0..5_000).map(entry).collect()), NOW, &mut dice);
    let (mut ran, mut actions) = (0, Vec::new());
    loop {
        scheduler.act(NOW, &mut actions);
        let attempts = actions.drain(..).filter_map(|action| match action {
            Action::Attempt(ticket) => Some(ticket.entry),
            // The store takes settles and loads, and says nothing.
            _ => None,
        });
        let attempts: Vec<Entry> = attempts.collect();
        if attempts.is_empty() {
            break;
        }
        for Entry { seq, rev, .. } in attempts {
            ran += 1;
            let ending = Ending::new(Said::Outcome(Outcome::Said(Disposition::Ok)));
            scheduler.handle(Input::Ended { grant, seq, rev, ending }, NOW, &mut dice);
        }
    }
    assert_eq!(ran, WINDOW_MIN / 2, "half of the window is for those that have not run");
}
