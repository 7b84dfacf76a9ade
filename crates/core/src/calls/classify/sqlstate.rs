//! SQLSTATE: the five-character error codes of PostgreSQL and the SQL standard.

use crate::disposition::Fault;

/// Knows SQLSTATE codes, from any driver.
///
/// | code | means |
/// |---|---|
/// | `40001`, `40P01`, `55P03`: serialisation, deadlock, lock not available | retry; the transaction was rolled back, not executed |
/// | `08xxx`: connection | retry, unknown: the cut may have come after COMMIT; `08001` and `08004` never connected |
/// | `57P01`–`57P03`, `57P05`: shutting down, starting up, idle time-out | retry, unknown; `57P03` never got in |
/// | `57014`: query cancelled, as by a statement time-out | retry, rolled back, not executed |
/// | `53xxx`: out of resources, too many connections | overload, not executed |
/// | `22xxx`, `23xxx`, `42xxx`: data, constraint, syntax or access rule | permanent, not executed |
/// | any other | not known |
///
/// ```
/// use redrive_core::{Fault, classify};
///
/// assert_eq!(classify::sqlstate("40001"), Some(Fault::transient().not_executed()));
/// assert_eq!(classify::sqlstate("23505"), Some(Fault::permanent().not_executed()));
/// ```
#[must_use]
pub fn sqlstate(code: &str) -> Option<Fault> {
    // A SQLSTATE has five characters: SQLite's 5386 is not of class 53.
    let class = code.get(..2).filter(|_| code.len() == 5)?;
    match (code, class) {
        ("40001" | "40P01" | "55P03" | "57014", _) => Some(Fault::transient().not_executed()),
        ("08001" | "08004" | "57P03", _) => Some(Fault::transient().not_executed()),
        ("57P01" | "57P02" | "57P05", _) | (_, "08") => Some(Fault::transient()),
        (_, "53") => Some(Fault::overload()),
        (_, "22" | "23" | "42") => Some(Fault::permanent().not_executed()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_of_the_table_mean_what_it_says() {
        let rolled_back = Some(Fault::transient().not_executed());
        for (code, want) in [
            ("40001", rolled_back),
            ("40P01", rolled_back),
            ("55P03", rolled_back),
            ("57014", rolled_back),
            ("08006", Some(Fault::transient())),
            ("08001", rolled_back),
            ("57P01", Some(Fault::transient())),
            ("57P03", rolled_back),
            ("53300", Some(Fault::overload())),
            ("22001", Some(Fault::permanent().not_executed())),
            ("23505", Some(Fault::permanent().not_executed())),
            ("42P01", Some(Fault::permanent().not_executed())),
            ("XX000", None),
            ("5386", None),
            ("", None),
            ("é", None),
        ] {
            assert_eq!(sqlstate(code), want, "{code}");
        }
    }
}
