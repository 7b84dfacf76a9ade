//! The operators' desk: looking at dead letters and dealing with them, holding things back, and who did what.
//!
//! Everything here is in the store, so it holds over restarts and may be done by a process that does not run
//! handlers. Every change has a line in the audit, committed with it, under the operator's name. Where this process
//! runs the handlers, a change is heeded when the call returns: after `pause` nothing of the queue starts any more.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::entry::Seq;
use redrive_core::event::{EventError, Fingerprint, State};
use redrive_core::triage::rule::check_words;
use redrive_core::triage::{Controls, Filter, Operator, Redrive as How, Rule};
use redrive_core::{Event, Moment};
use redrive_store::operate::{
    Act, AuditLine, Edited, Group, GroupQuery, Operated, Order, Refusal, Target, What,
};
use redrive_store::{Found, Listed, Query, StoreError};

use super::Redrive;

mod exchange;
mod jobs;
mod requests;

pub use exchange::{ExchangeError, Exported, Imported};
pub use jobs::Plan;

/// How long the name of an operator is, at most, in letters.
const NAME_MAX: usize = 128;

/// How many events are shown that wait behind another one.
const BEHIND_MAX: usize = 100;

/// Why the desk could not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeskError {
    /// It was refused, and nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What an event was to be replaced with is none.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The desk, as one operator sits at it. Made by [`Redrive::desk`].
#[derive(Debug, Clone)]
pub struct Desk {
    redrive: Redrive,
    by: Operator,
}

/// An event with everything that is known of it.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The event itself; none where only its receipt is left.
    pub event: Option<Arc<Event>>,
    /// What is known of it.
    pub found: Found,
    /// Events of its key that come after it and have not ended: the first hundred.
    pub behind: Vec<(Arc<Event>, Found)>,
}

/// What a dead letter is to be replaced with. What is none stays as it was.
#[derive(Debug, Clone, Default)]
pub struct Edit {
    /// The new identity.
    pub id: String,
    /// Another payload.
    pub payload: Option<Vec<u8>>,
    /// Another content type.
    pub content_type: Option<String>,
    /// Other headers, all of them.
    pub headers: Option<Vec<(String, String)>>,
    /// Whether it may run although later ones of its key may have run before it.
    pub out_of_order: bool,
}

/// What became of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EditDone {
    /// Whether an earlier attempt of the original may have had its effect: then there may be two.
    pub unsure: bool,
}

impl Redrive {
    /// The operators' desk, for somebody: `who` is a name or a role, `from` an address or a program. Both go into
    /// the audit.
    #[must_use]
    pub fn desk(&self, who: impl Into<String>, from: impl Into<String>) -> Desk {
        Desk { redrive: self.clone(), by: Operator::new(plain(who.into()), plain(from.into())) }
    }
}

impl Desk {
    /// Dead letters, put together by what they died of, by queue or by tenant; those with most letters first.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn groups(&self, query: GroupQuery) -> Result<Vec<Group>, StoreError> {
        self.redrive.store().groups(query).await
    }

    /// A page of events: dead letters, those that wait, run, are parked, quarantined or discarded.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn list(&self, query: Query) -> Result<Listed, StoreError> {
        self.redrive.events(query).await
    }

    /// A page of dead letters.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn letters(&self, filter: Filter, after: Option<Seq>) -> Result<Listed, StoreError> {
        self.list(Query { filter, state: Some(State::Dead), after, limit: 0 }).await
    }

    /// An event with all that is known of it, and what waits behind it.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn show(&self, tenant: &str, queue: &str, id: &str) -> Result<Option<Shown>, StoreError> {
        let Some(found) = self.redrive.event(tenant, queue, id).await? else { return Ok(None) };
        let one = |state| {
            let (queue, tenant) = (Some(queue.to_owned()), Some(tenant.to_owned()));
            let filter = Filter { queue, tenant, id: Some(id.to_owned()), ..Filter::default() };
            Query { filter, state, after: None, limit: 1 }
        };
        let state = (found.state == State::Discarded).then_some(State::Discarded);
        let event = self.redrive.store().list(one(state)).await?.events.into_iter().next();
        let event = event.map(|(event, _)| event);
        let key = event.as_ref().and_then(|event| event.key.clone()).filter(|_| !found.state.is_ended());
        let behind = match key {
            None => Vec::new(),
            Some(key) => {
                let (queue, tenant) = (Some(queue.to_owned()), Some(tenant.to_owned()));
                let filter = Filter { queue, tenant, key: Some(key), ..Filter::default() };
                let mut query = Query { filter, state: None, after: Some(found.seq), limit: BEHIND_MAX };
                let mut behind = Vec::new();
                // A page ends where enough was looked at, and may have few of them.
                while behind.len() < BEHIND_MAX && query.after.is_some() {
                    query.limit = BEHIND_MAX - behind.len();
                    let page = self.redrive.store().list(query.clone()).await?;
                    behind.extend(page.events);
                    query.after = page.next;
                }
                behind
            }
        };
        Ok(Some(Shown { event, found, behind }))
    }

    /// Puts dead letters back: same identity, story kept, attempts counted anew unless `how` says otherwise.
    ///
    /// # Errors
    /// Where the store could not. What was refused is in the answer.
    pub async fn redrive(&self, letters: Vec<Target>, how: How) -> Result<Operated, StoreError> {
        self.order(What::Events(letters, Act::Redrive(how))).await
    }

    /// Takes events away. They can be restored while their receipts are kept. What runs here just now is refused.
    ///
    /// # Errors
    /// Where the store could not. What was refused is in the answer.
    pub async fn discard(&self, events: Vec<Target>) -> Result<Operated, StoreError> {
        self.take_from(events, Act::Discard).await
    }

    /// Makes dead letters again of what was discarded.
    ///
    /// # Errors
    /// Where the store could not. What was refused is in the answer.
    pub async fn restore(&self, events: Vec<Target>) -> Result<Operated, StoreError> {
        self.order(What::Events(events, Act::Restore)).await
    }

    /// Makes dead letters of events that wait. What runs here just now is refused.
    ///
    /// # Errors
    /// Where the store could not. What was refused is in the answer.
    pub async fn kill(&self, events: Vec<Target>) -> Result<Operated, StoreError> {
        self.take_from(events, Act::Kill).await
    }

    /// Makes events due now that wait for their time.
    ///
    /// # Errors
    /// Where the store could not. What was refused is in the answer.
    pub async fn retry_now(&self, events: Vec<Target>) -> Result<Operated, StoreError> {
        self.order(What::Events(events, Act::RetryNow)).await
    }

    /// Replaces a dead letter and puts it back: under a new id that names the original as its cause, at the same
    /// place in the order of its key. The original is resolved by it, and cannot be restored.
    ///
    /// # Errors
    /// [`DeskError::Refused`] where somebody else changed it, it is not dead, or the id is taken.
    pub async fn edit(&self, letter: Target, edit: Edit) -> Result<EditDone, DeskError> {
        let shown = self.show(&letter.tenant, &letter.queue, &letter.id).await?.ok_or(Refusal::Unknown)?;
        let Some(original) = shown.event else {
            let Found { state, edited_into, .. } = shown.found;
            let refusal = edited_into.map_or(Refusal::State { is: state }, |into| Refusal::Edited { into });
            return Err(refusal.into());
        };
        let mut event = Event { id: edit.id, ..Event::clone(&original) };
        event.when = redrive_core::event::When::Now;
        event.expires = None;
        event.payload = edit.payload.unwrap_or(event.payload);
        let meta = event.meta_mut();
        meta.causation = Some(original.id.clone());
        meta.content_type = edit.content_type.or(meta.content_type.take());
        meta.headers = edit.headers.unwrap_or(std::mem::take(&mut meta.headers));
        event.check()?;
        let fingerprint = Fingerprint::of(&event);
        let edited = Edited { event: Arc::new(event), fingerprint, out_of_order: edit.out_of_order };
        // What is edited is what was looked at.
        let letter = Target { rev: letter.rev.or(Some(shown.found.rev)), ..letter };
        let done = self.one(What::Edit(letter, Box::new(edited))).await?;
        Ok(EditDone { unsure: !done.unsure.is_empty() })
    }

    /// Starts nothing of a queue any more, for so long or until [`resume`](Self::resume).
    ///
    /// # Errors
    /// Where there is no such queue, or the store could not.
    pub async fn pause(&self, queue: &str, time: Option<Duration>) -> Result<(), DeskError> {
        self.set(Rule::Pause { queue: queue.to_owned() }, time, "").await
    }

    /// Starts no retries and redrives of a queue any more; first attempts go on.
    ///
    /// # Errors
    /// Where there is no such queue, or the store could not.
    pub async fn pause_retries(&self, queue: &str, time: Option<Duration>) -> Result<(), DeskError> {
        self.set(Rule::PauseRetries { queue: queue.to_owned() }, time, "").await
    }

    /// Ends both pauses of a queue.
    ///
    /// # Errors
    /// Where it is not paused, or the store could not.
    pub async fn resume(&self, queue: &str) -> Result<(), DeskError> {
        let [whole, retries] =
            [Rule::Pause { queue: queue.to_owned() }, Rule::PauseRetries { queue: queue.to_owned() }];
        let hold = self.redrive.store().controls().await?.list;
        let pauses = |rule: &Rule| hold.iter().any(|control| control.rule == *rule);
        if pauses(&retries) {
            self.lift(retries).await?;
            if !pauses(&whole) {
                return Ok(());
            }
        }
        self.lift(whole).await
    }

    /// Makes a rule: a quarantine of a tenant or a key, a parked key, another route. It holds for so long, or until
    /// [`lift`](Self::lift). `why` is for whoever finds it.
    ///
    /// # Errors
    /// Where a queue of it does not exist, or the store could not.
    pub async fn set(&self, rule: Rule, time: Option<Duration>, why: &str) -> Result<(), DeskError> {
        rule.check().map_err(Refusal::Senseless)?;
        check_words(why).map_err(Refusal::Senseless)?;
        let until = time.map(|time| self.redrive.now() + time);
        self.one(What::Set { rule, until, why: why.to_owned() }).await.map(drop)
    }

    /// Ends a rule.
    ///
    /// # Errors
    /// Where there is none, or the store could not.
    pub async fn lift(&self, rule: Rule) -> Result<(), DeskError> {
        self.one(What::Lift(rule)).await.map(drop)
    }

    /// Lets everything go on that a key holds up: a rule that parks it, and its dead letters. Those stay dead.
    ///
    /// # Errors
    /// Where nothing holds it up, or the store could not.
    pub async fn unpark(&self, queue: &str, tenant: &str, key: &str) -> Result<(), DeskError> {
        let (queue, tenant, key) = (queue.to_owned(), tenant.to_owned(), key.to_owned());
        self.one(What::Unpark { queue, tenant, key }).await.map(drop)
    }

    /// Lets those go on that wait behind the dead letter at the head of a key. It stays dead.
    ///
    /// # Errors
    /// Where no dead letter holds up the key, or the store could not.
    pub async fn skip_head(&self, queue: &str, tenant: &str, key: &str) -> Result<(), DeskError> {
        let (queue, tenant, key) = (queue.to_owned(), tenant.to_owned(), key.to_owned());
        self.one(What::SkipHead { queue, tenant, key }).await.map(drop)
    }

    /// The rules that hold.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn rules(&self) -> Result<Controls, StoreError> {
        let mut controls = self.redrive.store().controls().await?;
        let now = self.now();
        controls.list.retain(|control| control.until.is_none_or(|until| until > now));
        Ok(controls)
    }

    /// Who did what, the latest first, before the line with this number; a hundred lines where `limit` is 0.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn audit(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditLine>, StoreError> {
        self.redrive.store().audit(before, limit).await
    }

    /// Writes a line of the audit about something that is not the engine's: what the program around it changes of its
    /// own. Nothing else is done. The target is kept short, as names are.
    ///
    /// # Errors
    /// Where the store cannot be written.
    pub async fn note(
        &self,
        verb: &'static str,
        target: &str,
        count: u64,
        note: &str,
    ) -> Result<(), StoreError> {
        let (target, note) = (plain(target.to_owned()), plain(note.to_owned()));
        self.order(What::Note { verb, target, count, note }).await.map(drop)
    }

    /// An order that takes events away, but for those that run here: what they say would not be written.
    async fn take_from(&self, events: Vec<Target>, act: Act) -> Result<Operated, StoreError> {
        let running = self.redrive.running().await;
        let runs = |target: &Target| {
            running.iter().any(|entry| {
                let Event { tenant, queue, id, .. } = &*entry.event;
                (tenant, queue, id) == (&target.tenant, &target.queue, &target.id)
            })
        };
        let (busy, free): (Vec<_>, Vec<_>) =
            events.into_iter().enumerate().partition(|(_, target)| runs(target));
        let (places, free): (Vec<_>, Vec<_>) = free.into_iter().unzip();
        let mut done = self.order(What::Events(free, act)).await?;
        done.refused.iter_mut().for_each(|(at, _)| *at = places.get(*at).copied().unwrap_or(*at));
        done.unsure.iter_mut().for_each(|at| *at = places.get(*at).copied().unwrap_or(*at));
        let is = State::Running;
        done.refused.extend(busy.into_iter().map(|(at, _)| (at, Refusal::State { is })));
        done.refused.sort_by_key(|(at, _)| *at);
        Ok(done)
    }

    /// An order that is done or refused as a whole.
    async fn one(&self, what: What) -> Result<Operated, DeskError> {
        let done = self.order(what).await?;
        match done.refused.into_iter().next() {
            Some((_, refusal)) => Err(refusal.into()),
            None => Ok(Operated { refused: Vec::new(), ..done }),
        }
    }

    async fn order(&self, what: What) -> Result<Operated, StoreError> {
        let verb = what.word();
        let order = Order { by: self.by.clone(), at: self.now(), what };
        let done = self.redrive.store().operate(order).await?;
        super::observe::ordered(verb, &self.by, &done);
        self.redrive.heed().await;
        Ok(done)
    }

    fn now(&self) -> Moment {
        self.redrive.now()
    }
}

/// A name as it is kept: short, and of letters that can be shown.
fn plain(name: String) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    name.chars().take(NAME_MAX).map(shown).collect()
}
