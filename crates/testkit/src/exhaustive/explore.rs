//! The search: level by level, each path from the beginning.

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::scenario::Scenario;
use super::step::Step;
use super::world::World;

/// How far a search goes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most steps in a path.
    pub depth: usize,
    /// The most states; the search reports where it had to stop.
    pub states: usize,
}

/// The extent of a search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Explored {
    /// Distinct states.
    pub states: usize,
    /// Steps from one state to the next.
    pub steps: usize,
    /// The path length up to which the search is complete.
    pub depth: usize,
}

/// A path that breaks an invariant.
#[derive(Debug, Clone)]
pub struct Stuck {
    /// The scenario it began with.
    pub scenario: Scenario,
    /// The steps.
    pub path: Vec<Step>,
    /// What does not hold after them.
    pub what: String,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.scenario)?;
        for step in &self.path {
            writeln!(f, "  {step:?}")?;
        }
        write!(f, "{}", self.what)
    }
}

/// The result of a level: new states with their paths, the number of steps tried, and the first failure.
#[derive(Default)]
struct Level {
    found: Vec<(u64, Vec<Step>)>,
    steps: usize,
    stuck: Option<Stuck>,
}

/// Goes through all orders of steps from a scenario, on this many threads.
///
/// # Errors
/// The first of the shortest paths after which something does not hold.
pub fn search(scenario: Scenario, limits: Limits, threads: usize) -> Result<Explored, Box<Stuck>> {
    let mut seen: HashSet<u64> = HashSet::new();
    let mut frontier: Vec<Vec<Step>> = vec![Vec::new()];
    let mut explored = Explored { states: 1, ..Explored::default() };
    for depth in 1..=limits.depth {
        let level = Mutex::new(Level::default());
        let next = AtomicUsize::new(0);
        #[cfg(feature = "planted")]
        let planted =
            redrive_core::planted::PlantedBug::ALL.into_iter().find(|flaw| redrive_core::planted::has(*flaw));
        let work = || {
            #[cfg(feature = "planted")]
            redrive_core::planted::plant(planted);
            let mut own = Level::default();
            while own.stuck.is_none() {
                let Some(path) = frontier.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                expand(scenario, path, &seen, &mut own);
            }
            next.fetch_add(frontier.len() * usize::from(own.stuck.is_some()), Ordering::Relaxed);
            let mut level = level.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            level.found.append(&mut own.found);
            level.steps += own.steps;
            level.stuck = level.stuck.take().or(own.stuck);
        };
        std::thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(work))));
        let level = level.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        explored.steps += level.steps;
        if let Some(stuck) = level.stuck {
            return Err(Box::new(stuck));
        }
        frontier =
            level.found.into_iter().filter(|(state, _)| seen.insert(*state)).map(|(_, path)| path).collect();
        explored.states += frontier.len();
        explored.depth = depth;
        if frontier.is_empty() || explored.states >= limits.states {
            break;
        }
    }
    Ok(explored)
}

/// Tries each step after a path.
fn expand(scenario: Scenario, path: &[Step], seen: &HashSet<u64>, level: &mut Level) {
    let mut here = HashSet::new();
    for step in world_after(scenario, path).steps() {
        level.steps += 1;
        let mut longer = path.to_vec();
        longer.push(step);
        let tried = catch_unwind(AssertUnwindSafe(|| try_path(scenario, &longer, seen)));
        match tried.unwrap_or_else(|_| Err("a panic".to_owned())) {
            Ok(Some(state)) if here.insert(state) => level.found.push((state, longer)),
            Ok(_) => {}
            Err(what) => {
                level.stuck = Some(Stuck { scenario, path: longer, what });
                return;
            }
        }
    }
}

/// Runs a path whose last step is new. Returns the state if it is new.
fn try_path(scenario: Scenario, path: &[Step], seen: &HashSet<u64>) -> Result<Option<u64>, String> {
    let Some((last, before)) = path.split_last() else { return Ok(None) };
    let mut world = world_after(scenario, before);
    world.step(*last)?;
    let state = world.fingerprint();
    if seen.contains(&state) {
        return Ok(None);
    }
    world.finish(true)?;
    let mut world = world_after(scenario, path);
    world.finish(false)?;
    Ok(Some(state))
}

fn world_after(scenario: Scenario, path: &[Step]) -> World {
    let mut world = World::new(scenario);
    for step in path {
        let _ = world.step(*step);
    }
    world
}
