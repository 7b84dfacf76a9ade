//! Dying and coming back: what a dead letter is, however it became one, and how it lives again.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::entry::{Park, Progress, Seq};
use redrive_core::event::{DeadReason, Mode};
use redrive_core::planted::{Flaw, has};
use redrive_core::triage::Redrive;

use super::row::{Death, Identity, PutBack, Row};
use super::state::{Counter, State};
use crate::operate::Refusal;

impl State {
    /// Makes a dead letter of an event, and gives the next of its key where that may run now. What a lease that is
    /// over says of it now comes too late.
    pub(super) fn bury(&mut self, row: Row, reason: DeadReason, at: Moment, park: Park) -> Option<Seq> {
        self.bury_lapsed(Row { lease: None, ..row }, reason, at, park)
    }

    /// The same for one that died by the end of its lease, whose holder may still say what became of it.
    pub(super) fn bury_lapsed(
        &mut self,
        mut row: Row,
        reason: DeadReason,
        at: Moment,
        park: Park,
    ) -> Option<Seq> {
        self.count_failed_again(&row);
        let (holds, until, count) = match park {
            Park::GoOn => (false, None, None),
            Park::Stay => (true, None, None),
            Park::UpTo { until, count } => (true, until, count),
        };
        let holds = holds && row.chain.is_some();
        let number = self.count_up(Counter::Deaths);
        row.cause = Some(self.cause(row.entry.stream, reason, row.entry.progress.story.as_deref()));
        row.death = Some(Death { number, reason, at, holds, until, count });
        row.discarded = false;
        row.put_back = None;
        let chain = row.chain.clone();
        let next = self.write(row.entry.seq, Some(row));
        next.or_else(|| self.relieve(&chain?))
    }

    /// Whether a dead letter may be put back.
    pub(super) fn check_redrive(&self, row: &Row, redrive: &Redrive, at: Moment) -> Result<(), Refusal> {
        if let Some(to) = &redrive.to {
            self.check_route(&row.entry.event.queue, to)?;
        }
        if row.entry.expires.is_some_and(|expires| expires <= at) {
            return Err(Refusal::Expired);
        }
        if row.is_passed() && !redrive.out_of_order {
            return Err(Refusal::OutOfOrder);
        }
        Ok(())
    }

    /// Puts a dead letter back. Its identity, its place and its story are what they were.
    pub(super) fn redrive(&mut self, mut row: Row, redrive: &Redrive, by: PutBack, at: Moment) {
        if has(Flaw::RedriveForgetsIdentity) {
            self.forget_receipt(&Identity::of(&row.entry.event));
        }
        let Progress { attempts, ref story, .. } = row.entry.progress;
        row.entry.progress = Progress {
            mode: Mode::Redrive,
            attempts: if redrive.keep_attempts { attempts } else { 0 },
            previous: Duration::ZERO,
            story: story.clone(),
            route: redrive.to.as_deref().map(Arc::from),
            // Once later ones of its key may have run before it, that stays so, also if it holds up the key since.
            out_of_order: row.is_passed() || row.entry.progress.out_of_order,
            ..Progress::fresh(at)
        };
        if let Some(to) = redrive.to.as_deref().filter(|_| has(Flaw::RerouteAsMove)) {
            row = self.moved(row, to);
        }
        self.put_back(row, by, at);
    }

    /// Lets a dead letter live again, as it is now.
    pub(super) fn put_back(&mut self, mut row: Row, by: PutBack, at: Moment) {
        self.count_put_back(&row, by, at);
        row.entry.rev += 1;
        row.death = None;
        if !has(Flaw::RedriveKeepsLease) {
            row.lease = None;
        }
        row.put_back = Some(by);
        row.redriven += 1;
        let head =
            |state: &Self, row: &Row| row.chain.as_ref().and_then(|chain| state.heads.get(chain)).copied();
        let before = head(self, &row);
        self.write(row.entry.seq, Some(row.clone()));
        if before.is_some() && head(self, &row) != before {
            // The head until now waits behind it, and an owner may have it in its hands.
            self.recall();
        }
    }

    /// What a reroute must not do: another queue has the event, and its old one knows nothing of it.
    fn moved(&mut self, mut row: Row, to: &str) -> Row {
        self.write(row.entry.seq, None);
        let mut event = (*row.entry.event).clone();
        to.clone_into(&mut event.queue);
        if let Ok((stream, seq)) = self.next_seq(to, &event.tenant) {
            row.chain = row.chain.map(|(_, key)| (stream, key));
            (row.entry.stream, row.entry.seq) = (stream, seq);
        }
        row.entry.event = Arc::new(event);
        row.death = None;
        row
    }
}
