//! The story, as a reader sees it: on a file, and unchanged but for its URL on PostgreSQL.

use std::process::Command;

use redrive_testkit::postgres::{Disk, Server};

fn adds_up(words: &[&str]) {
    let told = Command::new(env!("CARGO_BIN_EXE_example-booking")).args(words).output().expect("the program");
    let text = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success(), "{}\n{text}\n{}", told.status, String::from_utf8_lossy(&told.stderr));
    // Nine intents of eight guests are booked; Gus's is refused.
    let all = text.lines().find(|line| line.starts_with("all ")).expect("a table");
    assert_eq!(all.split_whitespace().collect::<Vec<_>>(), ["all", "9", "9", "9", "9"], "{text}");
    assert!(text.contains("409 {\"code\":\"cabin-taken\""), "{text}");
}

#[test]
fn the_walkthrough_adds_up() {
    adds_up(&[]);
}

#[test]
fn the_walkthrough_adds_up_on_postgres() {
    let server = Server::start(Disk::Fast).expect("a server");
    adds_up(&["--store", &server.url()]);
}
