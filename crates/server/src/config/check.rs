//! Whether settings can be meant together.

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
