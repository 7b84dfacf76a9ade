//! Overrides from the environment and from flags.
//!
//! `REDRIVE_SERVER_LISTEN` is `listen` of `[server]`. Every plain value of a fixed section can be set so; queues,
//! tokens and tenants have names and are set in the file.

use super::error::{ConfigError, nearest, with_hint};
use super::{Config, DEFAULT};

/// The prefix of every variable.
const PREFIX: &str = "REDRIVE_";

/// Variables that are not server settings: of the command line, the build, tests.
const OTHERS: &[&str] =
    &["REDRIVE_CONFIG", "REDRIVE_URL", "REDRIVE_TOKEN", "REDRIVE_STORE", "REDRIVE_LOG", "REDRIVE_AS"];

/// Values to lay over a configuration.
#[derive(Debug, Clone)]
pub struct Layer {
    /// The source of a value, for errors: a variable, a flag.
    values: Vec<(String, [&'static str; 2], String)>,
    /// Unknown names.
    unknown: Vec<String>,
}

impl Layer {
    /// The overrides of the environment.
    #[must_use]
    pub fn environment() -> Self {
        let text = |text: std::ffi::OsString| text.into_string().ok();
        Self::variables(std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))))
    }

    /// What these variables say.
    pub fn variables(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let settings = settings();
        let (mut values, mut unknown) = (Vec::new(), Vec::new());
        for (name, value) in variables.into_iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            match settings.iter().find(|(variable, _)| *variable == name) {
                Some((_, place)) => values.push((name, *place, value)),
                None if OTHERS.contains(&name.as_str()) || is_of_others(&name) => {}
                None => unknown.push(name),
            }
        }
        Self { values, unknown }
    }

    /// The override of a flag.
    #[must_use]
    pub fn flag(flag: &str, place: [&'static str; 2], value: impl Into<String>) -> Self {
        Self { values: vec![(flag.to_owned(), place, value.into())], unknown: Vec::new() }
    }

    /// Its values: where each came from, its name, and the value.
    pub(super) fn named(&self) -> impl Iterator<Item = (&str, String, toml::Value)> {
        let values = self.values.iter();
        values.map(|(from, [section, key], value)| {
            (from.as_str(), format!("{section}.{key}"), like(value, key))
        })
    }

    pub(super) fn lay_over(&self, table: &mut toml::Table) -> Result<(), ConfigError> {
        if let Some(name) = self.unknown.first() {
            let known = settings();
            let near = nearest(name, known.iter().map(|(known, _)| known.as_str()));
            let what = match near {
                Some(near) => format!("there is no such setting; did you mean {near}?"),
                None => "there is no such setting; `redrive config --default` lists them".to_owned(),
            };
            return Err(ConfigError::Variable { name: name.clone(), what });
        }
        for (name, [section, key], value) in &self.values {
            let wrong = |what: &str| ConfigError::Variable { name: name.clone(), what: what.to_owned() };
            let section = table.entry(*section).or_insert_with(|| toml::Table::new().into());
            let section = section.as_table_mut().ok_or_else(|| wrong("its section is not a table"))?;
            section.insert((*key).to_owned(), like(value, key));
            // The table was valid before, so the error is in this value.
            let all = toml::Value::Table(table.clone());
            all.try_into::<Config>().map_err(|error| wrong(&with_hint(error.message())))?;
        }
        Ok(())
    }
}

/// Variables of our builds, and those that Kubernetes sets beside a service called `redrive`.
fn is_of_others(name: &str) -> bool {
    let cluster = ["REDRIVE_SERVICE_HOST", "REDRIVE_SERVICE_PORT", "REDRIVE_PORT"];
    name.starts_with("REDRIVE_CI")
        || cluster.iter().any(|known| {
            name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        })
}

/// A value as its setting wants it: a number or a truth where the default is one, or it looks like a list.
fn like(value: &str, key: &str) -> toml::Value {
    let text = || toml::Value::String(value.to_owned());
    let parsed = toml::from_str::<toml::Table>(&format!("{key} = {value}")).ok();
    match parsed.and_then(|mut table| table.remove(key)) {
        Some(value @ (toml::Value::Integer(_) | toml::Value::Boolean(_) | toml::Value::Array(_))) => value,
        _ => text(),
    }
}

/// Every plain setting: its variable, its section and its key, read off the documented default.
fn settings() -> Vec<(String, [&'static str; 2])> {
    let mut section = "";
    let mut settings = Vec::new();
    for line in DEFAULT.lines() {
        // Settings without a default are included, commented out.
        let line = line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line);
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            section = if name.contains(['.', '[']) { "" } else { name };
        } else if let Some((key, _)) = line.split_once(" = ")
            && !section.is_empty()
            && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        {
            settings.push((format!("{PREFIX}{section}_{key}").to_uppercase(), [section, key]));
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    fn load(variables: &[(&str, &str)]) -> Result<super::super::Config, ConfigError> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut table = toml::Table::new();
        Layer::variables(variables.iter().map(own)).lay_over(&mut table)?;
        toml::Value::Table(table).try_into().map_err(|error| ConfigError::value(format!("{error}")))
    }

    #[test]
    fn a_variable_sets_what_it_names() {
        let config = load(&[("REDRIVE_SERVER_LISTEN", "127.0.0.1:9"), ("REDRIVE_SERVER_BODY_MAX", "17")]);
        let config = config.expect("both are settings");
        assert_eq!((config.server.listen.to_string().as_str(), config.server.body_max), ("127.0.0.1:9", 17));
        let config = load(&[("REDRIVE_LEDGER_KEY_FILES", r#"["/a", "/b"]"#)]).expect("a setting");
        assert_eq!(config.ledger.key_files, ["/a", "/b"].map(std::path::PathBuf::from));
    }

    #[test]
    fn a_misspelt_variable_is_refused_with_the_nearest() {
        let error = load(&[("REDRIVE_SERVER_LISTN", "127.0.0.1:9")]).unwrap_err();
        let told = "REDRIVE_SERVER_LISTN: there is no such setting; did you mean REDRIVE_SERVER_LISTEN?";
        assert_eq!(error.to_string(), told);
    }

    #[test]
    fn what_a_cluster_sets_is_no_setting() {
        let cluster = [
            ("REDRIVE_SERVICE_HOST", "10.0.0.1"),
            ("REDRIVE_SERVICE_PORT_HTTP", "7070"),
            ("REDRIVE_PORT", "tcp://10.0.0.1:7070"),
            ("REDRIVE_PORT_7070_TCP_ADDR", "10.0.0.1"),
        ];
        assert_eq!(load(&cluster).expect("none is ours"), super::super::Config::default());
        assert!(load(&[("REDRIVE_PORTS", "1")]).is_err());
    }

    #[test]
    fn a_value_that_is_none_is_told_with_its_variable() {
        let error = load(&[("REDRIVE_SERVER_BODY_MAX", "abc")]).unwrap_err().to_string();
        assert!(error.starts_with("REDRIVE_SERVER_BODY_MAX: ") && error.contains("\"abc\""), "{error}");
        let flag = Layer::flag("--listen", ["server", "listen"], "here");
        let error = Source { file: None, layers: vec![flag] }.load().unwrap_err().to_string();
        assert!(error.starts_with("--listen: "), "{error}");
    }

    #[test]
    fn flags_are_over_the_environment() {
        let variable = ("REDRIVE_SERVER_LISTEN".to_owned(), "127.0.0.1:9".to_owned());
        let layers =
            vec![Layer::variables([variable]), Layer::flag("--listen", ["server", "listen"], "127.0.0.1:10")];
        let source = Source { file: None, layers };
        assert_eq!(source.load().expect("fine").server.listen.port(), 10);
    }
}
