//! Sagas over many schedules: each ends complete, or compensated in reverse, and each compensation takes effect once.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;

use redrive_core::disposition::Executed;
use redrive_core::saga::{
    DefinitionError, Direction, SagaAction, SagaDefinition, SagaInput, SagaPhase, SagaRefusal, SagaRun,
    StepEnd, StepSpec, StepState,
};
use redrive_core::{RandomSource, SeededRandom};

fn order() -> SagaDefinition {
    SagaDefinition::new(
        "order",
        [
            StepSpec::new("stock"),
            StepSpec::new("payment"),
            StepSpec::new("shipment").after(["stock", "payment"]),
            StepSpec::new("email").after(["shipment"]),
        ],
    )
    .unwrap()
}

fn with_pivot() -> SagaDefinition {
    SagaDefinition::new(
        "order",
        [
            StepSpec::new("stock"),
            StepSpec::new("payment"),
            StepSpec::new("ticket").after(["stock", "payment"]).pivot(),
            StepSpec::new("email").after(["ticket"]),
        ],
    )
    .unwrap()
}

fn ended(step: &str, direction: Direction, end: StepEnd) -> SagaInput {
    SagaInput::Ended { step: step.to_owned(), direction, end }
}

fn done(step: &str) -> SagaInput {
    ended(step, Direction::Forward, StepEnd::Done)
}

fn failed(step: &str, executed: Executed) -> SagaInput {
    ended(step, Direction::Forward, StepEnd::Failed(executed))
}

fn publish(step: &str, direction: Direction) -> SagaAction {
    SagaAction::Publish { step: step.to_owned(), direction }
}

#[test]
fn definitions_that_make_no_saga_are_refused() {
    let refused = |steps: Vec<StepSpec>| SagaDefinition::new("s", steps).unwrap_err();
    assert_eq!(refused(Vec::new()), DefinitionError::Steps(0));
    assert_eq!(refused((0..65).map(|n| StepSpec::new(n.to_string())).collect()), DefinitionError::Steps(65));
    assert!(matches!(refused(vec![StepSpec::new("a"), StepSpec::new("a")]), DefinitionError::Name(_)));
    assert!(matches!(
        refused(vec![StepSpec::new("a").after(["b"]), StepSpec::new("b")]),
        DefinitionError::After { .. }
    ));
    assert!(matches!(
        refused(vec![StepSpec::new("a").pivot(), StepSpec::new("b")]),
        DefinitionError::Pivot { .. }
    ));
    let two = vec![StepSpec::new("a").pivot(), StepSpec::new("b").after(["a"]).pivot()];
    assert!(matches!(refused(two), DefinitionError::Pivots(_)));
}

#[test]
fn two_steps_that_end_at_once_join_once() {
    for [first, second] in [["stock", "payment"], ["payment", "stock"]] {
        let (mut run, _) = SagaRun::start(order());
        assert_eq!(run.apply(&done(first)).unwrap(), []);
        assert_eq!(run.apply(&done(second)).unwrap(), [publish("shipment", Direction::Forward)]);
        assert!(
            matches!(run.apply(&done(second)), Err(SagaRefusal::Stale { .. })),
            "a repetition changes nothing"
        );
    }
}

#[test]
fn compensation_waits_for_what_may_run_and_for_what_depends_on_it() {
    let (mut run, _) = SagaRun::start(order());
    // Payment timed out: it may have executed. Stock still runs, and is stopped.
    let actions = run.apply(&failed("payment", Executed::Unknown)).unwrap();
    assert_eq!(
        actions,
        [SagaAction::Stop { step: "stock".into() }, publish("payment", Direction::Compensation)]
    );
    assert_eq!(
        run.apply(&done("stock")).unwrap(),
        [publish("stock", Direction::Compensation)],
        "it was too late"
    );
    assert_eq!(run.phase(), SagaPhase::Compensating);
    run.apply(&ended("stock", Direction::Compensation, StepEnd::Done)).unwrap();
    run.apply(&ended("payment", Direction::Compensation, StepEnd::Done)).unwrap();
    assert_eq!(run.phase(), SagaPhase::Compensated);
    let late = run.apply(&done("payment"));
    assert!(
        matches!(late, Err(SagaRefusal::Stale { state: StepState::Compensated, .. })),
        "a late forward step"
    );
}

#[test]
fn a_step_that_certainly_did_not_execute_is_not_compensated() {
    let (mut run, _) = SagaRun::start(order());
    run.apply(&done("stock")).unwrap();
    let actions = run.apply(&failed("payment", Executed::No)).unwrap();
    assert_eq!(actions, [publish("stock", Direction::Compensation)]);
}

#[test]
fn a_dead_compensation_stops_the_earlier_ones_until_an_operator_acts() {
    for by_hand in [true, false] {
        let (mut run, _) = SagaRun::start(order());
        for step in ["stock", "payment"] {
            run.apply(&done(step)).unwrap();
        }
        assert_eq!(
            run.apply(&failed("shipment", Executed::Unknown)).unwrap(),
            [publish("shipment", Direction::Compensation)]
        );
        let died = ended("shipment", Direction::Compensation, StepEnd::Failed(Executed::Unknown));
        assert_eq!(run.apply(&died).unwrap(), [], "stock and payment wait");
        let step = "shipment".to_owned();
        let actions = if by_hand {
            run.apply(&SagaInput::ResolveByHand { step }).unwrap()
        } else {
            let redriven = run.apply(&SagaInput::Redrive { step: step.clone() }).unwrap();
            assert_eq!(redriven, [SagaAction::Redrive { step }]);
            run.apply(&ended("shipment", Direction::Compensation, StepEnd::Done)).unwrap()
        };
        assert_eq!(actions.len(), 2, "now both may be compensated");
    }
}

#[test]
fn from_the_pivot_on_there_is_no_way_back() {
    let (mut run, _) = SagaRun::start(with_pivot());
    for step in ["stock", "payment"] {
        run.apply(&done(step)).unwrap();
    }
    assert!(matches!(run.apply(&SagaInput::Compensate), Err(SagaRefusal::PastPivot(_))), "it runs");
    let again = [SagaAction::Retry { step: "ticket".into() }];
    assert_eq!(run.apply(&failed("ticket", Executed::Unknown)).unwrap(), again, "until it is definite");
    assert!(matches!(run.apply(&SagaInput::TimedOut), Err(SagaRefusal::PastPivot(_))));
    let mut refused = run.clone();
    assert_eq!(
        refused.apply(&failed("ticket", Executed::No)).unwrap().len(),
        2,
        "definitely not: the way back is open"
    );
    run.apply(&done("ticket")).unwrap();
    let again = [SagaAction::Retry { step: "email".into() }];
    assert_eq!(
        run.apply(&failed("email", Executed::No)).unwrap(),
        again,
        "behind the pivot everything is retried"
    );
    run.apply(&done("email")).unwrap();
    assert_eq!(run.phase(), SagaPhase::Complete);
}

#[test]
fn a_running_saga_keeps_its_definition() {
    let (run, _) = SagaRun::start(order());
    let stored = (run.definition().fingerprint(), run.steps().to_vec());
    let inserted = SagaDefinition::new(
        "order",
        [StepSpec::new("stock"), StepSpec::new("check"), StepSpec::new("payment")],
    );
    let refused = SagaRun::restore(inserted.unwrap(), stored.0, stored.1.clone(), false, 1);
    assert_eq!(refused, Err(SagaRefusal::Definition));
    assert_eq!(SagaRun::restore(order(), stored.0, stored.1, false, 1), Ok(run));
    let (mut run, _) = SagaRun::start(order());
    assert!(matches!(run.apply(&done("check")), Err(SagaRefusal::UnknownStep(_))));
}

/// The world around a saga: events that run, and effects in the services.
#[derive(Default)]
struct World {
    forward: BTreeMap<String, u32>,
    compensated: Vec<String>,
    /// Events under way: step, direction.
    events: Vec<(String, Direction)>,
}

impl World {
    fn perform(&mut self, run: &SagaRun, actions: Vec<SagaAction>) {
        for action in actions {
            match action {
                SagaAction::Publish { step, direction } => {
                    let beside = self.events.iter().any(|(other, _)| *other == step);
                    assert!(!beside, "{step} {direction:?} starts while an event of it is under way");
                    self.events.push((step, direction));
                }
                SagaAction::Redrive { step } => self.events.push((step, Direction::Compensation)),
                SagaAction::Retry { step } => self.events.push((step, Direction::Forward)),
                SagaAction::Stop { step } => {
                    assert!(self.events.contains(&(step, Direction::Forward)));
                }
            }
        }
        assert!(run.rev() > 0);
    }

    /// One event ends, by chance.
    fn end(&mut self, random: &mut SeededRandom) -> SagaInput {
        let at = usize::try_from(random.roll()).unwrap_or(0) % self.events.len();
        let (step, direction) = self.events.swap_remove(at);
        let chance = random.roll() % 10;
        let end = match direction {
            Direction::Forward => match chance {
                // A receiver that knows the key does not deny what it executed.
                0 if !self.forward.contains_key(&step) => StepEnd::Failed(Executed::No),
                1 => StepEnd::Failed(Executed::Unknown),
                2 => {
                    self.forward.insert(step.clone(), 1);
                    StepEnd::Failed(Executed::Unknown)
                }
                _ => {
                    // The receiver knows the key, so that a retry of a pivot has its effect once.
                    self.forward.insert(step.clone(), 1);
                    StepEnd::Done
                }
            },
            Direction::Compensation if chance == 0 => StepEnd::Failed(Executed::Unknown),
            Direction::Compensation => {
                assert!(!self.compensated.contains(&step), "{step} is compensated twice");
                self.compensated.push(step.clone());
                StepEnd::Done
            }
        };
        SagaInput::Ended { step, direction, end }
    }
}

fn simulate(definition: SagaDefinition, seed: u64) -> SagaPhase {
    let mut random = SeededRandom::new(seed);
    let (mut run, actions) = SagaRun::start(definition);
    let mut world = World::default();
    world.perform(&run, actions);
    for _ in 0..1_000 {
        if matches!(run.phase(), SagaPhase::Complete | SagaPhase::Compensated) {
            break;
        }
        let dead = (0..run.steps().len()).find(|at| run.steps()[*at] == StepState::CompensationDead);
        let input = match random.roll() % 20 {
            0 => SagaInput::TimedOut,
            1 => SagaInput::Compensate,
            _ if world.events.is_empty() => {
                let step = run.definition().steps()[dead.expect("something has to go on")].name().to_owned();
                SagaInput::Redrive { step }
            }
            _ => world.end(&mut random),
        };
        // The process dies between the commit and what follows: the state is what was stored.
        let stored = run.clone();
        match run.apply(&input) {
            Ok(actions) => {
                assert!(run.rev() > stored.rev());
                world.perform(&run, actions);
            }
            Err(SagaRefusal::PastPivot(_) | SagaRefusal::Phase(_)) => assert_eq!(run, stored),
            Err(other) => panic!("{seed}: {input:?}: {other}"),
        }
    }
    check(&run, &world, seed);
    run.phase()
}

fn check(run: &SagaRun, world: &World, seed: u64) {
    let steps = run.definition().steps();
    match run.phase() {
        SagaPhase::Complete => {
            assert!(world.compensated.is_empty(), "{seed}");
            assert!(steps.iter().all(|step| world.forward.get(step.name()) == Some(&1)), "{seed}");
        }
        SagaPhase::Compensated => {
            for step in world.forward.keys() {
                assert!(world.compensated.contains(step), "{seed}: {step} executed and is not compensated");
            }
            // In reverse order of dependency: nothing is compensated before what depends on it.
            let place = |step: &str| world.compensated.iter().position(|done| done == step);
            let shipment = place("shipment").or(place("ticket"));
            for earlier in ["stock", "payment"] {
                if let (Some(later), Some(earlier)) = (shipment, place(earlier)) {
                    assert!(later < earlier, "{seed}: {:?}", world.compensated);
                }
            }
        }
        phase => panic!("{seed}: it did not end, and is {phase:?}"),
    }
}

#[test]
fn every_schedule_ends_complete_or_compensated_in_reverse() {
    let mut ends = BTreeMap::<&str, u32>::new();
    for seed in 0..5_000 {
        for definition in [order(), with_pivot()] {
            let end =
                if simulate(definition, seed) == SagaPhase::Complete { "complete" } else { "compensated" };
            *ends.entry(end).or_default() += 1;
        }
    }
    assert!(ends["complete"] > 500 && ends["compensated"] > 500, "{ends:?}");
}
