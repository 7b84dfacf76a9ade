//! The pipeline is killed four times, and its subscriber gets everything exactly once.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

fn run(words: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_example-observations")).args(words).output().unwrap();
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    (output, said)
}

#[test]
fn a_pipeline_that_is_killed_tells_its_subscriber_everything_once() {
    let (output, said) = run(&["--small"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}\n{errors}");
    // A fifth of a hundred stations: 800 records on 200 pages, of which 9 are unreadable.
    for line in [
        "ok    791 of 791 observations reached the subscriber",
        "ok    200 of 200 means did",
        "ok    0 of them more than once",
        "ok    9 of 9 unreadable records are dead letters",
        "ok    4 kills, ",
        "  before the outage ",
        "  while it was down ",
        "  while it said 429 ",
        "  after the outage ",
    ] {
        assert!(said.contains(line), "no `{line}` in\n{said}");
    }
    assert!(!said.contains("WRONG"), "{said}");
}

#[test]
fn a_wrong_word_is_named() {
    let (output, _) = run(&["--smal"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("there is no `--smal`"));
}
