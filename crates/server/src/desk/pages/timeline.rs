//! The attempts of an event and the acts of operators, on one line of time.

use serde_json::Value;

use super::event::wait;
use crate::desk::text::{Time, count, member, number, several};

/// Something that happened, or a wait.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Node {
    /// `attempt`, `wait`, `gap` (attempts that were not kept) or `act`.
    pub(super) kind: &'static str,
    /// Its shape and colour: `done`, `failed`, `dead`, `unknown`, `other`.
    pub(super) shape: &'static str,
    pub(super) number: String,
    pub(super) at: Time,
    pub(super) took: String,
    /// What was said: `ok`, `http 503`.
    pub(super) said: String,
    pub(super) text: String,
}

/// The line, oldest first.
pub(super) fn nodes(story: &[Value], acts: &[Value]) -> Vec<Node> {
    let mut acts: Vec<&Value> = acts.iter().filter(|act| act["verb"] != "read-contents").collect();
    // The audit has the latest first.
    acts.reverse();
    let mut acts = acts.into_iter().peekable();
    let mut nodes = Vec::new();
    for (at, record) in story.iter().enumerate() {
        if let Some(left_out) = record["left_out"].as_u64() {
            let text = format!("{} more, not kept", several(left_out, "attempt"));
            nodes.push(Node { kind: "gap", text, ..Node::default() });
            continue;
        }
        let when = member(record, "at");
        while let Some(act) = acts.next_if(|act| member(act, "at") < when) {
            nodes.push(of_act(act));
        }
        let is_last = at + 1 == story.len();
        nodes.push(attempt(record));
        if let Some(delay) = record["delay_ms"].as_u64().filter(|_| !is_last) {
            nodes.push(waited(delay));
        }
    }
    nodes.extend(acts.map(of_act));
    nodes
}

fn attempt(record: &Value) -> Node {
    let (disposition, executed) = (member(record, "disposition"), member(record, "executed"));
    let shape = match disposition.as_str() {
        "ok" => "done",
        "permanent" => "dead",
        "drop" => "other",
        _ if executed == "unknown" => "unknown",
        _ => "failed",
    };
    let cause = &record["cause"];
    let mode = member(record, "mode");
    let mut said = [member(cause, "kind"), member(cause, "code")].join(" ").trim().to_owned();
    if said.is_empty() {
        said = disposition;
    }
    let mut text = member(cause, "message");
    if executed == "unknown" && shape != "done" {
        text.push_str(if text.is_empty() { "effect unknown" } else { " · effect unknown" });
    }
    Node {
        kind: "attempt",
        shape,
        number: match mode.as_str() {
            "redrive" => format!("{} redrive", member(record, "attempt")),
            "replay" => format!("{} replay", member(record, "attempt")),
            _ => member(record, "attempt"),
        },
        at: Time::of(&member(record, "at")),
        took: wait(count(record, "took_ms")),
        said,
        text,
    }
}

fn waited(delay: u64) -> Node {
    let said = format!("{} to the next attempt, as planned", wait(delay));
    Node { kind: "wait", said, ..Node::default() }
}

fn of_act(act: &Value) -> Node {
    let (verb, changed) = (member(act, "verb"), count(act, "count"));
    let note = member(act, "note");
    let who = member(act, "who");
    let done = if changed == 0 { "refused" } else { "by" };
    let mut text = format!("{done} {who}");
    if changed == 0 {
        text = format!("refused, asked for by {who}");
    } else if changed > 1 {
        text.push_str(&format!(", with {} others", number(changed - 1)));
    }
    if !note.is_empty() {
        text.push_str(&format!(" · {note}"));
    }
    Node {
        kind: "act",
        shape: "other",
        said: verb,
        text,
        at: Time::of(&member(act, "at")),
        ..Node::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::events::error;
    use super::*;

    #[test]
    fn attempts_waits_and_acts_are_in_order_of_time() {
        let story = [
            json!({ "attempt": 1, "mode": "live", "at": "2026-01-01T00:00:00.000Z", "took_ms": 312, "disposition": "retry",
                    "cause": { "kind": "http", "code": "503", "message": "no" }, "delay_ms": 1900 }),
            json!({ "left_out": 84 }),
            json!({ "attempt": 86, "mode": "redrive", "at": "2026-01-01T02:00:00.000Z", "took_ms": 5, "disposition": "ok" }),
        ];
        let acts = [json!({ "verb": "redrive", "who": "ada", "count": 1, "at": "2026-01-01T01:00:00.000Z" })];
        let nodes = nodes(&story, &acts);
        let kinds: Vec<&str> = nodes.iter().map(|node| node.kind).collect();
        assert_eq!(kinds, ["attempt", "wait", "gap", "act", "attempt"]);
        assert_eq!((nodes[0].said.as_str(), nodes[0].took.as_str()), ("http 503", "312 ms"));
        assert_eq!(nodes[1].said, "1.9 s to the next attempt, as planned");
        assert_eq!(nodes[4].number, "86 redrive");
    }

    #[test]
    fn an_error_is_one_line() {
        assert_eq!(error(&json!({ "kind": "http", "code": "503", "message": "no" })), "http 503: no");
        assert_eq!(error(&json!({ "kind": "", "code": "", "message": "no" })), "no");
    }
}
