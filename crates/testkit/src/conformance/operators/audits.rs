//! The audit log: which operator did what, to how many events.

use redrive_core::queue_entry::ParkFollowers;
use redrive_core::triage::{JobState, Rule};
use redrive_store::operate::{EventAction, OperatorAction};

use crate::conformance::Subject;
use crate::conformance::desk::{ann, redrive, set, target};
use crate::conformance::owner::{MAILS, Owner, at, mail};

/// Every command leaves an entry, also a refused one, and entries survive a crash.
pub async fn every_order_leaves_a_line<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2"] {
        owner.die(&mail(id), at(0), ParkFollowers::No).await;
    }
    assert_eq!(owner.store.audit(None, 0).await.unwrap(), []);
    let both = ["1", "2", "3"].map(|id| target(&mail(id))).to_vec();
    owner.operate(OperatorAction::Events(both, redrive()), at(1)).await;
    owner.act_refused(&mail("1"), EventAction::Restore, at(2)).await;
    owner.done(set(Rule::Pause { queue: MAILS.to_owned() }), at(3)).await;
    owner
        .refused(OperatorAction::Turn(redrive_core::triage::JobId(9), JobState::Paused, String::new()), at(4))
        .await;
    let owner = owner.crash().await;
    let lines = owner.store.audit(None, 0).await.unwrap();
    let brief: Vec<_> = lines.iter().map(|line| (line.at, line.verb.as_str(), line.count)).collect();
    assert_eq!(
        brief,
        [(at(4), "pause-job", 0), (at(3), "pause", 1), (at(2), "restore", 0), (at(1), "redrive", 2)]
    );
    assert!(lines.iter().all(|line| line.by == ann() && !line.target.is_empty()), "{lines:?}");
    assert!(lines.iter().rev().map(|line| line.number).is_sorted_by(|a, b| a < b), "{lines:?}");
    assert!(!lines[3].note.is_empty(), "what was refused is told");
    assert!(lines[1].note.contains("it is tried out"), "{lines:?}");
}

/// A note of the program around the store is kept as written, and changes nothing else.
pub async fn a_note_is_a_line_and_nothing_else<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&mail("1"), at(0), ParkFollowers::No).await;
    let (before, version) = (owner.found(&mail("1")).await, owner.version().await);
    let note = |count, note: &str| OperatorAction::Note {
        verb: "set-secret",
        target: "secret shop".to_owned(),
        count,
        note: note.to_owned(),
    };
    assert_eq!(owner.done(note(1, ""), at(1)).await, 1);
    assert_eq!(owner.done(note(0, "it was not done"), at(2)).await, 0);
    let owner = owner.crash().await;
    let lines = owner.store.audit(None, 0).await.unwrap();
    let brief: Vec<_> = lines.iter().map(|line| (line.at, line.count, line.note.as_str())).collect();
    assert_eq!(brief, [(at(2), 0, "it was not done"), (at(1), 1, "")]);
    for line in &lines {
        assert_eq!(
            (&line.by, line.verb.as_str(), line.target.as_str()),
            (&ann(), "set-secret", "secret shop")
        );
    }
    assert_eq!(owner.found(&mail("1")).await, before);
    assert_eq!(owner.version().await, version);
}

/// The audit log is read in pages, the latest first.
pub async fn the_audit_is_paged<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for secs in 0..7 {
        owner.done(set(Rule::Pause { queue: MAILS.to_owned() }), at(secs)).await;
    }
    let (mut before, mut told) = (None, Vec::new());
    loop {
        let page = owner.store.audit(before, 3).await.unwrap();
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 3);
        before = Some(last.number);
        told.extend(page.iter().map(|line| line.at));
    }
    assert_eq!(told, (0..7).rev().map(at).collect::<Vec<_>>());
    for secs in 7..101 {
        owner.done(set(Rule::Pause { queue: MAILS.to_owned() }), at(secs)).await;
    }
    assert_eq!(owner.store.audit(None, 0).await.unwrap().len(), 100);
    assert_eq!(owner.store.audit(None, 1000).await.unwrap().len(), 101);
}
