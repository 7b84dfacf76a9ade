//! What must always hold, and what must be possible, because otherwise the rules would hold trivially.

use redrive_core::ledger::{Effects, OnUnknown, RecordPhase, age};
use stateright::{Model, Property};

use crate::api::Api;
use crate::row::{Row, at};
use crate::world::{Worker, World};

pub(crate) const ONE_EFFECT: &str = "one effect a key, and the stored answer is its own";
pub(crate) const ONE_RUN: &str = "what is held runs once, unless a person or the run itself says that it may";
pub(crate) const ONE_AT_A_TIME: &str = "no run starts beside a live lease";
pub(crate) const ZOMBIE: &str = "a run that was taken over changes nothing";
pub(crate) const ANSWER: &str = "an answer never changes";
/// If clients repeat their requests and faults end.
pub(crate) const REST: &str = "what was begun is answered, or is unknown";

const ANSWERED: &str = "every key is answered";
const TAKEN_OVER: &str = "one that was taken over is answered";
const UNKNOWN: &str = "an outcome is unknown";
const RESOLVED: &str = "a person resolves one, and it is answered";
const FORGOTTEN: &str = "an answer is forgotten";

pub(crate) fn of(api: &Api) -> Vec<Property<Api>> {
    let mut rules = vec![
        Property::always(ZOMBIE, |_, world: &World| !world.wrong.zombie_changed),
        Property::always(ANSWER, |_, world: &World| !world.wrong.answer_changed),
        Property::always(REST, |api, world| is_at_rest(api, world) || !is_over(api, world)),
        Property::sometimes(ANSWERED, |_, world| answers(world) == world.rows.len()),
    ];
    // A worker whose clock is ahead takes over early. The fencing epoch must make that harmless.
    if !api.clocks_differ {
        rules.push(Property::always(ONE_AT_A_TIME, |_, world| one_at_a_time(world)));
    }
    match api.effects {
        Effects::Opaque(OnUnknown::Hold) => rules.extend([
            Property::always(ONE_RUN, |_, world| one_run(world)),
            Property::sometimes(UNKNOWN, |_, world| unknown(world)),
            Property::sometimes(RESOLVED, |_, world| resolved(world) && answers(world) > 0),
        ]),
        Effects::Opaque(OnUnknown::Rerun) => {}
        Effects::Transactional | Effects::Keyed | Effects::Opaque(OnUnknown::Probe { .. }) => {
            rules.push(Property::always(ONE_EFFECT, |_, world| one_effect(world)));
        }
    }
    if api.effects.may_rerun() || api.is_probe() {
        rules.push(Property::sometimes(TAKEN_OVER, |_, world| taken_over(world)));
    }
    if api.dated {
        rules.push(Property::sometimes(FORGOTTEN, |_, world| forgotten(world)));
    }
    rules
}

/// Whether nothing more can happen.
fn is_over(api: &Api, world: &World) -> bool {
    world.clock == api.end && api.next_states(world).is_empty()
}

fn is_at_rest(api: &Api, world: &World) -> bool {
    // An absent record could be claimed, unless its client gets the answer that it is too old.
    world.rows.iter().all(|row| row.as_ref().map_or(api.dated, |row| row.is_at_rest(world.clock)))
}

fn one_at_a_time(world: &World) -> bool {
    let live = |key: usize| {
        let leases = world.workers.iter().filter_map(Worker::lease);
        leases.filter(|(of, until)| *of == key && *until > world.clock).count()
    };
    (0..world.rows.len()).all(|key| live(key) <= 1)
}

fn one_run(world: &World) -> bool {
    world.tales.iter().all(|tale| tale.runs <= 1 + tale.resolved + tale.proven)
}

fn one_effect(world: &World) -> bool {
    world.tales.iter().zip(&world.rows).all(|(tale, row)| {
        let told = row.as_ref().and_then(Row::answer);
        tale.effects.len() <= 1 && told.is_none_or(|told| tale.effects.first() == Some(&told))
    })
}

fn answers(world: &World) -> usize {
    world.rows.iter().flatten().filter(|row| row.answer().is_some()).count()
}

fn taken_over(world: &World) -> bool {
    world.rows.iter().flatten().any(|row| row.answer().is_some() && row.0.attempt > 1)
}

fn unknown(world: &World) -> bool {
    world.rows.iter().flatten().any(|row| matches!(row.0.phase, RecordPhase::Unknown { .. }))
}

fn resolved(world: &World) -> bool {
    world.tales.iter().any(|tale| tale.resolved > 0)
}

fn forgotten(world: &World) -> bool {
    let mut rows = world.rows.iter().flatten();
    rows.any(|row| row.answer().is_some() && age(row.0.clone(), at(world.clock)).is_none())
}
