//! The address of a database: its URL and the `PG…` variables, and how it is shown.
//!
//! Errors that the driver would ignore are refused here: a parameter that it does not know, which it would also log
//! with its value, and a `PGSSLMODE` that it cannot read, which it would take for "TLS is optional".
//!
//! Errors name parameters and never repeat the URL: a password may be anywhere in it.

use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::error::StoreError;

/// How many prepared statements a connection keeps: all of ours.
const STATEMENTS_KEPT: usize = 256;

/// The parameters that a URL may have after its `?`. A setting of the session, `options[name]`, may be there too.
const PARAMETERS: [&str; 18] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

/// A database, and how to connect to it.
pub(in crate::stores::postgres) struct DatabaseUrl {
    pub(in crate::stores::postgres) options: PgConnectOptions,
    /// Whether a pooler gives every transaction another session.
    pub(in crate::stores::postgres) pooled: bool,
    /// Its address, without secrets.
    pub(in crate::stores::postgres) shown: String,
}

/// Parses a URL. The `PG…` variables fill in what it leaves out.
pub(in crate::stores::postgres) fn read(url: &str) -> Result<DatabaseUrl, StoreError> {
    let wrong = |why: String| StoreError::Open { path: "the database".into(), why, source: None };
    let Asked { pooled, authority } = check(url).map_err(wrong)?;
    check_variables(|name| std::env::var(name).ok()).map_err(wrong)?;
    let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| {
        wrong(format!("its URL is not that of a PostgreSQL database: {error}"))
    })?;
    let database = options.get_database().unwrap_or(options.get_username());
    let shown = format!("{}:{}/{database}", options.get_host(), options.get_port());
    // As other clients read it: a URL that names an authority wants it to be verified.
    let authority = authority || std::env::var_os("PGSSLROOTCERT").is_some();
    let options = match options.get_ssl_mode() {
        PgSslMode::Require if authority => options.ssl_mode(PgSslMode::VerifyCa),
        _ => options,
    };
    let options = options
        .application_name("redrive")
        .statement_cache_capacity(if pooled { 0 } else { STATEMENTS_KEPT })
        // A pooler may refuse it, and there are no such numbers here.
        .extra_float_digits(None)
        .disable_statement_logging();
    Ok(DatabaseUrl { options, pooled, shown })
}

/// Parameters of a URL that the driver does not know.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    /// No prepared statements.
    pooled: bool,
    /// That an authority signed the server's certificate.
    authority: bool,
}

/// What the URL asks for; an error for an unknown parameter.
fn check(url: &str) -> Result<Asked, String> {
    let (_, query) = url.split_once('?').unwrap_or((url, ""));
    let query = query.split('#').next().unwrap_or_default();
    let mut asked = Asked::default();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        asked.pooled |= name == "statement-cache-capacity" && value == "0";
        asked.authority |= matches!(name, "sslrootcert" | "ssl-root-cert" | "ssl-ca");
        let is_option = name.starts_with("options[") || name.starts_with("options%5B");
        if !is_option && !PARAMETERS.contains(&name) {
            // A name is letters; anything else may be a part of a password.
            let is_name = name.len() <= 40
                && name.chars().all(|letter| letter.is_ascii_lowercase() || "-_".contains(letter));
            let named = if is_name { format!("`{name}`") } else { "something".to_owned() };
            return Err(format!(
                "its URL has the unknown parameter {named}; known are {}",
                PARAMETERS.join(", ")
            ));
        }
    }
    Ok(asked)
}

/// Refuses variables that the driver would ignore.
fn check_variables(variable: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    if let Some(mode) = variable("PGSSLMODE")
        && mode.parse::<PgSslMode>().is_err()
    {
        return Err(format!(
            "PGSSLMODE is `{mode}`; use disable, allow, prefer, require, verify-ca or verify-full"
        ));
    }
    if let Some(port) = variable("PGPORT")
        && port.parse::<u16>().is_err()
    {
        return Err(format!("PGPORT is `{port}`, which is not a port"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_knows_is_refused_and_not_repeated() {
        let pooled = |url| check(url).unwrap().pooled;
        assert!(!pooled("postgres://"));
        assert!(!pooled(
            "postgres://a@b/c?sslmode=require&options[search_path]=x&statement-cache-capacity=9"
        ));
        assert!(pooled("postgres://a@b/c?statement-cache-capacity=0"));
        let said = check("postgres://a@b/c?sslpassword=hush&user=a").unwrap_err();
        assert!(said.contains("`sslpassword`") && !said.contains("hush"), "{said}");
        // A question mark in a password that was not written as `%3F`.
        let said = check("postgres://a:hu?SH7@b/c").unwrap_err();
        assert!(said.contains("something") && !said.contains("SH7"), "{said}");
    }

    #[test]
    fn variables_that_would_be_passed_over_are_refused() {
        let said = |name: &'static str, value: &'static str| {
            check_variables(|wanted| (wanted == name).then(|| value.to_owned()))
        };
        assert_eq!(said("PGSSLMODE", "verify-full"), Ok(()));
        assert!(said("PGSSLMODE", "verify-ful").unwrap_err().contains("verify-ca or verify-full"));
        assert_eq!(said("PGPORT", "5433"), Ok(()));
        assert_eq!(said("PGPORT", "x").unwrap_err(), "PGPORT is `x`, which is not a port");
    }
}
