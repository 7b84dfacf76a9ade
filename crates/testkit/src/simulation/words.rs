//! What happens, in words short enough to be read by the hundred.

use redrive_core::Entry;
use redrive_core::entry::{Change, Grant, Seq, Settle, Settled, Taken};
use redrive_core::scheduler::{Action, Input};
use redrive_store::{Found, PublishError, Published, StoreError, Transacted};

/// An event, by its stream and its number there, as the store in memory gives them.
pub(super) fn name(seq: Seq) -> String {
    format!("{}.{}", seq.0 >> 40, seq.0 & ((1 << 40) - 1))
}

pub(super) fn names(seqs: &[Seq]) -> String {
    let names: Vec<String> = seqs.iter().map(|seq| name(*seq)).collect();
    format!("[{}]", names.join(" "))
}

pub(super) fn grant(grant: Grant) -> String {
    format!("owner {} of shard {}", grant.epoch, grant.shard)
}

fn entries(entries: &[Entry]) -> String {
    let word = |entry: &Entry| {
        let suspect = if entry.progress.suspect { "?" } else { "" };
        format!("{}{suspect} rev {}", name(entry.seq), entry.rev)
    };
    let words: Vec<String> = entries.iter().map(word).collect();
    format!("[{}]", words.join(", "))
}

pub(super) fn change(change: &Change) -> String {
    match change {
        Change::Done => "done".into(),
        Change::DoneWith { attempts, .. } => format!("done after {attempts}"),
        Change::Dropped { .. } => "dropped".into(),
        Change::Expired { .. } => "expired".into(),
        Change::Again(progress) => {
            format!("again at {} ms after {}", progress.due.as_nanos() / 1_000_000, progress.attempts)
        }
        Change::Dead { reason, park, .. } => format!("dead ({reason}), {park:?}"),
        Change::Strike => "strike".into(),
        Change::GoOn => "go on".into(),
    }
}

pub(super) fn settle(settle: &Settle) -> String {
    let Settle { seq, rev, grant: by, change: what, .. } = settle;
    format!("{} rev {rev} as {} for {}", name(*seq), change(what), grant(*by))
}

pub(super) fn settled(settled: &Settled) -> String {
    match settled {
        Settled::Applied { rev, next } => {
            let next = next.as_ref().map(|next| format!(", next is {}", name(next.seq)));
            format!("applied, rev {rev}{}", next.unwrap_or_default())
        }
        Settled::Stale => "stale".into(),
        Settled::Fenced => "fenced".into(),
    }
}

pub(super) fn input(input: &Input) -> String {
    match input {
        Input::Own(taken) => format!("that it is {}", grant(taken.grant)),
        Input::Arrived(list) => format!("of arrivals {}", entries(list)),
        Input::Missed(_) => "that it missed something".into(),
        Input::Loaded(key, loaded) => format!(
            "what stream {} of shard {} has: {}, more: {}, next due: {:?}, overdue: {:?}",
            key.stream.0,
            key.shard,
            entries(&loaded.entries),
            loaded.more_live || loaded.more_retry,
            loaded.next_due.map(|due| due.as_nanos() / 1_000_000),
            loaded.overdue.iter().map(|letter| name(letter.seq)).collect::<Vec<_>>(),
        ),
        Input::Ended { seq, rev, ending, .. } => {
            format!("that the attempt of {} rev {rev} said {}", name(*seq), ending.said.as_str())
        }
        Input::Settled { seq, rev, settled: answer, .. } => {
            format!("that the settle of {} rev {rev} is {}", name(*seq), settled(answer))
        }
        Input::SettleFailed { seq, rev, unknown, .. } => {
            format!("that the settle of {} rev {rev} failed, unknown: {unknown}", name(*seq))
        }
        other => format!("{other:?}"),
    }
}

pub(super) fn action(action: &Action) -> String {
    match action {
        Action::Load(key, load) => format!(
            "a load of stream {} of shard {}: {} + {}, without {}",
            key.stream.0,
            key.shard,
            load.live_max,
            load.retry_max,
            names(&load.except)
        ),
        Action::Note(by, list) => format!("a note of {} as {}", names(list), grant(*by)),
        Action::Settle(it) => format!("a settle of {}", settle(it)),
        Action::Told(told) => format!("to say that {} is {}", name(told.entry.seq), change(&told.change)),
        Action::Lost(by) => format!("to say that it is no longer {}", grant(*by)),
        other => format!("{other:?}"),
    }
}

pub(super) fn transacted(answer: &Result<Transacted, StoreError>) -> String {
    match answer {
        Ok(Transacted::Committed { next }) => {
            format!("committed, next is {:?}", next.as_ref().map(|next| name(next.seq)))
        }
        Ok(Transacted::Aborted(_)) => "aborted".into(),
        other => format!("{other:?}"),
    }
}

pub(super) fn published(answer: &Result<Vec<Result<Published, PublishError>>, StoreError>) -> String {
    let word = |answer: &Result<Published, PublishError>| match answer {
        Ok(Published::Accepted(seq)) => format!("accepted as {}", name(*seq)),
        Ok(Published::Duplicate(found)) => format!("{} again, which is {}", name(found.seq), found.state),
        Err(error) => error.to_string(),
    };
    match answer {
        Ok(answers) => answers.iter().map(word).collect::<Vec<_>>().join(", "),
        Err(error) => format!("{error:?}"),
    }
}

pub(super) fn found(answer: &Result<Option<Found>, StoreError>) -> String {
    match answer {
        Ok(Some(found)) => format!("{}, which is {}", name(found.seq), found.state),
        Ok(None) => "nothing".into(),
        Err(error) => format!("{error:?}"),
    }
}

pub(super) fn taken(answer: &Result<Taken, StoreError>) -> String {
    match answer {
        Ok(taken) => format!(
            "it is {}, unclean: {}, suspects {}",
            grant(taken.grant),
            taken.unclean,
            entries(&taken.suspects)
        ),
        Err(error) => format!("{error:?}"),
    }
}
