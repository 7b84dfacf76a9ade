//! Destinations over TLS: one that the system trusts is reached, and another is not.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::test_server::answer;

/// An authority of one's own, and a destination that it vouches for. Tells of every request.
async fn destination() -> (String, u16, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
    let certificate = params.signed_by(&key, &authority).expect("a certificate");
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key);
    let acceptor = TlsAcceptor::from(Arc::new(config.expect("a configuration")));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                let _ = tell.send("no handshake".to_owned());
                continue;
            };
            let mut head = [0; 4096];
            let read = stream.read(&mut head).await.unwrap_or(0);
            let _ = tell.send(String::from_utf8_lossy(&head[..read]).into_owned());
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
            let _ = stream.shutdown().await;
        }
    });
    (authority.as_ref().pem(), port, told)
}

#[tokio::test]
async fn what_the_system_trusts_is_reached_and_nothing_else_is() {
    let (authority, port, mut told) = destination().await;
    let (other, ..) = destination().await;
    for (trusted, name, reached) in [
        (&authority, "localhost", true),
        // Another authority; and a certificate for another name.
        (&other, "localhost", false),
        (&authority, "127.0.0.1", false),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name);
        std::fs::write(file("roots.pem"), trusted).expect("a file");
        let settings = format!(
            "push.allow = [\"127.0.0.0/8\"]\n[queues.orders.policy]\nattempts = 1\n[queues.orders.push]\nurl = \
             \"https://{name}:{port}/hook\"\n"
        );
        std::fs::write(file("redrive.toml"), settings).expect("a file");
        let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_redrive"))
            .env("REDRIVE_OBSERVE_LOG_FORM", "text")
            .args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--config"])
            .arg(file("redrive.toml"))
            .env("SSL_CERT_FILE", file("roots.pem"))
            .env_remove("SSL_CERT_DIR")
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program");
        let mut said = BufReader::new(program.stderr.take().expect("its talk")).lines();
        let listening = said.next_line().await.expect("its talk").expect("a line");
        let address =
            listening.split("http://").nth(1).and_then(|rest| rest.split(',').next()).expect("an address");
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let url = format!("http://{address}/v1/queues/orders/events");
        assert_eq!(answer(client.post(url).json(&json!({ "id": "a" }))).await.0, 202);
        let got = told.recv().await.expect("it listens");
        assert_eq!(got.starts_with("POST /hook HTTP/1.1\r\n"), reached, "{name}: {got}");
        assert_eq!(got == "no handshake", !reached, "{name}: {got}");
        program.kill().await.expect("its end");
    }
}
