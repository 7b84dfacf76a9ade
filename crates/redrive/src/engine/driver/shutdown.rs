//! The end of the loop: running attempts are settled or abandoned, and the shards are handed back.

use futures_util::stream::StreamExt;
use redrive_core::scheduler::{AttemptEnd, EndedAttempt, Input};
use redrive_store::StoreError;

use super::super::control::Command;
use super::super::observe;
use super::super::perform::{Attempted, Ended, perform};
use super::Conducting;

impl Conducting {
    /// Settles the last attempts: those that ended just now, and those that were abandoned.
    async fn write_the_last(&mut self, ended: Vec<Ended>) {
        let now = self.context.clock.now();
        self.scheduler.handle(Input::Drain, now, &mut self.random);
        for (token, seq, rev, ended) in ended {
            self.scheduler.handle(Input::Ended { token, seq, rev, ended }, now, &mut self.random);
        }
        for (token, seq, rev) in self.scheduler.under_way() {
            let ended = EndedAttempt::new(AttemptEnd::Released);
            self.scheduler.handle(Input::Ended { token, seq, rev, ended }, now, &mut self.random);
        }
        // Writes under way are waited for, so that their outcome is known. An answer may ask for more: a crash count
        // that was just committed is taken back.
        let mut actions = Vec::new();
        loop {
            self.scheduler.act(now, &mut actions);
            let _ = perform(&self.context, &mut actions, &mut self.attempts, &self.answers);
            let Some(answer) = self.answers.next().await else { return };
            if self.answered(answer, now).is_err() {
                return;
            }
        }
    }

    /// The end of the loop. Attempts that are still running are abandoned and not charged; they run again after the
    /// next start. The shards are handed back as clean only if no attempt is left running.
    pub(super) async fn end(mut self, error: Option<StoreError>) {
        // Not the tasks: a task may have nothing left to do.
        let late = self.scheduler.under_way().len();
        self.clerk.0.abort();
        self.sharing.iter().for_each(|sharing| sharing.local_slots.close());
        // From now on the store itself answers publishers that wait for a commit.
        self.arrivals.close();
        while self.arrivals.try_recv().is_ok() {}
        self.attempts.abort_all();
        let mut ended = Vec::new();
        while let Some(last) = self.attempts.join_next().await {
            match last {
                Ok(Attempted::One(last)) => ended.extend(last),
                // Attempts that would go on are abandoned.
                Ok(Attempted::Several(last, _)) => ended.extend(last),
                Err(_) => {}
            }
        }
        if error.is_none() {
            self.write_the_last(ended).await;
        }
        self.give_all_back(error.is_none()).await;
        if let Some(error) = error {
            observe::failed(&error);
            self.fail.send_replace(Some(error));
        }
        // A caller that learns of the stop must find it stopped.
        self.orders.close();
        let mut waiters: Vec<_> = self.stopping.into_iter().flat_map(|stop| stop.waiters).collect();
        while let Ok(command) = self.orders.try_recv() {
            if let Command::Stop(_, waiter) = command {
                waiters.push(waiter);
            }
        }
        for waiter in waiters {
            let _ = waiter.send(late == 0);
        }
    }
}
