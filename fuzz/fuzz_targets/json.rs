#![no_main]

#[path = "../../crates/http/tests/fuzz/targets.rs"]
#[allow(dead_code, reason = "each target is a program of its own")]
mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::json(input));
