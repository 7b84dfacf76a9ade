//! The shop, killed at every named point and at random times.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use redrive_store::sqlite::crash_points;
use redrive_testkit::crash::{Course, Explorer, Kill};
use rusqlite::Connection;

use crate::{child, file, shop};

/// Kills the shop at these points, lets it finish, and checks the result.
fn kill_and_check(role: &str, kills: Vec<Kill>) -> Course {
    let folder = tempfile::tempdir().unwrap();
    let told = format!("{kills:?}");
    // An event whose process dies three times while it runs alone is convicted, whatever the cause: so no process is
    // killed a third time while one event runs alone.
    let kills = kills.into_iter().take_while(|_| crash_count(folder.path()) < 2);
    let course = Explorer::new(|| child(role, folder.path())).run(kills);
    let course = course.unwrap_or_else(|failed| panic!("{role} with {told}: {failed}"));
    let checked = std::panic::catch_unwind(|| shop::check(folder.path()));
    if checked.is_err() {
        panic!("{role} with {told}: see above; its files are in {}", folder.keep().display());
    }
    course
}

/// The largest crash count so far. Reads a copy: opening the file would recover it.
fn crash_count(folder: &Path) -> u8 {
    let copy = tempfile::tempdir().unwrap();
    for name in ["shop.db", "shop.db-wal"] {
        if folder.join(name).exists() {
            std::fs::copy(folder.join(name), copy.path().join(name)).unwrap();
        }
    }
    let db = Connection::open(file(copy.path())).unwrap();
    // The first life creates the table.
    db.query_row("SELECT max(crash_count) FROM redrive_tracked", [], |row| row.get(0))
        .unwrap_or(None)
        .unwrap_or(0)
}

/// How to die at a point: in which shop, and after which earlier kills.
///
/// Only a process under the crash guard writes notes, which takes an earlier death; only suspects have crash counts,
/// which takes a death while something is noted.
fn ways(point: &'static str) -> (&'static str, Vec<Kill>) {
    let careful = [Kill::At("after-commit", 20)];
    let suspicious = [Kill::At("after-commit", 20), Kill::At("note-after", 1)];
    let at = |times: &[u32]| times.iter().map(|times| Kill::At(point, *times)).collect::<Vec<_>>();
    match point {
        "take-after-epoch" => ("shop", at(&[1, 1, 1])),
        "before-checkpoint" | "after-checkpoint" => ("busy shop", at(&[1, 2])),
        "note-before" | "note-after" => ("shop", [&careful[..], &at(&[1, 3])].concat()),
        "strike-before-commit" | "strike-after-commit" => ("shop", [&suspicious[..], &at(&[1, 1])].concat()),
        _ => ("shop", at(&[1, 3, 10, 20])),
    }
}

#[test]
fn a_kill_at_any_point_loses_nothing_and_does_nothing_twice() {
    let mut table = BTreeMap::new();
    for point in crash_points() {
        let (role, kills) = ways(point);
        let wanted = kills.iter().filter(|kill| matches!(kill, Kill::At(at, _) if at == point)).count();
        let course = kill_and_check(role, kills);
        assert_eq!(course.deaths_at(point), wanted, "{point} was passed too seldom: {course:?}");
        *table.entry(*point).or_insert(0) += course.deaths_at(point);
    }
    eprintln!("kills by point: {table:?}");
}

/// As many rounds as requested: kills at times and at points in turn, until the work is done.
#[test]
fn kills_at_random_lose_nothing_and_do_nothing_twice() {
    let asked = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let rounds = asked("REDRIVE_CRASH_ROUNDS").unwrap_or(5);
    let seed = asked("REDRIVE_CRASH_SEED").unwrap_or(1);
    // How long it takes without interruption. Most of the work is done in the first half of that.
    let begin = Instant::now();
    kill_and_check("shop", vec![]);
    let half = begin.elapsed().max(Duration::from_millis(50)) / 2;
    // The log of so small a shop is never written back.
    let points = crash_points().iter().copied().filter(|point| !point.ends_with("checkpoint"));
    let points: Vec<_> = points.collect();
    let mut table = BTreeMap::new();
    for round in seed..seed + rounds {
        let times = Kill::at_random(round, 10, half);
        let points = Kill::at_random_points(round, 10, &points, 12);
        let kills = times.into_iter().zip(points).flat_map(|(time, point)| [time, point]).collect();
        let course = kill_and_check("shop", kills);
        *table.entry("at random times").or_insert(0) += course.deaths_from_outside();
        crash_points().iter().for_each(|point| *table.entry(point).or_insert(0) += course.deaths_at(point));
    }
    assert!(table["at random times"] > 0, "nothing was killed: {table:?}");
    eprintln!("kills in {rounds} rounds from seed {seed}, within {half:?}: {table:?}");
}
