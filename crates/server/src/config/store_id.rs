//! Which store a server serves, as a digest of where the store is.
//!
//! The command line finds a server by its address, and another server may listen there. So a server tells this digest to
//! every client, and a command whose configuration names a store compares it with its own. It is computed from the
//! location alone, because a command must be able to refuse also while its store is down. The location itself is told to
//! no client: it may be a path or a host that strangers need not know.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::StoreSettings;

/// The port of a PostgreSQL address without one.
const POSTGRES_PORT: u16 = 5432;
/// How many bytes of the digest are told: enough to tell any two stores apart.
const BYTES: usize = 8;

/// The digest of a store's location.
#[must_use]
pub(crate) fn store_id(settings: &StoreSettings) -> String {
    let mut hasher = Sha256::new();
    hasher.update(location(settings));
    hasher.finalize().iter().take(BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// Where a store is, spelled the same by all that mean the same one.
fn location(settings: &StoreSettings) -> String {
    let address = &settings.address;
    match address.split_once(':') {
        Some(("sqlite", file)) => format!("sqlite:{}", absolute(file.trim_start_matches("//")).display()),
        Some(("postgres" | "postgresql", _)) => database(address, &settings.schema),
        _ => address.clone(),
    }
}

/// The file without links and without a relative part. It need not exist; its folder may not either.
fn absolute(file: &str) -> PathBuf {
    let path = std::path::absolute(file).unwrap_or_else(|_| file.into());
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    match (path.parent().map(Path::canonicalize), path.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => path,
    }
}

/// Host, port, database and schema; what is left out of the address comes from the PG* variables, as when it is opened.
fn database(address: &str, schema: &str) -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Ok(url) = url::Url::parse(address) else { return redrive::engine::shown(address) };
    let said =
        |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let host = url.host_str().filter(|host| !host.is_empty()).map(str::to_owned);
    let host = said("host").or(host).or_else(|| variable("PGHOST")).unwrap_or_default().to_lowercase();
    let host =
        if host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback()) { "localhost" } else { &host };
    let port =
        said("port").or_else(|| url.port().map(|port| port.to_string())).or_else(|| variable("PGPORT"));
    let port = port.unwrap_or_else(|| POSTGRES_PORT.to_string());
    let name = Some(url.path().trim_start_matches('/').to_owned()).filter(|name| !name.is_empty());
    let name = said("dbname").or(name).or_else(|| variable("PGDATABASE"));
    let user = Some(url.username().to_owned()).filter(|user| !user.is_empty()).or_else(|| variable("PGUSER"));
    format!("postgres:{host}:{port}/{}/{schema}", name.or(user).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(address: &str) -> String {
        store_id(&StoreSettings { address: address.to_owned(), ..StoreSettings::default() })
    }

    #[test]
    fn a_file_is_the_same_however_it_is_spelled() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("redrive.db"), folder.path().join("link.db"));
        let before = id(&format!("sqlite:{}", file.display()));
        std::fs::write(&file, "").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        assert_eq!(before, id(&format!("sqlite://{}", file.display())), "also before it exists");
        assert_eq!(before, id(&format!("sqlite:{}", link.display())));
        assert_ne!(before, id(&format!("sqlite:{}", folder.path().join("other.db").display())));
    }

    #[test]
    fn a_database_is_told_by_host_port_name_and_schema_and_not_by_who_opens_it() {
        let one = id("postgres://ann:hush@db.example/shop");
        assert_eq!(one, id("postgresql://bob@DB.example:5432/shop?sslmode=require"));
        assert_eq!(id("postgres://127.0.0.1/shop"), id("postgres://localhost/shop"));
        for other in
            ["postgres://db.example/stock", "postgres://db.example:5433/shop", "postgres://db2.example/shop"]
        {
            assert_ne!(one, id(other), "{other}");
        }
        let schema = StoreSettings {
            address: "postgres://db.example/shop".to_owned(),
            schema: "other".to_owned(),
            ..StoreSettings::default()
        };
        assert_ne!(one, store_id(&schema));
    }
}
