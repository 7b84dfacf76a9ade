//! The effects of an external program by idempotency key: one line each, in its own file.
//!
//! The payment provider and the email program are external services, as in production: each deduplicates by
//! `Idempotency-Key` and knows nothing of Redrive. An effect is on the disk before it is acknowledged. A process
//! killed while writing leaves half a line, which is ignored.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// One deed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Effect {
    /// The key that it was asked for under.
    pub(crate) key: String,
    /// The kind of effect: `authorised`, `voided`, `mailed`.
    pub(crate) what: String,
    /// The guest; empty if unknown.
    pub(crate) guest: String,
    /// For what.
    pub(crate) cabin: String,
}

/// The deeds of a program.
#[derive(Debug)]
pub(crate) struct EffectLog {
    file: File,
    /// Each key's last deed, and the number that it was given.
    known: HashMap<String, (u64, Effect)>,
    count: u64,
}

impl EffectLog {
    /// Opens the file, and creates it if missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let text = std::fs::read_to_string(path)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(u64::try_from(whole).unwrap_or(u64::MAX))?;
        let mut register = Self { file, known: HashMap::new(), count: 0 };
        for deed in lines(&text[..whole])? {
            register.remember(deed);
        }
        Ok(register)
    }

    /// The effect of a key.
    pub(crate) fn of(&self, key: &str) -> Option<&(u64, Effect)> {
        self.known.get(key)
    }

    /// Writes a deed down, and gives its number.
    pub(crate) fn write(&mut self, deed: Effect) -> io::Result<u64> {
        let line = serde_json::to_string(&deed)? + "\n";
        self.file.write_all(line.as_bytes())?;
        self.file.sync_data()?;
        Ok(self.remember(deed))
    }

    fn remember(&mut self, deed: Effect) -> u64 {
        self.count += 1;
        self.known.insert(deed.key.clone(), (self.count, deed));
        self.count
    }
}

/// All effects in a file, in order. A line that is being written is left out.
pub(crate) fn deeds(path: &Path) -> io::Result<Vec<Effect>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    lines(&text[..text.rfind('\n').map_or(0, |end| end + 1)])
}

fn lines(text: &str) -> io::Result<Vec<Effect>> {
    text.lines().map(|line| serde_json::from_str(line).map_err(io::Error::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deed(key: &str) -> Effect {
        Effect { key: key.into(), what: "mailed".into(), guest: "Ada".into(), cabin: "17".into() }
    }

    #[test]
    fn half_a_line_counts_for_nothing_and_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deeds");
        EffectLog::open(&path).unwrap().write(deed("one")).unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"key\":\"two").unwrap();
        assert_eq!(deeds(&path).unwrap(), [deed("one")]);

        let mut register = EffectLog::open(&path).unwrap();
        assert!(register.of("two").is_none());
        assert_eq!(register.of("one").map(|(number, _)| *number), Some(1));
        assert_eq!(register.write(deed("two")).unwrap(), 2);
        assert_eq!(deeds(&path).unwrap(), [deed("one"), deed("two")]);
    }
}
