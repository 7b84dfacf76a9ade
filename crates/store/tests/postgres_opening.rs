//! Opening: TLS, passwords and their sources, refusals and their messages, without a secret in any of them.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use redrive_store::postgres::PostgresSettings;
use redrive_store::postgres::sqlx::{AssertSqlSafe, Connection, PgConnection, Row, raw_sql};
use redrive_store::{Postgres, StoreError, prelude::*};
use redrive_testkit::postgres::{Disk, Server, a_port};

const SECRET: &str = "hush-4711";

/// A server that admits `ann` over TLS only, with her password.
struct Guarded {
    server: Server,
    port: u16,
    authority: String,
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

impl Guarded {
    async fn start() -> Self {
        let mut server = Server::start(Disk::Fast).unwrap();
        let ours = authority("ours");
        let key = KeyPair::generate().unwrap();
        let names = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = names.signed_by(&key, &ours).unwrap();
        let certificate = server.give("server.crt", &certificate.pem()).unwrap();
        let key = server.give("server.key", &key.serialize_pem()).unwrap();
        let rules = "local all redrive trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n";
        let rules = server.give("rules", rules).unwrap();
        let authority = server.give("authority.crt", &ours.pem()).unwrap();
        server.give("stranger.crt", &self::authority("stranger").pem()).unwrap();
        let mut raw = PgConnection::connect(&server.url()).await.unwrap();
        let make =
            format!("CREATE ROLE ann LOGIN PASSWORD '{SECRET}'; GRANT CREATE ON DATABASE postgres TO ann");
        raw_sql(AssertSqlSafe(make)).execute(&mut raw).await.unwrap();
        raw.close().await.unwrap();
        let port = a_port().unwrap();
        let settings = [
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", certificate.display()),
            format!("ssl_key_file={}", key.display()),
            format!("hba_file={}", rules.display()),
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        server.restart_with(&settings).unwrap();
        Self { server, port, authority: authority.display().to_string() }
    }

    fn url(&self, more: &str) -> String {
        format!("postgres://ann:{SECRET}@localhost:{}/postgres?{more}", self.port)
    }

    fn stranger(&self) -> String {
        self.authority.replace("authority", "stranger")
    }
}

async fn open(url: &str) -> Result<Postgres, StoreError> {
    let mut settings = PostgresSettings::default();
    settings.schema = redrive_testkit::postgres::a_name("opened");
    Postgres::open(url, settings).await
}

/// Everything that an error says, in all its forms.
fn all_of(error: &StoreError) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = format!("{text} {next} {next:?}");
        cause = next.source();
    }
    text
}

#[tokio::test]
async fn tls_is_spoken_with_those_that_are_trusted() {
    let guarded = Guarded::start().await;
    let full = format!("sslmode=verify-full&sslrootcert={}", guarded.authority);
    for more in ["sslmode=require", "sslmode=prefer", &full] {
        let store = open(&guarded.url(more)).await.unwrap_or_else(|error| panic!("{more}: {error}"));
        let shown = format!("{store:?} {}", store.domain());
        assert!(!shown.contains(SECRET) && shown.contains("localhost"), "{shown}");
        store.close().await.unwrap();
    }
    let strange = format!("sslmode=verify-full&sslrootcert={}", guarded.stranger());
    for (url, told) in [
        (guarded.url(&strange), "sslrootcert"),
        // A URL that names an authority wants it to be verified.
        (guarded.url(&strange.replace("verify-full", "require")), "sslrootcert"),
        // The certificate is for `localhost` only.
        (guarded.url(&full).replace("@localhost", "@127.0.0.1"), "sslrootcert"),
        (guarded.url("sslmode=disable"), "sslmode=require"),
    ] {
        let error = open(&url).await.unwrap_err();
        let said = all_of(&error);
        assert!(error.to_string().contains(told) && !said.contains(SECRET), "{said}");
    }
    // A file that is not there.
    let error = open(&guarded.url("sslmode=verify-full&sslrootcert=/no/such/file")).await.unwrap_err();
    assert!(!all_of(&error).contains(SECRET), "{error}");
    drop(guarded.server);
}

#[tokio::test]
async fn what_is_wrong_is_told_with_what_to_do_and_without_the_secret() {
    let guarded = Guarded::start().await;
    let right = guarded.url("sslmode=require");
    let wrong = |from: &str, to: &str| right.replace(from, to);
    let by_root =
        format!("host={}&port={}", guarded.authority.trim_end_matches("/authority.crt"), guarded.port);
    let mut raw =
        PgConnection::connect(&format!("postgres://redrive@localhost/postgres?{by_root}")).await.unwrap();
    for say in ["CREATE ROLE bob LOGIN CONNECTION LIMIT 0", "CREATE ROLE eve LOGIN", "CREATE DATABASE closed"]
    {
        raw_sql(say).execute(&mut raw).await.unwrap();
    }
    let password = format!("ALTER ROLE bob PASSWORD '{SECRET}'; ALTER ROLE eve PASSWORD '{SECRET}'");
    raw_sql(AssertSqlSafe(password)).execute(&mut raw).await.unwrap();
    for (url, told) in [
        (wrong(SECRET, "hush-0815"), "the user or the password is wrong"),
        (wrong("/postgres?", "/nowhere?"), "createdb"),
        (wrong("ann:", "bob:"), "max_connections"),
        (wrong("ann:", "eve:"), "grant this user CREATE"),
        (wrong("?sslmode", "?sslmood"), "`sslmood`"),
        (format!("{right}&sslpassword={SECRET}"), "`sslpassword`"),
        (wrong("?sslmode=require", &format!("?sslmode={SECRET}x")), "not that of a PostgreSQL database"),
        (wrong(&format!(":{}", guarded.port), ":1"), "it cannot be reached"),
        (wrong(&format!(":{}", guarded.port), ":x"), "not that of a PostgreSQL database"),
    ] {
        let error = open(&url).await.unwrap_err();
        let said = all_of(&error);
        assert!(error.to_string().contains(told), "{told}: {error}");
        let is_mode = url.contains("sslmode=hush");
        assert!(is_mode || (!said.contains(SECRET) && !said.contains("hush-0815")), "{said}");
    }
    // As a parameter it is as good, and as secret.
    let store = open(&wrong(&format!(":{SECRET}@"), "@").replace('?', &format!("?password={SECRET}&")))
        .await
        .unwrap();
    assert!(!format!("{store:?} {}", store.domain()).contains(SECRET));
}

/// The child of the next test: opens what the variables say.
#[tokio::test]
async fn child_opens_what_the_variables_say() {
    if std::env::var_os("REDRIVE_TEST_CHILD").is_none() {
        return;
    }
    match open("postgres://").await {
        Ok(store) => {
            println!("opened {}", store.domain());
            store.close().await.unwrap();
        }
        Err(error) => println!("refused {error} {error:?}"),
    }
}

#[tokio::test]
async fn an_address_may_be_all_in_the_variables() {
    let guarded = Guarded::start().await;
    let pass = format!("localhost:{}:postgres:ann:{SECRET}\n", guarded.port);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pass");
    std::fs::write(&file, pass).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let child = |variables: &[(&str, &str)]| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_opens_what_the_variables_say", "--nocapture"]);
        command.env("REDRIVE_TEST_CHILD", "1").env("PGHOST", "localhost").env("PGUSER", "ann");
        command
            .env("PGPORT", guarded.port.to_string())
            .env("PGDATABASE", "postgres")
            .env_remove("PGPASSWORD");
        command.env("PGPASSFILE", folder.path().join("none"));
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!said.contains(SECRET), "{said}");
        said
    };
    let full = [("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", guarded.authority.as_str())];
    let strange = guarded.stranger();
    let file = file.display().to_string();
    let opened = format!("opened the PostgreSQL database localhost:{}/postgres", guarded.port);
    for (name, variables, told) in [
        ("password", vec![("PGPASSWORD", SECRET)], opened.as_str()),
        ("file", vec![("PGPASSFILE", file.as_str())], &opened),
        ("none", vec![], "refused"),
        ("tls", [vec![("PGPASSWORD", SECRET)], full.to_vec()].concat(), &opened),
        (
            "stranger",
            vec![("PGPASSWORD", SECRET), ("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", strange.as_str())],
            "refused",
        ),
        ("mode", vec![("PGPASSWORD", SECRET), ("PGSSLMODE", "verify-ful")], "PGSSLMODE is `verify-ful`"),
        ("port", vec![("PGPASSWORD", SECRET), ("PGPORT", "many")], "PGPORT is `many`"),
    ] {
        let said = child(&variables);
        assert!(said.contains(told), "{name}: {said}");
    }
}

/// The store never connects without TLS if TLS was requested.
#[tokio::test]
async fn a_server_without_tls_is_not_spoken_to_where_tls_is_asked_for() {
    let mut server = Server::start(Disk::Fast).unwrap();
    let port = a_port().unwrap();
    server.restart_with(&["listen_addresses=127.0.0.1", &format!("port={port}")]).unwrap();
    let url = |mode: &str| format!("postgres://redrive@localhost:{port}/postgres?sslmode={mode}");
    open(&url("prefer")).await.unwrap().close().await.unwrap();
    for mode in ["require", "verify-ca", "verify-full"] {
        let error = open(&url(mode)).await.unwrap_err();
        assert!(matches!(error, StoreError::Open { .. }), "{mode}: {error}");
    }
}

/// All connections of an open store use TLS, not only the first one.
#[tokio::test]
async fn all_connections_speak_tls() {
    let guarded = Guarded::start().await;
    let store = open(&guarded.url("sslmode=require")).await.unwrap();
    store.count(redrive_core::Moment::default()).await.unwrap();
    let by_root =
        format!("host={}&port={}", guarded.authority.trim_end_matches("/authority.crt"), guarded.port);
    let mut raw =
        PgConnection::connect(&format!("postgres://redrive@localhost/postgres?{by_root}")).await.unwrap();
    let bare = "SELECT count(*) FILTER (WHERE NOT ssl), count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                WHERE usename = 'ann'";
    let row = raw_sql(bare).fetch_one(&mut raw).await.unwrap();
    let (bare, all): (i64, i64) = (row.get(0), row.get(1));
    assert!(bare == 0 && all > 0, "{bare} of {all}");
    store.close().await.unwrap();
}
