//! A handler that kills the process, and how it is found out.
//!
//! A crash charges no attempt, because nobody knows whose it was. After an unclean end a shard is *careful*:
//! what is dispatched is noted first. If the process dies again, what was noted is suspect, and suspects run
//! one at a time with nothing beside them, a strike committed before each run. Whoever has three strikes died
//! alone three times, and becomes a dead letter. So a killer is convicted after five deaths at most, and the
//! healthy path writes nothing.
//!
//! A process may also die for other reasons, and whoever runs alone then looks guilty. So those with the fewest
//! strikes run first, and before anyone runs who has a strike already, the process has to live for a while
//! ([`QUIET`]) with nothing under way: one that cannot start, because its port is taken, dies in that time and
//! charges nobody. What is left is a process that is killed from outside three times while the same event runs
//! alone.

use std::cmp::Reverse;
use std::time::Duration;

use super::flow::{Flow, FlowKey};
use super::loading::lane;
use super::queue::Lane;
use super::{Action, Place, Running, Scheduler, Timer};
use crate::disposition::Executed;
use crate::entry::{Change, Entry, Grant, Progress, Seq, Settle, Taken};
use crate::event::{Cause, DeadReason, Event};
use crate::moment::Moment;
use crate::planted::{Flaw, has};

/// How long a process has to live before someone runs who has a strike already. Longer than most processes
/// take to fail at their start, and shorter than an operator waits.
const QUIET: Duration = Duration::from_secs(2);

/// How many lone deaths convict.
pub(super) const STRIKES_MAX: u8 = 3;

/// A shard that is ours.
#[derive(Debug)]
pub(super) struct Shard {
    grant: Grant,
    /// While set, what is dispatched is noted first. Everything due by then has to be settled or rescheduled
    /// before that ends.
    careful: Option<Moment>,
    /// Waits to be noted.
    pub(super) to_note: Vec<Seq>,
    /// Is being noted.
    noting: Vec<Seq>,
    /// Whether a note is being written.
    is_noting: bool,
    /// Is noted and may start.
    noted: Vec<Seq>,
    /// Whether the next owner is to be careful though this one no longer is: it had suspects when it was to be given
    /// back.
    pub(super) is_unclean: bool,
}

impl Shard {
    pub(super) fn grant(&self) -> Grant {
        self.grant
    }

    pub(super) fn is_careful(&self) -> bool {
        self.careful.is_some()
    }

    pub(super) fn is_noting(&self) -> bool {
        self.is_noting
    }

    /// Takes out what is about to start.
    pub(super) fn take_waiting(&mut self) -> Vec<Seq> {
        let mut waiting = std::mem::take(&mut self.to_note);
        waiting.append(&mut self.noted);
        waiting
    }
}

impl Scheduler {
    pub(super) fn own(&mut self, taken: Taken, now: Moment) {
        let Taken { grant, unclean, suspects, streams } = taken;
        self.lose(grant.shard);
        // It has a new owner, which is us.
        self.tidings.retain(|tiding| !matches!(tiding, Action::Lost(lost) if lost.shard == grant.shard));
        let careful = unclean.then_some(now);
        if suspects.iter().any(|suspect| suspect.progress.strikes > 0) {
            self.quiet_until = Some(now + QUIET);
            self.timers.push(Reverse((now + QUIET, Timer::Queue)));
        }
        let shard = Shard {
            grant,
            careful,
            to_note: vec![],
            noting: vec![],
            is_noting: false,
            noted: vec![],
            is_unclean: false,
        };
        self.shards.insert(grant.shard, shard);
        for (stream, queue, tenant) in streams {
            if let Some(key) = self.flow_of(grant.shard, stream, &queue, &tenant) {
                self.flows.entry(key).and_modify(|flow| flow.is_past_care = [!unclean; 2]);
                self.hunger(key);
            }
        }
        for entry in suspects {
            self.suspect(entry, now);
        }
    }

    /// Forgets everything of a shard that has another owner.
    pub(super) fn lose(&mut self, shard: u32) {
        if let Some(lost) = self.drop_shard(shard) {
            self.lost_push(lost.grant());
        }
    }

    /// Forgets everything of a shard.
    pub(super) fn drop_shard(&mut self, shard: u32) -> Option<Shard> {
        let lost = self.shards.remove(&shard)?;
        self.giving.remove(&shard);
        for (_, flow) in self.flows.extract_if(.., |key, _| key.shard == shard) {
            self.queues[flow.queue].flows -= 1;
            self.queues[flow.queue].aside -= flow.aside;
            if let Some(loading) = flow.loading {
                self.queues[flow.queue].aside -= loading.aside;
                self.queues[flow.queue].no_longer_expect(loading.coming);
                self.loads -= 1;
            }
        }
        self.hungry.retain(|key| key.shard != shard);
        self.asleep.retain(|key| key.shard != shard);
        let gone: Vec<Seq> =
            self.held.iter().filter(|(_, held)| held.entry.shard == shard).map(|(seq, _)| *seq).collect();
        for seq in gone {
            self.let_go(seq);
        }
        for queue in &mut self.queues {
            queue.forget_shard(shard);
        }
        self.suspects.retain(|seq| self.held.contains_key(seq));
        self.letters.retain(|_, letter| letter.flow.shard != shard);
        Some(lost)
    }

    fn suspect(&mut self, mut entry: Entry, now: Moment) {
        if has(Flaw::CrashCountsAsAttempt) {
            entry.progress.attempts += 1;
        }
        let Event { queue, tenant, .. } = &*entry.event;
        let Some(key) = self.flow_of(entry.shard, entry.stream, queue, tenant) else { return };
        entry.progress.suspect = true;
        // One that was put off before the process died waits for its time, and comes back as a suspect then.
        // So do those for which there is no room.
        if entry.progress.due > now {
            self.arrive(entry, now);
        } else if self.flows.get(&key).is_some_and(|flow| self.queues[flow.queue].room(lane(&entry)) > 0) {
            self.accept(key, entry, now);
        }
    }

    /// Runs the next suspect, if nothing else is under way.
    pub(super) fn run_suspects(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let parallel = has(Flaw::SuspectsInParallel);
        let has_time = self.term.is_none_or(|term| term.has_time_for(None, now));
        while has_time && !self.draining && (parallel || (self.running == 0 && self.lone.is_empty())) {
            let Some(seq) = self.next_suspect(now) else { return };
            let Some(held) = self.held.get_mut(&seq) else { continue };
            if held.entry.expires.is_some_and(|expires| expires <= now) {
                self.expire(seq, now);
                continue;
            }
            if held.entry.progress.strikes >= STRIKES_MAX {
                let park = self.queues[held.queue].plan.after_dead.park(now);
                let progress = convicted(&held.entry.progress, now);
                let change = Change::Dead { reason: DeadReason::KilledProcess, progress, park };
                self.settle(seq, change, now);
                continue;
            }
            self.lone.insert(seq);
            self.running += 1;
            let Some(shard) = self.shards.get(&held.entry.shard) else { continue };
            let strike =
                Settle { grant: shard.grant, seq, rev: held.entry.rev, at: now, change: Change::Strike };
            held.place = Place::Striking(strike.clone());
            if has(Flaw::StrikeAfterRun) {
                let rev = held.entry.rev;
                self.struck(seq, rev, now);
                self.start_noted(now, actions);
            } else {
                self.ready.push(strike);
            }
        }
    }

    /// The suspect with the fewest strikes, if it is time for it.
    fn next_suspect(&mut self, now: Moment) -> Option<Seq> {
        let strikes = |seq: &Seq| self.held.get(seq).map_or(0, |held| held.entry.progress.strikes);
        let (at, least) =
            self.suspects.iter().map(strikes).enumerate().min_by_key(|(at, strikes)| (*strikes, *at))?;
        // Whoever is to be convicted need not wait: it does not run.
        let runs_again = (1..STRIKES_MAX).contains(&least);
        if runs_again && self.quiet_until.is_some_and(|until| until > now) {
            return None;
        }
        self.suspects.remove(at)
    }

    /// A strike is committed: the suspect may run.
    pub(super) fn struck(&mut self, seq: Seq, rev: u32, now: Moment) {
        let Some(held) = self.held.get_mut(&seq) else { return };
        held.entry.rev = rev;
        held.entry.progress.strikes += 1;
        let lane = lane(&held.entry);
        self.queues[held.queue].started(lane);
        let running = Running { lane, began: now, hurried: false, pass: None, permit: None };
        held.place = Place::Noting(Box::new(running));
        if let Some(shard) = self.shards.get_mut(&held.entry.shard) {
            shard.noted.push(seq);
        }
    }

    /// Has everything noted that waits for it: together with what is under way.
    pub(super) fn start_notes(&mut self, actions: &mut Vec<Action>) {
        for (number, shard) in &mut self.shards {
            if shard.to_note.is_empty() || shard.is_noting {
                continue;
            }
            let under_way = |(seq, held): (&Seq, &super::Held)| {
                let busy = matches!(held.place, Place::Noting(_) | Place::Running(_));
                (busy && held.entry.shard == *number).then_some(*seq)
            };
            let mut list: Vec<Seq> = self.held.iter().filter_map(under_way).collect();
            list.sort_unstable();
            shard.noting = std::mem::take(&mut shard.to_note);
            shard.is_noting = true;
            actions.push(Action::Note(shard.grant, list));
        }
    }

    /// A note is written, or could not be: then whatever waits for it waits on, and is noted again.
    pub(super) fn noted(&mut self, shard: u32, written: bool) {
        let Some(shard) = self.shards.get_mut(&shard) else { return };
        shard.is_noting = false;
        let noting = std::mem::take(&mut shard.noting);
        if written { shard.noted.extend(noting) } else { shard.to_note.extend(noting) }
    }

    /// Starts what is noted.
    pub(super) fn start_noted(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let noted: Vec<Seq> =
            self.shards.values_mut().flat_map(|shard| std::mem::take(&mut shard.noted)).collect();
        for seq in noted {
            self.run(seq, now, actions);
        }
    }

    /// What was about to start does not, because the process stops.
    pub(super) fn stand_down(&mut self, now: Moment) {
        let waiting: Vec<Seq> = self.shards.values_mut().flat_map(Shard::take_waiting).collect();
        for seq in waiting {
            self.give_up(seq, now);
        }
    }

    /// An event did not run, or was given up without a word. It leaves memory; if it was to run alone, its
    /// strike is taken back first, because the process did not die of it.
    pub(super) fn give_up(&mut self, seq: Seq, now: Moment) {
        let Some(held) = self.held.get_mut(&seq) else { return };
        if !self.lone.contains(&seq) {
            self.let_go(seq);
            return;
        }
        let strikes = held.entry.progress.strikes.saturating_sub(1);
        let progress = Progress { strikes, ..held.entry.progress.clone() };
        let queue = held.queue;
        if let Place::Noting(running) = std::mem::replace(&mut held.place, Place::Ready) {
            self.end_run(queue, *running);
        }
        self.settle(seq, Change::Again(progress), now);
    }

    /// Whether a load has found everything that was due when the shard was taken, by lane. Each lane is loaded by due
    /// time for itself.
    pub(super) fn has_all(&self, key: FlowKey, entries: &[Entry], more: [bool; 2]) -> [bool; 2] {
        let until = self.shards.get(&key.shard).and_then(|shard| shard.careful);
        Lane::BOTH.map(|lane| {
            let of_lane = |entry: &&Entry| has(Flaw::CareEndsEarly) || super::loading::lane(entry) == lane;
            let is_beyond = |entry: &Entry| until.is_some_and(|until| entry.progress.due > until);
            !more[lane.index()] || entries.iter().filter(of_lane).any(is_beyond)
        })
    }

    /// All of that is in memory, of these lanes.
    pub(super) fn pass_care(&mut self, key: FlowKey, lanes: [bool; 2]) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        for lane in Lane::BOTH {
            flow.is_past_care[lane.index()] |= lanes[lane.index()];
        }
    }

    /// Ends the care of a shard when everything that was due when it was taken is settled or rescheduled.
    pub(super) fn end_care(&mut self, actions: &mut Vec<Action>) {
        // What leaves memory because the process stops is not settled. The next owner has to be careful.
        if self.draining && !has(Flaw::DrainEndsCare) {
            return;
        }
        for (number, shard) in &mut self.shards {
            let Some(until) = shard.careful else { continue };
            // The same holds for what leaves memory because the shard is given back.
            if self.giving.contains(number) && !has(Flaw::DrainEndsCare) {
                continue;
            }
            // What a rule holds back may be held back for long, and nothing of it runs meanwhile.
            let past =
                |key: &FlowKey, flow: &Flow| flow.is_past_care == [true; 2] || self.asleep.contains(key);
            let loaded = self.flows.iter().all(|(key, flow)| key.shard != *number || past(key, flow));
            let pending =
                |held: &super::Held| held.entry.shard == *number && held.entry.progress.due <= until;
            if !loaded || shard.is_noting || self.held.values().any(pending) {
                continue;
            }
            shard.careful = None;
            shard.noted.append(&mut shard.to_note);
            actions.push(Action::Note(shard.grant, Vec::new()));
        }
    }
}

/// What is written of an event that killed the process: the story has to say so, because no attempt ended.
fn convicted(progress: &Progress, now: Moment) -> Progress {
    let text = format!("the process died {STRIKES_MAX} times while this ran alone");
    let cause = Cause::new(DeadReason::KilledProcess.as_str(), text);
    let told = progress.with_record(progress.attempts + 1, now, "killed", Some(Executed::Unknown), cause);
    Progress { strikes: 0, suspect: false, ..told }
}
