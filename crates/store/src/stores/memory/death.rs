//! Dead letters: how an event becomes one, and how it is redriven.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::event::{DeadReason, Mode};
use redrive_core::planted::{PlantedBug, has};
use redrive_core::queue_entry::{EventProgress, ParkFollowers, Seq};
use redrive_core::triage::RedriveOptions;

use super::row::{Death, Identity, RedrivenBy, Row};
use super::state::{Counter, State};
use crate::operate::Refusal;

impl State {
    /// Makes a dead letter of an event, and returns the next event of its key if that may run now. A late settle of an
    /// expired lease no longer counts.
    pub(super) fn bury(
        &mut self,
        row: Row,
        reason: DeadReason,
        at: Moment,
        park: ParkFollowers,
    ) -> Option<Seq> {
        self.bury_lapsed(Row { lease: None, ..row }, reason, at, park)
    }

    /// The same for an event that died because its lease ran out: the holder may still settle it.
    pub(super) fn bury_lapsed(
        &mut self,
        mut row: Row,
        reason: DeadReason,
        at: Moment,
        park: ParkFollowers,
    ) -> Option<Seq> {
        self.count_failed_again(&row);
        let (holds, until, count) = match park {
            ParkFollowers::No => (false, None, None),
            ParkFollowers::UntilResolved => (true, None, None),
            ParkFollowers::UpTo { until, count } => (true, until, count),
        };
        let holds = holds && row.chain.is_some();
        let number = self.count_up(Counter::Deaths);
        row.cause = Some(self.cause(row.entry.stream, reason, row.entry.progress.history.as_deref()));
        row.death = Some(Death { number, reason, at, holds, until, count });
        row.discarded = false;
        row.put_back = None;
        let chain = row.chain.clone();
        let next = self.write(row.entry.seq, Some(row));
        next.or_else(|| self.relieve(&chain?))
    }

    /// Whether a dead letter may be redriven.
    pub(super) fn check_redrive(
        &self,
        row: &Row,
        redrive: &RedriveOptions,
        at: Moment,
    ) -> Result<(), Refusal> {
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

    /// Redrives a dead letter. It keeps its identity, its seq and its attempt history.
    pub(super) fn redrive(&mut self, mut row: Row, redrive: &RedriveOptions, by: RedrivenBy, at: Moment) {
        if has(PlantedBug::RedriveForgetsIdentity) {
            self.forget_receipt(&Identity::of(&row.entry.event));
        }
        let EventProgress { attempts, ref history, .. } = row.entry.progress;
        row.entry.progress = EventProgress {
            mode: Mode::Redrive,
            attempts: if redrive.keep_attempts { attempts } else { 0 },
            previous: Duration::ZERO,
            history: history.clone(),
            route: redrive.to.as_deref().map(Arc::from),
            // Once later events of its key may have run before it, that stays so, even if it has blocked the key
            // since.
            out_of_order: row.is_passed() || row.entry.progress.out_of_order,
            ..EventProgress::fresh(at)
        };
        if let Some(to) = redrive.to.as_deref().filter(|_| has(PlantedBug::RerouteAsMove)) {
            row = self.moved(row, to);
        }
        self.put_back(row, by, at);
    }

    /// Makes a dead letter a living event again.
    pub(super) fn put_back(&mut self, mut row: Row, by: RedrivenBy, at: Moment) {
        self.count_put_back(&row, by, at);
        row.entry.rev += 1;
        row.death = None;
        if !has(PlantedBug::RedriveKeepsLease) {
            row.lease = None;
        }
        row.put_back = Some(by);
        row.redriven += 1;
        let head =
            |state: &Self, row: &Row| row.chain.as_ref().and_then(|chain| state.heads.get(chain)).copied();
        let before = head(self, &row);
        self.write(row.entry.seq, Some(row.clone()));
        if before.is_some() && head(self, &row) != before {
            // The previous head waits behind it, and an owner may have that in memory.
            self.recall();
        }
    }

    /// A planted bug: a reroute that moves the event to another queue, unknown to the old one.
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
