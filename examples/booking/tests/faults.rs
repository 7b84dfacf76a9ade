//! The campaign, as tests: 500 faults at least on a file and 60 on PostgreSQL, or as many as `REDRIVE_FAULTS` says.

use std::process::Command;

use redrive_testkit::postgres::{Disk, Server};

fn asked(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn campaign(faults: u64, more: &[&str]) {
    let (faults, seed) = (asked("REDRIVE_FAULTS", faults), asked("REDRIVE_SEED", 1));
    let status = Command::new(env!("CARGO_BIN_EXE_example-booking"))
        .args(["faults", "--faults", &faults.to_string(), "--seed", &seed.to_string()])
        .args(more)
        .status()
        .expect("the program");
    assert!(status.success(), "the campaign ended with {status}; what was wrong is above");
}

#[test]
fn one_booking_one_authorisation_and_one_email_for_each_intent() {
    campaign(500, &["--store-points"]);
}

#[test]
fn the_same_on_postgres() {
    let server = Server::start(Disk::Fast).expect("a server");
    campaign(60, &["--store", &server.url()]);
}
