//! Which statements of the caller's own are kept prepared.
//!
//! A connection keeps a bounded number of prepared statements, including ours. A program that writes values into its
//! SQL has a new statement each time, and would evict ours. So the first few of its statements stay prepared, and the
//! others are prepared each time they run.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// How many of the caller's statements are kept: a quarter of what a connection keeps.
const KEPT: usize = 64;

/// The statements of the caller that are kept prepared.
#[derive(Debug, Default)]
pub(in crate::stores) struct UserStatements(Mutex<HashSet<Box<str>>>);

impl UserStatements {
    /// Whether this statement stays prepared.
    pub(in crate::stores) fn keeps(&self, statement: &str) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(statement) {
            return true;
        }
        let has_room = known.len() < KEPT;
        if has_room {
            known.insert(statement.into());
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_few_are_kept_and_no_others() {
        let statements = UserStatements::default();
        let text = |number: usize| format!("SELECT {number}");
        assert!((0..KEPT).all(|number| statements.keeps(&text(number))));
        assert!((KEPT..10 * KEPT).all(|number| !statements.keeps(&text(number))));
        assert!(statements.keeps(&text(0)));
    }
}
