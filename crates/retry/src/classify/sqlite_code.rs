//! SQLite's result codes, whichever driver they came through.
//!
//! An extended code carries its primary code in the low byte, so the table is of primary codes, and codes of
//! future versions fall where their family is.

use redrive_core::Fault;

/// Knows SQLite's result codes, primary (`SQLITE_BUSY`, 5) and extended (`SQLITE_BUSY_SNAPSHOT`, 517) alike.
///
/// | code | means |
/// |---|---|
/// | `BUSY`, also at COMMIT: another connection holds the lock | retry, not executed |
/// | `LOCKED`: another statement of this connection, or of this shared cache, holds the table | retry, not executed |
/// | `PROTOCOL`, `SCHEMA`: lost the race to start, or to use a statement before the schema changed | retry, not executed |
/// | `INTERRUPT`, `ABORT`: this process ended the statement itself, and knows why | permanent, not executed |
/// | `FULL`, `READONLY`, `CANTOPEN`, `PERM`, `AUTH`, `NOTADB`, `NOLFS` | permanent, not executed |
/// | `ERROR`, `CONSTRAINT`, `MISMATCH`, `TOOBIG`, `RANGE`: the statement or its values | permanent, not executed |
/// | `IOERR`, `CORRUPT`, `NOMEM`, `INTERNAL`, `MISUSE` | permanent, unknown |
/// | any other | not known |
///
/// # What has to be repeated
///
/// A BUSY at COMMIT has committed nothing and leaves the transaction open. A `SQLITE_BUSY_SNAPSHOT` (517) means that
/// the transaction reads from an outdated snapshot, and no statement in it can ever write. So an attempt is a whole
/// transaction: begin it inside the closure, and roll it back on failure, as a dropped transaction of most drivers
/// does. `BEGIN IMMEDIATE` takes the lock at the start and never gets a 517.
///
/// # Why so
///
/// - The outcome of an `IOERR` is unknown: a failed sync may or may not have left a commit on the disk, and the next
///   sync may succeed without it. Repeating it is an operator's decision.
/// - A full disk does not empty itself in the time of a few attempts.
/// - `INSERT OR FAIL` keeps the rows before the one that violates a constraint, so "not executed" is wrong for it. If
///   you use it, put your own classifier in front of this one.
///
/// ```
/// use redrive_core::Fault;
/// use redrive_retry::classify;
///
/// let again = Some(Fault::transient().not_executed());
/// assert_eq!(classify::sqlite_code(5), again);
/// assert_eq!(classify::sqlite_code(517), again);
/// assert_eq!(classify::sqlite_code(2067), Some(Fault::permanent().not_executed()), "a unique constraint");
/// ```
#[must_use]
pub fn sqlite_code(code: i32) -> Option<Fault> {
    match code & 0xff {
        BUSY | LOCKED | PROTOCOL | SCHEMA => Some(Fault::transient().not_executed()),
        INTERRUPT | ABORT | FULL | READONLY | CANTOPEN | PERM | AUTH | NOTADB | NOLFS => {
            Some(Fault::permanent().not_executed())
        }
        ERROR | CONSTRAINT | MISMATCH | TOOBIG | RANGE => Some(Fault::permanent().not_executed()),
        IOERR | CORRUPT | NOMEM | INTERNAL | MISUSE => Some(Fault::permanent()),
        _ => None,
    }
}

// From sqlite3.h. They have not changed since 2004 and are part of SQLite's promise of compatibility.
const ERROR: i32 = 1;
const INTERNAL: i32 = 2;
const PERM: i32 = 3;
const ABORT: i32 = 4;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const NOMEM: i32 = 7;
const READONLY: i32 = 8;
const INTERRUPT: i32 = 9;
const IOERR: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const PROTOCOL: i32 = 15;
const SCHEMA: i32 = 17;
const TOOBIG: i32 = 18;
const CONSTRAINT: i32 = 19;
const MISMATCH: i32 = 20;
const MISUSE: i32 = 21;
const NOLFS: i32 = 22;
const AUTH: i32 = 23;
const RANGE: i32 = 25;
const NOTADB: i32 = 26;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_of_the_table_mean_what_it_says() {
        let again = Some(Fault::transient().not_executed());
        let refused = Some(Fault::permanent().not_executed());
        let lost = Some(Fault::permanent());
        for (name, code, want) in [
            ("BUSY", 5, again),
            ("BUSY_RECOVERY", 261, again),
            ("BUSY_SNAPSHOT", 517, again),
            ("BUSY_TIMEOUT", 773, again),
            ("LOCKED", 6, again),
            ("LOCKED_SHAREDCACHE", 262, again),
            ("PROTOCOL", 15, again),
            ("SCHEMA", 17, again),
            ("INTERRUPT", 9, refused),
            ("ABORT", 4, refused),
            ("ABORT_ROLLBACK", 516, refused),
            ("FULL", 13, refused),
            ("READONLY", 8, refused),
            ("READONLY_DBMOVED", 1032, refused),
            ("CANTOPEN", 14, refused),
            ("PERM", 3, refused),
            ("AUTH", 23, refused),
            ("NOTADB", 26, refused),
            ("NOLFS", 22, refused),
            ("ERROR", 1, refused),
            ("CONSTRAINT", 19, refused),
            ("CONSTRAINT_UNIQUE", 2067, refused),
            ("CONSTRAINT_FOREIGNKEY", 787, refused),
            ("MISMATCH", 20, refused),
            ("TOOBIG", 18, refused),
            ("RANGE", 25, refused),
            ("IOERR", 10, lost),
            ("IOERR_FSYNC", 1034, lost),
            ("IOERR_SHMSIZE", 4874, lost),
            ("CORRUPT", 11, lost),
            ("NOMEM", 7, lost),
            ("INTERNAL", 2, lost),
            ("MISUSE", 21, lost),
            ("OK", 0, None),
            ("ROW", 100, None),
            ("DONE", 101, None),
            ("a code of the future", 99, None),
        ] {
            assert_eq!(sqlite_code(code), want, "{name}");
        }
    }
}
