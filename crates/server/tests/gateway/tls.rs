//! An upstream over TLS: reached where the system trusts it, and proven to have been sent nothing where not.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::process::Program;
use crate::test_gateway::{Talk, code};

/// An authority of one's own, and a server that it vouches for.
async fn server() -> (String, u16) {
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
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 4\r\n\r\nmade").await;
            let _ = stream.shutdown().await;
        }
    });
    (authority.as_ref().pem(), port)
}

#[tokio::test]
async fn an_upstream_that_the_system_trusts_is_reached_and_another_is_sent_nothing() {
    let (authority, port) = server().await;
    let (other, _) = server().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("roots.pem");
    for (trusted, name, told) in [
        (&authority, "localhost", None),
        (&other, "localhost", Some("upstream-unreachable")),
        (&authority, "127.0.0.1", Some("upstream-unreachable")),
    ] {
        std::fs::write(&file, trusted).expect("a file");
        let gateway = Program::before(&format!("https://{name}:{port}"), "", &file).await;
        let mut client = Talk::to(gateway.address()).await;
        client.say("POST /a HTTP/1.1\nHost: a\nIdempotency-Key: k\nContent-Length: 0\n\n").await;
        let (answer, body) = client.message().await;
        match told {
            None => assert_eq!((answer.status(), body.as_str()), (201, "made")),
            Some(told) => assert_eq!((answer.status(), code(&body).as_str()), (502, told), "{name}"),
        }
    }
}
