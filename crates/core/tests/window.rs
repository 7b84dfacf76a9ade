//! Compares the dedupe window with the simplest model of it: a list that is searched.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use redrive_core::Moment;
use redrive_core::window::{
    ClaimResult, ClaimTicket, CommitRefused, PendingCommit, ScopedId, WindowSettings, WindowState,
};

/// The remembered ids, oldest first, and the claims; nothing is removed, every search reads the whole list.
struct Model {
    settings: WindowSettings,
    now: u64,
    committed: Vec<(u8, u64)>,
    claims: BTreeMap<u8, (u64, u64, u32)>,
    tokens: u64,
    evicted_early: u64,
}

#[derive(Debug, PartialEq)]
enum AttemptEnd {
    First(u64),
    Seen(u64),
    Busy(u64),
    Full,
    Taken,
    Already,
    Ok,
}

impl Model {
    fn pass(&mut self, now: u64) -> u64 {
        self.now = self.now.max(now);
        let (now, time) = (self.now, nanos(self.settings.time));
        self.committed.retain(|(_, at)| now - at < time);
        now
    }

    fn since(&self, id: u8) -> Option<u64> {
        self.committed.iter().find(|(known, _)| *known == id).map(|(_, at)| *at)
    }

    fn live(&self, id: u8) -> Option<(u64, u64)> {
        let (token, until, settling) = *self.claims.get(&id)?;
        (settling > 0 || self.now < until).then_some((token, until))
    }

    /// Live claims keep their place; the oldest ids make room.
    fn make_room(&mut self) -> bool {
        if self.claims.len() + self.committed.len() >= self.settings.count {
            let now = self.now;
            self.claims.retain(|_, (_, until, settling)| *settling > 0 || now < *until);
        }
        while self.claims.len() + self.committed.len() >= self.settings.count {
            if self.committed.is_empty() {
                return false;
            }
            self.committed.remove(0);
            self.evicted_early += 1;
        }
        true
    }

    fn claim(&mut self, id: u8, now: u64) -> AttemptEnd {
        let now = self.pass(now);
        if let Some((_, until)) = self.live(id) {
            return AttemptEnd::Busy(until);
        }
        if let Some(at) = self.since(id) {
            return AttemptEnd::Seen(at);
        }
        if !self.claims.contains_key(&id) && !self.make_room() {
            return AttemptEnd::Full;
        }
        self.tokens += 1;
        self.claims.insert(id, (self.tokens, now + nanos(self.settings.claim), 0));
        AttemptEnd::First(self.tokens)
    }

    fn prepare(&mut self, id: u8, token: u64, now: u64) -> AttemptEnd {
        let now = self.pass(now);
        if let Some((held, _, settling)) = self.claims.get_mut(&id)
            && *held == token
        {
            *settling += 1;
            return AttemptEnd::Ok;
        }
        if self.live(id).is_some() {
            return AttemptEnd::Taken;
        }
        if self.since(id).is_some() {
            return AttemptEnd::Already;
        }
        if !self.claims.contains_key(&id) && !self.make_room() {
            return AttemptEnd::Full;
        }
        self.claims.insert(id, (token, now, 1));
        AttemptEnd::Ok
    }

    fn confirm(&mut self, id: u8, token: u64, at: u64) {
        let at = self.pass(at);
        let had_a_place = self.claims.get(&id).is_some_and(|(held, ..)| *held == token);
        if had_a_place {
            self.claims.remove(&id);
        }
        if self.since(id).is_none() && (had_a_place || self.make_room()) {
            self.committed.push((id, at));
        }
    }

    fn give_up(&mut self, id: u8, token: u64) {
        if let Some((held, until, settling)) = self.claims.get_mut(&id)
            && *held == token
        {
            *settling -= 1;
            if *settling == 0 && self.now >= *until {
                self.claims.remove(&id);
            }
        }
    }

    fn release(&mut self, id: u8, token: u64) {
        if self.claims.get(&id).is_some_and(|(held, _, settling)| *held == token && *settling == 0) {
            self.claims.remove(&id);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap()
}

/// Numbers that ascend and become longer, and a few that differ only near their end, with or without scopes.
fn name(id: u8) -> (&'static str, String) {
    match id {
        9 | 11 => ("", format!("{}{id:02}", "x".repeat(60))),
        10 => ("other", "7".to_owned()),
        id => ("", id.to_string()),
    }
}

fn id_of(id: u8) -> ScopedId {
    let (scope, name) = name(id);
    ScopedId::of(scope, name.as_bytes())
}

#[derive(Debug, Clone)]
enum Step {
    /// Time passes, also backwards.
    BreakerPermit(i64),
    Claim(u8),
    /// Claims the number after the highest claimed so far.
    ClaimNext,
    /// Claims by the mark alone.
    ClaimMark(u8),
    /// Committed ids are restored into a new window, and claims are gone.
    Restart,
    Commit(usize),
    Prepare(usize),
    Confirm(usize),
    GiveUp(usize),
    Release(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (-20..60_i64).prop_map(Step::BreakerPermit),
        8 => (0..12_u8).prop_map(Step::Claim),
        6 => Just(Step::ClaimNext),
        1 => (0..12_u8).prop_map(Step::ClaimMark),
        1 => Just(Step::Restart),
        4 => any::<usize>().prop_map(Step::Commit),
        2 => any::<usize>().prop_map(Step::Prepare),
        2 => any::<usize>().prop_map(Step::Confirm),
        1 => any::<usize>().prop_map(Step::GiveUp),
        2 => any::<usize>().prop_map(Step::Release),
    ]
}

/// One of them, chosen at random. It is not removed: tickets are used again, late and twice.
fn pick<T: Clone>(from: &[T], n: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[n % from.len()].clone())
}

fn said(refused: Result<(), CommitRefused>) -> AttemptEnd {
    match refused {
        Ok(()) => AttemptEnd::Ok,
        Err(CommitRefused::Taken { .. }) => AttemptEnd::Taken,
        Err(CommitRefused::Already { .. }) => AttemptEnd::Already,
        Err(_) => AttemptEnd::Full,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_window_does_as_a_list_would(
        time in prop_oneof![1..200_u64, 1_000..9_000_u64], count in prop_oneof![1..9_usize, 1..300_usize],
        claim in 1..60_u64, steps in prop::collection::vec(step(), 1..250),
    ) {
        let settings = WindowSettings {
            time: Duration::from_nanos(time.max(claim)), count, claim: Duration::from_nanos(claim),
        };
        let mut window = WindowState::new(settings).unwrap();
        let mut model = Model {
            settings, now: 0, committed: Vec::new(), claims: BTreeMap::new(), tokens: 0, evicted_early: 0,
        };
        let mut tickets: Vec<(u8, u64, ClaimTicket)> = Vec::new();
        let mut pending: Vec<(u8, u64, PendingCommit)> = Vec::new();
        let mut now = 1_000_u64;
        let mut highest = 12_u8;
        for step in steps {
            let at = Moment::from_nanos(now);
            match step {
                Step::BreakerPermit(by) => now = now.saturating_add_signed(by),
                Step::Restart => {
                    now = model.pass(now);
                    (model.claims, model.evicted_early) = (BTreeMap::new(), 0);
                    (tickets, pending) = (Vec::new(), Vec::new());
                    window = WindowState::new(settings).unwrap();
                    for (id, at) in &model.committed {
                        window.restore(id_of(*id).mark(), Moment::from_nanos(*at), Moment::from_nanos(now));
                    }
                    prop_assert_eq!(window.figures(Moment::from_nanos(now)).ids, model.committed.len());
                }
                Step::Claim(_) | Step::ClaimNext | Step::ClaimMark(_) => {
                    if matches!(step, Step::ClaimNext) {
                        highest = highest.saturating_add(1);
                    }
                    let (id, asked) = match step {
                        Step::Claim(id) => (id, id_of(id)),
                        Step::ClaimMark(id) => (id, id_of(id).mark().into()),
                        _ => (highest, id_of(highest)),
                    };
                    let expected = model.claim(id, now);
                    let claimed = match window.claim(asked, at) {
                        Ok(ClaimResult::First(ticket)) => {
                            tickets.push((id, model.tokens, ticket));
                            AttemptEnd::First(model.tokens)
                        }
                        Ok(ClaimResult::Seen { since }) => AttemptEnd::Seen(since.as_nanos()),
                        Ok(ClaimResult::Busy { until }) => AttemptEnd::Busy(until.as_nanos()),
                        Err(_) => AttemptEnd::Full,
                    };
                    prop_assert_eq!(claimed, expected);
                }
                Step::Commit(n) => if let Some((id, token, ticket)) = pick(&tickets, n) {
                    let expected = model.prepare(id, token, now);
                    if expected == AttemptEnd::Ok {
                        model.confirm(id, token, now);
                    }
                    prop_assert_eq!(said(window.commit(ticket, at)), expected);
                },
                Step::Prepare(n) => if let Some((id, token, ticket)) = pick(&tickets, n) {
                    let expected = model.prepare(id, token, now);
                    let prepared = window.prepare(ticket, at).map(|begun| pending.push((id, token, begun)));
                    prop_assert_eq!(said(prepared), expected);
                },
                Step::Confirm(n) => if !pending.is_empty() {
                    let (id, token, begun) = pending.swap_remove(n % pending.len());
                    model.confirm(id, token, now);
                    window.confirm(begun, at);
                },
                Step::GiveUp(n) => if !pending.is_empty() {
                    let (id, token, begun) = pending.swap_remove(n % pending.len());
                    model.give_up(id, token);
                    window.give_up(begun);
                },
                Step::Release(n) => if let Some((id, token, ticket)) = pick(&tickets, n) {
                    model.release(id, token);
                    window.release(ticket);
                },
            }
        }
        let figures = window.figures(Moment::from_nanos(now));
        model.pass(now);
        prop_assert_eq!(figures.ids, model.committed.len());
        prop_assert_eq!(figures.evicted_early, model.evicted_early);
        prop_assert_eq!(figures.evicted_early > 0, figures.youngest_evicted.is_some());
        prop_assert!(figures.ids + figures.claims <= count);
    }
}
