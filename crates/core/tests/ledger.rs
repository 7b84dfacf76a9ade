//! The ledger's decisions, row by row of the contract, and over random histories.

use std::time::Duration;

use proptest::prelude::*;
use redrive_core::Moment;
use redrive_core::ledger::{
    ClaimRequest, Effects, LedgerAnswer, LedgerClaim, LedgerRecord, OnUnknown, RecordPhase, RenewResult,
    RequestFingerprint, Resolution, Retention, StoredReply, age, claim, complete, fail, hold, release, renew,
    resolve,
};

const LEASE: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(86_400);
const SETTLING: Duration = Duration::from_secs(5);

fn at(seconds: u64) -> Moment {
    Moment::from_nanos(1_000_000_000_000) + Duration::from_secs(seconds)
}

/// The epoch of a record's first run, and of its second.
fn epoch(run: u64) -> u64 {
    at(0).as_nanos() + run - 1
}

fn ask(effects: Effects) -> ClaimRequest {
    ClaimRequest {
        print: RequestFingerprint { version: 1, hash: [1; 32] },
        older: Vec::new(),
        effects,
        lease: LEASE,
        retention: Retention { answer: DAY },
        first_sent: None,
        skew: Duration::ZERO,
    }
}

fn reply() -> StoredReply {
    let headers = vec![("location".to_owned(), b"/bookings/7".to_vec())];
    StoredReply { status: 201, headers, body: Some(b"booked".to_vec()) }
}

fn fresh(effects: Effects) -> LedgerRecord {
    match claim(None, &ask(effects), at(0)) {
        LedgerClaim::Run(record) => record,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_runs_and_the_second_waits() {
    let record = fresh(Effects::Keyed);
    assert_eq!((record.epoch, record.attempt), (epoch(1), 1));
    let second = claim(Some(&record), &ask(Effects::Keyed), at(4));
    assert_eq!(second, LedgerClaim::Say(LedgerAnswer::InFlight { left: Duration::from_secs(6) }));
}

#[test]
fn a_stranger_with_the_key_learns_nothing_whatever_the_state() {
    let running = fresh(Effects::Keyed);
    let done = complete(running.clone(), epoch(1), reply(), None, at(1)).expect("its own");
    let unknown = hold(running.clone(), epoch(1), at(1)).expect("its own");
    let mut other = ask(Effects::Keyed);
    other.print.hash = [2; 32];
    for record in [running, done, unknown] {
        assert_eq!(claim(Some(&record), &other, at(2)), LedgerClaim::Say(LedgerAnswer::Reused));
    }
}

/// The same request from a program with these versions; each version hashes in its own way.
fn versions(in_use: u8, older: &[u8], body: u8) -> ClaimRequest {
    let print = |version: u8| RequestFingerprint { version, hash: [version ^ body; 32] };
    ClaimRequest {
        print: print(in_use),
        older: older.iter().copied().map(print).collect(),
        ..ask(Effects::Keyed)
    }
}

#[test]
fn an_old_record_is_compared_the_old_way_and_stays_of_its_version() {
    let LedgerClaim::Run(record) = claim(None, &versions(1, &[], 64), at(0)) else {
        panic!("it is the first")
    };
    let done = complete(record.clone(), epoch(1), reply(), None, at(1)).expect("its own");
    for older in [&[1][..], &[2, 1], &[1, 2]] {
        let same = versions(3, older, 64);
        assert!(
            matches!(claim(Some(&done), &same, at(2)), LedgerClaim::Say(LedgerAnswer::Replay(_))),
            "{older:?}"
        );
        let LedgerClaim::Run(again) = claim(Some(&record), &same, at(20)) else {
            panic!("its lease is over")
        };
        assert_eq!((again.print, again.attempt), (record.print, 2), "{older:?}");
        assert_eq!(
            claim(Some(&done), &versions(3, older, 65), at(2)),
            LedgerClaim::Say(LedgerAnswer::Reused),
            "{older:?}"
        );
    }
    let LedgerClaim::Run(new) = claim(None, &versions(3, &[2, 1], 64), at(0)) else {
        panic!("it is the first")
    };
    assert_eq!(new.print.version, 3, "what is new is of the version in use");
}

#[test]
fn a_record_of_a_version_that_nobody_can_compute_is_not_taken_for_the_same() {
    let LedgerClaim::Run(record) = claim(None, &versions(2, &[], 64), at(0)) else {
        panic!("it is the first")
    };
    // Dropped since, not known yet, and beyond the number compared. The same hash under another version
    // proves nothing.
    for mut other in [versions(3, &[], 64), versions(1, &[], 64), versions(3, &[7, 6, 5, 4, 2], 64)] {
        assert_eq!(claim(Some(&record), &other, at(20)), LedgerClaim::Say(LedgerAnswer::Reused), "{other:?}");
        other.print.hash = record.print.hash;
        assert_eq!(claim(Some(&record), &other, at(20)), LedgerClaim::Say(LedgerAnswer::Reused), "{other:?}");
    }
    // Of the fingerprints with a version that both know, the first counts.
    let doubled = ClaimRequest { older: versions(2, &[2], 64).older, ..versions(2, &[], 65) };
    assert_eq!(claim(Some(&record), &doubled, at(20)), LedgerClaim::Say(LedgerAnswer::Reused));
}

#[test]
fn what_is_completed_is_replayed_then_gone_then_forgotten() {
    let done =
        complete(fresh(Effects::Keyed), epoch(1), reply(), Some("7".to_owned()), at(1)).expect("its own");
    let again = |seconds| claim(Some(&done), &ask(Effects::Keyed), at(seconds));
    let day = DAY.as_secs();
    assert!(matches!(again(day), LedgerClaim::Say(LedgerAnswer::Replay(_))));
    let LedgerClaim::Say(LedgerAnswer::Gone(record)) = again(day + 1) else { panic!("{:?}", again(day + 1)) };
    let location = Some("/bookings/7".to_owned());
    let phase = RecordPhase::Tombstone { status: Some(201), location, until: at(4 * day + 1) };
    assert_eq!(record.phase, phase);
    assert!(matches!(again(4 * day), LedgerClaim::Say(LedgerAnswer::Gone(_))));
    assert!(matches!(again(4 * day + 1), LedgerClaim::Run(record) if record.attempt == 1));
}

#[test]
fn a_body_that_was_not_kept_is_gone_and_never_run_again() {
    let large = StoredReply { body: None, ..reply() };
    let done = complete(fresh(Effects::Keyed), epoch(1), large, None, at(1)).expect("its own");
    assert!(matches!(
        claim(Some(&done), &ask(Effects::Keyed), at(2)),
        LedgerClaim::Say(LedgerAnswer::Gone(_))
    ));
}

#[test]
fn after_a_lapse_it_runs_again_only_where_that_is_safe() {
    for effects in [Effects::Transactional, Effects::Keyed, Effects::Opaque(OnUnknown::Rerun)] {
        let record = fresh(effects);
        let LedgerClaim::Run(second) = claim(Some(&record), &ask(effects), at(10)) else {
            panic!("{effects:?}")
        };
        assert_eq!((second.epoch, second.attempt), (epoch(2), 2));
        // The first run wakes up and changes nothing.
        assert!(complete(second, epoch(1), reply(), None, at(11)).is_err());
    }
}

#[test]
fn what_is_held_is_unknown_until_its_own_run_or_a_person_resolves_it() {
    let effects = Effects::Opaque(OnUnknown::Hold);
    let LedgerClaim::Hold(held) = claim(Some(&fresh(effects)), &ask(effects), at(10)) else { panic!() };
    assert_eq!(held.epoch, epoch(1));
    assert_eq!(
        claim(Some(&held), &ask(effects), at(1_000_000)),
        LedgerClaim::Say(LedgerAnswer::Unknown { since: at(10) })
    );
    let late = complete(held.clone(), epoch(1), reply(), None, at(99)).expect("its own run may");
    assert!(matches!(late.phase, RecordPhase::Completed { .. }));
    let resolved = resolve(held, Resolution::Retriable, at(99)).expect("a person may");
    assert!(complete(resolved.clone(), epoch(1), reply(), None, at(100)).is_err(), "the run comes too late");
    assert!(
        matches!(claim(Some(&resolved), &ask(effects), at(100)), LedgerClaim::Run(record) if record.epoch == epoch(3))
    );
}

#[test]
fn a_probe_waits_for_what_may_still_arrive() {
    let effects = Effects::Opaque(OnUnknown::Probe { settling: SETTLING });
    let record = fresh(effects);
    let early = claim(Some(&record), &ask(effects), at(12));
    assert_eq!(early, LedgerClaim::Say(LedgerAnswer::InFlight { left: Duration::from_secs(3) }));
    assert!(
        matches!(claim(Some(&record), &ask(effects), at(15)), LedgerClaim::Probe(record) if record.epoch == epoch(2))
    );
}

#[test]
fn a_run_that_ended_without_knowing_is_probed_where_there_is_a_probe() {
    let effects = Effects::Opaque(OnUnknown::Probe { settling: SETTLING });
    let unknown = hold(fresh(effects), epoch(1), at(2)).expect("its own");
    let early = claim(Some(&unknown), &ask(effects), at(3));
    assert_eq!(early, LedgerClaim::Say(LedgerAnswer::InFlight { left: Duration::from_secs(4) }));
    assert!(
        matches!(claim(Some(&unknown), &ask(effects), at(7)), LedgerClaim::Probe(record) if record.epoch == epoch(2))
    );
}

#[test]
fn a_failure_is_run_again_but_not_before_its_time() {
    let failed = fail(fresh(Effects::Keyed), epoch(1), Some(at(30)), at(1)).expect("its own");
    let early = claim(Some(&failed), &ask(Effects::Keyed), at(29));
    assert_eq!(early, LedgerClaim::Say(LedgerAnswer::BackingOff { until: at(30) }));
    let LedgerClaim::Run(second) = claim(Some(&failed), &ask(Effects::Keyed), at(30)) else { panic!() };
    assert_eq!((second.epoch, second.attempt), (epoch(2), 2));
    // No request came again: it ends as a tombstone, and does not run as if it were new.
    let day = DAY.as_secs();
    let late = claim(Some(&failed), &ask(Effects::Keyed), at(day + 1));
    assert!(matches!(late, LedgerClaim::Say(LedgerAnswer::Gone(_))));
}

#[test]
fn an_echo_that_may_have_been_forgotten_is_not_run() {
    let mut old = ask(Effects::Keyed);
    old.skew = Duration::from_secs(60);
    let sent = |ago: u64| ClaimRequest { first_sent: Some(at(10 * DAY.as_secs() - ago)), ..old.clone() };
    let now = at(10 * DAY.as_secs());
    let four = 4 * DAY.as_secs();
    assert_eq!(claim(None, &sent(four), now), LedgerClaim::Say(LedgerAnswer::TooOld));
    assert_eq!(claim(None, &sent(four - 60), now), LedgerClaim::Say(LedgerAnswer::TooOld));
    assert!(matches!(claim(None, &sent(four - 61), now), LedgerClaim::Run(_)));
}

#[test]
fn a_lease_is_renewed_up_to_the_longest_run() {
    let record = fresh(Effects::Keyed);
    let Ok(RenewResult::On(on)) = renew(record, epoch(1), LEASE, Duration::from_secs(25), at(8)) else {
        panic!()
    };
    assert_eq!(on.phase, RecordPhase::InFlight { began: at(0), until: at(18) });
    let Ok(RenewResult::On(on)) = renew(on, epoch(1), LEASE, Duration::from_secs(25), at(17)) else {
        panic!()
    };
    assert_eq!(on.phase, RecordPhase::InFlight { began: at(0), until: at(25) });
    assert_eq!(renew(on.clone(), epoch(1), LEASE, Duration::from_secs(25), at(25)), Ok(RenewResult::TooLong));
    assert!(renew(on, epoch(2), LEASE, DAY, at(20)).is_err());
}

#[test]
fn nothing_happened_takes_away_only_what_never_ran_before() {
    let first = fresh(Effects::Keyed);
    assert_eq!(release(first.clone(), epoch(1), at(1)), Ok(None));
    let LedgerClaim::Run(second) = claim(Some(&first), &ask(Effects::Keyed), at(10)) else { panic!() };
    let released =
        release(second, epoch(2), at(11)).expect("its own").expect("the first run may have had its effect");
    assert!(matches!(released.phase, RecordPhase::Retriable { .. }));
}

#[test]
fn what_lapsed_is_unknown_since_then_and_not_since_somebody_looked() {
    let effects = Effects::Opaque(OnUnknown::Hold);
    let LedgerClaim::Hold(held) = claim(Some(&fresh(effects)), &ask(effects), at(25)) else { panic!() };
    assert_eq!(held.phase, RecordPhase::Unknown { since: at(10) });
    // Its run counts as over: it may still report its outcome, but has no lease to renew.
    assert!(renew(held, epoch(1), LEASE, DAY, at(26)).is_err());
}

#[test]
fn whoever_takes_over_has_a_run_of_its_own_length() {
    let LedgerClaim::Run(second) = claim(Some(&fresh(Effects::Keyed)), &ask(Effects::Keyed), at(20)) else {
        panic!()
    };
    assert_eq!(second.phase, RecordPhase::InFlight { began: at(20), until: at(30) });
    assert_eq!(second.first, at(0));
}

#[test]
fn what_it_made_is_what_was_said_last() {
    let named = |record: LedgerRecord, resource: Option<&str>| {
        let held = hold(record, epoch(1), at(1)).expect("its own");
        complete(held, epoch(1), reply(), resource.map(str::to_owned), at(2)).expect("its own").resource
    };
    let before = || LedgerRecord { resource: Some("7".to_owned()), ..fresh(Effects::Keyed) };
    assert_eq!(named(fresh(Effects::Keyed), Some("8")).as_deref(), Some("8"));
    assert_eq!(named(before(), None).as_deref(), Some("7"), "no resource keeps the earlier one");
    assert_eq!(named(before(), Some("8")).as_deref(), Some("8"));
}

#[test]
fn a_person_says_with_which_answer_it_ended() {
    let unknown = hold(fresh(Effects::Keyed), epoch(1), at(1)).expect("its own");
    let resolved = resolve(unknown, Resolution::Completed(reply()), at(5)).expect("it is unknown");
    assert_eq!(resolved.phase, RecordPhase::Completed { reply: reply(), at: at(5) });
    assert!(resolve(resolved, Resolution::Retriable, at(6)).is_err(), "it is known now");
}

#[test]
fn a_tombstone_ends_when_it_says() {
    let done = complete(fresh(Effects::Keyed), epoch(1), reply(), None, at(0)).expect("its own");
    let day = DAY.as_secs();
    let stone = age(done, at(day)).expect("it is remembered for longer");
    assert!(matches!(stone.phase, RecordPhase::Tombstone { until, .. } if until == at(4 * day)));
    assert_eq!(age(stone.clone(), at(4 * day - 1)).as_ref(), Some(&stone));
    assert_eq!(age(stone, at(4 * day)), None);
}

#[test]
fn every_phase_tells_when_it_ends() {
    let running = fresh(Effects::Keyed);
    let done = complete(running.clone(), epoch(1), reply(), None, at(5)).expect("its own");
    let failed = fail(running.clone(), epoch(1), Some(at(9)), at(5)).expect("its own");
    let unknown = hold(running.clone(), epoch(1), at(5)).expect("its own");
    let day = DAY.as_secs();
    let stone = age(done.clone(), at(day + 5)).expect("it is remembered for longer");
    let ends = Some((at(day + 5), at(4 * day + 5)));
    for (record, ends) in [(running, None), (unknown, None), (done, ends), (failed, ends), (stone, ends)] {
        assert_eq!(record.ends(), ends, "{:?}", record.phase);
    }
}

#[test]
fn only_some_effects_may_happen_again() {
    for (effects, may) in [
        (Effects::Transactional, true),
        (Effects::Keyed, true),
        (Effects::Opaque(OnUnknown::Rerun), true),
        (Effects::Opaque(OnUnknown::Hold), false),
        (Effects::Opaque(OnUnknown::Probe { settling: SETTLING }), false),
    ] {
        assert_eq!(effects.may_rerun(), may, "{effects:?}");
    }
}

#[test]
fn where_what_was_made_is_stands_in_any_spelling_of_the_header() {
    let located = |name: &str, value: &[u8]| StoredReply::new(201).header(name, value).location();
    assert_eq!(located("Location", b"/a").as_deref(), Some("/a"));
    assert_eq!(located("location", &[0xff]), None, "no text");
    assert_eq!(located("content-location", b"/a"), None);
}

/// What may happen to a record.
#[derive(Debug, Clone)]
enum Turn {
    Claim,
    /// One of the last runs ends, perhaps one that was taken over long ago.
    End(usize, End),
    Resolve,
    Wait(u64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Complete,
    Fail,
    Hold,
    Release,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let end = prop_oneof![Just(End::Complete), Just(End::Fail), Just(End::Hold), Just(End::Release)];
    let turn = prop_oneof![
        4 => Just(Turn::Claim),
        4 => (1..4_usize, end).prop_map(|(ago, end)| Turn::End(ago, end)),
        1 => Just(Turn::Resolve),
        3 => (1..20_u64).prop_map(Turn::Wait),
        1 => (1..200_000_u64).prop_map(Turn::Wait),
    ];
    proptest::collection::vec(turn, 1..60)
}

proptest! {
    /// In every history one run at a time holds the record, an epoch never comes back, a completed reply
    /// never changes, and the fingerprint stays.
    #[test]
    fn no_history_breaks_the_promises(turns in turns(), hold_it in any::<bool>()) {
        let effects = if hold_it { Effects::Opaque(OnUnknown::Hold) } else { Effects::Keyed };
        let (mut record, mut now): (Option<LedgerRecord>, u64) = (None, 0);
        let mut epochs = 0;
        let mut runs: Vec<u64> = Vec::new();
        let mut answered: Option<StoredReply> = None;
        for turn in turns {
            let before = record.clone();
            match turn {
                Turn::Wait(seconds) => now += seconds,
                Turn::Claim => match claim(record.as_ref(), &ask(effects), at(now)) {
                    LedgerClaim::Run(new) => {
                        let old = before.and_then(|old| age(old, at(now)));
                        match old {
                            None => (epochs, answered) = (new.epoch, None),
                            Some(old) => {
                                prop_assert!(new.epoch > old.epoch && new.epoch > epochs);
                                prop_assert_eq!(old.print, new.print);
                                let over = matches!(old.phase, RecordPhase::Completed { .. } | RecordPhase::Unknown { .. });
                                prop_assert!(!over);
                                epochs = new.epoch;
                            }
                        }
                        runs.push(new.epoch);
                        record = Some(new);
                    }
                    LedgerClaim::Hold(new) | LedgerClaim::Probe(new) => record = Some(new),
                    LedgerClaim::Say(LedgerAnswer::Replay(found)) => {
                        let RecordPhase::Completed { reply, .. } = &found.phase else { panic!("{found:?}") };
                        prop_assert_eq!(Some(reply), answered.as_ref());
                    }
                    LedgerClaim::Say(_) => {}
                },
                Turn::End(ago, end) => {
                    let run = runs.len().checked_sub(ago).and_then(|at| runs.get(at)).copied();
                    let (Some(old), Some(run)) = (record.clone(), run) else { continue };
                    let holder = old.epoch;
                    let mine = StoredReply { body: Some(run.to_be_bytes().to_vec()), ..reply() };
                    let ended = match end {
                        End::Complete => complete(old, run, mine.clone(), None, at(now)).map(Some),
                        End::Fail => fail(old, run, None, at(now)).map(Some),
                        End::Hold => hold(old, run, at(now)).map(Some),
                        End::Release => release(old, run, at(now)),
                    };
                    if let Ok(new) = ended {
                        prop_assert_eq!(run, holder, "a run that was taken over ended it");
                        prop_assert!(answered.is_none(), "it ended before");
                        answered = (end == End::Complete).then_some(mine);
                        record = new;
                    }
                }
                Turn::Resolve => if let Some(Ok(new)) = record.clone().map(|old| resolve(old, Resolution::Retriable, at(now))) {
                    prop_assert!(answered.is_none());
                    epochs = new.epoch;
                    record = Some(new);
                },
            }
        }
    }
}
