//! Every order of messages in a small scope: a little of it in every test run, all of it with
//! `cargo xtask sim --exhaustive`.

use redrive_testkit::exhaustive::{Limits, Scenario, search};

/// As deep as some seconds allow without optimisation.
const DEPTH: usize = if cfg!(debug_assertions) { 5 } else { 7 };
const LIMITS: Limits = Limits { depth: DEPTH, states: usize::MAX };

#[test]
fn every_order_of_a_few_messages_holds() {
    for scenario in Scenario::ALL {
        match search(scenario, LIMITS, 2) {
            Ok(explored) => assert!(explored.states > 500, "{scenario}: {explored:?}"),
            Err(stuck) => panic!("{stuck}"),
        }
    }
}

#[cfg(feature = "planted")]
mod planted {
    use redrive_core::planted::{PlantedBug, plant};
    use redrive_testkit::exhaustive::{Limits, SEARCHED, search};

    /// Each guard exists for an order of messages, and without it the search finds that order.
    #[test]
    fn without_a_guard_there_is_a_counterexample() {
        for (flaw, scenario) in SEARCHED {
            plant(Some(flaw));
            let found = search(scenario, Limits { depth: 7, states: usize::MAX }, 2);
            plant(None);
            assert!(found.is_err(), "{flaw:?} is not found");
        }
    }

    /// The guards belong to the scheduler, and the list names each once.
    #[test]
    fn guards_are_listed_once() {
        let mut flaws: Vec<PlantedBug> = SEARCHED.iter().map(|(flaw, _)| *flaw).collect();
        flaws.dedup();
        assert_eq!(flaws.len(), SEARCHED.len());
    }
}
