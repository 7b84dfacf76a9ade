//! Other spellings of a path.
//!
//! Many an API reads `//orders`, `/orders/`, `/a/../orders`, `/%6frders`, `/orders;a=b` or `/ORDERS` as `/orders`. The
//! gateway goes by the spelling, so such a request would go past its route: without the key that is required, and run
//! again when it is repeated. No two APIs agree on which spellings are the same, so here all of them are, in favour of
//! a refusal.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// How often escapes are undone: an escape of an escape is read by a server and by the program behind it.
const DECODED_MOST: usize = 2;

/// Whether a path has anything in it that APIs read in different ways.
pub(super) fn is_odd(path: &str) -> bool {
    path.contains(['%', ';', '\\']) || path.contains("//") || path.contains("/.")
}

/// The one spelling that all others of a path are read as.
pub(super) fn plain(path: &str) -> String {
    let mut path = Cow::Borrowed(path);
    for _ in 0..DECODED_MOST {
        if !path.contains('%') {
            break;
        }
        path = Cow::Owned(percent_decode_str(&path).decode_utf8_lossy().into_owned());
    }
    // What a program in C reads ends here.
    let path = path.split('\0').next().unwrap_or_default().to_lowercase();
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split(['/', '\\']) {
        let name = segment.split(';').next().unwrap_or_default().trim();
        match name {
            "" | "." => {}
            ".." => _ = segments.pop(),
            name => segments.push(name),
        }
    }
    format!("/{}", segments.join("/"))
}

/// The template of a route in that spelling: names of parameters stay as they are.
pub(super) fn template(path: &str) -> String {
    let lower = path.split('/').map(|segment| match segment.contains('{') {
        true => Cow::Borrowed(segment),
        false => Cow::Owned(segment.to_lowercase()),
    });
    let lower: Vec<_> = lower.filter(|segment| !segment.is_empty()).collect();
    format!("/{}", lower.join("/"))
}
