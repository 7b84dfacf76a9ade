//! What operators order. Each order is one commit with its line in the audit, also where all of it is refused:
//! who tried is worth knowing.

use redrive_core::ledger::Resolution;
use redrive_core::triage::{Control, Rule};
use rusqlite::params;

use super::desk::Desk;
use super::faults::Step;
use super::held::{Held, PutBack, held_columns};
use super::names::find_stream;
use super::numbers::span;
use crate::operate::{Act, Deed, Operated, Order, Refusal, Target, What, check_targets, refused};

/// How many bytes an order writes, about, and how many events it is for.
pub(super) fn weight(what: &What) -> (usize, usize) {
    match what {
        What::Events(targets, _) => (targets.len() * 256, targets.len()),
        What::Edit(_, edited) => (edited.event.payload.len(), 1),
        What::Import(letters) => {
            (letters.iter().map(|letter| letter.event.payload.len() + 512).sum(), letters.len())
        }
        What::Resolve { resolution: Resolution::Completed(reply), .. } => {
            (reply.body.as_ref().map_or(0, Vec::len) + 512, 1)
        }
        _ => (0, 1),
    }
}

impl Desk {
    /// Does what an operator orders.
    pub(super) fn operate(&mut self, order: &Order) -> Step<Operated> {
        let Order { by, at, what } = order;
        if matches!(what, What::Import(_)) {
            self.disk.check()?;
        }
        self.see(*at);
        let recalled_before = std::mem::take(&mut self.recall);
        let done = match what {
            What::Events(targets, act) => self.act_on_all(targets, act, *at)?,
            What::Edit(target, edited) => self.edit(target, edited, *at)?.unwrap_or_else(refused),
            What::SkipHead { queue, tenant, key } => one(self.skip_head(queue, tenant, key)?),
            What::Unpark { queue, tenant, key } => one(self.unpark(queue, tenant, key)?),
            What::Set { rule, until, why } => {
                let (rule, who, why) = (rule.clone(), by.who.clone(), why.clone());
                let control = Control { rule, since: *at, until: *until, who, why };
                one(self.set_rule(&control)?.map(|()| 1))
            }
            What::Lift(rule) => match self.lift_rule(rule)? {
                true => one(Ok(1)),
                false => refused(Refusal::NoRule),
            },
            What::Start(plan) => match self.start(plan, by, *at)? {
                Ok(job) => Operated { changed: 1, job: Some(job), ..Operated::default() },
                Err(refusal) => refused(refusal),
            },
            What::Turn(id, to, why) => one(self.turn(*id, *to, why, *at)?.map(|()| 1)),
            What::Import(letters) => self.import(letters, *at)?,
            What::Resolve { scope, resolution, .. } => one(self.resolve(scope, resolution, *at)?.map(|()| 1)),
            What::Note { count, .. } => one(Ok(*count)),
        };
        let letters = match what.job().or(done.job) {
            Some(id) => self.job(id)?.map(|job| job.letters()),
            None => None,
        };
        self.write_line(by, *at, &Deed::of(what, &done, letters))?;
        self.raise_version()?;
        self.recall |= recalled_before;
        Ok(done)
    }

    /// Counts what took something out of the owner's hands: one that hears of it late sees the number.
    pub(super) fn raise_version(&self) -> rusqlite::Result<()> {
        if self.recall {
            self.conn.prepare_cached("UPDATE redrive_meta SET orders = orders + 1")?.execute([])?;
        }
        Ok(())
    }

    fn act_on_all(&mut self, targets: &[Target], act: &Act, at: redrive_core::Moment) -> Step<Operated> {
        if let Err(refusal) = check_targets(targets) {
            return Ok(refused(refusal));
        }
        let by = PutBack::Order(self.next_line()?);
        let mut done = Operated::default();
        for (place, target) in targets.iter().enumerate() {
            let acted = match self.meet(target)? {
                Ok(met) => self.act(met, act, by, at)?,
                Err(refusal) => Err(refusal),
            };
            match acted {
                Ok(()) => done.changed += 1,
                Err(refusal) => done.refused.push((place, refusal)),
            }
        }
        Ok(done)
    }

    /// Lets a key go on without the dead letter at its head.
    fn skip_head(&mut self, queue: &str, tenant: &str, key: &str) -> Step<Result<u64, Refusal>> {
        let Some(id) = find_stream(&self.conn, queue, tenant)? else { return Ok(Err(Refusal::NotParked)) };
        let Some(stream) = self.names.of(&self.conn, id)? else { return Ok(Err(Refusal::NotParked)) };
        let Some(dead) = self.parking_head(&stream, key)? else { return Ok(Err(Refusal::NotParked)) };
        self.let_go(&stream, dead)?;
        Ok(Ok(1))
    }

    /// Lets a key go on without any of its dead letters, and without the rule that parks it.
    fn unpark(&mut self, queue: &str, tenant: &str, key: &str) -> Step<Result<u64, Refusal>> {
        let (of_queue, of_tenant, of_key) = (queue.to_owned(), tenant.to_owned(), key.to_owned());
        let rule = Rule::ParkKey { queue: of_queue, tenant: of_tenant, key: of_key };
        let mut changed = u64::from(self.lift_rule(&rule)?);
        if let Some(id) = find_stream(&self.conn, queue, tenant)?
            && let Some(stream) = self.names.of(&self.conn, id)?
        {
            let (first, last) = span(id);
            let holding: Vec<Held> = {
                let mut select = self.conn.prepare_cached(concat!(
                    "SELECT ",
                    held_columns!(),
                    " FROM redrive_held WHERE key = ?1 AND state = 2 AND seq BETWEEN ?2 AND ?3 ORDER BY seq"
                ))?;
                let rows =
                    select.query_map(params![key, first, last], |row| Ok(Held::read(row, &stream).ok()))?;
                rows.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?
            };
            for dead in holding {
                self.let_go(&stream, dead)?;
                changed += 1;
            }
        }
        Ok(if changed == 0 { Err(Refusal::NotParked) } else { Ok(changed) })
    }
}

fn one(done: Result<u64, Refusal>) -> Operated {
    match done {
        Ok(changed) => Operated { changed, ..Operated::default() },
        Err(refusal) => refused(refusal),
    }
}
