//! Where the value of a destination's header comes from: the configuration itself, a file, or a variable.
//!
//! Credentials in a file or a variable stay out of the configuration, which more people read. They are read when the
//! configuration is: at a start and at a reload.

use std::path::PathBuf;

use serde::Deserialize;

/// The value of a header, or where it is.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum HeaderSource {
    /// The value.
    Text(String),
    /// Where it is.
    Elsewhere(HeaderPlace),
}

/// Where the value of a header is: a file or a variable of the environment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeaderPlace {
    /// A file with the value; white space around it does not count.
    pub file: Option<PathBuf>,
    /// A variable with the value.
    pub env: Option<String>,
    /// What comes before it, such as `Bearer ` with its blank.
    pub prefix: String,
}

/// The value may be a credential.
impl std::fmt::Debug for HeaderSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(…)"),
            Self::Elsewhere(place) => place.fmt(f),
        }
    }
}

impl HeaderSource {
    /// The value.
    ///
    /// # Errors
    /// If the file or the variable cannot be read. The value is not in the message.
    pub fn value(&self) -> Result<String, String> {
        let place = match self {
            Self::Text(value) => return Ok(value.clone()),
            Self::Elsewhere(place) => place,
        };
        let value = match (&place.file, &place.env) {
            (Some(file), None) => {
                crate::secrets::check_private(file)?;
                let text = std::fs::read_to_string(file);
                text.map_err(|error| format!("cannot read {}: {error}", file.display()))?
            }
            (None, Some(name)) => {
                std::env::var(name).map_err(|_| format!("the variable {name} is not set, or is not text"))?
            }
            _ => return Err("name either a `file` or a variable in `env`".to_owned()),
        };
        match value.trim() {
            "" => Err("the value is empty".to_owned()),
            value => Ok(format!("{}{value}", place.prefix)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn source(text: &str) -> HeaderSource {
        #[derive(Deserialize)]
        struct One {
            it: HeaderSource,
        }
        toml::from_str::<One>(&format!("it = {text}")).unwrap_or_else(|error| panic!("{error}")).it
    }

    #[test]
    fn a_value_is_text_or_in_a_file_or_in_a_variable() {
        assert_eq!(source("\"Bearer abc\"").value().as_deref(), Ok("Bearer abc"));
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        std::fs::write(&file, " abc\n").expect("a file");
        let named = format!("{{ file = \"{}\", prefix = \"Bearer \" }}", file.display());
        assert_eq!(source(&named).value().as_deref(), Ok("Bearer abc"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("permissions");
        assert!(source(&named).value().unwrap_err().contains("can be written by other users"));
        let known = std::env::var("PATH").expect("a path");
        assert_eq!(source("{ env = \"PATH\" }").value(), Ok(known));
    }

    #[test]
    fn what_is_missing_is_told_and_a_value_is_not() {
        for (text, told) in [
            ("{ env = \"NO_SUCH_VARIABLE_HERE\" }", "NO_SUCH_VARIABLE_HERE is not set"),
            ("{ file = \"/nowhere/at/all\" }", "/nowhere/at/all"),
            ("{ prefix = \"Bearer \" }", "either a `file`"),
            ("{ file = \"a\", env = \"B\" }", "either a `file`"),
        ] {
            let error = source(text).value().unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
        assert_eq!(format!("{:?}", source("\"Bearer abc\"")), "Text(…)");
    }
}
