//! The figures, in place on a terminal, as lines otherwise.

use std::io::{IsTerminal, Write, stdout};
use std::time::Instant;

use anyhow::Result;
use redrive::event::State;

use super::downstream::Downstream;
use super::print::say;
use super::shop::Shop;
use crate::serve::Server;

/// The figures shown while the demo runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    accepted: u64,
    waiting: u64,
    dead: u64,
    requests: u64,
    retried: u64,
    effects: u64,
    recognised: u64,
    twice: usize,
    duplicates: u64,
}

impl Figures {
    pub(super) async fn take(server: &Server, downstream: &Downstream, shop: &Shop) -> Result<Self> {
        let counts = server.app().redrive.counts().await?;
        let sum = |wanted: &dyn Fn(State) -> bool| {
            counts.iter().filter(|count| wanted(count.state)).map(|count| count.events).sum::<u64>()
        };
        let dead = sum(&|state| state == State::Dead);
        let waiting = sum(&|state| state != State::Dead && !state.is_ended());
        let counted = downstream.counted();
        let accepted = u64::try_from(shop.accepted.len()).unwrap_or(u64::MAX);
        Ok(Self {
            accepted,
            waiting,
            dead,
            requests: counted.requests,
            retried: counted.retries,
            effects: counted.effects,
            recognised: counted.recognised,
            twice: downstream.twice(),
            duplicates: shop.duplicates,
        })
    }

    /// Answers arrive in their own order, so for a moment more may be waiting than is known to be accepted.
    const fn done(&self) -> u64 {
        self.accepted.saturating_sub(self.waiting + self.dead)
    }

    /// The count of done orders never decreases on the display.
    fn lines(&self, before: &mut u64) -> [String; 3] {
        let Self { accepted, waiting, dead, requests, retried, effects, recognised, twice, duplicates } =
            self;
        let done = self.done().max(*before);
        *before = done;
        [
            format!(
                "orders    {accepted} accepted ({duplicates} duplicates): {done} done, {waiting} waiting, {dead} dead"
            ),
            format!("attempts  {requests}, of which {retried} retries"),
            format!("effects   {effects}; {recognised} repeats recognised; took effect twice: {twice}"),
        ]
    }
}

/// The display of the figures.
#[derive(Debug)]
pub(super) struct ProgressDisplay {
    in_place: bool,
    /// The lines now on the terminal.
    shown: usize,
    began: Instant,
    /// The last count of done orders shown.
    done: u64,
}

impl ProgressDisplay {
    pub(super) fn new() -> Self {
        let in_place = stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self { in_place, shown: 0, began: Instant::now(), done: 0 }
    }

    pub(super) const fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// A message on its own line; it stays.
    pub(super) fn news(&mut self, news: Option<&str>) {
        if let Some(news) = news {
            self.wipe();
            say(format_args!("{:>5.1} s  {news}", self.began.elapsed().as_secs_f64()));
        }
    }

    pub(super) fn show(&mut self, figures: &Figures) {
        let lines = figures.lines(&mut self.done);
        if self.in_place {
            self.wipe();
            lines.iter().for_each(|line| say(format_args!("  {line}")));
            self.shown = lines.len();
        } else {
            let seconds = self.began.elapsed().as_secs_f64();
            say(format_args!("{seconds:>5.1} s  {}", lines.join(" | ")));
        }
    }

    /// Leaves the figures in place and continues below them.
    pub(super) fn leave(&mut self) {
        self.shown = 0;
    }

    fn wipe(&mut self) {
        if self.shown > 0 {
            // Moves the cursor up and clears everything below.
            let _ = write!(stdout(), "\x1b[{}A\x1b[J", self.shown);
            self.shown = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_never_steps_back() {
        let figures = |accepted, waiting, dead| Figures {
            accepted,
            waiting,
            dead,
            requests: 0,
            retried: 0,
            effects: 0,
            recognised: 0,
            twice: 0,
            duplicates: 0,
        };
        let mut before = 0;
        let mut done = |figures: Figures| {
            let [line, ..] = figures.lines(&mut before);
            line.split(": ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok())
        };
        // The third has events in the store whose responses the shop has not read yet.
        let told = [figures(5, 5, 0), figures(10, 2, 1), figures(10, 6, 1), figures(20, 2, 1)].map(&mut done);
        assert_eq!(told, [Some(0), Some(7), Some(7), Some(17)]);
    }
}
