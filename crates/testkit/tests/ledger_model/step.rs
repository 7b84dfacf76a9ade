//! How a step changes the world. Only `redrive_core::ledger` decides what happens to a record.

use redrive_core::ledger::{
    self, Effects, LedgerAnswer, LedgerClaim, LedgerRecord, OnUnknown, RecordPhase, RenewResult, Resolution,
    StoredReply,
};

use crate::api::{Act, Api, Planted, SETTLING};
use crate::row::{Row, at, ticks};
use crate::world::{Worker, World};

/// A reply that reports the effect of this run.
fn reply(run: u8) -> StoredReply {
    StoredReply { status: 201, headers: Vec::new(), body: Some(vec![run]) }
}

impl World {
    /// Performs the step.
    pub(crate) fn act(&mut self, api: &Api, act: Act) {
        match act {
            Act::Tick => self.tick(),
            Act::Claim { worker, key, ahead } => self.claim(api, worker, key, ahead),
            Act::Write { worker } => self.write(api, worker),
            Act::Send { worker } => self.send(api, worker),
            Act::Land { key } => self.land(key),
            Act::Probed { worker } => self.probed(api, worker),
            Act::Resolve { key } => self.resolve(key),
            Act::Delete { key } => self.delete(key),
            Act::Crash { worker } => {
                self.faults += 1;
                self.workers[worker] = Worker::Idle;
            }
            Act::Renew { worker } => self.renew(api, worker),
            Act::Complete { .. } | Act::Fail { .. } | Act::Hold { .. } | Act::Nothing { .. } => {
                self.end(api, act);
            }
        }
    }

    fn tick(&mut self) {
        self.clock += 1;
        for tale in &mut self.tales {
            tale.wire.retain(|(_, by)| *by >= self.clock);
        }
    }

    fn claim(&mut self, api: &Api, worker: usize, key: usize, ahead: u8) {
        let found = self.rows[key].clone();
        if api.dated {
            self.tales[key].first_sent.get_or_insert(self.clock);
        }
        let looked = Worker::Looked { key, at: self.clock + ahead, found };
        self.workers[worker] = looked;
        if !api.has(Planted::CheckThenAct) {
            self.write(api, worker);
        }
    }

    /// Writes the ledger's decision about the record that was read.
    fn write(&mut self, api: &Api, worker: usize) {
        let looked = std::mem::replace(&mut self.workers[worker], Worker::Idle);
        let Worker::Looked { key, at: now, found } = looked else { return };
        let tale = &mut self.tales[key];
        let ask = api.ask(tale.first_sent.unwrap_or_default());
        let claim = ledger::claim(found.as_ref().map(|row| &row.0), &ask, at(now));
        let until = now + api.lease;
        match claim {
            LedgerClaim::Run(record) => {
                (tale.owner, tale.runs) = (tale.owner + 1, tale.runs + 1);
                let (run, epoch) = (tale.owner, record.epoch);
                self.workers[worker] = Worker::Running { key, run, epoch, until, sent: false };
                self.rows[key] = Some(Row(record));
            }
            LedgerClaim::Probe(record) => {
                tale.owner += 1;
                self.workers[worker] = Worker::Probing { key, run: tale.owner, epoch: record.epoch, until };
                self.rows[key] = Some(Row(record));
            }
            LedgerClaim::Hold(record) => self.rows[key] = Some(Row(record)),
            LedgerClaim::Say(LedgerAnswer::Replay(record))
                if Some(&*record) != found.as_ref().map(|row| &row.0) =>
            {
                self.wrong.answer_changed = true;
            }
            LedgerClaim::Say(_) => {}
        }
    }

    fn send(&mut self, api: &Api, worker: usize) {
        let Worker::Running { key, run, until, ref mut sent, .. } = self.workers[worker] else { return };
        *sent = true;
        let tale = &mut self.tales[key];
        match api.effects {
            // It may be on its way for longer than its sender lives; a request that is sent late arrives
            // immediately.
            Effects::Opaque(OnUnknown::Probe { .. }) => {
                tale.wire.push((run, (until + SETTLING).saturating_sub(1).max(self.clock)));
            }
            // A downstream that is called under a key has the effect once, and gives the same reply again.
            Effects::Keyed if !tale.effects.is_empty() => {}
            // An endpoint that accepts repetitions has them.
            Effects::Opaque(OnUnknown::Rerun) => {}
            _ => tale.effects.push(run),
        }
    }

    fn land(&mut self, key: usize) {
        let tale = &mut self.tales[key];
        let (run, _) = tale.wire.remove(0);
        tale.effects.push(run);
    }

    fn probed(&mut self, api: &Api, worker: usize) {
        let Worker::Probing { key, run, epoch, .. } = self.workers[worker] else { return };
        match self.tales[key].effects.first().copied() {
            // The handler starts under a lease that was just renewed, or not at all.
            None => match self.renewed(api, key, run, epoch) {
                Some(until) => {
                    self.tales[key].runs += 1;
                    self.workers[worker] = Worker::Running { key, run, epoch, until, sent: false };
                }
                None => {
                    self.workers[worker] = Worker::Idle;
                    let now = at(self.clock);
                    self.fenced(key, run, |record| ledger::fail(record, epoch, None, now).map(Some).ok());
                }
            },
            Some(effect) => {
                self.workers[worker] = Worker::Idle;
                let now = at(self.clock);
                self.fenced(key, run, |record| {
                    ledger::complete(record, epoch, reply(effect), None, now).map(Some).ok()
                });
            }
        }
    }

    fn renew(&mut self, api: &Api, worker: usize) {
        let Worker::Running { key, run, epoch, .. } = self.workers[worker] else { return };
        if let (Some(renewed), Worker::Running { until, .. }) =
            (self.renewed(api, key, run, epoch), &mut self.workers[worker])
        {
            *until = renewed;
        }
    }

    /// Renews a lease; returns until when it lasts then.
    fn renewed(&mut self, api: &Api, key: usize, run: u8, epoch: u64) -> Option<u8> {
        let mut extended = None;
        let now = at(self.clock);
        self.fenced(key, run, |record| {
            match ledger::renew(record, epoch, ticks(api.lease), ticks(api.lease + 1), now) {
                Ok(RenewResult::On(record)) => {
                    extended = Some(record.clone());
                    Some(Some(record))
                }
                Ok(RenewResult::TooLong) | Err(_) => None,
            }
        });
        let RecordPhase::InFlight { until, .. } = extended?.phase else { return None };
        (self.clock..=self.clock + api.lease).find(|tick| at(*tick) == until)
    }

    /// Ends a run as it reports.
    fn end(&mut self, api: &Api, act: Act) {
        let (Act::Complete { worker, .. }
        | Act::Fail { worker }
        | Act::Hold { worker }
        | Act::Nothing { worker }) = act
        else {
            return;
        };
        let Worker::Running { key, run, epoch, .. } = self.workers[worker] else { return };
        if !matches!(act, Act::Complete { heard: false, .. }) {
            self.workers[worker] = Worker::Idle;
        }
        let now = at(self.clock);
        let later = (self.clock < api.end).then(|| at(self.clock + 1));
        let effect =
            if api.effects == Effects::Keyed { self.tales[key].effects.first().copied() } else { Some(run) };
        if !matches!(act, Act::Complete { heard: true, .. }) {
            self.faults = (self.faults + 1).min(api.faults);
        }
        let taken = self.fenced(key, run, |record| match act {
            Act::Complete { .. } => {
                let record = tampered(api, record, epoch);
                ledger::complete(record, epoch, reply(effect.unwrap_or(run)), None, now).map(Some).ok()
            }
            Act::Fail { .. } => ledger::fail(record, epoch, later, now).map(Some).ok(),
            Act::Hold { .. } => ledger::hold(record, epoch, now).map(Some).ok(),
            _ => ledger::release(record, epoch, now).ok(),
        });
        let tale = &mut self.tales[key];
        match act {
            // One transaction: the effect is there if the record took the reply. Without a fence there is no
            // check.
            Act::Complete { .. } if api.is_transactional() && (taken || api.has(Planted::FenceOut)) => {
                self.wrong.zombie_changed |= run != tale.owner;
                tale.effects.push(run);
            }
            Act::Nothing { .. } if taken => tale.proven += 1,
            // It has settled this long after the end of its run, if that is before the end of its lease.
            Act::Hold { .. } => {
                let own = tale.wire.iter_mut().filter(|(sender, _)| *sender == run);
                own.for_each(|(_, by)| *by = (*by).min(self.clock + SETTLING - 1));
            }
            _ => {}
        }
    }

    /// Changes a record for a run, and notes if that run was taken over. Returns whether it changed.
    fn fenced(
        &mut self,
        key: usize,
        run: u8,
        change: impl FnOnce(LedgerRecord) -> Option<Option<LedgerRecord>>,
    ) -> bool {
        let Some(old) = self.rows[key].clone() else { return false };
        let Some(new) = change(old.0) else { return false };
        if run != self.tales[key].owner {
            self.wrong.zombie_changed = true;
        }
        self.rows[key] = new.map(Row);
        true
    }

    fn resolve(&mut self, key: usize) {
        let Some(Row(record)) = self.rows[key].clone() else { return };
        let tale = &mut self.tales[key];
        let happened = tale.effects.first().copied();
        let resolution =
            happened.map_or(Resolution::Retriable, |effect| Resolution::Completed(reply(effect)));
        if let Ok(record) = ledger::resolve(record, resolution, at(self.clock)) {
            tale.owner += 1;
            tale.resolved += u8::from(happened.is_none());
            self.rows[key] = Some(Row(record));
        }
    }

    /// What a lease does that is a mere time-to-live.
    fn delete(&mut self, key: usize) {
        let is_over =
            |row: &Row| matches!(row.0.phase, RecordPhase::InFlight { until, .. } if until <= at(self.clock));
        if self.rows[key].as_ref().is_some_and(is_over) {
            self.rows[key] = None;
        }
    }
}

/// The record as a run sees it that does not check, or not closely.
fn tampered(api: &Api, record: LedgerRecord, epoch: u64) -> LedgerRecord {
    match api.planted {
        Some(Planted::FenceOut) => {
            let phase = RecordPhase::InFlight { began: record.first, until: record.first };
            LedgerRecord { epoch, phase, ..record }
        }
        Some(Planted::EpochIgnored) => LedgerRecord { epoch, ..record },
        _ => record,
    }
}
