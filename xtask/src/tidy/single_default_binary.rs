//! `cargo run` at the root means the `redrive` binary, so there is no other one among what is built by default.

use super::Violation;
use super::tree::Tree;

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let shipped = tree.packages.iter().filter(|package| package.manifest.starts_with("crates/"));
    let programs = shipped.flat_map(|package| {
        package.targets_of("bin").into_iter().map(|name| (package.manifest.as_str(), name))
    });
    let others = programs.filter(|(_, name)| *name != "redrive");
    let violation = |(manifest, name): (&str, &str)| {
        let what =
            format!("a second program, `{name}`, and `cargo run` no longer knows which; make it an example");
        Violation::new(manifest, 1, what)
    };
    others.map(violation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::{Package, Target};

    fn package(folder: &str, kind: &str, name: &str) -> Package {
        let manifest = format!("{folder}/Cargo.toml");
        Package { manifest, targets: vec![Target::of(kind, name)], ..Package::default() }
    }

    #[test]
    fn a_second_program_that_ships_is_refused() {
        let mut tree = Tree::of(&[]);
        tree.packages = vec![
            package("crates/server", "bin", "redrive"),
            package("crates/testkit", "example", "sim"),
            package("xtask", "bin", "xtask"),
        ];
        assert_eq!(check(&tree), []);
        tree.packages.push(package("crates/testkit", "bin", "sim"));
        let found: Vec<_> = check(&tree).into_iter().map(|violation| violation.path).collect();
        assert_eq!(found, ["crates/testkit/Cargo.toml"]);
    }
}
