//! `cargo xtask tidy`: what the compiler does not check, in a second or two and without compiling.
//!
//! Each check is a function from the [`Tree`] to its violations, in a file of its own. The tree is read once
//! and held in memory, so that a test can hand a check a tree written as literals. To add a check, write its
//! file and give it a line in [`CHECKS`].

mod configurations;
mod core_is_pure;
mod counted_things;
mod crate_dependencies;
mod dead_files;
mod dead_pages;
mod desk_templates;
mod documented_names;
mod duplicate_names;
mod folder_size;
mod links;
mod long_files;
mod no_machine_paths;
mod plain_words;
mod single_default_binary;

mod markdown;
mod source;
mod tree;

use std::fmt;
use std::process::ExitCode;

use crate::workspace::Workspace;
use tree::Tree;

type Check = fn(&Tree) -> Vec<Violation>;

const CHECKS: &[(&str, Check)] = &[
    ("configurations", configurations::check),
    ("core is pure", core_is_pure::check),
    ("counted things", counted_things::check),
    ("crate dependencies", crate_dependencies::check),
    ("dead files", dead_files::check),
    ("dead pages", dead_pages::check),
    ("desk templates", desk_templates::check),
    ("documented names", documented_names::check),
    ("duplicate names", duplicate_names::check),
    ("folder size", folder_size::check),
    ("links", links::check),
    ("long files", long_files::check),
    ("no machine paths", no_machine_paths::check),
    ("plain words", plain_words::check),
    ("single default binary", single_default_binary::check),
];

/// A place in the tree that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    path: String,
    line: usize,
    /// What is wrong, and what to do.
    what: String,
}

impl Violation {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Runs all checks and prints every violation.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let tree = Tree::read(workspace)?;
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        let violations = check(&tree);
        for violation in &violations {
            println!("{violation}");
        }
        if !violations.is_empty() {
            failed.push(format!("{name} ({})", violations.len()));
        }
    }
    if failed.is_empty() {
        println!("tidy: {} checks, clean", CHECKS.len());
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("tidy: violations in {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}
