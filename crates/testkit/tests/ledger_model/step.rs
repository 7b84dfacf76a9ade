//! How a step changes the world. What becomes of a record is asked of `redrive_core::ledger` alone.

use redrive_core::ledger::{
    self, Answer, Claim, Effects, OnUnknown, Phase, Record, Renewed, Reply, Resolution,
};

use crate::api::{Act, Api, Planted, SETTLING};
use crate::row::{Row, at, ticks};
use crate::world::{Worker, World};

/// An answer that tells of the effect of this run.
fn reply(run: u8) -> Reply {
    Reply { status: 201, headers: Vec::new(), body: Some(vec![run]) }
}

impl World {
    /// Takes the step.
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

    /// What the ledger makes of what was found, and is written.
    fn write(&mut self, api: &Api, worker: usize) {
        let looked = std::mem::replace(&mut self.workers[worker], Worker::Idle);
        let Worker::Looked { key, at: now, found } = looked else { return };
        let tale = &mut self.tales[key];
        let ask = api.ask(tale.first_sent.unwrap_or_default());
        let claim = ledger::claim(found.as_ref().map(|row| &row.0), &ask, at(now));
        let until = now + api.lease;
        match claim {
            Claim::Run(record) => {
                (tale.owner, tale.runs) = (tale.owner + 1, tale.runs + 1);
                let (run, epoch) = (tale.owner, record.epoch);
                self.workers[worker] = Worker::Running { key, run, epoch, until, sent: false };
                self.rows[key] = Some(Row(record));
            }
            Claim::Probe(record) => {
                tale.owner += 1;
                self.workers[worker] = Worker::Probing { key, run: tale.owner, epoch: record.epoch, until };
                self.rows[key] = Some(Row(record));
            }
            Claim::Hold(record) => self.rows[key] = Some(Row(record)),
            Claim::Say(Answer::Replay(record)) if Some(&*record) != found.as_ref().map(|row| &row.0) => {
                self.wrong.answer_changed = true;
            }
            Claim::Say(_) => {}
        }
    }

    fn send(&mut self, api: &Api, worker: usize) {
        let Worker::Running { key, run, until, ref mut sent, .. } = self.workers[worker] else { return };
        *sent = true;
        let tale = &mut self.tales[key];
        match api.effects {
            // It may be on its way for longer than its sender lives; one that is sent late arrives at once.
            Effects::Opaque(OnUnknown::Probe { .. }) => {
                tale.wire.push((run, (until + SETTLING).saturating_sub(1).max(self.clock)));
            }
            // Whoever is called under a key has the effect once, and says the same again.
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
            // The handler is entered under a lease that was just renewed, or not at all.
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

    /// Renews a lease; until when it is good then.
    fn renewed(&mut self, api: &Api, key: usize, run: u8, epoch: u64) -> Option<u8> {
        let mut extended = None;
        let now = at(self.clock);
        self.fenced(key, run, |record| {
            match ledger::renew(record, epoch, ticks(api.lease), ticks(api.lease + 1), now) {
                Ok(Renewed::On(record)) => {
                    extended = Some(record.clone());
                    Some(Some(record))
                }
                Ok(Renewed::TooLong) | Err(_) => None,
            }
        });
        let Phase::InFlight { until, .. } = extended?.phase else { return None };
        (self.clock..=self.clock + api.lease).find(|tick| at(*tick) == until)
    }

    /// A run ends as it says.
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
            // One transaction: the effect is there if the record took the answer. Without a fence nobody asks.
            Act::Complete { .. } if api.is_transactional() && (taken || api.has(Planted::FenceOut)) => {
                self.wrong.zombie_changed |= run != tale.owner;
                tale.effects.push(run);
            }
            Act::Nothing { .. } if taken => tale.proven += 1,
            // It has settled so long after the end of its run, where that is before the end of its lease.
            Act::Hold { .. } => {
                let own = tale.wire.iter_mut().filter(|(sender, _)| *sender == run);
                own.for_each(|(_, by)| *by = (*by).min(self.clock + SETTLING - 1));
            }
            _ => {}
        }
    }

    /// Changes a record as a run says, and notes it where that run was taken over. Whether it changed.
    fn fenced(&mut self, key: usize, run: u8, change: impl FnOnce(Record) -> Option<Option<Record>>) -> bool {
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

    /// What a lease that is a time-to-live does.
    fn delete(&mut self, key: usize) {
        let is_over =
            |row: &Row| matches!(row.0.phase, Phase::InFlight { until, .. } if until <= at(self.clock));
        if self.rows[key].as_ref().is_some_and(is_over) {
            self.rows[key] = None;
        }
    }
}

/// The record as it is seen by a run that does not look, or not closely.
fn tampered(api: &Api, record: Record, epoch: u64) -> Record {
    match api.planted {
        Some(Planted::FenceOut) => {
            let phase = Phase::InFlight { began: record.first, until: record.first };
            Record { epoch, phase, ..record }
        }
        Some(Planted::EpochIgnored) => Record { epoch, ..record },
        _ => record,
    }
}
