//! Which event may run: the order of keys, and how dead letters block it.
//!
//! [`State::write`] is the one place where an event is inserted, changed or deleted. It keeps every index consistent
//! and finds the event that may run as a result.

use redrive_core::planted::{PlantedBug, has};
use redrive_core::queue_entry::Seq;

use super::row::{Chain, Row};
use super::state::State;

impl State {
    /// Writes or deletes an event, and returns the event that may run because of it.
    pub(super) fn write(&mut self, seq: Seq, new: Option<Row>) -> Option<Seq> {
        let old = self.rows.get(&seq).cloned();
        let chain = new.as_ref().or(old.as_ref()).and_then(|row| row.chain.clone());
        let before = chain.as_ref().and_then(|chain| self.heads.get(chain)).copied();
        if let Some(place) = before.and_then(|head| self.rows.get(&head)).map(Row::place) {
            self.runnable.remove(&place);
        }

        if let Some(old) = &old {
            self.take_out(old);
        }
        match new {
            Some(row) => self.put_in(row),
            None => self.rows.remove(&seq),
        }

        let became = match chain {
            Some(chain) => {
                self.lift(&chain, !has(PlantedBug::WithheldLeaks)).filter(|head| before != Some(*head))
            }
            None => {
                let ran = old.is_some_and(|row| row.is_free());
                let runs = self.rows.get(&seq).is_some_and(Row::is_free);
                (runs && !ran).then_some(seq)
            }
        };
        self.arrived.extend(became);
        became
    }

    fn take_out(&mut self, row: &Row) {
        match &row.chain {
            Some((stream, key)) => self.members.remove(&(*stream, key.clone(), row.entry.seq)),
            None => self.runnable.remove(&row.place()),
        }
        if let Some(hold) = row.hold() {
            self.holding.remove(&hold);
        }
        self.count_letter(row, false);
    }

    fn put_in(&mut self, row: Row) {
        match &row.chain {
            Some((stream, key)) if row.blocks() => {
                self.members.put((*stream, key.clone(), row.entry.seq), ());
            }
            None if row.is_free() => self.runnable.put(row.place(), ()),
            _ => {}
        }
        if let Some(hold) = row.hold() {
            self.holding.put(hold, ());
        }
        self.count_letter(&row, true);
        self.rows.put(row.entry.seq, row);
    }

    /// Makes the head of a key runnable, unless a rule withholds it.
    fn lift(&mut self, chain: &Chain, by_rules: bool) -> Option<Seq> {
        let head = self.head(chain).filter(|_| !by_rules || self.withholding(chain).is_none());
        let Some(head) = head else {
            self.heads.remove(chain);
            return None;
        };
        if let Some(place) = self.rows.get(&head).map(Row::place) {
            self.runnable.put(place, ());
        }
        self.heads.put(chain.clone(), head);
        Some(head)
    }

    /// Determines the runnable event of a key again, because a rule was set or lifted.
    pub(super) fn lift_anew(&mut self, chain: &Chain) {
        let before = self.heads.get(chain).copied();
        if let Some(place) = before.and_then(|head| self.rows.get(&head)).map(Row::place) {
            self.runnable.remove(&place);
        }
        let became = self.lift(chain, true).filter(|head| before != Some(*head));
        self.arrived.extend(became);
    }

    /// The event of a key that may run: its smallest seq, whatever its due time. `None` while that event is dead or
    /// leased.
    fn head(&self, chain: &Chain) -> Option<Seq> {
        let free = |row: &&Row| row.is_free();
        if has(PlantedBug::ParkLeaks) {
            return self.members(chain).find(free).map(|row| row.entry.seq);
        }
        if has(PlantedBug::DueOnlyHeads) {
            let by_due = self.members(chain).min_by_key(|row| (row.is_free(), row.place().3));
            return by_due.filter(free).map(|row| row.entry.seq);
        }
        self.members(chain).next().filter(free).map(|row| row.entry.seq)
    }

    /// The events that count in the order of a key, in that order.
    pub(super) fn members(&self, (stream, key): &Chain) -> impl Iterator<Item = &Row> {
        let range = (*stream, key.clone(), Seq(0))..=(*stream, key.clone(), Seq(u64::MAX));
        self.members.range(range).filter_map(|((_, _, seq), ())| self.rows.get(seq))
    }

    /// Unblocks the events behind a dead letter, if there are more of them than it may block.
    pub(super) fn relieve(&mut self, chain: &Chain) -> Option<Seq> {
        let first = self.members(chain).next()?;
        let death = first.death.as_ref()?;
        let count = usize::try_from(death.count?).unwrap_or(usize::MAX);
        let count = if has(PlantedBug::ParksOneMore) { count.saturating_add(1) } else { count };
        let waiting = self.members(chain).skip(1).take(count.saturating_add(1)).count();
        if waiting <= count {
            return None;
        }
        let next = self.let_go(first.clone());
        // Behind it may be another dead letter that blocks more than it may.
        next.or_else(|| self.relieve(chain))
    }

    /// Ends the block of a dead letter on its key.
    pub(super) fn let_go(&mut self, mut row: Row) -> Option<Seq> {
        if let Some(death) = &mut row.death {
            death.holds = false;
        }
        row.entry.rev += 1;
        self.write(row.entry.seq, Some(row))
    }

    /// Whether an event may run, now or when it is due.
    pub(super) fn is_runnable(&self, row: &Row) -> bool {
        row.is_free() && row.chain.as_ref().is_none_or(|chain| self.heads.get(chain) == Some(&row.entry.seq))
    }

    /// Whether an event waits behind a dead letter of its key.
    pub(super) fn is_parked(&self, row: &Row) -> bool {
        let Some(chain) = row.chain.as_ref().filter(|_| row.lives()) else { return false };
        self.members(chain).next().is_some_and(|first| !first.lives())
    }
}
