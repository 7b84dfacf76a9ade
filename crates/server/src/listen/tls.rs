//! TLS, with certificates that are read again when their files change.
//!
//! A listener with `[tls]` speaks TLS 1.2 or 1.3 and nothing else. The files are looked at every few seconds, as a
//! certificate manager replaces them without a word to the server. Files that cannot be used are reported, and the
//! certificates before them stay.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::TlsSettings;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("tls.{setting}: cannot read {path}: {why}")]
    File {
        /// Which setting.
        setting: &'static str,
        /// Which file.
        path: String,
        /// Why.
        why: String,
    },
    /// The files do not fit together.
    #[error("[tls]: {0}")]
    Unfit(String),
}

/// The certificates of a listener.
#[derive(Debug)]
pub struct Tls {
    settings: TlsFiles,
    config: ArcSwap<ServerConfig>,
}

#[derive(Debug, Clone)]
struct TlsFiles {
    cert: std::path::PathBuf,
    key: std::path::PathBuf,
    client_ca: Option<std::path::PathBuf>,
}

/// The contents of the files.
#[derive(Clone, PartialEq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Tls {
    /// The certificates of these settings; `None` without TLS.
    ///
    /// # Errors
    /// With the file that cannot be used, and why.
    pub fn load(settings: &TlsSettings) -> Result<Option<Arc<Self>>, TlsError> {
        let (Some(cert), Some(key)) = (settings.cert_file.clone(), settings.key_file.clone()) else {
            return Ok(None);
        };
        let files = TlsFiles { cert, key, client_ca: settings.client_ca_file.clone() };
        crate::secrets::check_private(&files.key)
            .map_err(|why| TlsError::Unfit(format!("key_file: {why}")))?;
        let config = server_config(&Contents::read(&files)?)?;
        Ok(Some(Arc::new(Self { settings: files, config: ArcSwap::from_pointee(config) })))
    }

    /// A connection after its handshake.
    ///
    /// # Errors
    /// If the client speaks no TLS, or has no certificate that is wanted.
    pub(super) async fn accept<S>(&self, stream: S) -> std::io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.config.load_full()).accept(stream).await
    }

    /// Reads the files again when they change, for ever. Connections that are open keep their certificates.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut used = Contents::read(&self.settings).ok();
        let mut tick = tokio::time::interval(LOOK_EVERY);
        loop {
            tick.tick().await;
            let contents = match Contents::read(&self.settings) {
                Ok(contents) if used.as_ref() == Some(&contents) => continue,
                Ok(contents) => contents,
                Err(error) => {
                    // Once for each failure: a file that is missing for hours is one line.
                    if used.take().is_some() {
                        tracing::error!(%error, "cannot read the certificates; the ones in use stay");
                    }
                    continue;
                }
            };
            match server_config(&contents) {
                Ok(config) => {
                    self.config.store(Arc::new(config));
                    tracing::info!("certificates loaded");
                }
                // The key is often replaced a moment after the certificate.
                Err(error) => tracing::error!(%error, "cannot use the certificates; the ones in use stay"),
            }
            used = Some(contents);
        }
    }
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = |setting, path: &Path| {
            std::fs::read(path).map_err(|error| TlsError::File {
                setting,
                path: path.display().to_string(),
                why: error.to_string(),
            })
        };
        let client_ca = files.client_ca.as_deref().map(|path| read("client_ca_file", path)).transpose()?;
        Ok(Self { cert: read("cert_file", &files.cert)?, key: read("key_file", &files.key)?, client_ca })
    }
}

fn server_config(contents: &Contents) -> Result<ServerConfig, TlsError> {
    let unfit = |what: &str, why: &dyn std::fmt::Display| TlsError::Unfit(format!("{what}: {why}"));
    let chain: Vec<_> = certificates(&contents.cert).map_err(|why| unfit("cert_file", &why))?;
    let key = PrivateKeyDer::from_pem_slice(&contents.key).map_err(|why| unfit("key_file", &why))?;
    let builder =
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|why| unfit("protocols", &why))?;
    let builder = match &contents.client_ca {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem).map_err(|why| unfit("client_ca_file", &why))? {
                roots.add(certificate).map_err(|why| unfit("client_ca_file", &why))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(
                Arc::new(roots),
                Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
            );
            builder.with_client_cert_verifier(verifier.build().map_err(|why| unfit("client_ca_file", &why))?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|why| unfit("cert_file and key_file do not belong together", &why))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The certificates of a PEM text, at least one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| error.to_string())?;
    if all.is_empty() { Err("the file has no certificate in PEM form".to_owned()) } else { Ok(all) }
}
