//! The arguments of a contender beyond its turn.

use redrive_benches::turn::{Turn, value};

/// A turn, and where its database is.
#[derive(Debug, Clone)]
pub(crate) struct TurnArgs {
    pub(crate) turn: Turn,
    pub(crate) url: String,
    /// How many wait when the clock starts: then the turn lasts until none does.
    pub(crate) waiting: Option<u64>,
    /// How many nodes share the work.
    pub(crate) nodes: usize,
    /// How many connections work at once.
    pub(crate) connections: usize,
    /// Where the numbers of the events begin.
    pub(crate) first: u64,
}

impl TurnArgs {
    pub(crate) fn to_args(&self) -> Vec<String> {
        let mut args = self.turn.to_args();
        let mut say = |word: &str, value: String| args.extend([word.to_owned(), value]);
        say("--url", self.url.clone());
        say("--nodes", self.nodes.to_string());
        say("--connections", self.connections.to_string());
        say("--first", self.first.to_string());
        if let Some(waiting) = self.waiting {
            say("--waiting", waiting.to_string());
        }
        args
    }

    pub(crate) fn from_args(args: &[String]) -> Result<Self, String> {
        let number = |word| value(args, word)?.parse::<u64>().map_err(|error| format!("{word}: {error}"));
        let small = |word| number(word).and_then(|it| usize::try_from(it).map_err(|error| error.to_string()));
        Ok(Self {
            turn: Turn::from_args(args)?,
            url: value(args, "--url")?.to_owned(),
            waiting: number("--waiting").ok(),
            nodes: small("--nodes")?,
            connections: small("--connections")?,
            first: number("--first")?,
        })
    }
}
