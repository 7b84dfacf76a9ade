//! The campaign, as a test: 500 faults at least, or as many as `REDRIVE_FAULTS` says.

use std::process::Command;

fn asked(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn one_booking_one_authorisation_and_one_email_for_each_intent() {
    let (faults, seed) = (asked("REDRIVE_FAULTS", 500), asked("REDRIVE_SEED", 1));
    let status = Command::new(env!("CARGO_BIN_EXE_example-booking"))
        .args(["faults", "--store-points", "--faults", &faults.to_string(), "--seed", &seed.to_string()])
        .status()
        .expect("the program");
    assert!(status.success(), "the campaign ended with {status}; what was wrong is above");
}
