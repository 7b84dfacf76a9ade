//! The shell blocks of README and docs, run.
//!
//! Every fence with the info string `sh` is run with the built program: the blocks of a page in their order, in one
//! shell, in a folder of its own, with ports and a database of its own. A block that cannot run here says why in its
//! info string: `sh no-run: builds a container`.

#[path = "docs/page.rs"]
mod page;
#[path = "docs/places.rs"]
mod places;
#[path = "docs/shell.rs"]
mod shell;
#[path = "docs/upstream.rs"]
mod upstream;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use page::Page;

/// Pages that run at a time.
const AT_A_TIME: usize = 3;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// README, and every page below `docs/`.
fn pages() -> Vec<Page> {
    let root = root();
    let mut paths = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let name = |path: &Path| path.strip_prefix(&root).expect("below the root").display().to_string();
    paths
        .iter()
        .map(|path| Page::parse(&name(path), &std::fs::read_to_string(path).expect("a page")))
        .collect()
}

#[test]
fn every_shell_block_of_the_docs_runs() {
    let pages: Vec<_> = pages().into_iter().filter(|page| page.runs()).collect();
    assert!(!pages.is_empty(), "no page has a block to run");
    let (left, failed) = (Arc::new(Mutex::new(pages)), Arc::new(Mutex::new(Vec::new())));
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(page) = { left.lock().expect("pages").pop() } {
                    match shell::run(&page) {
                        Ok(time) => eprintln!("docs: {} ran in {:.1} s", page.name, time.as_secs_f64()),
                        Err(said) => failed.lock().expect("failures").push(said),
                    }
                }
            });
        }
    });
    let failed = failed.lock().expect("failures");
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn a_block_that_is_not_run_says_why() {
    let mut wrong = Vec::new();
    for page in pages() {
        for block in &page.not_run {
            eprintln!("docs: not run: {}:{}: {}", page.name, block.line, block.why);
        }
        wrong.extend(page.wrong.iter().map(|(line, what)| format!("{}:{line}: {what}", page.name)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every code that a response can have is a heading of the page that its `type` leads to, and the reverse.
#[test]
fn every_problem_has_its_paragraph() {
    let root = root();
    let page = std::fs::read_to_string(root.join("docs/reference/problems.md")).expect("the page");
    let headings: BTreeSet<_> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let mut sources = String::new();
    let mut folders = vec![root.join("crates/server/src"), root.join("crates/http/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                sources.push_str(&std::fs::read_to_string(path).expect("a source"));
            }
        }
    }
    let codes = problem_codes(&sources);
    assert!(codes.contains("key-reused") && codes.contains("no-such-queue"), "{codes:?}");
    let unexplained: Vec<_> = codes.iter().filter(|code| !headings.contains(code.as_str())).collect();
    assert!(unexplained.is_empty(), "docs/reference/problems.md has no heading for {unexplained:?}");
    let unused: Vec<_> = headings.iter().filter(|code| !sources.contains(&format!("\"{code}\""))).collect();
    assert!(unused.is_empty(), "no response has the codes {unused:?} of docs/reference/problems.md");
}

/// What comes after the status of a problem: `Problem::new(StatusCode::CONFLICT, "in-flight", …)`.
fn problem_codes(sources: &str) -> BTreeSet<String> {
    let problems = sources.split("Problem::new(").skip(1);
    let more = sources.split("Self::new(StatusCode::").skip(1);
    let refusals = sources.split("=> (StatusCode::").skip(1).filter(|rest| !rest.starts_with("OK"));
    let code = |rest: &str| -> Option<String> {
        let (_, rest) = rest.get(..120).unwrap_or(rest).split_once(',')?;
        let code = rest.trim_start().strip_prefix('"')?.split('"').next()?;
        let is_code = !code.is_empty() && code.chars().all(|it| it.is_ascii_lowercase() || it == '-');
        is_code.then(|| code.to_owned())
    };
    // The results of single leases are not problems.
    let results = ["already", "applied", "conflict", "lapsed", "unknown"];
    let codes = problems.chain(more).chain(refusals).filter_map(code);
    codes.filter(|code| !results.contains(&code.as_str())).collect()
}

#[test]
fn a_command_that_fails_is_named_with_its_line() {
    let text =
        "# A page\n\n```sh\ntrue\n```\n\nText.\n\n```sh\nredrive no-such-command\necho not reached\n```\n";
    let said = shell::run(&Page::parse("docs/a.md", text)).expect_err("it fails");
    assert!(said.contains("docs/a.md:10:") && said.contains("redrive no-such-command"), "{said}");
    assert!(!said.contains("+ echo not reached"), "{said}");
}

#[test]
fn blocks_share_a_shell_a_folder_and_a_server() {
    let text = "```toml\n# redrive.toml\n[queues.mails.pull]\n```\n```sh\nredrive serve\nname=mail-17\n```\n\
                <!-- sh\nredrive publish mails hidden\n-->\n\
                ```sh\ncurl -s 127.0.0.1:7070/v1/queues/mails/events \\\n  -H 'content-type: application/json' \
                -d '{\"id\": \"mail-17\"}' | grep accepted\nredrive event show $name\nredrive event show hidden\n```\n";
    let page = Page::parse("docs/b.md", text);
    shell::run(&page).expect("it runs");
}
