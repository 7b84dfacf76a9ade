//! Sealing the audit log: what keeps the [chain](super::chain) of this node.

use std::sync::Arc;
use std::time::Duration;

use redrive::desk::{AuditLine, Desk};
use redrive::{Moment, StoreError};
use tokio::time::{Instant, MissedTickBehavior};

use super::chain::{Head, SEAL};
use crate::api::wire::{self, AuditLineJson};
use crate::app::App;

/// How often there is a look for lines to seal.
const EVERY: Duration = Duration::from_secs(10);
/// How old a line is when it is sealed. In a database numbers are given before the commit, so a line may appear before
/// others: those come within this time.
pub(crate) const SETTLED: Duration = Duration::from_secs(60);
/// How often the head of the chain is logged.
const LOG_EVERY: Duration = Duration::from_secs(3600);
/// Lines read at once.
const PAGE: usize = 500;

/// Seals the log again and again, as a node of this name. Without a key it does nothing.
pub(crate) async fn seal(app: Arc<App>, node: String) {
    let desk = app.redrive.desk("redrive", "server");
    let mut tick = tokio::time::interval_at(Instant::now() + EVERY, EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut head, mut logged) = (None, None::<Instant>);
    loop {
        tick.tick().await;
        match seal_once(&app, &desk, &node, &mut head).await {
            Ok(()) => {}
            Err(StoreError::Closed) => return,
            Err(error) => {
                // Whether the seal is written may be unknown: the log says.
                head = None;
                tracing::warn!(%error, "cannot seal the audit log");
            }
        }
        if let Some(head) = head.filter(|_| logged.is_none_or(|at| at.elapsed() >= LOG_EVERY)) {
            logged = Some(Instant::now());
            tracing::info!(node, head = head.text(), "head of the audit log");
        }
    }
}

async fn seal_once(app: &App, desk: &Desk, node: &str, head: &mut Option<Head>) -> Result<(), StoreError> {
    let Some(key) = app.secrets.chain_key() else { return Ok(()) };
    let before = match head {
        Some(head) => *head,
        None => *head.insert(last(desk, node).await?),
    };
    let lines = since(desk, before.to, app.redrive.now()).await?;
    // Seals alone need no seal: nodes would go on sealing each other's.
    if lines.iter().all(|line| line.verb == SEAL) {
        return Ok(());
    }
    let next = before.over(&key, node, &lines);
    desk.note(SEAL, node, lines.len() as u64, &next.text()).await?;
    *head = Some(next);
    Ok(())
}

/// The head of this node's chain, from its last seal.
async fn last(desk: &Desk, node: &str) -> Result<Head, StoreError> {
    let mut before = None;
    loop {
        let page = desk.audit(before, PAGE).await?;
        let Some(end) = page.last() else { return Ok(Head::default()) };
        before = Some(end.number);
        let own = page.iter().find(|line| line.verb == SEAL && line.target == node);
        if let Some(head) = own.and_then(|line| Head::parse(&line.note)) {
            return Ok(head);
        }
    }
}

/// The lines after this number that are old enough, in ascending order.
async fn since(desk: &Desk, after: u64, now: Moment) -> Result<Vec<AuditLineJson>, StoreError> {
    let (mut lines, mut before) = (Vec::<AuditLine>::new(), None);
    loop {
        let page = desk.audit(before, PAGE).await?;
        before = page.last().map(|line| line.number);
        let is_last = page.len() < PAGE || before.is_none_or(|before| before <= after + 1);
        lines.extend(page.into_iter().filter(|line| line.number > after));
        if is_last {
            lines.reverse();
            let settled = lines.iter().take_while(|line| now.since(line.at) >= SETTLED);
            return Ok(settled.map(told).collect());
        }
    }
}

/// A line as the API tells it.
fn told(line: &AuditLine) -> AuditLineJson {
    AuditLineJson {
        number: line.number,
        at: wire::moment(line.at),
        who: line.by.who.clone(),
        from: line.by.from.clone(),
        verb: line.verb.clone(),
        target: line.target.clone(),
        count: line.count,
        note: line.note.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::verify;
    use super::*;
    use crate::app::AppServices;
    use crate::config::{Config, SecretSettings};
    use crate::reload::Reloading;

    #[tokio::test(start_paused = true)]
    async fn each_node_seals_what_is_settled_and_goes_on_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let key_file = folder.path().join("key");
        crate::secrets::make_key(&key_file).expect("a key");
        let config = Config::default();
        let services = AppServices::new(&config, Reloading::never()).expect("services");
        let redrive = redrive::testing::memory();
        let keys = SecretSettings { key_file: Some(key_file), old_key_file: None };
        services.secrets.load(&redrive, &keys).await.expect("a key");
        let app = App::new(redrive, config, services);
        let desk = app.redrive.desk("ada", "::1");
        let key = app.secrets.chain_key().expect("a key");
        let mut a = None;
        for round in 0..6 {
            desk.note("redrive", &format!("orders/{round}"), 1, "").await.expect("a line");
            // What is too young is not covered yet.
            seal_once(&app, &desk, "a", &mut a).await.expect("sealed");
            tokio::time::advance(SETTLED).await;
            seal_once(&app, &desk, "a", &mut a).await.expect("sealed");
            // A node that starts again finds its chain in the log.
            seal_once(&app, &desk, "b", &mut None).await.expect("sealed");
        }
        tokio::time::advance(SETTLED).await;
        for _ in 0..3 {
            seal_once(&app, &desk, "a", &mut a).await.expect("sealed");
        }
        let lines = since(&desk, 0, app.redrive.now() + SETTLED).await.expect("lines");
        assert_eq!(lines.iter().filter(|line| line.verb == SEAL).count(), 12, "seals alone need no seal");
        let verified = verify(&lines, std::slice::from_ref(&key));
        assert_eq!(
            (verified.broken.len(), verified.unsealed, verified.heads.len()),
            (0, 0, 2),
            "{verified:?}"
        );
        let mut changed = lines;
        changed[0].target = "orders/17".to_owned();
        assert_eq!(verify(&changed, &[key]).broken.len(), 2, "both nodes covered it");
    }
}
