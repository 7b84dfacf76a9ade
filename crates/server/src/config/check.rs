//! Whether settings can be meant together.

use redrive::Rate;
use redrive::event::bounds::RESULT_BYTES_MAX;
use redrive::jitter::Jitter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::{Config, ConfigError, PullSettings, QueueSettings, ServerSettings, TlsSettings};
use crate::push::destination::Destination;
use crate::{notify, push};

impl Config {
    /// Checks what involves more than one setting.
    ///
    /// # Errors
    /// With the error, and what to do.
    pub fn check(&self) -> Result<(), ConfigError> {
        let listen = self.server.listen;
        if !listen.ip().is_loopback() && self.tokens.is_empty() {
            return Err(ConfigError::value(format!(
                "{listen} is reachable from other machines and no token is configured; create one with `redrive token new`, or listen on 127.0.0.1"
            )));
        }
        check_server(&self.server)?;
        self.tls.check()?;
        check_places(self)?;
        for (name, token) in &self.tokens {
            token.check(name)?;
        }
        for (name, queue) in &self.queues {
            check_queue(name, queue)?;
        }
        check_rates(self)?;
        check_push(self)?;
        self.gateway.check()?;
        Ok(())
    }
}

impl Config {
    /// Settings that work, and should be looked at: those without effect, and policies that can do harm.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut all = self.idle_settings();
        all.extend(self.risky_policies());
        all
    }

    /// Policies under which retries add to an outage. Each may be meant, so the server only warns.
    fn risky_policies(&self) -> impl Iterator<Item = String> {
        let retried = self.queues.iter().filter(|(_, queue)| queue.policy.attempts > 1);
        retried.flat_map(|(name, queue)| {
            let policy = &queue.policy;
            let last = policy.backoff.ceiling(policy.attempts - 1);
            let risks = [
                (
                    last.is_zero(),
                    "policy.backoff waits no time, so all attempts are spent at once; set a first wait",
                ),
                (
                    policy.jitter == Jitter::None && !last.is_zero(),
                    "policy.jitter is none, so events that fail together are retried together; set \"full\"",
                ),
                (
                    policy.budget.is_none(),
                    "policy.budget is none, so retries can multiply the load on a failing receiver; set a share",
                ),
            ];
            let risks = risks.into_iter().filter(|(is_risk, _)| *is_risk);
            risks.map(move |(_, risk)| format!("queues.{name}: {risk}"))
        })
    }

    /// Settings without effect: workers attempt pulled events at their own pace.
    fn idle_settings(&self) -> Vec<String> {
        let usual = QueueSettings::default();
        let mut told = Vec::new();
        for (name, queue) in self.queues.iter().filter(|(_, queue)| queue.pull.is_some()) {
            let QueueSettings { concurrency, rate, retry_share, policy, .. } = queue;
            let idle = [
                ("concurrency", *concurrency != usual.concurrency),
                ("rate", rate.is_some()),
                ("retry_share", retry_share.total_cmp(&usual.retry_share).is_ne()),
                ("policy.attempt_time", policy.attempt_time.is_some()),
                ("policy.breaker", policy.breaker.is_some()),
                ("policy.limit", policy.limit.is_some()),
                ("policy.rate", policy.rate.is_some()),
            ];
            let idle: Vec<&str> = idle.into_iter().filter(|(_, set)| *set).map(|(what, _)| what).collect();
            if !idle.is_empty() {
                let idle = idle.join(", ");
                told.push(format!("queues.{name}: {idle}: no effect, because workers pull from this queue"));
            }
        }
        told
    }
}

impl TlsSettings {
    /// Whether the settings can be meant together. The files are read when the server starts.
    fn check(&self) -> Result<(), ConfigError> {
        match (&self.cert_file, &self.key_file, &self.client_ca_file) {
            (Some(_), Some(_), _) | (None, None, None) => Ok(()),
            (None, None, Some(_)) => {
                Err(ConfigError::value("tls.client_ca_file needs tls.cert_file and tls.key_file"))
            }
            _ => Err(ConfigError::value("tls.cert_file and tls.key_file go together; set both")),
        }
    }
}

/// Limits that would refuse every request.
fn check_server(server: &ServerSettings) -> Result<(), ConfigError> {
    let ServerSettings { connections_max, body_max, bodies_max, batch_max, streams_max, .. } = server;
    for (name, value) in [
        ("connections_max", connections_max),
        ("body_max", body_max),
        ("batch_max", batch_max),
        ("streams_max", streams_max),
    ] {
        if *value == 0 {
            return Err(ConfigError::value(format!("server.{name} must be above 0")));
        }
    }
    if bodies_max < body_max {
        return Err(ConfigError::value(format!(
            "server.bodies_max of {bodies_max} is less than server.body_max, {body_max}; raise it"
        )));
    }
    Ok(())
}

/// Checks the store address, the log filter and the notification URL.
fn check_places(config: &Config) -> Result<(), ConfigError> {
    let address = &config.store.address;
    let can_be = match address.split_once(':').unwrap_or((address, "")) {
        ("memory", _) => true,
        ("postgres" | "postgresql", rest) => rest.starts_with("//"),
        ("sqlite", file) => !matches!(file, "" | "//" | ":memory:") && !file.contains('?'),
        _ => false,
    };
    if !can_be {
        return Err(ConfigError::value(format!(
            "store.address must be sqlite:FILE, postgres://… or memory:, not `{}`",
            redrive::engine::shown(address)
        )));
    }
    config.store.database().check().map_err(|why| ConfigError::value(format!("[store]: {why}")))?;
    log_filter("observe.log", &config.observe.log).map_err(ConfigError::value)?;
    // The address may hold a secret, so it is not repeated.
    if let Some(url) = &config.notify.url {
        let wrong = |what: String| ConfigError::value(format!("notify.url: {what}"));
        let url = url::Url::parse(url).map_err(|error| wrong(format!("not a valid URL ({error})")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("must begin with http:// or https://".to_owned()));
        }
        let guard = push::guard(&config.push).map_err(ConfigError::value)?;
        guard.check_host(&url).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(())
}

/// Reads a log filter of a setting or a variable.
pub(crate) fn log_filter(place: &str, log: &str) -> Result<EnvFilter, String> {
    let filter = EnvFilter::builder().parse(log).map_err(|error| format!("{place} = `{log}`: {error}"))?;
    // An unknown level is taken for a module name, and logging only that module would be silent.
    let mut words = log.split(',').map(str::trim).filter(|word| !word.contains(['=', '[', ':']));
    match words.find(|word| word.parse::<LevelFilter>().is_err()) {
        None => Ok(filter),
        Some(word) => Err(format!(
            "{place} = `{log}`: `{word}` is not a log level; use off, error, warn, info, debug, trace, or `module=level`"
        )),
    }
}

fn check_queue(name: &str, queue: &QueueSettings) -> Result<(), ConfigError> {
    redrive::event::check_queue_name(name)
        .map_err(|error| ConfigError::value(format!("queues.{name}: {error}")))?;
    if name == notify::QUEUE {
        return Err(ConfigError::value(format!(
            "queues.{name} is reserved for the server; choose another name"
        )));
    }
    if let Some(PullSettings { lease, lease_max }) = &queue.pull
        && (lease.is_zero() || lease > lease_max)
    {
        return Err(ConfigError::value(format!(
            "queues.{name}.pull: lease is {}; it must be above zero and at most lease_max, {}",
            humantime::format_duration(*lease),
            humantime::format_duration(*lease_max)
        )));
    }
    match (&queue.push, &queue.pull) {
        (None, None) => Err(ConfigError::value(format!(
            "queues.{name} has no consumer; add [queues.{name}.push] with a url, or [queues.{name}.pull] for workers"
        ))),
        (Some(_), Some(_)) => {
            Err(ConfigError::value(format!("queues.{name} has both push and pull; keep one")))
        }
        _ => Ok(()),
    }
}

/// An invalid rate would be no limit at all.
fn check_rates(config: &Config) -> Result<(), ConfigError> {
    let quotas = config.tenants.iter().map(|(name, quota)| (format!("tenants.{name}"), &quota.rate));
    let queues = config.queues.iter().map(|(name, queue)| (format!("queues.{name}"), &queue.rate));
    let all = std::iter::once(("quota".to_owned(), &config.quota.rate)).chain(quotas).chain(queues);
    for (place, rate) in all {
        if let Some(rate) = rate {
            Rate::from_settings(rate.clone())
                .map_err(|error| ConfigError::value(format!("{place}.rate: {error}")))?;
        }
    }
    Ok(())
}

/// Refuses destinations that can never work before anything is published to them. What a name resolves to is checked
/// on each call.
fn check_push(config: &Config) -> Result<(), ConfigError> {
    if config.push.answer_kept > RESULT_BYTES_MAX {
        return Err(ConfigError::value(format!("push.answer_kept must be at most {RESULT_BYTES_MAX}")));
    }
    if config.push.connect_time.is_zero() {
        return Err(ConfigError::value("push.connect_time must be above 0s"));
    }
    let guard = push::guard(&config.push).map_err(ConfigError::value)?;
    for (name, queue) in &config.queues {
        let Some(push) = &queue.push else { continue };
        let wrong =
            |error: &dyn std::fmt::Display| ConfigError::value(format!("queues.{name}.push: {error}"));
        let destination = Destination::without_credentials(push).map_err(|error| wrong(&error))?;
        guard.check_host(destination.url()).map_err(|error| wrong(&error))?;
    }
    push::target::check(config).map_err(ConfigError::value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error for contradictory settings.
    fn refused(text: &str) -> String {
        let config: Config = toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        config.check().map_or_else(|error| error.to_string(), |()| panic!("{text} passes"))
    }

    #[test]
    fn what_does_nothing_for_workers_is_told() {
        let idle = "concurrency = 3\nrate = { per_second = 1 }\nretry_share = 0.5\npolicy.attempt_time = \"1s\"\n\
                    policy.breaker = {}\npolicy.limit = { least = 1, most = 2 }\npolicy.rate = { per_second = 1 }\n";
        let told = |end: &str| {
            let text = format!("[queues.a]\n{idle}{end}[queues.b]\npull = {{}}\npolicy.attempts = 5\n");
            let config: Config = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            config.idle_settings()
        };
        let all = "queues.a: concurrency, rate, retry_share, policy.attempt_time, policy.breaker, policy.limit, \
                   policy.rate: no effect, because workers pull from this queue";
        assert_eq!(told("pull = {}\n"), [all]);
        assert_eq!(told("push = { url = \"https://a.example\" }\n"), Vec::<String>::new());
    }

    #[test]
    fn policies_whose_retries_can_do_harm_are_warned_of() {
        let warned = |policy: &str| {
            let text = format!("[queues.a]\npush = {{ url = \"https://a.example\" }}\n{policy}");
            let config: Config = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            config.warnings().join("\n")
        };
        assert_eq!(warned(""), "");
        assert_eq!(warned("policy.attempts = 1\npolicy.jitter = \"none\"\npolicy.budget = \"none\"\n"), "");
        for (policy, expected) in [
            ("policy.jitter = \"none\"", "queues.a: policy.jitter is none"),
            ("policy.budget = \"none\"", "queues.a: policy.budget is none"),
            ("policy.backoff = { constant = { delay = \"0s\" } }", "queues.a: policy.backoff waits no time"),
        ] {
            let warning = warned(policy);
            assert!(warning.starts_with(expected) && !warning.contains('\n'), "{policy}: {warning}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for (settings, place) in [
            ("server.connections_max = 0", "server.connections_max"),
            ("server.body_max = 0", "server.body_max"),
            ("server.batch_max = 0", "server.batch_max"),
            ("server.streams_max = 0", "server.streams_max"),
            ("tls.cert_file = \"a\"", "tls.cert_file"),
            ("tls.client_ca_file = \"a\"", "tls.client_ca_file"),
            ("push.deny = [\"all\"]", "push.deny"),
            ("server.bodies_max = 8388607", "server.bodies_max"),
            ("store.address = \"postgres:db\"", "store.address"),
            ("store.schema = \"No Name\"", "[store]: the schema"),
            ("store.shards = 0", "[store]"),
            ("store.connections = 1", "[store]"),
            ("store.lease = \"10ms\"", "[store]"),
            ("store.node = \"\"", "[store]"),
            ("store.address = \"redrive.db\"", "store.address"),
            ("store.address = \"sqlite:\"", "store.address"),
            ("observe.log = \"redrive=loud\"", "observe.log"),
            ("observe.log = \"inof\"", "observe.log"),
            ("observe.log = \"redrive=debug,wran\"", "observe.log"),
            ("notify.url = \"hooks.example\"", "notify.url"),
            ("notify.url = \"ftp://hooks.example\"", "notify.url"),
            ("notify.url = \"http://127.0.0.1/hook\"", "notify.url"),
            ("queues.redrive-notify.pull = {}", "queues.redrive-notify"),
            ("queues.a.pull = { lease = \"2h\" }", "queues.a.pull"),
            ("queues.a.pull = { lease = \"0s\" }", "queues.a.pull"),
        ] {
            let told = refused(settings);
            assert!(told.starts_with(place), "{settings}: {told}");
        }
        let allowed = "push.allow = [\"127.0.0.1\"]\nnotify.url = \"http://127.0.0.1/hook\"\n";
        let config: Config = toml::from_str(allowed).expect("settings");
        config.check().expect("it is allowed");
    }

    #[test]
    fn a_rate_that_is_none_is_refused() {
        for rate in ["per_second = 0, burst = 0", "per_second = -1, burst = 1", "per_second = 1, burst = 0"] {
            for place in ["quota", "tenants.acme", "queues.a"] {
                let told = refused(&format!("{place}.rate = {{ {rate} }}\nqueues.a.pull = {{}}\n"));
                assert!(told.starts_with(&format!("{place}.rate: ")), "{told}");
            }
        }
    }
}
