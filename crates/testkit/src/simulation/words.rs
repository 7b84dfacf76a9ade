//! What happens, in words short enough to be read by the hundred.
//!
//! Events, fencing tokens and times are printed as they are; [`plain`](super::plain::plain) puts names in
//! their place.

use redrive_core::QueueEntry;
use redrive_core::queue_entry::{
    EventChange, FencingToken, ParkFollowers, Seq, SettleRequest, SettleResult, TakenShard,
};
use redrive_core::scheduler::{Action, Input, LoadId};
use redrive_store::lease::LeasedEvents;
use redrive_store::{EventStatus, PublishError, Published, StoreError, TxOutcome};

mod orders;

pub(super) use orders::{operated, rules, wish};

pub(super) fn name(seq: Seq) -> String {
    format!("{seq:?}")
}

/// Events by the numbers of their intents.
pub(super) fn intents(numbers: &[usize]) -> String {
    let names: Vec<String> = numbers.iter().map(|number| format!("e{number}")).collect();
    names.join(" ")
}

pub(super) fn names(seqs: &[Seq]) -> String {
    list(seqs.iter().map(|seq| name(*seq)))
}

pub(super) fn token(token: FencingToken) -> String {
    format!("{token:?}")
}

fn list(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

fn entries(entries: &[QueueEntry]) -> String {
    list(entries.iter().map(|entry| {
        let suspect = if entry.progress.suspect { " (suspect)" } else { "" };
        format!("{} rev {}{suspect}", name(entry.seq), entry.rev)
    }))
}

/// A store's answer; a success needs no words.
pub(super) fn answered<T>(answer: &Result<T, StoreError>) -> String {
    match answer {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.to_string(),
    }
}

pub(super) fn change(change: &EventChange) -> String {
    match change {
        EventChange::Done => "done".into(),
        EventChange::DoneWith { attempts, .. } => format!("done after {attempts} attempts"),
        EventChange::Dropped { .. } => "dropped".into(),
        EventChange::Expired { .. } => "expired".into(),
        EventChange::Retry(progress) => {
            let suspect = if progress.suspect { ", as a suspect" } else { "" };
            format!("retry at {:?} after {} attempts{suspect}", progress.due, progress.attempts)
        }
        EventChange::Dead { reason, park: ParkFollowers::No, .. } => format!("dead ({reason})"),
        EventChange::Dead { reason, .. } => format!("dead ({reason}), its key is parked"),
        EventChange::CountCrash => "struck".into(),
        EventChange::Unpark => "dead, its key is unparked".into(),
    }
}

pub(super) fn settle(settle: &SettleRequest) -> String {
    let SettleRequest { seq, rev, token: by, change: what, .. } = settle;
    format!("{} rev {rev} as {} under {}", name(*seq), change(what), token(*by))
}

pub(super) fn settled(settled: &SettleResult) -> String {
    match settled {
        SettleResult::Applied { rev, next } => {
            let next = next.as_ref().map(|next| format!(", next is {}", name(next.seq)));
            format!("applied as rev {rev}{}", next.unwrap_or_default())
        }
        SettleResult::Stale => "stale".into(),
        SettleResult::Fenced => "fenced".into(),
    }
}

/// An input, after "node 0 hears".
pub(super) fn input(input: &Input) -> String {
    match input {
        Input::Own(taken) => format!("that it owns {}", token(taken.token)),
        Input::Arrived(list) if list.is_empty() => "of a commit, with no arrivals".into(),
        Input::Arrived(list) => format!("of arrivals: {}", entries(list)),
        Input::Missed(_) => "that it missed arrivals".into(),
        Input::Loaded(load, loaded) => {
            let key = load.flow;
            let more = if loaded.more_live || loaded.more_retry { ", and there are more" } else { "" };
            let next = loaded.next_due.map(|due| format!(", next due at {due:?}")).unwrap_or_default();
            let overdue = match loaded.overdue.is_empty() {
                true => String::new(),
                false => format!(", unpark {}", list(loaded.overdue.iter().map(|letter| name(letter.seq)))),
            };
            let found = entries(&loaded.entries);
            format!(
                "the load of {:?} under epoch {} of shard {}: {found}{more}{next}{overdue}",
                key.stream, key.epoch, key.shard
            )
        }
        Input::LoadFailed(load) => {
            let key = load.flow;
            format!(
                "that the load of {:?} under epoch {} of shard {} failed",
                key.stream, key.epoch, key.shard
            )
        }
        Input::Checked(key, loaded) => {
            format!("what {:?} of the idle shard {} has: {}", key.stream, key.shard, entries(&loaded.entries))
        }
        Input::Noted(note) => format!("that its note under {} is written", token(note.token)),
        Input::NoteFailed(note) => format!("that its note under {} failed", token(note.token)),
        Input::Lost(by) => format!("that it lost {}", token(*by)),
        Input::Ended { token: by, seq, rev, ended } => {
            format!(
                "that the attempt of {} rev {rev} under {} said {}",
                name(*seq),
                token(*by),
                ended.end.as_str()
            )
        }
        Input::Settled { token: by, seq, rev, settled: answer } => {
            format!("that its settle of {} rev {rev} under {} is {}", name(*seq), token(*by), settled(answer))
        }
        Input::SettleFailed { token: by, seq, rev, unknown } => {
            let outcome = if *unknown { ", outcome unknown" } else { "" };
            format!("that its settle of {} rev {rev} under {} failed{outcome}", name(*seq), token(*by))
        }
        Input::Recall => "of an order".into(),
        Input::Ruled(controls) => format!("of the rules: {}", rules(controls)),
        Input::GiveBack(by) => format!("that it is to give back {}", token(*by)),
        Input::Drain => "that it is to stop".into(),
    }
}

/// An action, after "node 0 wants".
pub(super) fn action(action: &Action) -> String {
    match action {
        Action::Load(LoadId { flow: key, .. }, load) => format!(
            "to load {:?} under epoch {} of shard {}: {} live and {} retries{}",
            key.stream,
            key.epoch,
            key.shard,
            load.live_max,
            load.retry_max,
            if load.except.is_empty() { String::new() } else { format!(", without {}", names(&load.except)) }
        ),
        Action::Check(key, _) => format!("to check {:?} of the idle shard {}", key.stream, key.shard),
        Action::Stalled { token: by, waiting } => {
            format!("to report that {} is stalled: {} waits", token(*by), name(*waiting))
        }
        Action::Note(note, list) => format!("to note {} under {}", names(list), token(note.token)),
        Action::Attempt(ticket) => format!("to start {}", name(ticket.entry.seq)),
        Action::Settle(it) => format!("to settle {}", settle(it)),
        Action::EventSettled(told) => {
            format!("to report {} as {}", name(told.entry.seq), change(&told.change))
        }
        Action::Lost(by) => format!("to report that it lost {}", token(*by)),
        Action::Given { token: by, clean } => {
            format!("to give back {}{}", token(*by), if *clean { ", clean" } else { ", not clean" })
        }
        Action::Damaged(row) => format!("to report that {row} is damaged"),
    }
}

pub(super) fn transacted(answer: &Result<TxOutcome, StoreError>) -> String {
    match answer {
        Ok(TxOutcome::Committed { next: Some(next) }) => format!("committed, next is {}", name(next.seq)),
        Ok(TxOutcome::Committed { next: None }) => "committed".into(),
        Ok(TxOutcome::Aborted(_)) => "aborted".into(),
        Ok(TxOutcome::Stale) => "stale".into(),
        Ok(TxOutcome::Fenced) => "fenced".into(),
        Ok(other) => format!("{other:?}"),
        Err(error) => error.to_string(),
    }
}

pub(super) fn published(answer: &Result<Vec<Result<Published, PublishError>>, StoreError>) -> String {
    let word = |answer: &Result<Published, PublishError>| match answer {
        Ok(Published::Accepted(seq)) => format!("accepted as {}", name(*seq)),
        Ok(Published::Duplicate(found)) => {
            format!("a duplicate of {}, which is {}", name(found.seq), found.state)
        }
        Err(error) => error.to_string(),
    };
    match answer {
        Ok(answers) => list(answers.iter().map(word)),
        Err(error) => error.to_string(),
    }
}

pub(super) fn found(answer: &Result<Option<EventStatus>, StoreError>) -> String {
    match answer {
        Ok(Some(found)) => format!("{}, which is {}", name(found.seq), found.state),
        Ok(None) => "nothing".into(),
        Err(error) => error.to_string(),
    }
}

pub(super) fn leased(answer: &Result<LeasedEvents, StoreError>) -> String {
    match answer {
        Ok(leased) => format!("{}, {} leases lapsed", entries(&leased.entries), leased.lapsed),
        Err(error) => error.to_string(),
    }
}

pub(super) fn taken(answer: &Result<TakenShard, StoreError>) -> String {
    match answer {
        Ok(taken) => {
            let unclean = if taken.unclean { ", which its owner did not give back" } else { "" };
            let suspects = match &taken.suspects[..] {
                [] => String::new(),
                suspects => format!(", suspects: {}", entries(suspects)),
            };
            format!("it owns {}{unclean}{suspects}", token(taken.token))
        }
        Err(error) => error.to_string(),
    }
}
