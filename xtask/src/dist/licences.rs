//! The licences of what is compiled into the program: most of them ask to be passed on with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

use super::said;
use crate::process;
use crate::workspace::Workspace;

/// How the names of files with licences begin.
const BEGINNINGS: [&str; 5] = ["licen", "copying", "notice", "unlicense", "copyright"];

/// What `cargo metadata` says, as far as it is needed.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// None for packages of this workspace.
    source: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Deserialize)]
struct EdgeKind {
    kind: Option<String>,
}

/// One text: each dependency of the program, its licence, and the files that it brings for it.
pub(super) fn collect(workspace: &Workspace) -> anyhow::Result<String> {
    let mut cargo = process::cargo();
    cargo.current_dir(&workspace.root).args(["metadata", "--format-version", "1", "--locked"]);
    let metadata =
        serde_json::from_str(&said(&mut cargo)?).context("cannot read what cargo metadata printed")?;
    let mut text = String::from("The redrive program contains these packages, under the licences below.\n");
    for package in compiled_in(&metadata, "redrive-server") {
        let licence = package.license.as_deref().unwrap_or("see below");
        write!(text, "\n==== {} {}: {licence}\n", package.name, package.version)?;
        for file in package.manifest_path.parent().map(licence_files).unwrap_or_default() {
            let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            write!(text, "\n{}\n", String::from_utf8_lossy(&bytes).trim_end())?;
        }
    }
    Ok(text)
}

/// What a package of the workspace needs when it runs, sorted by name; packages of the workspace are left out.
fn compiled_in<'a>(metadata: &'a Metadata, root: &str) -> Vec<&'a Package> {
    let nodes: BTreeMap<_, _> = metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let roots = metadata.packages.iter().filter(|package| package.name == root);
    let mut left: Vec<&str> = roots.map(|package| package.id.as_str()).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = left.pop() {
        if seen.insert(id) {
            let edges = nodes.get(id).into_iter().flat_map(|node| &node.deps);
            let normal = edges.filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            left.extend(normal.map(|edge| edge.pkg.as_str()));
        }
    }
    let of_others = |package: &&Package| package.source.is_some() && seen.contains(package.id.as_str());
    let mut packages: Vec<_> = metadata.packages.iter().filter(of_others).collect();
    packages.sort_by_key(|package| (&package.name, &package.version));
    packages
}

fn licence_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = entries.filter(|path| path.is_file() && is_licence(path)).collect();
    files.sort();
    files
}

fn is_licence(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_compiled_in_is_listed() {
        let package = |name: &str, source: &str| {
            format!(
                r#"{{"id": "{name}", "name": "{name}", "version": "1.0.0", "license": "MIT", "source": {source},
                    "manifest_path": "/x/Cargo.toml"}}"#
            )
        };
        let edge = |to: &str, kind: &str| format!(r#"{{"pkg": "{to}", "dep_kinds": [{{"kind": {kind}}}]}}"#);
        let node =
            |from: &str, deps: &[String]| format!(r#"{{"id": "{from}", "deps": [{}]}}"#, deps.join(","));
        let packages = [
            package("redrive-server", "null"),
            package("redrive", "null"),
            package("tokio", "\"registry\""),
            package("bytes", "\"registry\""),
            package("cc", "\"registry\""),
            package("proptest", "\"registry\""),
            package("rival", "\"registry\""),
        ];
        let nodes = [
            node("redrive-server", &[edge("redrive", "null"), edge("proptest", "\"dev\"")]),
            node("redrive", &[edge("tokio", "null"), edge("cc", "\"build\"")]),
            node("tokio", &[edge("bytes", "null")]),
        ];
        let text = format!(
            r#"{{"packages": [{}], "resolve": {{"nodes": [{}]}}}}"#,
            packages.join(","),
            nodes.join(",")
        );
        let metadata: Metadata = serde_json::from_str(&text).unwrap();
        let names: Vec<_> =
            compiled_in(&metadata, "redrive-server").iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["bytes", "tokio"]);
    }

    #[test]
    fn files_with_licences_are_known_by_their_names() {
        for (name, expected) in [
            ("LICENSE", true),
            ("LICENSE-MIT", true),
            ("license.txt", true),
            ("LICENCE.md", true),
            ("COPYING", true),
            ("UNLICENSE", true),
            ("NOTICE", true),
            ("README.md", false),
            ("Cargo.toml", false),
        ] {
            assert_eq!(is_licence(Path::new(name)), expected, "{name}");
        }
    }
}
