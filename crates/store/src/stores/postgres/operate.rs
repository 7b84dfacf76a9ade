//! What operators order. Each order is one commit with its line in the audit, also where all of it is refused:
//! who tried is worth knowing. Whoever gives one does not own the shards, so it locks them first.

use redrive_core::Moment;
use redrive_core::triage::{Control, Rule};

use super::desk::{Desk, rows, run};
use super::faults::Step;
use super::held::{Held, PutBack, held_columns, read_held};
use crate::operate::{Act, Deed, Operated, Order, Refusal, Target, What, check_targets, refused};

impl Desk {
    /// Does what an operator orders.
    pub(super) async fn operate(&mut self, order: &Order) -> Step<Operated> {
        let Order { by, at, what } = order;
        if !matches!(what, What::Note { .. } | What::Resolve { .. }) {
            self.lock_shards().await?;
        }
        self.see(*at);
        let line = self.next_line().await?;
        let done = match what {
            What::Events(targets, act) => self.act_on_all(targets, act, line, *at).await?,
            What::Edit(target, edited) => self.edit(target, edited, line, *at).await?.unwrap_or_else(refused),
            What::SkipHead { queue, tenant, key } => one(self.skip_head(queue, tenant, key).await?),
            What::Unpark { queue, tenant, key } => one(self.unpark(queue, tenant, key).await?),
            What::Set { rule, until, why } => {
                let (rule, who, why) = (rule.clone(), by.who.clone(), why.clone());
                let control = Control { rule, since: *at, until: *until, who, why };
                one(self.set_rule(&control).await?.map(|()| 1))
            }
            What::Lift(rule) => match self.lift_rule(rule).await? {
                true => one(Ok(1)),
                false => refused(Refusal::NoRule),
            },
            What::Start(plan) => match self.start(plan, by, *at).await? {
                Ok(job) => Operated { changed: 1, job: Some(job), ..Operated::default() },
                Err(refusal) => refused(refusal),
            },
            What::Turn(id, to, why) => one(self.turn(*id, *to, why, *at).await?.map(|()| 1)),
            What::Import(letters) => self.import(letters, *at).await?,
            What::Resolve { scope, resolution, .. } => {
                one(self.resolve(scope, resolution, *at).await?.map(|()| 1))
            }
            What::Note { count, .. } => one(Ok(*count)),
        };
        let letters = match what.job().or(done.job) {
            Some(id) => self.job(id).await?.map(|job| job.letters()),
            None => None,
        };
        self.write_line(line, by, *at, &Deed::of(what, &done, letters)).await?;
        self.raise_version().await?;
        Ok(done)
    }

    /// Counts what took something out of the owner's hands: one that hears of it late sees the number.
    pub(super) async fn raise_version(&mut self) -> sqlx::Result<()> {
        if self.recall {
            run!(self, "UPDATE redrive.meta SET orders = orders + 1")?;
        }
        Ok(())
    }

    async fn act_on_all(&mut self, targets: &[Target], act: &Act, line: u64, at: Moment) -> Step<Operated> {
        if let Err(refusal) = check_targets(targets) {
            return Ok(refused(refusal));
        }
        let by = PutBack::Order(line);
        let mut done = Operated::default();
        for (place, target) in targets.iter().enumerate() {
            let acted = match self.meet(target).await? {
                Ok(met) => self.act(met, act, by, at).await?,
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
    async fn skip_head(&mut self, queue: &str, tenant: &str, key: &str) -> Step<Result<u64, Refusal>> {
        let Some(stream) = self.find_stream(queue, tenant).await? else {
            return Ok(Err(Refusal::NotParked));
        };
        let Some(dead) = self.parking_head(&stream, key).await? else { return Ok(Err(Refusal::NotParked)) };
        self.let_go(&stream, dead).await?;
        Ok(Ok(1))
    }

    /// Lets a key go on without any of its dead letters, and without the rule that parks it.
    async fn unpark(&mut self, queue: &str, tenant: &str, key: &str) -> Step<Result<u64, Refusal>> {
        let (of_queue, of_tenant, of_key) = (queue.to_owned(), tenant.to_owned(), key.to_owned());
        let rule = Rule::ParkKey { queue: of_queue, tenant: of_tenant, key: of_key };
        let mut changed = u64::from(self.lift_rule(&rule).await?);
        if let Some(stream) = self.find_stream(queue, tenant).await? {
            let holding = rows!(
                self,
                concat!(
                    "SELECT ",
                    held_columns!(),
                    " FROM redrive.held WHERE stream = $1 AND key = $2 AND state = 2 ORDER BY seq"
                ),
                i64::from(stream.id.0),
                key
            )?;
            let holding: Vec<Held> = holding.iter().filter_map(|row| read_held(row, &stream).ok()).collect();
            for dead in holding {
                self.let_go(&stream, dead).await?;
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
