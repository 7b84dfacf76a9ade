//! What can be set: `redrive.toml`, over it the environment, over it flags.
//!
//! The file is checked by itself first, so that what is wrong in it is told with its line; then what the
//! environment and the flags say is laid over it. A name that does not exist is refused with the nearest one that
//! does: a misspelt limit is no limit.

use std::path::{Path, PathBuf};

mod check;
mod environment;
mod error;
mod gateway;
mod settings;

pub use environment::Layer;
pub use error::ConfigError;
pub use gateway::{
    EffectsWord, FingerprintSettings, GatewaySettings, HeaderSettings, HostWord, KeyWord, PrincipalSettings,
    PrincipalWord, RedactSettings, RouteSettings, TenantSettings, UnknownWord, UpstreamKeyWord,
};
pub use settings::{
    AfterDeadSettings, Config, KeepSettings, LedgerSettings, LogForm, NotifySettings, ObserveSettings, Order,
    PullSettings, PushSettings, PushTo, QueueSettings, Quota, Right, SecretSettings, ServerSettings,
    StatusWord, StoreSettings, TokenSettings,
};

/// The documented default, as `redrive config --default` prints it.
pub const DEFAULT: &str = include_str!("config/default.toml");

/// Where a configuration comes from.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// The file. `redrive.toml` of this directory where it is none, if there is one.
    pub file: Option<PathBuf>,
    /// What is laid over it: the environment, then flags.
    pub layers: Vec<Layer>,
}

/// The file that is read where none is named.
const FILE: &str = "redrive.toml";

impl Source {
    /// The file that counts: the one that was named, or the one that is there.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.file.clone().or_else(|| Path::new(FILE).is_file().then(|| FILE.into()))
    }

    /// Reads, lays over, checks.
    ///
    /// # Errors
    /// With the place of what is wrong, and the nearest right name.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let mut table = match self.path() {
            None => toml::Table::new(),
            Some(path) => read(&path)?,
        };
        for layer in &self.layers {
            layer.lay_over(&mut table)?;
        }
        let config: Config = toml::Value::Table(table).try_into().map_err(|error: toml::de::Error| {
            ConfigError::Value { what: error::without_address(error.message()) }
        })?;
        config.check()?;
        Ok(config)
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

    /// Every line that is commented out with `#` and no blank is a setting that works once the mark is taken away.
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
