//! The operators' desk: dead letters, holds, rules, and the audit.
//!
//! All of it is in the store, so it survives restarts and also works from a process that does not run handlers. Every
//! change commits with a line in the audit, under the operator's name. If this process runs the handlers, a change is
//! in effect when the call returns: after `pause` no attempt of the queue starts.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::event::{EventError, Fingerprint, State};
use redrive_core::queue_entry::Seq;
use redrive_core::triage::rule::check_words;
use redrive_core::triage::{ActiveRules, Filter, Operator, RedriveOptions as How, Rule};
use redrive_core::{Event, Moment};
use redrive_store::operate::{
    AuditLine, CommandResult, EditedEvent, EventAction, EventRef, FailingGroup, FailingQuery, Group,
    GroupQuery, OperatorAction, OperatorCommand, Refusal,
};
use redrive_store::{EventPage, EventQuery, EventStatus, StoreError};

use super::Redrive;

mod exchange;
mod jobs;
mod requests;

pub use exchange::{ExchangeError, ExportReport, ImportReport};
pub use jobs::JobPreview;

/// The maximal length of an operator's name, in characters.
const NAME_MAX: usize = 128;

/// How many events are shown that wait behind another one.
const BEHIND_MAX: usize = 100;

/// Why a command of the desk failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeskError {
    /// The command was refused, and nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The replacement is not a valid event.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The store operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The desk, for one operator. Made by [`Redrive::desk`].
#[derive(Debug, Clone)]
pub struct Desk {
    redrive: Redrive,
    by: Operator,
}

/// An event with everything that is known of it.
#[derive(Debug, Clone)]
pub struct EventDetails {
    /// The event itself; `None` if only its dedupe record is left.
    pub event: Option<Arc<Event>>,
    /// Its status.
    pub found: EventStatus,
    /// Later events of its key that have not ended: the first hundred.
    pub behind: Vec<(Arc<Event>, EventStatus)>,
}

/// The replacement of a dead letter. `None` leaves a field unchanged.
#[derive(Debug, Clone, Default)]
pub struct Edit {
    /// The new event id.
    pub id: String,
    /// A new payload.
    pub payload: Option<Vec<u8>>,
    /// A new content type.
    pub content_type: Option<String>,
    /// New headers, which replace all of the old ones.
    pub headers: Option<Vec<(String, String)>>,
    /// Whether it may run although later events of its key may have run before it.
    pub out_of_order: bool,
}

/// The result of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EditResult {
    /// Whether an earlier attempt of the original may have had its effect: then the effect may happen twice.
    pub unsure: bool,
}

impl Redrive {
    /// The operators' desk for one operator: `who` is a name or a role, `from` an address or a program. Both go into
    /// the audit.
    #[must_use]
    pub fn desk(&self, who: impl Into<String>, from: impl Into<String>) -> Desk {
        Desk { redrive: self.clone(), by: Operator::new(plain(who.into()), plain(from.into())) }
    }
}

impl Desk {
    /// Dead letters, grouped by cause, by queue or by tenant; the largest groups first.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn groups(&self, query: GroupQuery) -> Result<Vec<Group>, StoreError> {
        self.redrive.store().groups(query).await
    }

    /// Events that failed and are retried, grouped by cause; the largest groups first.
    ///
    /// An outage shows here before any event is dead. [`JobAct::RetryNow`](redrive_core::triage::JobAct::RetryNow)
    /// retries them at once when it is over.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn failing(&self, query: FailingQuery) -> Result<Vec<FailingGroup>, StoreError> {
        self.redrive.store().failing(query).await
    }

    /// A page of events: dead, waiting, running, parked, quarantined or discarded.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn list(&self, query: EventQuery) -> Result<EventPage, StoreError> {
        self.redrive.events(query).await
    }

    /// A page of dead letters.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn letters(&self, filter: Filter, after: Option<Seq>) -> Result<EventPage, StoreError> {
        self.list(EventQuery { filter, state: Some(State::Dead), after, limit: 0 }).await
    }

    /// An event with everything that is known of it, and the events that wait behind it.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn show(
        &self,
        tenant: &str,
        queue: &str,
        id: &str,
    ) -> Result<Option<EventDetails>, StoreError> {
        let Some(found) = self.redrive.event(tenant, queue, id).await? else { return Ok(None) };
        let one = |state| {
            let (queue, tenant) = (Some(queue.to_owned()), Some(tenant.to_owned()));
            let filter = Filter { queue, tenant, id: Some(id.to_owned()), ..Filter::default() };
            EventQuery { filter, state, after: None, limit: 1 }
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
                let mut query = EventQuery { filter, state: None, after: Some(found.seq), limit: BEHIND_MAX };
                let mut behind = Vec::new();
                // A page ends after a bounded number of rows, so it may hold few of them.
                while behind.len() < BEHIND_MAX && query.after.is_some() {
                    query.limit = BEHIND_MAX - behind.len();
                    let page = self.redrive.store().list(query.clone()).await?;
                    behind.extend(page.events);
                    query.after = page.next;
                }
                behind
            }
        };
        Ok(Some(EventDetails { event, found, behind }))
    }

    /// Redrives dead letters: same identity, attempt history kept, attempts counted anew unless `how` says otherwise.
    ///
    /// # Errors
    /// If the store operation fails. The result lists refused events.
    pub async fn redrive(&self, letters: Vec<EventRef>, how: How) -> Result<CommandResult, StoreError> {
        self.order(OperatorAction::Events(letters, EventAction::Redrive(how))).await
    }

    /// Discards events. They can be restored while their dedupe records are kept. Events that run here are refused.
    ///
    /// # Errors
    /// If the store operation fails. The result lists refused events.
    pub async fn discard(&self, events: Vec<EventRef>) -> Result<CommandResult, StoreError> {
        self.take_from(events, EventAction::Discard).await
    }

    /// Restores discarded events as dead letters.
    ///
    /// # Errors
    /// If the store operation fails. The result lists refused events.
    pub async fn restore(&self, events: Vec<EventRef>) -> Result<CommandResult, StoreError> {
        self.order(OperatorAction::Events(events, EventAction::Restore)).await
    }

    /// Makes dead letters of waiting events. Events that run here are refused.
    ///
    /// # Errors
    /// If the store operation fails. The result lists refused events.
    pub async fn kill(&self, events: Vec<EventRef>) -> Result<CommandResult, StoreError> {
        self.take_from(events, EventAction::Kill).await
    }

    /// Makes waiting events due now.
    ///
    /// # Errors
    /// If the store operation fails. The result lists refused events.
    pub async fn retry_now(&self, events: Vec<EventRef>) -> Result<CommandResult, StoreError> {
        self.order(OperatorAction::Events(events, EventAction::RetryNow)).await
    }

    /// Replaces a dead letter and redrives the replacement: under a new id that names the original as its cause, at
    /// the same position in the order of its key. The original is resolved by it, and cannot be restored.
    ///
    /// # Errors
    /// [`DeskError::Refused`] if it was changed concurrently, it is not dead, or the id is taken.
    pub async fn edit(&self, letter: EventRef, edit: Edit) -> Result<EditResult, DeskError> {
        let shown = self.show(&letter.tenant, &letter.queue, &letter.id).await?.ok_or(Refusal::Unknown)?;
        let Some(original) = shown.event else {
            let EventStatus { state, edited_into, .. } = shown.found;
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
        let edited = EditedEvent { event: Arc::new(event), fingerprint, out_of_order: edit.out_of_order };
        // The edit applies to the revision that was shown.
        let letter = EventRef { rev: letter.rev.or(Some(shown.found.rev)), ..letter };
        let done = self.one(OperatorAction::Edit(letter, Box::new(edited))).await?;
        Ok(EditResult { unsure: !done.unsure.is_empty() })
    }

    /// Pauses a queue: no attempt starts for `time`, or until [`resume`](Self::resume).
    ///
    /// # Errors
    /// If there is no such queue, or the store operation fails.
    pub async fn pause(&self, queue: &str, time: Option<Duration>) -> Result<(), DeskError> {
        self.set(Rule::Pause { queue: queue.to_owned() }, time, "").await
    }

    /// Pauses retries and redrives of a queue; first attempts go on.
    ///
    /// # Errors
    /// If there is no such queue, or the store operation fails.
    pub async fn pause_retries(&self, queue: &str, time: Option<Duration>) -> Result<(), DeskError> {
        self.set(Rule::PauseRetries { queue: queue.to_owned() }, time, "").await
    }

    /// Ends both pauses of a queue.
    ///
    /// # Errors
    /// If it is not paused, or the store operation fails.
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

    /// Sets a rule: a quarantine of a tenant or a key, a parked key, a reroute. It holds for `time`, or until
    /// [`lift`](Self::lift). `why` explains it to other operators.
    ///
    /// # Errors
    /// If a queue of the rule does not exist, or the store operation fails.
    pub async fn set(&self, rule: Rule, time: Option<Duration>, why: &str) -> Result<(), DeskError> {
        rule.check().map_err(Refusal::Senseless)?;
        check_words(why).map_err(Refusal::Senseless)?;
        let until = time.map(|time| self.redrive.now() + time);
        self.one(OperatorAction::Set { rule, until, why: why.to_owned() }).await.map(drop)
    }

    /// Lifts a rule.
    ///
    /// # Errors
    /// If there is no such rule, or the store operation fails.
    pub async fn lift(&self, rule: Rule) -> Result<(), DeskError> {
        self.one(OperatorAction::Lift(rule)).await.map(drop)
    }

    /// Unparks a key: lifts the rule that parks it, and lets its dead letters hold it up no longer. They stay dead.
    ///
    /// # Errors
    /// If nothing holds the key up, or the store operation fails.
    pub async fn unpark(&self, queue: &str, tenant: &str, key: &str) -> Result<(), DeskError> {
        let (queue, tenant, key) = (queue.to_owned(), tenant.to_owned(), key.to_owned());
        self.one(OperatorAction::Unpark { queue, tenant, key }).await.map(drop)
    }

    /// Lets the events behind the dead letter at the head of a key run. The dead letter stays dead.
    ///
    /// # Errors
    /// If no dead letter holds up the key, or the store operation fails.
    pub async fn skip_head(&self, queue: &str, tenant: &str, key: &str) -> Result<(), DeskError> {
        let (queue, tenant, key) = (queue.to_owned(), tenant.to_owned(), key.to_owned());
        self.one(OperatorAction::SkipHead { queue, tenant, key }).await.map(drop)
    }

    /// The active rules.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn rules(&self) -> Result<ActiveRules, StoreError> {
        let mut controls = self.redrive.store().controls().await?;
        let now = self.now();
        controls.list.retain(|control| control.until.is_none_or(|until| until > now));
        Ok(controls)
    }

    /// The audit, latest first, before the line with this number; a hundred lines if `limit` is 0.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn audit(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditLine>, StoreError> {
        self.redrive.store().audit(before, limit).await
    }

    /// Writes a line of the audit about a change outside the engine, in the program around it. It does nothing else.
    /// The target is truncated like names.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn note(
        &self,
        verb: &'static str,
        target: &str,
        count: u64,
        note: &str,
    ) -> Result<(), StoreError> {
        let (target, note) = (plain(target.to_owned()), plain(note.to_owned()));
        self.order(OperatorAction::Note { verb, target, count, note }).await.map(drop)
    }

    /// A command that takes events away, except those that run here: their result could not be written.
    async fn take_from(&self, events: Vec<EventRef>, act: EventAction) -> Result<CommandResult, StoreError> {
        let running = self.redrive.running().await;
        let runs = |target: &EventRef| {
            running.iter().any(|entry| {
                let Event { tenant, queue, id, .. } = &*entry.event;
                (tenant, queue, id) == (&target.tenant, &target.queue, &target.id)
            })
        };
        let (busy, free): (Vec<_>, Vec<_>) =
            events.into_iter().enumerate().partition(|(_, target)| runs(target));
        let (places, free): (Vec<_>, Vec<_>) = free.into_iter().unzip();
        let mut done = self.order(OperatorAction::Events(free, act)).await?;
        done.refused.iter_mut().for_each(|(at, _)| *at = places.get(*at).copied().unwrap_or(*at));
        done.unsure.iter_mut().for_each(|at| *at = places.get(*at).copied().unwrap_or(*at));
        let is = State::Running;
        done.refused.extend(busy.into_iter().map(|(at, _)| (at, Refusal::State { is })));
        done.refused.sort_by_key(|(at, _)| *at);
        Ok(done)
    }

    /// A command that is done or refused as a whole.
    async fn one(&self, what: OperatorAction) -> Result<CommandResult, DeskError> {
        let done = self.order(what).await?;
        match done.refused.into_iter().next() {
            Some((_, refusal)) => Err(refusal.into()),
            None => Ok(CommandResult { refused: Vec::new(), ..done }),
        }
    }

    async fn order(&self, what: OperatorAction) -> Result<CommandResult, StoreError> {
        let verb = what.word();
        let order = OperatorCommand { by: self.by.clone(), at: self.now(), what };
        let done = self.redrive.store().operate(order).await?;
        super::observe::ordered(verb, &self.by, &done);
        self.redrive.heed().await;
        Ok(done)
    }

    fn now(&self) -> Moment {
        self.redrive.now()
    }
}

/// A name as it is stored: truncated, and of printable characters.
fn plain(name: String) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    name.chars().take(NAME_MAX).map(shown).collect()
}
