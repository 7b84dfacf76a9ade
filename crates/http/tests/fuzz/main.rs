//! The fuzz targets, for a few seconds and on any compiler: seeds that are cut, spliced and bent by dice.
//!
//! No coverage guides it, so it finds less than `cargo xtask fuzz`, which runs the same functions. What that found comes
//! home as a seed in `fuzz/seeds`. The dice are the same in every run; `REDRIVE_FUZZ_SEED` and `REDRIVE_FUZZ_INPUTS`
//! change them.
#![allow(clippy::unwrap_used, reason = "a panic is a test's way to fail")]

mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// As many as some seconds allow without optimisation.
const INPUTS: u64 = 100_000;
/// No input is longer: what is found, is found in short ones.
const LENGTH_MAX: usize = 600;

/// What is found inside texts of these kinds.
const WORDS: [&[u8]; 28] = [
    b"\"",
    b"\\",
    b",",
    b":",
    b"{",
    b"}",
    b"[",
    b"]",
    b"null",
    b"true",
    b"false",
    b"0",
    b"-0",
    b"1e400",
    b"9007199254740993",
    b"0.1",
    b"E-7",
    b"\\u0000",
    b"\\ud83d\\ude00",
    b"\\ud800",
    b"\xff",
    b"\xe2\x82\xac",
    b"&a=1",
    b"%20",
    b"+",
    b" ",
    b"\t",
    b"\x7f",
];

/// Numbers that are the same in every run.
struct RandomSource(u64);

impl RandomSource {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.roll() % end.max(1) as u64).unwrap_or_default()
    }

    /// One of the seeds, changed a little, or not at all.
    fn input(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut input = seeds[self.below(seeds.len())].clone();
        for _ in 0..self.below(5) {
            let at = self.below(input.len() + 1);
            match self.below(6) {
                0 => input.truncate(at),
                1 => {
                    let bit = 1 << self.below(8);
                    input.get_mut(at).into_iter().for_each(|byte| *byte ^= bit);
                }
                2 => drop(input.splice(at..at, WORDS[self.below(WORDS.len())].iter().copied())),
                3 => {
                    let end = at + self.below(input.len() - at + 1);
                    input.drain(at..end);
                }
                4 => {
                    let other = &seeds[self.below(seeds.len())];
                    let from = self.below(other.len() + 1);
                    input.splice(at..at, other[from..].iter().copied());
                }
                _ => {
                    let end = at + self.below(input.len() - at + 1);
                    let part = input[at..end].repeat(1 + self.below(4));
                    input.splice(at..end, part);
                }
            }
            input.truncate(LENGTH_MAX);
        }
        input
    }
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let seeds: Vec<_> = files.into_iter().map(|file| std::fs::read(file).unwrap()).collect();
    assert!(seeds.len() > 3, "{target} has seeds");
    seeds
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn run(target: &str, hold: fn(&[u8])) {
    let seeds = seeds(target);
    seeds.iter().for_each(|seed| hold(seed));
    let mut random = RandomSource(number("REDRIVE_FUZZ_SEED", 1));
    for _ in 0..number("REDRIVE_FUZZ_INPUTS", INPUTS) {
        let input = random.input(&seeds);
        if catch_unwind(AssertUnwindSafe(|| hold(&input))).is_err() {
            panic!("{target} does not hold of b\"{}\"", input.escape_ascii());
        }
    }
}

#[test]
fn keys_hold() {
    run("key", targets::key);
}

#[test]
fn json_holds() {
    run("json", targets::json);
}

#[test]
fn fingerprints_hold() {
    run("fingerprint", targets::print);
}
