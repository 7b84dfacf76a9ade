//! redrive-core decides and does nothing else: no I/O, no clock, no dice, nothing async.
//!
//! That is what lets a simulation replay a decision from its inputs. The check looks for words, in code and
//! outside tests; it is a guard against slips, not against tricks.

use super::Violation;
use super::source::{Source, closing, is_word};
use super::tree::Tree;

const FOLDER: &str = "crates/core/src/";

/// What core may not say, and what to do instead.
const FORBIDDEN: &[(&str, &str)] = &[
    ("async ", "return the decision and let the caller wait"),
    (".await", "return the decision and let the caller wait"),
    ("tokio", "return the decision and let the runtime's crate perform it"),
    ("std::fs", "take the bytes as a parameter"),
    ("std::net", "leave the network to the crate that calls"),
    (STD_IO, "leave I/O to the crate that calls"),
    ("Instant::now", "take the time as a parameter"),
    ("SystemTime::now", "take the time as a parameter"),
    ("thread::sleep", "return how long to wait"),
    ("rand::", "take the dice as a parameter"),
    ("fastrand", "take the dice as a parameter"),
];

const STD_IO: &str = "std::io";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.texts_ending(".rs").filter(|(path, _)| path.starts_with(FOLDER)) {
        if path.ends_with("/tests.rs") {
            continue;
        }
        let source = Source::new(text).without_tests();
        for (word, instead) in FORBIDDEN.iter().filter(|(word, _)| !(*word == STD_IO && classifies_io(path)))
        {
            violations.extend(places(&source.code, word).into_iter().map(|at| {
                let what = format!("`{}` in core, which is pure; {instead}", word.trim());
                Violation::new(path, source.line(at), what)
            }));
        }
    }
    violations
}

/// The classifier of I/O errors matches on their kinds and does no I/O.
fn classifies_io(path: &str) -> bool {
    path.ends_with("/io.rs") && path.split('/').any(|folder| folder.starts_with("classify"))
}

/// Where the word stands, also as `std::{fs, …}`.
fn places(code: &str, word: &str) -> Vec<usize> {
    let plain = code.match_indices(word).map(|(at, _)| at).filter(|at| stands_alone(code, word, *at));
    let grouped = word.strip_prefix("std::").map(|module| grouped(code, module)).unwrap_or_default();
    plain.chain(grouped).collect()
}

/// Whether it is no part of a longer word. `tokio_util` counts as tokio; after `rand::` more is expected.
fn stands_alone(code: &str, word: &str, at: usize) -> bool {
    let (before, after) = (&code.as_bytes()[..at], &code.as_bytes()[at + word.len()..]);
    let joined_before =
        word.starts_with(char::is_alphanumeric) && before.last().copied().is_some_and(is_word);
    let joined_after =
        word.ends_with(char::is_alphanumeric) && after.first().is_some_and(u8::is_ascii_alphanumeric);
    !joined_before && !joined_after
}

/// Where a group `std::{…}` names the module at its first level.
fn grouped(code: &str, module: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for (start, mark) in code.match_indices("std::{") {
        let open = start + mark.len() - 1;
        let mut at = open + 1;
        let end = closing(code, open) - 1;
        while at < end {
            let item_end = item_end(code, at).min(end);
            let item = &code[at..item_end];
            let name = item.trim_start();
            if name.split(|c: char| !c.is_alphanumeric() && c != '_').next() == Some(module) {
                found.push(at + item.len() - name.len());
            }
            at = item_end + 1;
        }
    }
    found
}

/// The comma after the item that starts here, past any group within it.
fn item_end(code: &str, start: usize) -> usize {
    let mut at = start;
    while at < code.len() && code.as_bytes()[at] != b',' {
        at = closing(code, at);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn impure_words_are_violations() {
        let cases: &[(&str, &[usize])] = &[
            ("async fn f() {}", &[1]),
            ("x.await", &[1]),
            ("use tokio_util::x;", &[1]),
            ("fn f() {\n    std::fs::read(p)\n}", &[2]),
            ("use std::{fmt, net::IpAddr};", &[1]),
            ("use std::{\n    collections::{io, fs},\n    io,\n};", &[3]),
            ("let now = Instant::now();", &[1]),
            ("let now = std::time::SystemTime::now();", &[1]),
            ("std::thread::sleep(d);", &[1]),
            ("let x = rand::random::<u8>() + fastrand::u8(..);", &[1, 1]),
            ("use std::ops::Range;", &[]),
            ("operand::x(), x.awaiting(), std::iofoo", &[]),
            ("/// Not async code, no tokio.\nfn f() -> &'static str { \"std::fs\" }", &[]),
            ("#[cfg(test)]\nmod tests { fn f() { std::thread::sleep(d) } }", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(lines("crates/core/src/policy.rs", text), *expected, "{text}");
        }
    }

    #[test]
    fn only_the_classifier_may_name_io_kinds() {
        let cases = [
            ("crates/core/src/classify/io.rs", "use std::io::ErrorKind;", 0),
            ("crates/core/src/classify/io.rs", "use std::fs::File;", 1),
            ("crates/core/src/classify/http.rs", "use std::io::ErrorKind;", 1),
            ("crates/core/src/io.rs", "use std::io::ErrorKind;", 1),
            ("crates/redrive/src/store.rs", "use std::io::ErrorKind;", 0),
        ];
        for (path, text, expected) in cases {
            assert_eq!(lines(path, text).len(), expected, "{path}: {text}");
        }
    }
}
