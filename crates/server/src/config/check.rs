//! Whether settings can be meant together.

use redrive::Rate;
use redrive::event::bounds::RESULT_BYTES_MAX;

use super::{Config, ConfigError, QueueSettings, TokenSettings};
use crate::push;
use crate::push::destination::Destination;
use crate::push::guard::Guard;

impl Config {
    /// Checks what no single setting shows.
    ///
    /// # Errors
    /// With what is wrong, and what to do.
    pub fn check(&self) -> Result<(), ConfigError> {
        let listen = self.server.listen;
        if !listen.ip().is_loopback() && self.tokens.is_empty() {
            return Err(ConfigError::value(format!(
                "{listen} is reached from elsewhere, and nobody would have to say who they are; make a token \
                 with `redrive token new`, or listen on 127.0.0.1"
            )));
        }
        for (name, token) in &self.tokens {
            check_token(name, token)?;
        }
        for (name, queue) in &self.queues {
            check_queue(name, queue)?;
        }
        check_rates(self)?;
        check_push(self)?;
        Ok(())
    }
}

fn check_token(name: &str, token: &TokenSettings) -> Result<(), ConfigError> {
    let digits = token.hash.strip_prefix("sha256:").unwrap_or_default();
    if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(ConfigError::value(format!(
            "tokens.{name}.hash is `sha256:` and 64 hexadecimal digits; `redrive token new` writes one"
        )));
    }
    if token.rights.is_empty() {
        return Err(ConfigError::value(format!(
            "tokens.{name} has no rights; there are publish, consume, read, operate"
        )));
    }
    Ok(())
}

fn check_queue(name: &str, queue: &QueueSettings) -> Result<(), ConfigError> {
    redrive::event::check_queue_name(name)
        .map_err(|error| ConfigError::value(format!("queues.{name}: {error}")))?;
    match (&queue.push, &queue.pull) {
        (None, None) => Err(ConfigError::value(format!(
            "queues.{name} goes nowhere; give it [queues.{name}.push] with a url, or [queues.{name}.pull] for \
             workers that fetch"
        ))),
        (Some(_), Some(_)) => Err(ConfigError::value(format!(
            "queues.{name} has both push and pull; a queue's events go one way"
        ))),
        _ => Ok(()),
    }
}

/// A rate that makes no sense would be none, and everybody let through.
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

/// Destinations that could never be called are told before anything is published to them. What a name resolves to
/// shows when it is called.
fn check_push(config: &Config) -> Result<(), ConfigError> {
    if config.push.answer_kept > RESULT_BYTES_MAX {
        return Err(ConfigError::value(format!("push.answer_kept is at most {RESULT_BYTES_MAX}")));
    }
    if config.push.connect_time.is_zero() {
        return Err(ConfigError::value("push.connect_time of 0s reaches nobody"));
    }
    let guard = Guard::new(push::networks(&config.push).map_err(ConfigError::value)?);
    for (name, queue) in &config.queues {
        let Some(push) = &queue.push else { continue };
        let wrong =
            |error: &dyn std::fmt::Display| ConfigError::value(format!("queues.{name}.push: {error}"));
        let destination = Destination::new(push).map_err(|error| wrong(&error))?;
        guard.check_host(destination.url()).map_err(|error| wrong(&error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of settings that cannot be meant.
    fn refused(text: &str) -> String {
        let config: Config = toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        config.check().map_or_else(|error| error.to_string(), |()| panic!("{text} passes"))
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
