//! Compares the ids with a plain list, in batches of every size.

use std::time::Duration;

use super::*;
use crate::{RandomSource, SeededRandom};

const TIME: Duration = Duration::from_nanos(1_000);

fn id(n: u32) -> ScopedId {
    ScopedId::of("", &n.to_be_bytes())
}

fn at(n: u32) -> Moment {
    Moment::from_nanos(u64::from(n))
}

#[test]
fn numbers_may_wrap_around() {
    for max in [10, 640] {
        let mut ids = Ids::new(max);
        ids.first = u32::MAX - 3;
        let max = u32::try_from(max).unwrap();
        for n in 0..max * 3 {
            if n >= max {
                assert!(ids.pop(false));
            }
            ids.push(&id(n), at(n), true);
            for known in (n.saturating_sub(max - 1)..=n).step_by(9) {
                assert_eq!(ids.find(&id(known)), Some(at(known)));
            }
            assert_eq!(n.checked_sub(max).and_then(|gone| ids.find(&id(gone))), None);
        }
    }
}

#[test]
fn an_id_that_is_committed_again_counts_once() {
    for lot in 1..5 {
        let mut ids = Ids::in_lots(10, lot);
        ids.push(&id(1), at(1), true);
        ids.push(&id(2), at(2), true);
        ids.push_again(&id(1), at(3));
        assert_eq!((ids.ids(), ids.entries()), (2, 3));
        assert!(!ids.pop(false));
        assert_eq!(ids.find(&id(1)), Some(at(3)));
        assert_eq!((ids.ids(), ids.entries()), (2, 2));
    }
}

/// The number that the page on benchmarks states.
#[test]
fn an_id_takes_forty_bytes() {
    let mut ids = Ids::new(300_000);
    for n in 0..600_000_u64 {
        if ids.entries() == 300_000 {
            ids.pop(false);
        }
        let mark = u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        ids.push(&IdMark(mark.to_be_bytes()).into(), Moment::default(), true);
    }
    assert_eq!(ids.bytes() / 300_000, 40);
}

/// Which id comes next, from the count so far and a random number.
type Stream = fn(u32, u32) -> u32;

const STREAMS: [(&str, Stream); 5] = [
    ("ascending", |n, _| n),
    ("roughly ascending", |n, random| n + random % 7),
    ("descending", |n, _| u32::MAX - n),
    ("random", |_, random| random),
    ("few, again and again", |_, random| random % 40),
];

/// Every kind of id, in batches of one to more than all, mostly with ranks and sometimes without.
#[test]
fn they_are_what_a_list_would_be() {
    let mut random = SeededRandom::new(5);
    for (name, stream) in STREAMS {
        for lot in [1, 2, 7, 16, 200] {
            let max = 40;
            let mut ids = Ids::in_lots(max, lot);
            let mut list: VecDeque<(u32, Moment)> = VecDeque::new();
            for n in 0..1_500_u32 {
                let now = at(n * 20);
                let mut roll = || u32::try_from(random.roll() % (1 << 31)).unwrap();
                let number = stream(n, roll());
                let asked = if roll() % 500 == 0 { id(number).mark.into() } else { id(number) };
                let expected = list.iter().rev().find(|(known, _)| *known == number).map(|(_, at)| *at);
                assert_eq!(ids.find(&asked), expected, "{name} in lots of {lot}, {number} after {n}");
                // As the window does: a seen id is not pushed, an expired one may be.
                if expected.is_some_and(|at| now.since(at) < TIME) {
                    continue;
                }
                let room = if roll() % 10 == 0 { max / 2 } else { max - 1 };
                while list.len() > room {
                    let (gone, since) = list.pop_front().unwrap();
                    let is_its_own = !list.iter().any(|(known, _)| *known == gone);
                    assert_eq!(ids.pop(now.since(since) >= TIME), is_its_own);
                }
                list.push_back((number, now));
                ids.push(&asked, now, expected.is_none());
                for _ in 0..3 {
                    let (known, _) = list[roll() as usize % list.len()];
                    let latest = list.iter().rev().find(|(other, _)| *other == known).map(|(_, at)| *at);
                    assert_eq!(ids.find(&id(known)), latest, "{name} in lots of {lot}, {known} after {n}");
                }
                assert_eq!((ids.entries(), ids.oldest()), (list.len(), Some(list[0].1)));
                assert!(ids.slots.used() <= max + max / 2, "what is forgotten is cleared away");
            }
        }
    }
}

/// If only a few ids are out of order, few searches reach the large table.
#[test]
fn ids_that_ascend_roughly_are_above_the_large_table() {
    let mut random = SeededRandom::new(3);
    let mut ids = Ids::new(64 * 1_000);
    let mut asked = 0;
    for n in 0..200_000 {
        if ids.entries() == 64_000 {
            ids.pop(false);
        }
        let id = id(n * 100 + u32::try_from(random.roll() % 1_000).unwrap());
        asked += u32::from(!ids.peaks.are_below(&id.rank));
        ids.push(&id, at(n), true);
    }
    assert!(asked < 200_000 / 100, "{asked} of 200000, in lots of 1000 of which each is up to 10 late");
}

/// The rank of an id restored after a restart is unknown, and while it is there nothing is above it.
#[test]
fn while_something_of_unknown_rank_is_there_nothing_is_above_it() {
    let mut ids = Ids::in_lots(10, 1);
    ids.push_again(&id(7).mark.into(), at(0));
    ids.push(&id(1), at(1), true);
    ids.push(&id(2), at(2), true);
    assert!(!ids.peaks.are_below(&id(7).rank));
    assert_eq!(ids.find(&id(7)), Some(at(0)));
    assert!(ids.pop(false));
    assert!(ids.peaks.are_below(&id(7).rank));
    assert_eq!(ids.find(&id(7)), None);
}
