//! Each configuration fails without its guard, and none does with it.

use std::process::Command;

fn configurations(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_example-configurations")).args(args).output();
    let output = output.expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The crash points of the first two items; `run --all` without `--points` goes on to twenty.
const POINTS: &str = "7";

fn fails_without_its_guard_alone(name: &str) {
    let failures = |guard: &str| {
        let (is_ok, said) = configurations(&["run", name, "--guard", guard, "--points", POINTS]);
        assert!(is_ok, "{said}");
        let count = said.split(": ").nth(1).and_then(|rest| rest.split(' ').next());
        count.and_then(|text| text.parse::<u64>().ok()).unwrap_or_else(|| panic!("{said}"))
    };
    assert!(failures("off") > 0, "{name} shows no failure without its guard");
    assert_eq!(failures("on"), 0, "{name} fails with its guard");
}

macro_rules! configurations {
    ($($test:ident: $name:literal;)*) => {
        $(
            #[test]
            fn $test() {
                fails_without_its_guard_alone($name);
            }
        )*
    };
}

configurations! {
    transport_retry: "transport-retry";
    application_retry: "application-retry";
    message_redelivery: "message-redelivery";
    transaction_retry: "transaction-retry";
    idempotency_key: "idempotency-key";
    sequence_and_epoch: "sequence-and-epoch";
    compare_and_set: "compare-and-set";
    outbox: "outbox";
    retry_budget: "retry-budget";
    dedupe_store: "dedupe-store";
}

#[test]
fn the_list_has_every_configuration_and_says_what_waits() {
    let (is_ok, said) = configurations(&["list"]);
    assert!(is_ok, "{said}");
    for name in
        ["saga (waits for sagas)", "exactly-once-discipline (waits for the Kafka adapter)", "outbox\n"]
    {
        assert!(said.contains(name), "{said}");
    }
    let (is_ok, said) = configurations(&["run", "saga", "--guard", "on"]);
    assert!(!is_ok && said.contains("waits for sagas"), "{said}");
}
