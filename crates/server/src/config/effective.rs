//! The settings in force, each with where it came from.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::{ConfigError, DEFAULT, Source};

/// What stands for a value that may be secret.
const HIDDEN: &str = "…";

/// A setting in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Its name, as `server.listen`.
    pub name: String,
    /// Its value as TOML; one that may be secret is hidden.
    pub value: String,
    /// Where it came from: `default`, a file, a variable, a flag.
    pub origin: String,
}

impl Source {
    /// Every setting in force, by name.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn settings(&self) -> Result<Vec<Setting>, ConfigError> {
        let config = self.load()?;
        let mut all: BTreeMap<String, (Value, String)> = BTreeMap::new();
        let mut put = |values: Vec<(String, Value)>, origin: &str| {
            // What replaces a table replaces all of it.
            for (name, _) in &values {
                let below = format!("{name}.");
                all.retain(|other, _| !other.starts_with(&below));
            }
            all.extend(values.into_iter().map(|(name, value)| (name, (value, origin.to_owned()))));
        };
        let defaults: Table =
            toml::from_str(DEFAULT).map_err(|error| ConfigError::value(error.to_string()))?;
        put(leaves("", &Value::Table(defaults)), "default");
        for (name, queue) in &config.queues {
            let policy =
                Value::try_from(&queue.policy).map_err(|error| ConfigError::value(error.to_string()))?;
            put(leaves(&format!("queues.{name}.policy"), &policy), "default");
            let window = humantime::format_duration(queue.window).to_string();
            put(vec![(format!("queues.{name}.window"), Value::String(window))], "default");
        }
        if let Some(path) = self.path() {
            let file = super::read(&path)?;
            put(leaves("", &Value::Table(file)), &path.display().to_string());
        }
        for layer in &self.layers {
            for (origin, name, value) in layer.named() {
                put(vec![(name, value)], origin);
            }
        }
        let setting = |(name, (value, origin)): (String, (Value, String))| {
            let value = if is_secret(&name) { format!("\"{}\"", hidden(&value)) } else { value.to_string() };
            Setting { name, value, origin }
        };
        Ok(all.into_iter().map(setting).collect())
    }
}

/// The plain values in a table, with their names.
fn leaves(name: &str, value: &Value) -> Vec<(String, Value)> {
    match value {
        Value::Table(table) if !table.is_empty() => {
            let below = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
            table.iter().flat_map(|(key, value)| leaves(&below(key), value)).collect()
        }
        value => vec![(name.to_owned(), value.clone())],
    }
}

/// Whether a value may hold a password or a token.
fn is_secret(name: &str) -> bool {
    name == "store.address"
        || name == "notify.url"
        || name.contains(".push.headers.")
        || name.ends_with(".push.url")
}

/// A value without what may be secret in it.
fn hidden(value: &Value) -> String {
    let Some(text) = value.as_str() else { return HIDDEN.to_owned() };
    if text.starts_with("sqlite:") || text.starts_with("postgres") || text.starts_with("memory:") {
        return redrive::engine::shown(text);
    }
    match url::Url::parse(text) {
        Ok(url) if url.has_host() => format!("{}/{HIDDEN}", url.origin().ascii_serialization()),
        _ => HIDDEN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layer;

    #[test]
    fn every_setting_says_where_it_came_from_and_no_secret() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("redrive.toml");
        let text = "[server]\nlisten = \"127.0.0.1:1\"\nbody_max = 17\n[store]\naddress = \"postgres://ann:hush@db/shop\"\n\
                    [queues.a.push]\nurl = \"https://a.example/hush\"\nheaders = { authorization = \"Bearer hush\" }\n\
                    [queues.a.policy]\nattempts = 5\n";
        std::fs::write(&file, text).expect("settings");
        let variable = ("REDRIVE_SERVER_BODY_MAX".to_owned(), "18".to_owned());
        let layers =
            vec![Layer::variables([variable]), Layer::flag("--listen", ["server", "listen"], "127.0.0.1:2")];
        let all = Source { file: Some(file.clone()), layers }.settings().expect("settings");
        let of = |name: &str| {
            let one =
                all.iter().find(|setting| setting.name == name).unwrap_or_else(|| panic!("{name}: {all:?}"));
            (one.value.clone(), one.origin.clone())
        };
        let file = file.display().to_string();
        assert_eq!(of("server.listen"), ("\"127.0.0.1:2\"".to_owned(), "--listen".to_owned()));
        assert_eq!(of("server.body_max"), ("18".to_owned(), "REDRIVE_SERVER_BODY_MAX".to_owned()));
        assert_eq!(of("server.batch_max"), ("10000".to_owned(), "default".to_owned()));
        assert_eq!(of("queues.a.policy.attempts"), ("5".to_owned(), file));
        assert_eq!(of("queues.a.policy.not_before_max"), ("\"1h\"".to_owned(), "default".to_owned()));
        assert!(!format!("{all:?}").contains("hush"), "{all:?}");
    }
}
