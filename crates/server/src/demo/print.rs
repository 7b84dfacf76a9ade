//! Printing, for a program whose reader may stop reading: `redrive demo | head`.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stdout};
use std::process;

/// Prints a line. Exits quietly on a closed pipe, and with an error if writing fails.
pub(crate) fn say(line: impl Display) {
    if let Err(error) = writeln!(stdout(), "{line}") {
        if error.kind() == ErrorKind::BrokenPipe {
            process::exit(0);
        }
        eprintln!("redrive: cannot write to standard output: {error}");
        process::exit(1);
    }
}

/// `1 order`, `2 orders`.
pub(crate) fn counted(number: impl Into<u64>, noun: &str) -> String {
    let number = number.into();
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
