//! The API over TLS: with a certificate that is replaced while the server runs, and with clients that need one.

use std::path::Path;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use tempfile::TempDir;

use crate::test_server::TestServer;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// A certificate for this machine, and its key.
fn issue(by: &Authority, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
    params.extended_key_usages = vec![purpose];
    (params.signed_by(&key, by).expect("a certificate").pem(), key.serialize_pem())
}

fn write(folder: &Path, name: &str, text: &str) {
    // In one step, as a certificate manager does it.
    std::fs::write(folder.join("new"), text).expect("a file");
    std::fs::rename(folder.join("new"), folder.join(name)).expect("a file");
}

fn settings(folder: &TempDir, more: &str) -> String {
    let path = |name: &str| folder.path().join(name).display().to_string();
    format!(
        "[tls]\ncert_file = \"{}\"\nkey_file = \"{}\"\n{more}\n[queues.jobs.pull]\n",
        path("cert"),
        path("key")
    )
}

/// A client that trusts one authority alone.
fn client(trusted: &Authority) -> reqwest::ClientBuilder {
    let root = reqwest::Certificate::from_pem(trusted.as_ref().pem().as_bytes()).expect("a certificate");
    reqwest::Client::builder().no_proxy().tls_certs_only([root]).pool_max_idle_per_host(0)
}

async fn health(server: &TestServer, client: &reqwest::Client) -> Result<u16, reqwest::Error> {
    let port = server.server.as_ref().expect("it runs").address().port();
    let answer = client.get(format!("https://localhost:{port}/healthz")).send().await?;
    Ok(answer.status().as_u16())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_read_again_without_a_restart() {
    let (first, second, folder) = (authority(), authority(), tempfile::tempdir().expect("a folder"));
    let put = |(certificate, key): (String, String)| {
        write(folder.path(), "cert", &certificate);
        write(folder.path(), "key", &key);
    };
    put(issue(&first, ExtendedKeyUsagePurpose::ServerAuth));
    let server = TestServer::open(&settings(&folder, "")).await;
    let trusts = [&first, &second].map(|trusted| client(trusted).build().expect("a client"));
    assert_eq!(health(&server, &trusts[0]).await.expect("an answer"), 200);
    assert!(health(&server, &trusts[1]).await.is_err());
    assert!(server.client.get(server.url("/healthz")).send().await.is_err(), "without TLS");
    // Files that cannot be used leave the certificates as they are.
    write(folder.path(), "cert", "nothing");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(health(&server, &trusts[0]).await.expect("an answer"), 200);
    put(issue(&second, ExtendedKeyUsagePurpose::ServerAuth));
    let replaced = async {
        while health(&server, &trusts[1]).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), replaced).await.expect("it has the new certificate");
    assert!(health(&server, &trusts[0]).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn where_clients_need_a_certificate_one_of_the_right_authority_lets_them_in() {
    let (ours, theirs, folder) = (authority(), authority(), tempfile::tempdir().expect("a folder"));
    let (certificate, key) = issue(&ours, ExtendedKeyUsagePurpose::ServerAuth);
    write(folder.path(), "cert", &certificate);
    write(folder.path(), "key", &key);
    write(folder.path(), "clients", &ours.as_ref().pem());
    let more = format!("client_ca_file = \"{}\"", folder.path().join("clients").display());
    let server = TestServer::open(&settings(&folder, &more)).await;
    let with = |by: &Authority| {
        let (certificate, key) = issue(by, ExtendedKeyUsagePurpose::ClientAuth);
        let identity = reqwest::Identity::from_pem(format!("{certificate}{key}").as_bytes());
        client(&ours).identity(identity.expect("an identity")).build().expect("a client")
    };
    assert_eq!(health(&server, &with(&ours)).await.expect("an answer"), 200);
    assert!(health(&server, &with(&theirs)).await.is_err());
    assert!(health(&server, &client(&ours).build().expect("a client")).await.is_err(), "without one");
}

#[tokio::test]
async fn files_that_cannot_be_used_are_told_at_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let started = async || {
        let mut config: redrive_server::config::Config =
            toml::from_str(&settings(&folder, "")).expect("settings");
        config.server.listen.set_port(0);
        config.store.address = "memory:".to_owned();
        redrive_server::serve::Server::start(config).await.map_err(|error| format!("{error:#}"))
    };
    assert!(started().await.unwrap_err().contains("tls.cert_file"));
    let (one, other) = (authority(), authority());
    write(folder.path(), "cert", &issue(&one, ExtendedKeyUsagePurpose::ServerAuth).0);
    write(folder.path(), "key", &issue(&other, ExtendedKeyUsagePurpose::ServerAuth).1);
    assert!(started().await.unwrap_err().contains("do not belong together"));
}
