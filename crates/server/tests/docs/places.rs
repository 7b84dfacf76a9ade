//! The addresses and paths that pages name, and what stands in for them.
//!
//! Pages name the ports that a reader has: 7070 of a server, 8080 of an API, 8081 and 8082 of a gateway. Tests run
//! beside each other, and beside such servers, so every page gets free ones.

use std::path::Path;

use redrive_testkit::postgres::{Server as Postgres, a_name, a_port};

/// The ports that pages name.
const PORTS: [u16; 4] = [7070, 8080, 8081, 8082];
/// Folders that pages name and that are the system's.
const FOLDERS: [&str; 3] = ["/etc/redrive", "/var/lib/redrive", "/var/backups"];
/// How pages write the address of a database.
const DATABASES: [&str; 3] =
    ["postgres://redrive@localhost/shop", "postgres://shop@localhost/shop", "postgres://localhost/shop"];

/// What a page's names stand for.
pub(crate) struct Places {
    pairs: Vec<(String, String)>,
    ports: Vec<(u16, u16)>,
}

impl Places {
    /// Free ports, folders below `folder`, and a database if the script names one.
    pub(crate) fn find(folder: &Path, script: &str) -> Self {
        let ports: Vec<_> = PORTS.into_iter().map(|port| (port, a_port().expect("a port"))).collect();
        let mut pairs = Vec::new();
        for (named, free) in &ports {
            for host in ["127.0.0.1", "localhost"] {
                pairs.push((format!("{host}:{named}"), format!("127.0.0.1:{free}")));
            }
        }
        pairs.extend(FOLDERS.map(|it| (it.to_owned(), format!("{}{it}", folder.display()))));
        if DATABASES.iter().any(|it| script.contains(it)) {
            let address = database();
            pairs.extend(DATABASES.map(|it| (it.to_owned(), address.clone())));
        }
        for made in FOLDERS {
            std::fs::create_dir_all(folder.join(&made[1..])).expect("a folder");
        }
        Self { pairs, ports }
    }

    /// The text, with what is there instead of what is named.
    pub(crate) fn put_into(&self, script: &str) -> String {
        self.pairs.iter().fold(script.to_owned(), |text, (named, is)| text.replace(named, is))
    }

    /// The free port for a named one.
    pub(crate) fn port(&self, named: u16) -> u16 {
        self.ports.iter().find(|(it, _)| *it == named).expect("a port of the list").1
    }
}

/// The address of an empty database.
fn database() -> String {
    let (server, name) = (Postgres::shared().url(), a_name("docs"));
    let mut make = std::process::Command::new("psql");
    make.args([&server, "-qc"]).arg(format!("CREATE DATABASE {name}"));
    let made = make.output().expect("psql is needed: `cargo xtask install`");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    server.replace("/postgres?", &format!("/{name}?"))
}
