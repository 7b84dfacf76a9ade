//! Settings: `redrive.toml`, overridden by the environment, overridden by flags.
//!
//! The file is checked first by itself, so that errors have line numbers; then the environment and the flags override
//! it. An unknown name is refused, with the nearest known one: a misspelt limit would be no limit.

use std::path::{Path, PathBuf};

mod address;
mod check;
mod effective;
mod environment;
mod error;
mod gateway;
mod header_source;
pub mod policy;
mod settings;
mod store_id;
mod token;

pub(crate) use check::log_filter;
pub use effective::Setting;
pub use environment::Layer;
pub use error::ConfigError;
pub use gateway::{
    CredentialsSettings, CredentialsWord, EffectsWord, FingerprintSettings, GatewaySettings, HeaderSettings,
    HostWord, KeyWord, PrincipalSettings, PrincipalWord, RedactSettings, RouteSettings, TenantSettings,
    UnknownWord, UpstreamKeyWord,
};
pub use header_source::{HeaderPlace, HeaderSource};
pub use settings::{
    AfterDeadSettings, Config, KeepSettings, LedgerSettings, LogForm, NotifySettings, ObserveSettings, Order,
    PullSettings, PushFormat, PushSettings, PushTo, QueueSettings, Quota, SecretSettings, ServerSettings,
    StatusWord, StoreSettings, TlsSettings,
};
pub(crate) use store_id::store_id;
pub use token::{Right, TokenSettings};

/// The documented default, as `redrive config --default` prints it.
pub const DEFAULT: &str = include_str!("config/default.toml");

/// The source of a configuration.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// The file; by default `redrive.toml` in this directory, if it exists.
    pub file: Option<PathBuf>,
    /// The overrides: the environment, then flags.
    pub layers: Vec<Layer>,
}

/// The default file.
const FILE: &str = "redrive.toml";

impl Source {
    /// The file in use: the given one, or the default if it exists.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.file.clone().or_else(|| Path::new(FILE).is_file().then(|| FILE.into()))
    }

    /// Reads, lays over, checks.
    ///
    /// # Errors
    /// With the position of the error, and the nearest known name.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let table = self.merged()?;
        let config: Config = toml::Value::Table(table).try_into().map_err(|error: toml::de::Error| {
            ConfigError::Value { what: error::without_address(error.message()) }
        })?;
        config.check()?;
        Ok(config)
    }

    /// The file with the layers over it: everything that is not a default.
    fn merged(&self) -> Result<toml::Table, ConfigError> {
        let mut table = match self.path() {
            None => toml::Table::new(),
            Some(path) => read(&path)?,
        };
        for layer in &self.layers {
            layer.lay_over(&mut table)?;
        }
        Ok(table)
    }

    /// Whether it names a store, rather than leaving it at the default.
    ///
    /// # Errors
    /// With the position of the error, and the nearest known name.
    pub fn names_store(&self) -> Result<bool, ConfigError> {
        let table = self.merged()?;
        Ok(table.get("store").is_some_and(|store| store.get("address").is_some()))
    }
}

/// Reads a file, and checks it by itself, because here the lines are known.
fn read(path: &Path) -> Result<toml::Table, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::File { path: path.to_owned(), source })?;
    toml::from_str::<Config>(&text).map_err(|error| ConfigError::in_file(path, &text, &error))?;
    toml::from_str(&text).map_err(|error| ConfigError::in_file(path, &text, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_default_is_the_default() {
        let config: Config = toml::from_str(DEFAULT).expect("the default is a configuration");
        assert_eq!(config, Config::default());
    }

    /// Every setting commented out with `#` and no blank works once the `#` is removed.
    #[test]
    fn what_is_commented_out_in_the_default_works() {
        let all: String = DEFAULT
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if rest.starts_with(|c: char| !c.is_whitespace()) => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let config: Config = toml::from_str(&all).unwrap_or_else(|error| panic!("{error}\n{all}"));
        config.check().expect("it can be meant");
        assert!(!config.queues.is_empty() && !config.tokens.is_empty() && !config.tenants.is_empty());
    }
}
