//! Another configuration, without a restart.
//!
//! All of it applies or nothing. Tokens, quotas, destinations, allowed networks, secret keys and per-request limits
//! are replaced. What was built from a setting at start is not rebuilt while events run through it, so such a change
//! is refused by name.

use std::sync::Arc;

use redrive::StoreError;
use redrive::desk::Desk;
use tokio::sync::Mutex;

use crate::app::App;
use crate::audit::noted;
use crate::config::{Config, ConfigError, QueueSettings, ServerSettings, Source};
use crate::push::target;
use crate::secrets::SecretError;

/// The source of a reload.
#[derive(Debug, Default)]
pub struct Reloading {
    source: Option<Source>,
    /// One at a time, so that the configuration read last is in force.
    turn: Mutex<()>,
}

impl Reloading {
    /// None: the configuration was passed in.
    #[must_use]
    pub fn never() -> Self {
        Self::default()
    }
}

impl From<Source> for Reloading {
    fn from(source: Source) -> Self {
        Self { source: Some(source), turn: Mutex::default() }
    }
}

/// Why the old configuration stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// There is no source.
    #[error("this server was started without a configuration file to reload")]
    NoSource,
    /// The new configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A destination or an allowed network is invalid.
    #[error("{0}")]
    Push(String),
    /// The secrets' keys cannot be read.
    #[error("cannot read the secrets")]
    Secrets(#[from] SecretError),
    /// Something in it needs a restart.
    #[error("nothing was changed, because these settings need a restart: {}", .0.join(", "))]
    Restart(Vec<String>),
    /// The audit line could not be written.
    #[error("cannot write the audit log")]
    Audit(#[from] StoreError),
}

/// Reloads the configuration on behalf of this operator. Returns warnings.
///
/// # Errors
/// With why the old one stays.
pub async fn reload(app: &Arc<App>, desk: &Desk) -> Result<Vec<String>, ReloadError> {
    noted(desk, "reload", "configuration", read_again(app)).await
}

async fn read_again(app: &Arc<App>) -> Result<Vec<String>, ReloadError> {
    let source = app.reloading.source.as_ref().ok_or(ReloadError::NoSource)?;
    let _turn = app.reloading.turn.lock().await;
    let config = source.load()?;
    let fixed = fixed(&app.live().config, &config);
    if !fixed.is_empty() {
        return Err(ReloadError::Restart(fixed));
    }
    let routes = app.push.prepare(&config).map_err(ReloadError::Push)?;
    crate::reply_sealing::reply_protection(&config.ledger)?;
    app.secrets.load(&app.redrive, &config.secrets).await?;
    app.push.swap(routes);
    app.swap(config);
    Ok(warnings(app))
}

/// Problems that do not block events but should be fixed.
#[must_use]
pub fn warnings(app: &App) -> Vec<String> {
    let unsigned = app.push.unsigned().into_iter();
    let told = |(queue, told)| format!("queues.{queue}.push: {told}; its events are not sent until then");
    unsigned.map(told).chain(app.live().config.warnings()).collect()
}

/// What differs and cannot be changed while the server runs.
fn fixed(old: &Config, new: &Config) -> Vec<String> {
    let mut fixed = Vec::new();
    let mut unless = |same: bool, name: &str| {
        if !same {
            fixed.push(name.to_owned());
        }
    };
    unless(old.store == new.store, "store");
    let ServerSettings { listen, connections_max, bodies_max, head_time, grace, .. } = &old.server;
    unless(*listen == new.server.listen, "server.listen");
    unless(*connections_max == new.server.connections_max, "server.connections_max");
    unless(*bodies_max == new.server.bodies_max, "server.bodies_max");
    unless(*head_time == new.server.head_time, "server.head_time");
    unless(*grace == new.server.grace, "server.grace");
    unless(old.tls == new.tls, "tls");
    unless(old.observe.log == new.observe.log, "observe.log");
    unless(old.observe.log_form == new.observe.log_form, "observe.log_form");
    unless(old.observe.otlp == new.observe.otlp, "observe.otlp");
    unless(old.notify == new.notify, "notify");
    for (name, queue) in &old.queues {
        match new.queues.get(name) {
            None => unless(false, &format!("queues.{name} (gone)")),
            Some(new) => {
                fixed_of_queue(queue, new, |same, what| unless(same, &format!("queues.{name}.{what}")));
            }
        }
    }
    let (before, after) = (target::targets(old), target::targets(new));
    for (name, target) in &before {
        let url = |config: &Config| Some(config.queues.get(name)?.push.as_ref()?.url.clone());
        // A queue that becomes its own target would take its budget along.
        if after.get(name).is_some_and(|other| other != target) && url(old) != url(new) {
            unless(false, &format!("queues.{name}.push.url (which queues share a budget)"));
        }
    }
    for name in new.queues.keys().filter(|name| !old.queues.contains_key(*name)) {
        unless(false, &format!("queues.{name} (new)"));
    }
    fixed
}

fn fixed_of_queue(old: &QueueSettings, new: &QueueSettings, mut unless: impl FnMut(bool, &str)) {
    let QueueSettings {
        order,
        after_dead,
        concurrency,
        rate,
        retry_share,
        window,
        keep_dead,
        policy,
        push,
        pull: _,
    } = old;
    unless(*order == new.order, "order");
    unless(*after_dead == new.after_dead, "after_dead");
    unless(*concurrency == new.concurrency, "concurrency");
    unless(*rate == new.rate, "rate");
    unless(retry_share.total_cmp(&new.retry_share).is_eq(), "retry_share");
    unless(*window == new.window, "window");
    unless(*keep_dead == new.keep_dead, "keep_dead");
    unless(*policy == new.policy, "policy");
    unless(push.is_some() == new.push.is_some(), "push or pull");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn what_needs_a_restart_is_told_by_name() {
        let old = config(
            "[queues.a]\nconcurrency = 2\n[queues.a.push]\nurl = \"http://x.example\"\n[queues.b.pull]\n",
        );
        for (new, told) in [
            (
                "[queues.a]\nconcurrency = 3\n[queues.a.push]\nurl = \"http://x.example\"\n[queues.b.pull]\n",
                "queues.a.concurrency",
            ),
            ("[queues.a]\nconcurrency = 2\n[queues.a.pull]\n[queues.b.pull]\n", "queues.a.push or pull"),
            (
                "[queues.a]\nconcurrency = 2\n[queues.a.push]\nurl = \"http://x.example\"\n[queues.c.pull]\n",
                "queues.b (gone), queues.c (new)",
            ),
        ] {
            assert_eq!(fixed(&old, &config(new)).join(", "), told);
        }
    }

    #[test]
    fn each_setting_is_live_or_fixed() {
        let fixed_by = |line: &str| !fixed(&Config::default(), &config(line)).is_empty();
        for live in [
            "server.body_max = 1",
            "server.batch_max = 1",
            "server.streams_max = 1",
            "server.body_time = \"1s\"",
            "server.wait_max = \"1s\"",
            "server.edit = true",
            "push.allow = [\"10.0.0.0/8\"]",
            "push.idle_max = 1",
            "observe.open_metrics = true",
            "quota.rate = { per_second = 1, burst = 1 }",
            "tenants.acme = {}",
            "secrets.key_file = \"k\"",
            "ledger.key_files = [\"k\"]",
        ] {
            assert!(!fixed_by(live), "{live}");
        }
        for fixed in [
            "store.address = \"memory:\"",
            "store.disk_least = 1",
            "server.listen = \"127.0.0.1:1\"",
            "server.connections_max = 1",
            "server.bodies_max = 1",
            "server.head_time = \"1s\"",
            "server.grace = \"1s\"",
            "tls.cert_file = \"c\"",
            "observe.log = \"debug\"",
            "observe.log_form = \"json\"",
            "notify.every = \"1s\"",
        ] {
            assert!(fixed_by(fixed), "{fixed}");
        }
    }
}
