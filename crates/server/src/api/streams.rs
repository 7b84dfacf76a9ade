//! How many streams a token publishes to.
//!
//! A stream is a queue and a tenant. Each takes memory and rows for as long as it is known, so a publisher that makes up
//! tenants would fill both. A token may begin so many streams between two starts of the server; those that it began stay
//! open to it. Remembered are hashes under a key of this process, so that none can be made to collide.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::sync::{Arc, PoisonError};

use http::StatusCode;

use super::ApiProblem;
use crate::app::App;
use crate::auth::Caller;

/// Takes the right to bring events of these tenants to a queue.
///
/// # Errors
/// 429 where the token would begin too many streams; then it begins none.
pub(crate) fn take<'a>(
    app: &App,
    caller: &Caller,
    queue: &str,
    tenants: impl IntoIterator<Item = &'a str>,
) -> Result<BegunStreams, ApiProblem> {
    let max = app.live().config.server.streams_max;
    let mut streams = app.streams.lock().unwrap_or_else(PoisonError::into_inner);
    streams.take(&caller.name, queue, tenants, max).map_err(|tenant| {
        let detail = format!(
            "this token publishes to {max} streams already, and the tenant `{tenant}` of the queue `{queue}` would be \
             another; raise server.streams_max, or publish tenants as keys"
        );
        ApiProblem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-streams", detail)
    })
}

/// Gives back streams of a request that was refused later.
pub(crate) fn release(app: &App, caller: &Caller, begun: &BegunStreams) {
    app.streams.lock().unwrap_or_else(PoisonError::into_inner).release(&caller.name, begun);
}

/// The streams of each token.
#[derive(Debug, Default)]
pub(crate) struct TokenStreams {
    hasher: RandomState,
    known: HashMap<Arc<str>, HashSet<u64>>,
}

impl TokenStreams {
    /// Notes that a token publishes to these tenants of a queue: all of them, or none where they are too many. Returns
    /// the streams that it begins with that.
    ///
    /// # Errors
    /// With the first tenant that is one too many.
    pub(crate) fn take<'a>(
        &mut self,
        token: &Arc<str>,
        queue: &str,
        tenants: impl IntoIterator<Item = &'a str>,
        max: usize,
    ) -> Result<BegunStreams, &'a str> {
        let known = self.known.entry(token.clone()).or_default();
        let mut new = HashSet::new();
        for tenant in tenants {
            let stream = self.hasher.hash_one((queue, tenant));
            if !known.contains(&stream) && new.insert(stream) && known.len() + new.len() > max {
                return Err(tenant);
            }
        }
        known.extend(&new);
        Ok(BegunStreams(new))
    }

    /// Gives back streams to which nothing was published after all.
    pub(crate) fn release(&mut self, token: &Arc<str>, begun: &BegunStreams) {
        if let Some(known) = self.known.get_mut(token) {
            known.retain(|stream| !begun.0.contains(stream));
        }
    }
}

/// Streams that a token began with one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BegunStreams(HashSet<u64>);

impl BegunStreams {
    /// Adds those of another part of the request.
    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_begins_so_many_streams_and_keeps_those() {
        let mut streams = TokenStreams::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut take = |token, queue, tenants: &[&'static str]| {
            streams.take(token, queue, tenants.iter().copied(), 2).map(|begun| begun.0.len())
        };
        assert_eq!(take(&a, "orders", &["1", "2", "1"]), Ok(2));
        assert_eq!(take(&a, "orders", &["2", "3"]), Err("3"));
        assert_eq!(take(&a, "mails", &["1"]), Err("1"));
        assert_eq!(take(&a, "orders", &["1", "2"]), Ok(0));
        assert_eq!(take(&b, "orders", &["3", "4", "5"]), Err("5"));
        assert_eq!(take(&b, "orders", &["3", "4"]), Ok(2), "a refusal takes nothing");
    }

    #[test]
    fn streams_that_are_given_back_can_be_begun_again() {
        let mut streams = TokenStreams::default();
        let token: Arc<str> = "a".into();
        streams.take(&token, "orders", ["1"], 2).expect("room");
        let begun = streams.take(&token, "orders", ["1", "2"], 2).expect("room");
        streams.release(&token, &begun);
        assert!(streams.take(&token, "orders", ["3"], 2).is_ok(), "the second was given back");
        assert_eq!(streams.take(&token, "orders", ["2"], 2), Err("2"), "and the first was not");
    }
}
