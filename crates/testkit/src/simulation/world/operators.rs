//! Operators: they aim at dead or running events or at events being settled, and repeat commands without an
//! answer.

use std::time::Duration;

use redrive_core::queue_entry::{Seq, SettleResult};
use redrive_core::scheduler::{AttemptEnd, EndedAttempt, Input};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, JobId, JobPlan, JobState, JobStrategy, Operator, RedriveOptions, Rule};
use redrive_store::operate::{EditedEvent, EventAction, EventRef, OperatorAction, OperatorCommand};
use redrive_store::prelude::*;

use super::World;
use super::node::Mail;
use super::perform::at_once;
use crate::simulation::intent::{Intent, Sent};
use crate::simulation::model::{Aim, Check, Fate, Record, Wish, check_operated};
use crate::simulation::plan::Plan;
use crate::simulation::trace::say;
use crate::simulation::words;

/// The longest time that operators do nothing: longer than an identity is remembered.
const AWAY_SECS_MAX: u64 = 7200;
/// How many jobs there are in a run, at most.
const JOBS_MAX: usize = 6;

impl World {
    /// An operator does something.
    pub(super) fn operate_some(&mut self) -> Check<bool> {
        if self.limbo {
            return Ok(false);
        }
        let wish = match self.chance.below(40) {
            0..16 => self.wish_for_events(),
            16..20 => self.wish_to_edit(),
            20..22 => Some(Wish::SkipHead(self.some_chain())),
            22..23 => Some(Wish::Unpark(self.some_chain())),
            23..28 => Some(self.wish_for_rule()),
            28..31 => self.some_rule().map(Wish::Lift),
            31..34 => self.wish_for_job(),
            34..35 => self.wish_for_turn(),
            35..38 => return self.clerk_some(),
            38 => return self.publish_what_was_changed(),
            _ => {
                self.go_away();
                return Ok(true);
            }
        };
        let Some(wish) = wish else { return Ok(false) };
        let answered = self.issue(&wish)?;
        if !answered && !self.limbo && self.chance.one_in(2) {
            self.issue(&wish)?;
        }
        Ok(true)
    }

    /// Gives a command; returns whether it was answered.
    pub(super) fn issue(&mut self, wish: &Wish) -> Check<bool> {
        let what = self.what(wish);
        self.figures.ordered(what.word());
        self.arm(false);
        let order =
            OperatorCommand { by: Operator::new("operator", "simulation"), at: self.now, what: what.clone() };
        let answer = at_once(self.store.operate(order));
        self.committed();
        say!(self, "an operator orders {}: {}", words::wish(wish), words::operated(&answer));
        let (happened, answered) = match &answer {
            Ok(_) => (true, true),
            Err(error) => (self.landed(error), false),
        };
        if happened {
            let should = self.model.operate(wish, &what, self.now);
            if let Ok(is) = &answer {
                check_operated(is, &should)?;
                for (_, refusal) in &is.refused {
                    self.figures.ordered(word(refusal));
                }
            }
            if let Wish::Edit { into, .. } = wish
                && should.changed > 0
            {
                self.intents[*into].sent = Sent::Acknowledged;
            }
        }
        Ok(answered)
    }

    /// Lifts all rules, so that everything can come to an end.
    pub(super) fn lift_all(&mut self) -> Check {
        while let Some(held) = self.model.rules.first() {
            let wish = Wish::Lift(held.rule.clone());
            if self.limbo {
                self.recover()?;
            }
            self.issue(&wish)?;
        }
        Ok(())
    }

    fn what(&self, wish: &Wish) -> OperatorAction {
        let target = |aim: &Aim| {
            let event = &self.intents[aim.intent].event;
            EventRef { rev: aim.rev, ..EventRef::new(&event.tenant, &event.queue, &event.id) }
        };
        match wish {
            Wish::Act(aims, act) => OperatorAction::Events(aims.iter().map(target).collect(), act.clone()),
            Wish::Edit { aim, into, event, out_of_order } => {
                let fingerprint = self.intents[*into].fingerprint();
                let edited = EditedEvent { event: event.clone(), fingerprint, out_of_order: *out_of_order };
                OperatorAction::Edit(target(aim), Box::new(edited))
            }
            Wish::SkipHead(chain) => {
                let (queue, tenant, key) = self.model.chain_name(*chain);
                OperatorAction::SkipHead { queue, tenant, key }
            }
            Wish::Unpark(chain) => {
                let (queue, tenant, key) = self.model.chain_name(*chain);
                OperatorAction::Unpark { queue, tenant, key }
            }
            Wish::Set { rule, until } => {
                OperatorAction::Set { rule: rule.clone(), until: *until, why: String::new() }
            }
            Wish::Lift(rule) => OperatorAction::Lift(rule.clone()),
            Wish::Start(plan) => OperatorAction::Start(plan.clone()),
            Wish::Turn(job, state) => OperatorAction::Turn(*job, *state, String::new()),
        }
    }

    fn wish_for_events(&mut self) -> Option<Wish> {
        let dead = |record: &Record| matches!(record.fate, Fate::Dead { .. });
        let act = match self.chance.below(10) {
            0..4 => EventAction::Redrive(self.some_redrive()),
            4..6 => EventAction::Discard,
            6..8 => EventAction::Restore,
            8 => EventAction::Kill,
            _ => EventAction::RetryNow,
        };
        let mut aims = Vec::new();
        for _ in 0..self.chance.pick(&[1, 1, 1, 2, 3]) {
            let aim = match &act {
                EventAction::Redrive(_) if self.chance.one_in(3) => {
                    let aim = self.aim_at_told(|told| Some(told.0));
                    aim.or_else(|| self.aim(dead))
                }
                EventAction::Redrive(_) => self.aim(dead),
                EventAction::Restore => self.aim(|record| matches!(record.fate, Fate::Discarded { .. })),
                EventAction::Discard if self.chance.one_in(2) => self.aim(dead),
                EventAction::Discard | EventAction::Kill if self.chance.one_in(2) => {
                    let aim = self.aim_at_told(|told| told.1);
                    aim.or_else(|| self.aim_at_running())
                }
                _ => self.aim(|record| record.fate == Fate::Pending),
            };
            aims.extend(aim);
        }
        (!aims.is_empty()).then_some(Wish::Act(aims, act))
    }

    /// An event of a kind, or, seldom, any; in its current revision, or in an older one.
    fn aim(&mut self, is_meant: impl Fn(&Record) -> bool) -> Option<Aim> {
        if self.chance.one_in(12) {
            return Some(Aim { intent: self.chance.below(self.intents.len()), rev: None });
        }
        let meant = self.model.events.values().filter(|record| is_meant(record));
        let meant: Vec<_> = meant.map(|record| (record.intent, record.rev)).collect();
        if meant.is_empty() {
            return None;
        }
        let (intent, rev) = self.chance.pick(&meant);
        let rev = match self.chance.below(6) {
            0 => Some(rev),
            1 => Some(rev.saturating_sub(1)),
            _ => None,
        };
        Some(Aim { intent, rev })
    }

    /// An event named in an answer on its way to a node: the settled one, or the next.
    fn aim_at_told(&mut self, which: impl Fn((Seq, Option<Seq>)) -> Option<Seq>) -> Option<Aim> {
        let told = |mail: &Mail| match &mail.input {
            Input::Settled { seq, settled: SettleResult::Applied { next, .. }, .. } => {
                which((*seq, next.as_ref().map(|next| next.seq)))
            }
            Input::Ended { seq, ended: EndedAttempt { end: AttemptEnd::Committed { next }, .. }, .. } => {
                which((*seq, next.as_ref().map(|next| next.seq)))
            }
            _ => None,
        };
        let told: Vec<Seq> = self.nodes.iter().flat_map(|node| &node.inbox).filter_map(told).collect();
        let seq = (!told.is_empty()).then(|| self.chance.pick(&told))?;
        Some(Aim { intent: self.model.events.get(&seq)?.intent, rev: None })
    }

    /// An event whose handler is running, or whose settle is on its way.
    fn aim_at_running(&mut self) -> Option<Aim> {
        let node = self.some_node(|node| !node.attempts.is_empty())?;
        let index = self.chance.below(self.nodes[node].attempts.len());
        let id = &self.nodes[node].attempts[index].ticket.entry.event.id;
        Some(Aim { intent: Intent::number(id), rev: None })
    }

    fn some_redrive(&mut self) -> RedriveOptions {
        let to = self.chance.one_in(5).then(|| self.some_queue());
        RedriveOptions { keep_attempts: self.chance.one_in(4), to, out_of_order: !self.chance.one_in(3) }
    }

    /// The name of a queue, seldom of one that is not declared.
    fn some_queue(&mut self) -> String {
        if self.chance.one_in(12) {
            return "nowhere".to_owned();
        }
        let queue = self.chance.below(self.plan.queues.len());
        self.plan.queues[queue].name.to_string()
    }

    fn wish_to_edit(&mut self) -> Option<Wish> {
        let aim = self.aim(|record| matches!(record.fate, Fate::Dead { .. }))?;
        // Mostly a new id; sometimes one that is taken, or was.
        let into = if self.chance.one_in(8) {
            self.chance.below(self.intents.len())
        } else {
            let number = self.intents.len();
            let edited = self.intents[aim.intent].edited(number, &self.plan, &mut self.chance);
            self.intents.push(edited);
            self.model.by_intent.push(None);
            number
        };
        let (from, to) = (&self.intents[aim.intent], &self.intents[into]);
        // An edit does not change queue, tenant or key.
        if (from.queue, &from.event.tenant, &from.event.key) != (to.queue, &to.event.tenant, &to.event.key) {
            return None;
        }
        let event = to.event.clone();
        Some(Wish::Edit { aim, into, event, out_of_order: !self.chance.one_in(4) })
    }

    fn some_chain(&mut self) -> usize {
        let holding = self.model.events.values().filter_map(|record| match record.fate {
            Fate::Dead { holds: Some(_), .. } => record.chain,
            _ => None,
        });
        let holding: Vec<usize> = holding.collect();
        if holding.is_empty() || self.chance.one_in(6) {
            return self.chance.below(self.plan.chain_names().len());
        }
        self.chance.pick(&holding)
    }

    fn wish_for_rule(&mut self) -> Wish {
        let queue = self.some_queue();
        let tenant = Plan::tenant(self.chance.below(self.plan.tenants));
        let rule = match self.chance.below(8) {
            0 => Rule::Pause { queue },
            1 => Rule::PauseRetries { queue },
            2 => Rule::QuarantineTenant { queue: self.chance.one_in(2).then_some(queue), tenant },
            3 | 4 => {
                let (queue, tenant, key) =
                    self.model.chain_name(self.chance.below(self.plan.chain_names().len()));
                Rule::QuarantineKey { queue, tenant, key }
            }
            5 => {
                let (queue, tenant, key) =
                    self.model.chain_name(self.chance.below(self.plan.chain_names().len()));
                Rule::ParkKey { queue, tenant, key }
            }
            _ => Rule::Reroute { queue, to: self.some_queue() },
        };
        let secs = self.chance.pick(&[0, 1, 30, 600]);
        let until = self.chance.one_in(3).then(|| self.now + Duration::from_secs(secs));
        Wish::Set { rule, until }
    }

    fn some_rule(&mut self) -> Option<Rule> {
        let count = self.model.rules.len();
        if count == 0 {
            return None;
        }
        Some(self.model.rules[self.chance.below(count)].rule.clone())
    }

    fn wish_for_job(&mut self) -> Option<Wish> {
        if self.model.jobs.len() >= JOBS_MAX {
            return None;
        }
        let mut filter = Filter::default();
        if self.chance.one_in(2) {
            filter.queue = Some(self.some_queue());
        }
        if self.chance.one_in(4) {
            filter.key = Some(format!("k{}", self.chance.below(self.plan.keys)));
        }
        let act = if self.chance.one_in(5) { JobAct::Discard } else { JobAct::Redrive(self.some_redrive()) };
        let strategy = JobStrategy {
            canary: self.chance.one_in(4).then_some(1),
            stop_at: self.chance.pick(&[None, None, Some(0.5)]),
            ..JobStrategy::default()
        };
        Some(Wish::Start(Box::new(JobPlan { filter, act, strategy })))
    }

    fn wish_for_turn(&mut self) -> Option<Wish> {
        let to =
            self.chance.pick(&[JobState::Paused, JobState::Running, JobState::Running, JobState::Cancelled]);
        let from = if to == JobState::Running {
            [JobState::Paused; 2]
        } else {
            [JobState::Running, JobState::Paused]
        };
        let job = if self.chance.one_in(8) { Some(JobId(9)) } else { self.some_job(&from) };
        job.map(|job| Wish::Turn(job, to))
    }

    /// A publisher repeats an identity that operators have changed.
    fn publish_what_was_changed(&mut self) -> Check<bool> {
        let touched = |record: &&Record| {
            record.put_back > 0 || record.taken_away > 0 || matches!(record.fate, Fate::Discarded { .. })
        };
        let touched = self.model.events.values().filter(touched).map(|record| record.intent);
        let touched: Vec<usize> = touched.chain(self.model.gone.keys().copied()).collect();
        let known = |intent: &usize| self.intents[*intent].sent == Sent::Acknowledged;
        let touched: Vec<usize> = touched.into_iter().filter(known).collect();
        if touched.is_empty() {
            return Ok(false);
        }
        let intent = self.chance.pick(&touched);
        self.publish(&[intent])?;
        Ok(true)
    }

    /// No operator acts for a while, and old records are forgotten.
    fn go_away(&mut self) {
        self.figures.ordered("go away");
        let secs = self.chance.between(600, AWAY_SECS_MAX);
        self.now = self.now + Duration::from_secs(secs);
        self.forget();
    }
}

fn word(refusal: &redrive_store::operate::Refusal) -> &'static str {
    use redrive_store::operate::Refusal;
    match refusal {
        Refusal::Unknown => "refused: unknown",
        Refusal::Changed { .. } => "refused: changed",
        Refusal::State { .. } => "refused: state",
        Refusal::Edited { .. } => "refused: edited",
        Refusal::OutOfOrder => "refused: out of order",
        Refusal::IdTaken { .. } => "refused: id taken",
        Refusal::NoQueue { .. } => "refused: no queue",
        Refusal::NoRule => "refused: no rule",
        Refusal::NoJob => "refused: no job",
        Refusal::JobOver { .. } => "refused: job over",
        Refusal::NotParked => "refused: not parked",
        _ => "refused: senseless",
    }
}
