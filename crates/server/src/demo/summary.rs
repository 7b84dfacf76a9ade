//! The final figures and whether they add up: the responses to the shop, the server's state of each order, and the
//! service's ledger.

use std::collections::HashMap;

use anyhow::Result;
use redrive::event::State;

use super::downstream::{Counted, Downstream};
use super::print::{counted, say};
use super::shop::{PREFIX, Shop};
use crate::serve::Server;

/// The final figures.
#[derive(Debug)]
pub(super) struct Summary {
    published: u64,
    duplicates: u64,
    turned_away: u64,
    done: Vec<String>,
    dead: Vec<String>,
    pending: Vec<String>,
    /// Accepted, and the server does not know them any more.
    missing: Vec<String>,
    effects: HashMap<String, u32>,
    counted: Counted,
}

impl Summary {
    /// Asks all three sides.
    pub(super) async fn take(server: &Server, downstream: &Downstream, shop: &Shop) -> Result<Self> {
        let mut summary = Self {
            published: u64::try_from(shop.accepted.len()).unwrap_or(u64::MAX),
            duplicates: shop.duplicates,
            turned_away: shop.turned_away,
            done: Vec::new(),
            dead: Vec::new(),
            pending: Vec::new(),
            missing: Vec::new(),
            effects: HashMap::new(),
            counted: Counted::default(),
        };
        for id in &shop.accepted {
            let found = server.app().redrive.event("", "orders", id).await?;
            let place = match found.map(|found| found.state) {
                None => &mut summary.missing,
                Some(State::Done) => &mut summary.done,
                Some(State::Dead | State::Dropped | State::Discarded | State::Expired) => &mut summary.dead,
                Some(_) => &mut summary.pending,
            };
            place.push(id.clone());
        }
        // Read last: an order that was done when the server was asked has its effect in the ledger by now.
        summary.effects = downstream.effects();
        summary.counted = downstream.counted();
        Ok(summary)
    }

    fn effects_of(&self, orders: &[String]) -> usize {
        orders.iter().filter(|id| self.effects.contains_key(*id)).count()
    }

    pub(super) fn print(&self) {
        let Self { published, duplicates, turned_away, done, dead, pending, counted, .. } = self;
        let Counted { requests, retries, effects, lost, recognised, others } = counted;
        say("\nSummary");
        say(format_args!(
            "  published   {published} = {} done + {} dead + {} pending",
            done.len(),
            dead.len(),
            pending.len()
        ));
        say(format_args!(
            "  duplicates  {duplicates} orders that the shop published twice; each was answered as a duplicate"
        ));
        if *turned_away > 0 {
            say(format_args!("  refused     {turned_away} (the shop got an error)"));
        }
        say(format_args!("  attempts    {requests} = {} first + {retries} retries", requests - retries));
        say("\nIn the service's own records");
        say(format_args!(
            "  effects     {effects} = {} of orders done + {} of orders dead + {} of orders pending",
            self.effects_of(done),
            self.effects_of(dead),
            self.effects_of(pending)
        ));
        if *others > 0 {
            say(format_args!(
                "  others      {others} effects of events that other clients published meanwhile"
            ));
        }
        say(format_args!("  twice       {}", self.twice()));
        say(format_args!("  lost        {lost} responses, after the order took effect"));
        say(format_args!("  recognised  {recognised} repeated requests, by their idempotency key"));
    }

    /// Said only after it was checked.
    pub(super) fn print_promise(&self) {
        let done = u64::try_from(self.done.len()).unwrap_or(u64::MAX);
        say(format_args!(
            "\n{} done, each with exactly one effect; nothing is missing.",
            counted(done, "order")
        ));
        if !self.pending.is_empty() {
            say(
                "A server would continue with the pending orders after its next start; the demo's store is deleted.",
            );
        }
    }

    fn twice(&self) -> usize {
        self.effects.values().filter(|times| **times > 1).count()
    }

    /// The inconsistency, if there is one.
    pub(super) fn wrong(&self) -> Option<String> {
        if let Some(id) = self.missing.first() {
            return Some(format!("{id} was accepted but is no longer known"));
        }
        if self.twice() > 0 {
            return Some(format!("{} orders took effect more than once", self.twice()));
        }
        if let Some(id) = self.done.iter().find(|id| self.effects.get(*id) != Some(&1)) {
            return Some(format!("{id} is done but had no effect"));
        }
        let known =
            self.effects_of(&self.done) + self.effects_of(&self.dead) + self.effects_of(&self.pending);
        // Orders of a reader who tried the commands are not the shop's.
        let strangers = self.effects.keys().filter(|id| !id.starts_with(PREFIX)).count();
        (known + strangers != self.effects.len()).then(|| {
            format!(
                "{} effects are of orders that were never accepted",
                self.effects.len() - known - strangers
            )
        })
    }
}
