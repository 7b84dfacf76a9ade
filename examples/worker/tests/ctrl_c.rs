//! A signal in the middle of a wait ends the worker at once.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Far less than the hour that it waits for, and far more than a stop takes.
const AT_ONCE: Duration = Duration::from_secs(10);

#[test]
fn ctrl_c_in_the_middle_of_a_wait_ends_at_once() {
    let mut worker = Command::new(env!("CARGO_BIN_EXE_example-worker"))
        .arg("--wait")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("due in an hour")), "it never came to its wait");
    let began = Instant::now();
    let sent = Command::new("kill").args(["-INT", &worker.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let rest: Vec<String> = lines.collect();
    assert_eq!(worker.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|line| line.starts_with("interrupted")), "{rest:?}");
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

#[test]
fn a_wrong_word_is_named() {
    let worker = Command::new(env!("CARGO_BIN_EXE_example-worker")).arg("--walt").output().unwrap();
    assert_eq!(worker.status.code(), Some(2));
    assert!(String::from_utf8(worker.stderr).unwrap().contains("there is no `--walt`"));
}
