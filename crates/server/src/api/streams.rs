//! How many streams a token publishes to.
//!
//! A stream is a queue and a tenant. Each takes memory and rows for as long as it is known, so a publisher that makes up
//! tenants would fill both. A token may begin so many streams between two starts of the server; those that it began stay
//! open to it. Remembered are hashes under a key of this process, so that none can be made to collide.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::sync::Arc;

/// The streams of each token.
#[derive(Debug, Default)]
pub(crate) struct TokenStreams {
    hasher: RandomState,
    known: HashMap<Arc<str>, HashSet<u64>>,
}

impl TokenStreams {
    /// Notes that a token publishes to these tenants of a queue: all of them, or none where they are too many.
    ///
    /// # Errors
    /// With the first tenant that is one too many.
    pub(crate) fn take<'a>(
        &mut self,
        token: &Arc<str>,
        queue: &str,
        tenants: impl IntoIterator<Item = &'a str>,
        max: usize,
    ) -> Result<(), &'a str> {
        let known = self.known.entry(token.clone()).or_default();
        let mut new = HashSet::new();
        for tenant in tenants {
            let stream = self.hasher.hash_one((queue, tenant));
            if !known.contains(&stream) && new.insert(stream) && known.len() + new.len() > max {
                return Err(tenant);
            }
        }
        known.extend(new);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_begins_so_many_streams_and_keeps_those() {
        let mut streams = TokenStreams::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        assert_eq!(streams.take(&a, "orders", ["1", "2", "1"], 2), Ok(()));
        assert_eq!(streams.take(&a, "orders", ["2", "3"], 2), Err("3"));
        assert_eq!(streams.take(&a, "mails", ["1"], 2), Err("1"));
        assert_eq!(streams.take(&a, "orders", ["1", "2"], 2), Ok(()));
        assert_eq!(streams.take(&b, "orders", ["3", "4", "5"], 2), Err("5"));
        assert_eq!(streams.take(&b, "orders", ["3", "4"], 2), Ok(()), "a refusal takes nothing");
    }
}
