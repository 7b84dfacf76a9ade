//! Every Rust file is part of a crate: a crate's root, or named by a `mod` line that is itself reached.
//!
//! The compiler never sees a file without a `mod` line, so it rots unseen.

mod modules;

use std::collections::BTreeSet;

use super::Violation;
use super::tree::{self, Tree};
use modules::Declaration;

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let reached = reached(tree);
    let files = tree.texts_ending(".rs").map(|(path, _)| path).filter(|path| in_a_crate(path).is_some());
    files
        .filter(|path| !reached.contains(*path))
        .map(|path| Violation::new(path, 1, "no `mod` line leads here; name it in its parent, or delete it"))
        .collect()
}

/// The path below `src/`, for a file of one of our crates.
fn in_a_crate(path: &str) -> Option<&str> {
    let (package, rest) = path.split_once("/src/")?;
    let ours = match package.split_once('/') {
        Some((group, name)) => matches!(group, "crates" | "examples") && !name.contains('/'),
        None => matches!(package, "xtask" | "benches"),
    };
    ours.then_some(rest)
}

/// A crate's root by cargo's conventions; examples need not be in the workspace's metadata.
fn is_root(path: &str) -> bool {
    in_a_crate(path).is_some_and(|rest| match rest.strip_prefix("bin/") {
        Some(program) => !program.contains('/') || program.ends_with("/main.rs"),
        None => matches!(rest, "lib.rs" | "main.rs"),
    })
}

fn reached(tree: &Tree) -> BTreeSet<String> {
    let by_name = tree.texts_ending(".rs").map(|(path, _)| path).filter(|path| is_root(path));
    let by_cargo =
        tree.packages.iter().flat_map(|package| &package.targets).map(|target| target.source.as_str());
    // A root's modules lie beside it, as do those of a `mod.rs` and of a file named by `#[path]`.
    let mut open: Vec<(String, String)> =
        by_name.chain(by_cargo).map(|root| (root.to_owned(), tree::folder(root).to_owned())).collect();
    let mut reached = BTreeSet::new();
    while let Some((file, folder)) = open.pop() {
        let Some(text) = tree.text(&file) else { continue };
        if reached.insert(file.clone()) {
            let declared = modules::declared(text);
            open.extend(declared.iter().flat_map(|it| candidates(&file, &folder, it)));
        }
    }
    reached
}

/// The files that a declaration may mean, each with the folder of its own modules.
fn candidates(file: &str, folder: &str, declaration: &Declaration) -> Vec<(String, String)> {
    let Declaration { name, within, path } = declaration;
    let inside = [&[folder.to_owned()], within.as_slice()].concat().join("/");
    if let Some(path) = path {
        let from = if within.is_empty() { tree::folder(file) } else { &inside };
        let target = tree::join(from, path).unwrap_or_default();
        return vec![(target.clone(), tree::folder(&target).to_owned())];
    }
    let own = format!("{inside}/{name}");
    vec![(format!("{own}.rs"), own.clone()), (format!("{own}/mod.rs"), own)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_reached_from_a_root() {
        let files = [
            (
                "crates/core/src/lib.rs",
                "mod a; pub mod b; #[cfg(unix)] mod c; mod d { mod e; #[path = \"i.rs\"] mod j; } #[path = \"g.rs\"] mod f;",
            ),
            ("crates/core/src/a.rs", "mod deep;"),
            ("crates/core/src/a/deep.rs", ""),
            ("crates/core/src/b/mod.rs", "pub(crate) mod deep;"),
            ("crates/core/src/b/deep.rs", ""),
            ("crates/core/src/c.rs", ""),
            ("crates/core/src/d/e.rs", ""),
            ("crates/core/src/d/i.rs", ""),
            ("crates/core/src/g.rs", "mod h;"),
            ("crates/core/src/h.rs", ""),
            ("crates/server/src/bin/redrive.rs", ""),
            ("examples/pay/src/main.rs", ""),
        ];
        assert_eq!(check(&Tree::of(&files)), []);
    }

    #[test]
    fn files_that_nobody_names_are_dead() {
        let files = [
            ("crates/core/src/lib.rs", "mod a; // mod dead;\nconst S: &str = \"mod dead;\"; mod inline {}"),
            ("crates/core/src/a.rs", ""),
            ("crates/core/src/a/dead.rs", "mod below;"),
            ("crates/core/src/a/dead/below.rs", ""),
            ("crates/core/src/dead.rs", ""),
            ("crates/core/src/deep/main.rs", ""),
            ("crates/core/tests/common.rs", ""),
            ("xtask/src/dead.rs", ""),
        ];
        let dead: Vec<_> = check(&Tree::of(&files)).into_iter().map(|violation| violation.path).collect();
        let expected = [
            "crates/core/src/a/dead.rs",
            "crates/core/src/a/dead/below.rs",
            "crates/core/src/dead.rs",
            "crates/core/src/deep/main.rs",
            "xtask/src/dead.rs",
        ];
        assert_eq!(dead, expected);
    }
}
