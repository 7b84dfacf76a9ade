//! The workspace as cargo sees it: packages, targets, features, and who depends on whom.
//!
//! Read from `cargo metadata --no-deps`, which neither resolves nor downloads. We take the few fields we
//! need, and so do without the `cargo_metadata` crate and what it depends on.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::process;

/// All packages of ours, and where they are.
#[derive(Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
    pub(crate) packages: Vec<Package>,
}

/// One package. Paths are relative to the workspace's root once [`Workspace::load`] is done.
#[derive(Clone, Default, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    #[serde(rename = "manifest_path")]
    pub(crate) manifest: String,
    pub(crate) features: BTreeMap<String, Vec<String>>,
    pub(crate) targets: Vec<Target>,
    pub(crate) dependencies: Vec<Dependency>,
}

/// A library, program, test or benchmark of a package.
#[derive(Clone, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    kind: Vec<String>,
    #[serde(rename = "src_path")]
    pub(crate) source: String,
}

/// A line in a package's dependencies, ours or not.
#[derive(Clone, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    kind: Option<String>,
}

impl Workspace {
    /// Asks cargo about the workspace around the current directory.
    pub(crate) fn load() -> anyhow::Result<Self> {
        let output = process::cargo()
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .output()
            .context("cannot run cargo metadata")?;
        if !output.status.success() {
            bail!("cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr).trim_end());
        }
        let mut workspace: Self =
            serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata printed")?;
        let root = format!("{}/", workspace.root.display());
        for package in &mut workspace.packages {
            let sources = package.targets.iter_mut().map(|target| &mut target.source);
            for path in sources.chain([&mut package.manifest]) {
                if let Some(relative) = path.strip_prefix(&root) {
                    *path = relative.to_owned();
                }
            }
        }
        Ok(workspace)
    }

    /// The package of that name, or an error that says it is not there.
    pub(crate) fn package(&self, name: &str) -> anyhow::Result<&Package> {
        self.packages
            .iter()
            .find(|package| package.name == name)
            .with_context(|| format!("the workspace has no package `{name}`"))
    }
}

impl Package {
    /// Names of the targets of a kind: `test`, `bench`, `bin`, `lib`.
    pub(crate) fn targets_of(&self, kind: &str) -> Vec<&str> {
        let of_kind = self.targets.iter().filter(|target| target.kind.iter().any(|k| k == kind));
        of_kind.map(|target| target.name.as_str()).collect()
    }
}

impl Dependency {
    /// Whether it is there for tests, examples and benches only.
    pub(crate) fn is_dev(&self) -> bool {
        self.kind.as_deref() == Some("dev")
    }
}

#[cfg(test)]
impl Target {
    pub(crate) fn of(kind: &str, name: &str) -> Self {
        Self { name: name.to_owned(), kind: vec![kind.to_owned()], source: String::new() }
    }
}

#[cfg(test)]
impl Dependency {
    pub(crate) fn normal(name: &str) -> Self {
        Self { name: name.to_owned(), kind: None }
    }

    pub(crate) fn dev(name: &str) -> Self {
        Self { name: name.to_owned(), kind: Some("dev".to_owned()) }
    }
}
