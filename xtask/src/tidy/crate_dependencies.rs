//! Which crate of ours may depend on which, as the arrows in ARCHITECTURE.md say.
//!
//! Cargo forbids cycles and no more; the rest of the map is ours to hold. The map is a fence with the info
//! string `arrows`, read by [`table`].

mod table;

use std::collections::BTreeSet;

use super::Violation;
use super::tree::Tree;
use crate::workspace::{Dependency, Package};
use table::Table;

const MAP: &str = "ARCHITECTURE.md";

/// Packages that need no arrows, for nothing of theirs ships.
const EXEMPT: [&str; 2] = [
    // Our tool, which users never build.
    "xtask",
    // Measures whatever it likes, and rivals besides.
    "redrive-benches",
];

/// What no shipped crate may pull in.
const TESTKIT: &str = "redrive-testkit";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let Some(page) = tree.text(MAP) else {
        return vec![Violation::new(MAP, 1, "not there; draw the crates' arrows in it")];
    };
    let Some((table, malformed)) = Table::read(page) else {
        return vec![Violation::new(MAP, 1, "has no fence ```arrows; list the allowed arrows in one")];
    };
    let malformed = malformed.into_iter().map(|(line, text)| {
        let what = format!("`{text}` is no arrow; write `crate -> crate` or `crate -dev-> crate`");
        Violation::new(MAP, line, what)
    });
    let ours: BTreeSet<&str> = tree.packages.iter().map(|package| package.name.as_str()).collect();
    let held = tree.packages.iter().filter(|package| !EXEMPT.contains(&package.name.as_str()));
    malformed
        .chain(stale(&table, &ours))
        .chain(held.flat_map(|package| faults(tree, &table, &ours, package)))
        .collect()
}

/// Lines about packages that are no more.
fn stale(table: &Table, ours: &BTreeSet<&str>) -> Vec<Violation> {
    let named = table.arrows.iter().flat_map(|arrow| arrow.names().map(|name| (arrow.line, name)));
    let gone = named.filter(|(_, name)| !ours.contains(name));
    gone.map(|(line, name)| {
        Violation::new(MAP, line, format!("there is no package `{name}`; remove it from the arrows"))
    })
    .collect()
}

/// What is wrong with one package's dependencies.
fn faults(tree: &Tree, table: &Table, ours: &BTreeSet<&str>, package: &Package) -> Vec<Violation> {
    let name = package.name.as_str();
    let mut faults = Vec::new();
    if !table.has_line_for(name) {
        let what =
            format!("`{name}` has no line in the arrows of {MAP}; add `{name} ->` and what it may depend on");
        faults.push(Violation::new(&package.manifest, 1, what));
    }
    let ours = package.dependencies.iter().filter(|it| ours.contains(it.name.as_str()) && it.name != name);
    for dependency in ours {
        let what = if !table.allows(name, &dependency.name, dependency.is_dev()) {
            let arrow = if dependency.is_dev() { "-dev->" } else { "->" };
            format!(
                "`{name} {arrow} {}` is not in the arrows of {MAP}; remove it, or argue for it there",
                dependency.name
            )
        } else if let Some(user) = ships_testkit(tree, name, dependency) {
            format!("`{user}` would ship {TESTKIT} through `{name}`; make it a dev-dependency")
        } else {
            continue;
        };
        let line = tree.text(&package.manifest).map_or(1, |manifest| line_of(manifest, &dependency.name));
        faults.push(Violation::new(&package.manifest, line, what));
    }
    faults
}

/// A crate that depends on this one, if this one brings the testkit along.
fn ships_testkit<'a>(tree: &'a Tree, name: &str, dependency: &Dependency) -> Option<&'a str> {
    if dependency.is_dev() || dependency.name != TESTKIT {
        return None;
    }
    let depends = |user: &&Package| user.dependencies.iter().any(|it| it.name == name && !it.is_dev());
    let mut users = tree.packages.iter().filter(depends).map(|user| user.name.as_str());
    users.find(|user| !EXEMPT.contains(user))
}

/// The line of a manifest that names the dependency; 1 if it is written in a way we do not know.
fn line_of(manifest: &str, dependency: &str) -> usize {
    let names_it = |line: &str| {
        let rest = line.trim_start().strip_prefix(dependency);
        rest.is_some_and(|rest| rest.starts_with([' ', '.', '=']))
    };
    manifest.lines().position(names_it).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[Dependency]) -> Package {
        Package {
            name: name.to_owned(),
            manifest: format!("crates/{name}/Cargo.toml"),
            dependencies: dependencies.to_vec(),
            ..Package::default()
        }
    }

    fn found(arrows: &str, packages: Vec<Package>) -> Vec<String> {
        let mut tree = Tree::of(&[(MAP, &format!("```arrows\n{arrows}\n```\n"))]);
        tree.packages = packages;
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn arrows_that_are_drawn_are_allowed() {
        let packages = vec![
            package("core", &[Dependency::normal("serde"), Dependency::dev("core")]),
            package("http", &[Dependency::normal("core"), Dependency::dev("redrive-testkit")]),
            package("redrive-testkit", &[Dependency::normal("core")]),
            package("xtask", &[Dependency::normal("http")]),
        ];
        let arrows = "core ->\nhttp -> core\nhttp -dev-> redrive-testkit\nredrive-testkit -> core";
        assert_eq!(found(arrows, packages), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_a_violation() {
        let core = || package("core", &[]);
        let http = |dependency| package("http", &[dependency]);
        let testkit = || package("redrive-testkit", &[]);
        let cases = [
            ("core ->\nhttp ->", vec![core(), http(Dependency::normal("core"))], "`http -> core` is not in"),
            ("core ->\nhttp ->", vec![core(), http(Dependency::dev("core"))], "`http -dev-> core` is not in"),
            (
                "core ->\nhttp ->\nhttp -dev-> core",
                vec![core(), http(Dependency::normal("core"))],
                "`http -> core`",
            ),
            ("", vec![core()], "`core` has no line"),
            ("core ->\ngone -> core", vec![core()], "ARCHITECTURE.md:3: there is no package `gone`"),
            ("core -> gone", vec![core()], "ARCHITECTURE.md:2: there is no package `gone`"),
            ("core ->\nhttp", vec![core()], "ARCHITECTURE.md:3: `http` is no arrow"),
            (
                "http -> redrive-testkit\nserver -> http\nredrive-testkit ->",
                vec![
                    http(Dependency::normal(TESTKIT)),
                    package("server", &[Dependency::normal("http")]),
                    testkit(),
                ],
                "`server` would ship redrive-testkit through `http`",
            ),
        ];
        for (arrows, packages, expected) in cases {
            let found = found(arrows, packages);
            assert_eq!(found.len(), 1, "{arrows}: {found:?}");
            assert!(found[0].contains(expected), "{arrows}: {found:?}");
        }
    }

    #[test]
    fn a_leaf_may_use_the_testkit() {
        let packages = vec![package("simulator", &[Dependency::normal(TESTKIT)]), package(TESTKIT, &[])];
        let arrows = "simulator -> redrive-testkit\nredrive-testkit ->";
        assert_eq!(found(arrows, packages), Vec::<String>::new());
    }

    #[test]
    fn a_missing_map_is_a_violation() {
        assert_eq!(check(&Tree::of(&[])).len(), 1);
        assert_eq!(check(&Tree::of(&[(MAP, "```\ncore ->\n```")])).len(), 1);
    }

    #[test]
    fn the_violation_stands_where_the_manifest_names_the_dependency() {
        let manifest = "[dependencies]\nredrive-core-x = \"1\"\nredrive-core.workspace = true\n";
        assert_eq!(line_of(manifest, "redrive-core"), 3);
        assert_eq!(line_of(manifest, "redrive"), 1);
    }
}
