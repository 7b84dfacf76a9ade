//! The command that gives what a page shows, or does what it offers.
//!
//! Words are quoted for a shell, so the line can be copied whatever an id contains.

use std::fmt;

/// A command line of `redrive`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Command {
    /// The program and the names of the command.
    begin: Vec<String>,
    flags: Vec<String>,
    /// Arguments without a name, which come last.
    words: Vec<String>,
}

impl Command {
    /// A command by its words, such as `dead ls`.
    pub(crate) fn new(words: &str) -> Self {
        let begin = std::iter::once("redrive").chain(words.split(' ')).map(str::to_owned).collect();
        Self { begin, ..Self::none() }
    }

    /// No command.
    pub(crate) const fn none() -> Self {
        Self { begin: Vec::new(), flags: Vec::new(), words: Vec::new() }
    }

    /// With an argument.
    pub(crate) fn word(mut self, word: &str) -> Self {
        self.words.push(word.to_owned());
        self
    }

    /// With a flag and its value, if there is one.
    pub(crate) fn flag(mut self, name: &str, value: Option<&str>) -> Self {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.flags.push(format!("--{name}={value}"));
        }
        self
    }

    /// With a flag that has no value.
    pub(crate) fn switch(mut self, name: &str, is_on: bool) -> Self {
        if is_on {
            self.flags.push(format!("--{name}"));
        }
        self
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An id that begins like a flag would be taken for one.
        let end = self.words.iter().any(|word| word.starts_with('-')).then(|| "--".to_owned());
        let all = self.begin.iter().chain(&self.flags).chain(&end).chain(&self.words);
        for (at, word) in all.enumerate() {
            let space = if at > 0 { " " } else { "" };
            write!(f, "{space}{}", quoted(word))?;
        }
        Ok(())
    }
}

/// Quotes a word for a POSIX shell; with `$'…'` where it has characters that no line can show.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if word.chars().all(crate::desk::printing::is_harmless) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut text = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\'' | '\\' => text.extend(['\\', c]),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            c if crate::desk::printing::is_harmless(c) => text.push(c),
            // By its bytes, which mean the same in every locale.
            c => c.to_string().bytes().for_each(|byte| text.push_str(&format!("\\x{byte:02x}"))),
        }
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        let line =
            Command::new("dead show").word("order-17").flag("queue", Some("my orders")).flag("tenant", None);
        assert_eq!(line.to_string(), "redrive dead show '--queue=my orders' order-17");
        let hostile = Command::new("dead show").word("-a$(rm) 'b'\n\u{202e}").switch("body", true);
        assert_eq!(hostile.to_string(), r"redrive dead show --body -- $'-a$(rm) \'b\'\n\xe2\x80\xae'");
        assert_eq!(Command::none().to_string(), "");
    }
}
