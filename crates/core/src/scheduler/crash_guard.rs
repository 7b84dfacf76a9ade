//! The crash guard: finds events whose handler crashes the process.
//!
//! A crash does not count as an attempt, because no single event can be blamed for it. After an unclean end,
//! the next owner of a shard turns the crash guard on: before it starts events, it writes a *dispatch note*
//! of them to the store. If the process dies again, the noted events are suspects. Suspects run one at a time
//! with nothing beside them, and the crash count is committed before each run. An event with a crash count of
//! three has crashed the process three times while it ran alone, and becomes a dead letter. A poisonous event
//! is therefore found after at most five crashes, and the healthy path writes nothing.
//!
//! The crash guard ends when every event that was due at the takeover is settled or rescheduled; from then on
//! the shard writes no notes. It does not wait for some of these events: a rule holds them back, or they
//! follow another event of their key that an operator put before them. The end of the crash guard therefore
//! does not lift the protection from them: an event that was due at an unclean takeover is noted before it
//! runs, however late that is, and an owner that leaves such events behind does not release the shard as
//! clean.
//!
//! A process may also die for other reasons, and an event that runs alone at that time looks guilty. Events
//! with the lowest crash count therefore run first, and before an event with a crash count runs, the process
//! has to live for a while ([`QUIET`]) with nothing running: a process that cannot start, because its port is
//! taken, dies in that time and charges no event. What remains is a process that is killed from outside three
//! times while the same event runs alone.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use super::flow::FlowKey;
use super::load::lane;
use super::queue::Lane;
use super::watchdog::{Forgotten, Idle};
use super::{Action, NoteId, Running, Scheduler, Timer, TrackedState};
use crate::disposition::Executed;
use crate::event::{Cause, DeadReason, Event};
use crate::moment::Moment;
use crate::planted::{PlantedBug, has};
use crate::queue_entry::{
    EventChange, EventProgress, FencingToken, QueueEntry, Seq, SettleRequest, TakenShard,
};

/// How long a process has to live before an event with a crash count runs. Longer than most processes take to
/// fail at startup, and shorter than an operator waits.
const QUIET: Duration = Duration::from_secs(2);

/// The crash count at which an event becomes a dead letter.
pub(super) const STRIKES_MAX: u8 = 3;

/// A shard that this node owns.
#[derive(Debug)]
pub(super) struct Shard {
    token: FencingToken,
    /// When it was taken, if the previous owner did not end cleanly. Events that were due by then are noted
    /// before they run, for as long as this node owns the shard.
    unclean_since: Option<Moment>,
    /// Whether the crash guard is on: every dispatched event is noted first. It ends when the events that
    /// were due at the takeover are settled or rescheduled.
    is_careful: bool,
    /// Events that wait for the next dispatch note.
    pub(super) to_note: Vec<Seq>,
    /// Events in the dispatch note that is being written.
    noting: Vec<Seq>,
    /// The dispatch note that is being written.
    being_noted: Option<u64>,
    /// Noted events that may start.
    noted: Vec<Seq>,
    /// Whether the store has a dispatch note that is not empty.
    has_note: bool,
    /// Whether the next owner needs the crash guard although it is off here: there were suspects when the
    /// handoff began, or unsettled events from before the takeover.
    pub(super) is_unclean: bool,
    /// What the watchdog saw while no attempt of the shard was running.
    pub(super) idle: Option<Idle>,
    /// Flows that were dropped since the watchdog looked last.
    pub(super) forgotten: VecDeque<Forgotten>,
}

impl Shard {
    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    pub(super) fn is_careful(&self) -> bool {
        self.is_careful
    }

    /// Whether the next owner can do without the crash guard.
    pub(super) fn is_clean(&self) -> bool {
        !self.is_careful && !self.is_unclean
    }

    /// Whether an event was due when the shard was taken from an owner that did not end cleanly: it may be
    /// the event that crashed that owner.
    pub(super) fn is_from_before(&self, entry: &QueueEntry) -> bool {
        self.unclean_since.is_some_and(|since| entry.progress.due <= since)
    }

    /// Whether an event has to be noted before it runs.
    pub(super) fn must_note(&self, entry: &QueueEntry) -> bool {
        self.is_careful || (self.is_from_before(entry) && !has(PlantedBug::CareForgetsHeldBack))
    }

    pub(super) fn is_noting(&self) -> bool {
        self.being_noted.is_some()
    }

    /// Starts writing a dispatch note.
    fn note(&mut self, number: u64) -> NoteId {
        self.being_noted = Some(number);
        NoteId { token: self.token, number }
    }

    /// Takes out the events that are about to start.
    pub(super) fn take_waiting(&mut self) -> Vec<Seq> {
        let mut waiting = std::mem::take(&mut self.to_note);
        waiting.append(&mut self.noted);
        waiting
    }
}

impl Scheduler {
    pub(super) fn own(&mut self, taken: TakenShard, now: Moment) {
        let TakenShard { token, unclean, suspects, streams } = taken;
        self.lose(token.shard);
        // The shard has a new owner: this node.
        self.tidings.retain(|tiding| !matches!(tiding, Action::Lost(lost) if lost.shard == token.shard));
        if suspects.iter().any(|suspect| suspect.progress.crash_count > 0) {
            self.quiet_until = Some(now + QUIET);
            self.timers.push(Reverse((now + QUIET, Timer::Queue)));
        }
        let shard = Shard {
            token,
            unclean_since: unclean.then_some(now),
            is_careful: unclean,
            to_note: vec![],
            noting: vec![],
            being_noted: None,
            noted: vec![],
            has_note: false,
            is_unclean: false,
            idle: None,
            forgotten: VecDeque::new(),
        };
        self.shards.insert(token.shard, shard);
        for (stream, queue, tenant) in streams {
            if let Some(key) = self.flow_of(token.shard, stream, &queue, &tenant) {
                self.flows.entry(key).and_modify(|flow| flow.is_past_care = [!unclean; 2]);
                self.hunger(key);
            }
        }
        for entry in suspects {
            self.suspect(entry, now);
        }
    }

    /// Forgets a shard that has another owner.
    pub(super) fn lose(&mut self, shard: u32) {
        if let Some(lost) = self.drop_shard(shard) {
            self.lost_push(lost.token());
        }
    }

    /// Forgets a shard.
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
        self.needs_load.retain(|key| key.shard != shard);
        self.paused.retain(|key| key.shard != shard);
        let gone: Vec<Seq> =
            self.tracked.iter().filter(|(_, held)| held.entry.shard == shard).map(|(seq, _)| *seq).collect();
        for seq in gone {
            self.let_go(seq);
        }
        for queue in &mut self.queues {
            queue.forget_shard(shard);
        }
        self.suspects.retain(|seq| self.tracked.contains_key(seq));
        self.letters.retain(|_, letter| letter.flow.shard != shard);
        Some(lost)
    }

    fn suspect(&mut self, mut entry: QueueEntry, now: Moment) {
        if has(PlantedBug::CrashCountsAsAttempt) {
            entry.progress.attempts += 1;
        }
        let Event { queue, tenant, .. } = &*entry.event;
        let Some(key) = self.flow_of(entry.shard, entry.stream, queue, tenant) else { return };
        entry.progress.suspect = true;
        // A suspect that was put off before the process died waits for its due time, and comes back as a
        // suspect then. So do suspects for which there is no room.
        if entry.progress.due > now {
            self.arrive(entry, now);
        } else if self.flows.get(&key).is_some_and(|flow| self.queues[flow.queue].room(lane(&entry)) > 0) {
            self.accept(key, entry, now);
        }
    }

    /// Runs the next suspect, if nothing else is running.
    pub(super) fn run_suspects(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let parallel = has(PlantedBug::SuspectsInParallel);
        let has_time = self.term.is_none_or(|term| term.has_time_for(None, now));
        while has_time && !self.draining && (parallel || (self.running == 0 && self.lone.is_empty())) {
            let Some(seq) = self.next_suspect(now) else { return };
            let Some(held) = self.tracked.get_mut(&seq) else { continue };
            if held.entry.expires.is_some_and(|expires| expires <= now) {
                self.expire(seq, now);
                continue;
            }
            if held.entry.progress.crash_count >= STRIKES_MAX {
                let park = self.queues[held.queue].plan.after_dead.park(now);
                let progress = convicted(&held.entry.progress, now);
                let change = EventChange::Dead { reason: DeadReason::KilledProcess, progress, park };
                self.settle(seq, change, now);
                continue;
            }
            self.lone.insert(seq);
            self.running += 1;
            let Some(shard) = self.shards.get(&held.entry.shard) else { continue };
            let crash = SettleRequest {
                token: shard.token,
                seq,
                rev: held.entry.rev,
                at: now,
                change: EventChange::CountCrash,
            };
            held.state = TrackedState::Striking(crash.clone());
            if has(PlantedBug::StrikeAfterRun) {
                let rev = held.entry.rev;
                self.struck(seq, rev, now);
                self.start_noted(now, actions);
            } else {
                self.ready.push(crash);
            }
        }
    }

    /// The suspect with the lowest crash count, if it may run now.
    fn next_suspect(&mut self, now: Moment) -> Option<Seq> {
        let crash_count = |seq: &Seq| self.tracked.get(seq).map_or(0, |held| held.entry.progress.crash_count);
        let (at, least) = self
            .suspects
            .iter()
            .map(crash_count)
            .enumerate()
            .min_by_key(|(at, crash_count)| (*crash_count, *at))?;
        // A suspect that is about to become a dead letter need not wait: it does not run.
        let runs_again = (1..STRIKES_MAX).contains(&least);
        if runs_again && self.quiet_until.is_some_and(|until| until > now) {
            return None;
        }
        self.suspects.remove(at)
    }

    /// A crash count is committed: the suspect may run.
    pub(super) fn struck(&mut self, seq: Seq, rev: u32, now: Moment) {
        let Some(held) = self.tracked.get_mut(&seq) else { return };
        held.entry.rev = rev;
        held.entry.progress.crash_count += 1;
        let lane = lane(&held.entry);
        self.queues[held.queue].started(lane);
        let running = Running { lane, began: now, hurried: false, pass: None, permit: None };
        held.state = TrackedState::Noting(Box::new(running));
        if let Some(shard) = self.shards.get_mut(&held.entry.shard) {
            shard.noted.push(seq);
        }
    }

    /// Writes a dispatch note with all events that wait for one, together with the running ones.
    pub(super) fn start_notes(&mut self, actions: &mut Vec<Action>) {
        for (number, shard) in &mut self.shards {
            if shard.to_note.is_empty() || shard.is_noting() {
                continue;
            }
            let under_way = |(seq, held): (&Seq, &super::TrackedEvent)| {
                let busy = matches!(held.state, TrackedState::Noting(_) | TrackedState::Running(_));
                (busy && held.entry.shard == *number).then_some(*seq)
            };
            let mut list: Vec<Seq> = self.tracked.iter().filter_map(under_way).collect();
            list.sort_unstable();
            shard.noting = std::mem::take(&mut shard.to_note);
            self.asked += 1;
            shard.has_note = true;
            actions.push(Action::Note(shard.note(self.asked), list));
        }
    }

    /// A dispatch note is written, or failed: then its events wait for the next one.
    pub(super) fn noted(&mut self, note: NoteId, written: bool) {
        let Some(shard) = self.shards.get_mut(&note.token.shard) else { return };
        let is_other = |asked: u64| asked != note.number && !has(PlantedBug::AnswersUnmatched);
        if shard.being_noted.is_none_or(is_other) {
            return;
        }
        shard.being_noted = None;
        let noting = std::mem::take(&mut shard.noting);
        if written { shard.noted.extend(noting) } else { shard.to_note.extend(noting) }
    }

    /// Starts the noted events.
    pub(super) fn start_noted(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let noted: Vec<Seq> =
            self.shards.values_mut().flat_map(|shard| std::mem::take(&mut shard.noted)).collect();
        for seq in noted {
            self.run(seq, now, actions);
        }
    }

    /// Cancels the events that were about to start, because the process stops.
    pub(super) fn stand_down(&mut self, now: Moment) {
        let waiting: Vec<Seq> = self.shards.values_mut().flat_map(Shard::take_waiting).collect();
        for seq in waiting {
            self.give_up(seq, now);
        }
    }

    /// An event did not run, or its attempt was abandoned without an outcome. It leaves memory. If it was to
    /// run alone, its crash count is taken back first, because the process did not die of it.
    pub(super) fn give_up(&mut self, seq: Seq, now: Moment) {
        let Some(held) = self.tracked.get_mut(&seq) else { return };
        if !self.lone.contains(&seq) {
            self.let_go(seq);
            return;
        }
        let crash_count = held.entry.progress.crash_count.saturating_sub(1);
        let progress = EventProgress { crash_count, ..held.entry.progress.clone() };
        let queue = held.queue;
        if let TrackedState::Noting(running) = std::mem::replace(&mut held.state, TrackedState::Ready) {
            self.end_run(queue, *running);
        }
        self.settle(seq, EventChange::Retry(progress), now);
    }

    /// Whether a load has found every event that was due when the shard was taken, by lane. Each lane is
    /// loaded by due time separately.
    pub(super) fn has_all(&self, key: FlowKey, entries: &[QueueEntry], more: [bool; 2]) -> [bool; 2] {
        let Some(shard) = self.shards.get(&key.shard) else { return [false; 2] };
        Lane::BOTH.map(|lane| {
            let of_lane =
                |entry: &&QueueEntry| has(PlantedBug::CareEndsEarly) || super::load::lane(entry) == lane;
            let is_beyond = |entry: &QueueEntry| !shard.is_from_before(entry);
            !more[lane.index()] || entries.iter().filter(of_lane).any(is_beyond)
        })
    }

    /// All those events of these lanes are in memory.
    pub(super) fn pass_care(&mut self, key: FlowKey, lanes: [bool; 2]) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        for lane in Lane::BOTH {
            flow.is_past_care[lane.index()] |= lanes[lane.index()];
        }
    }

    /// An event from before an unclean takeover comes up after the end of the crash guard: the next owner
    /// needs the crash guard, unless this one settles the event, and that is not worth counting.
    pub(super) fn note_late(&mut self, entry: &QueueEntry) {
        if let Some(shard) = self.shards.get_mut(&entry.shard)
            && !shard.is_careful
            && shard.is_from_before(entry)
        {
            shard.is_unclean = true;
        }
    }

    /// An event from before an unclean takeover stays in the store for now. The crash guard does not end
    /// before a load has brought it; if it has ended already, the next owner needs it.
    pub(super) fn owe_care(&mut self, key: FlowKey, entry: &QueueEntry) {
        self.note_late(entry);
        let is_owed = |shard: &Shard| shard.is_careful && shard.is_from_before(entry);
        let Some(flow) =
            self.flows.get_mut(&key).filter(|_| self.shards.get(&key.shard).is_some_and(is_owed))
        else {
            return;
        };
        flow.is_past_care[lane(entry).index()] = false;
        if let Some(loading) = &mut flow.loading {
            loading.is_blind = true;
        }
    }

    /// Ends a shard's crash guard when every event that was due at its takeover is settled, rescheduled or
    /// held back by a rule. A rule may hold events back for long; they are noted when they run.
    pub(super) fn end_care(&mut self, now: Moment, actions: &mut Vec<Action>) {
        // Events that leave memory because the process stops are not settled. The next owner needs the crash
        // guard.
        if self.draining && !has(PlantedBug::DrainEndsCare) {
            return;
        }
        let is_concerned = |shard: &Shard| (shard.is_careful || shard.has_note) && !shard.is_noting();
        let concerned = self.shards.iter().filter(|(_, shard)| is_concerned(shard));
        let concerned: Vec<u32> = concerned.map(|(number, _)| *number).collect();
        for number in concerned {
            // The same holds for events that leave memory because of a handoff.
            if self.giving.contains(&number) && !has(PlantedBug::DrainEndsCare) {
                continue;
            }
            let is_old = |shard: &Shard, held: &super::TrackedEvent| {
                held.entry.shard == number && shard.is_from_before(&held.entry)
            };
            let Some(shard) = self.shards.get(&number) else { continue };
            if self.tracked.values().any(|held| is_old(shard, held)) {
                continue;
            }
            let lanes = if shard.is_careful { self.care_of(number, now) } else { Care::Over };
            let Some(shard) = self.shards.get_mut(&number).filter(|_| lanes != Care::Loading) else {
                continue;
            };
            shard.is_careful = false;
            shard.is_unclean |= lanes == Care::HeldBack;
            let free = std::mem::take(&mut shard.to_note);
            if std::mem::take(&mut shard.has_note) {
                // The next dispatch note has to be written after this.
                self.asked += 1;
                actions.push(Action::Note(shard.note(self.asked), Vec::new()));
            }
            free.into_iter().for_each(|seq| self.run(seq, now, actions));
        }
    }

    /// The events in the store that were due when the shard was taken.
    fn care_of(&self, shard: u32, now: Moment) -> Care {
        let mut left = Care::Over;
        for (key, flow) in self.flows.iter().filter(|(key, _)| key.shard == shard) {
            for lane in Lane::BOTH.into_iter().filter(|lane| !flow.is_past_care[lane.index()]) {
                if flow.loading.is_some() || self.is_open(*key, lane, now) {
                    return Care::Loading;
                }
                left = Care::HeldBack;
            }
        }
        left
    }
}

/// The events in the store that were due when the shard was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Care {
    /// None.
    Over,
    /// Only events that a rule holds back.
    HeldBack,
    /// Events that loads have yet to bring.
    Loading,
}

/// The progress of an event that crashed the process: its attempt history has to record that, because no
/// attempt ended.
fn convicted(progress: &EventProgress, now: Moment) -> EventProgress {
    let text = format!("the process died {STRIKES_MAX} times while this ran alone");
    let cause = Cause::new(DeadReason::KilledProcess.as_str(), text);
    let told = progress.with_record(progress.attempts + 1, now, "killed", Some(Executed::Unknown), cause);
    EventProgress { crash_count: 0, suspect: false, ..told }
}
