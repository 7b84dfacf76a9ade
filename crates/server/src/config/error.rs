//! Configuration errors: what, where, and the likely intention.

use std::path::{Path, PathBuf};

/// Maximum distance of a suggestion: edits, as a share of the length.
const NEAR: f64 = 0.5;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in the file is wrong.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// The error, and the likely intention.
        what: String,
    },
    /// A variable of the environment is wrong.
    #[error("{name}: {what}")]
    Variable {
        /// Which.
        name: String,
        /// The error, and the likely intention.
        what: String,
    },
    /// The settings together make no sense.
    #[error("{what}")]
    Value {
        /// The error, and what to do.
        what: String,
    },
}

impl ConfigError {
    /// Settings that make no sense, in words.
    pub(super) fn value(what: impl Into<String>) -> Self {
        Self::Value { what: what.into() }
    }

    pub(super) fn in_file(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let before = error.span().map_or("", |span| text.get(..span.start).unwrap_or(text));
        let line = before.matches('\n').count() + 1;
        let what = section(text, line, error.message()).unwrap_or_else(|| with_hint(error.message()));
        Self::Line { path: path.to_owned(), line, what }
    }
}

/// What to write where a section has a value instead: `store = "sqlite:redrive.db"`.
fn section(text: &str, line: usize, message: &str) -> Option<String> {
    if !message.starts_with("invalid type:") || !message.contains("expected struct") {
        return None;
    }
    let name = text.lines().nth(line - 1)?.split('=').next()?.trim();
    // The documented default shows the first setting of each section.
    let example = super::DEFAULT.split_once(&format!("\n[{name}]\n"))?.1;
    let example = example.lines().map(|line| line.strip_prefix('#').unwrap_or(line));
    let example = example.into_iter().find(|line| !line.starts_with(' ') && line.contains(" = "))?;
    Some(format!("`{name}` is a section with settings; write [{name}] and below it, for example, {example}"))
}

/// Serde's message, without the value if it is an address, which may contain a password.
pub(super) fn without_address(message: &str) -> String {
    match message.split_once("string \"") {
        Some((before, rest)) if rest.contains(':') => {
            let after = rest.rsplit_once('"').map_or("", |(_, after)| after);
            format!("{before}a string{after}")
        }
        _ => message.to_owned(),
    }
}

/// What serde says of a name that does not exist, cut down to the nearest ones.
pub(super) fn with_hint(message: &str) -> String {
    let message = &without_address(message.trim_end());
    let Some((unknown, expected)) = message.split_once(", expected ") else { return message.to_owned() };
    let mut quoted = unknown.split('`');
    let (Some(what), Some(name)) = (quoted.next(), quoted.next()) else { return message.to_owned() };
    if !what.starts_with("unknown ") {
        return message.to_owned();
    }
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("{what}`{name}`; did you mean `{near}`?"),
        None => format!("{what}`{name}`; there are {}", known.join(", ")),
    }
}

/// The most similar word, if one is close.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().map(|known| (strsim::normalized_damerau_levenshtein(word, known), known));
    let (likeness, known) = near.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (likeness >= NEAR).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_wrong_name_is_told_with_its_line_and_the_nearest_right_one() {
        let text = "[server]\nlisten = \"127.0.0.1:1\"\nbody_maximum = 3\n";
        let error = toml::from_str::<Config>(text).unwrap_err();
        let told = ConfigError::in_file(Path::new("redrive.toml"), text, &error).to_string();
        assert_eq!(told, "redrive.toml:3: unknown field `body_maximum`; did you mean `body_max`?");
    }

    #[test]
    fn a_wrong_value_is_told_with_its_line() {
        let text = "[server]\n\nbody_time = 3\n";
        let error = toml::from_str::<Config>(text).unwrap_err();
        let told = ConfigError::in_file(Path::new("redrive.toml"), text, &error).to_string();
        assert!(told.starts_with("redrive.toml:3: ") && told.contains("write it as"), "{told}");
    }

    #[test]
    fn a_value_in_place_of_a_section_is_told_with_what_to_write() {
        let text = "store = \"sqlite:redrive.db\"\n";
        let error = toml::from_str::<Config>(text).unwrap_err();
        let told = ConfigError::in_file(Path::new("redrive.toml"), text, &error).to_string();
        let expected = "redrive.toml:1: `store` is a section with settings; write [store] and below it, for example, \
                        address = \"sqlite:redrive.db\"";
        assert_eq!(told, expected);
    }

    #[test]
    fn what_is_like_nothing_is_told_with_all_there_is() {
        let told = with_hint("unknown field `zzz`, expected one of `listen`, `store`");
        assert_eq!(told, "unknown field `zzz`; there are listen, store");
    }
}
