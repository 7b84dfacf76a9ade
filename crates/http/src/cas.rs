//! An HTTP resource with an ETag, as a target of compare and set: `GET`, change, `PUT` with `If-Match`.
//!
//! ETags are opaque: one may return when the content does. So an answer that was lost leaves the outcome unknown,
//! unless the server remembers the request by its `Idempotency-Key` ([`HttpResource::server_remembers`]). The key
//! derives from the operation's id and the ETag, because a change that met a conflict is another request. So the server
//! tells the repetitions of one caller apart from the first; a second caller under the same id is not recognised. A weak ETag (`W/"…"`) says that two representations are equivalent, not that
//! they are the same, and RFC 9110 forbids it in `If-Match`: it is refused.
//!
//! Each `PUT` is one request. A client that repeats a conditional `PUT` by itself would meet its own first request as a
//! 412, and take it for another writer.
//!
//! ```no_run
//! use redrive_core::Policy;
//! use redrive_http::Client;
//! use redrive_http::cas::HttpResource;
//! use redrive_retry::cas::Cas;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(reqwest::Client::new(), Policy::default());
//! let mut page = HttpResource::new(&client, "http://wiki.internal/pages/7").server_remembers();
//! let signed = |text: &Vec<u8>| [text.as_slice(), b"\nAda"].concat();
//! Cas::new("signature-of-ada").change(&mut page, signed).await?;
//! # Ok(())
//! # }
//! ```

use http::header::{ETAG, IF_MATCH};
use http::{HeaderValue, Method, StatusCode};
use redrive_core::ladder::cas::{CasPromise, Versions};
use redrive_core::{Executed, Fault, Stopped};
use redrive_retry::cas::{CasFailure, CasStored, CasTarget};
use reqwest::Response;

use crate::client::Client;
use crate::status::by_default;

/// The longest body that is loaded: a value that is read, changed and written as a whole is small.
pub const RESOURCE_BYTES_MAX: usize = 1 << 20;

/// A resource at an address.
#[derive(Debug, Clone)]
pub struct HttpResource {
    client: Client,
    url: String,
    remembers: bool,
}

impl HttpResource {
    /// The resource at this address.
    #[must_use]
    pub fn new(client: &Client, url: impl Into<String>) -> Self {
        Self { client: client.clone(), url: url.into(), remembers: false }
    }

    /// The server answers a `PUT` with a known `Idempotency-Key` as it answered the first, and does not run it again.
    #[must_use]
    pub const fn server_remembers(mut self) -> Self {
        self.remembers = true;
        self
    }
}

/// Why a resource was not loaded or not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpCasError {
    /// No answer came.
    #[error("no answer: {0}")]
    Sent(#[source] Stopped<reqwest::Error>),
    /// The answer could not be read.
    #[error("the answer broke off")]
    Body(#[source] reqwest::Error),
    /// The server refused.
    #[error("the server answered {0}")]
    Status(StatusCode),
    /// The answer has no ETag.
    #[error("the resource has no ETag; a server has to send one before its resource can be compared and set")]
    NoVersion,
    /// The ETag is weak.
    #[error("the ETag {0} is weak and cannot be compared and set; ask the server for a strong one")]
    WeakVersion(String),
    /// The body is longer than [`RESOURCE_BYTES_MAX`].
    #[error("the resource is longer than {RESOURCE_BYTES_MAX} bytes")]
    TooLarge,
}

impl CasTarget for HttpResource {
    type Value = Vec<u8>;
    type Version = HeaderValue;
    type Error = HttpCasError;

    fn promise(&self) -> CasPromise {
        CasPromise { versions: Versions::Opaque, remembers: self.remembers }
    }

    async fn load(&mut self) -> Result<(Vec<u8>, HeaderValue), CasFailure<HttpCasError>> {
        let answer = self.client.get(&self.url).send().await.map_err(unanswered)?;
        if answer.status() != StatusCode::OK {
            return Err(refused(answer.status()));
        }
        let version = strong(answer.headers().get(ETAG))?;
        Ok((body(answer).await?, version))
    }

    async fn store(
        &mut self,
        seen: &HeaderValue,
        value: &Vec<u8>,
        operation: &str,
    ) -> Result<CasStored, CasFailure<HttpCasError>> {
        let request =
            self.client.request(Method::PUT, &self.url).once().idempotency_key(&request_key(operation, seen));
        let (seen, value) = (seen.clone(), value.clone());
        let answer = request.with(|put| put.header(IF_MATCH, seen).body(value)).send().await;
        match answer.map_err(unanswered)?.status() {
            status if status.is_success() => Ok(CasStored::Written),
            StatusCode::PRECONDITION_FAILED => Ok(CasStored::Conflict),
            status => Err(refused(status)),
        }
    }
}

/// The key of a store: the same for its repetitions, another one for another version.
fn request_key(operation: &str, seen: &HeaderValue) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(operation.len() as u64).to_be_bytes());
    hasher.update(operation.as_bytes());
    hasher.update(seen.as_bytes());
    format!("cas-{}", hasher.finalize().to_hex())
}

/// The version, if it can be compared.
fn strong(version: Option<&HeaderValue>) -> Result<HeaderValue, CasFailure<HttpCasError>> {
    let permanent = |error| CasFailure { error, fault: Fault::permanent().not_executed() };
    let version = version.ok_or_else(|| permanent(HttpCasError::NoVersion))?;
    if version.as_bytes().starts_with(b"W/") {
        let weak = String::from_utf8_lossy(version.as_bytes()).into_owned();
        return Err(permanent(HttpCasError::WeakVersion(weak)));
    }
    Ok(version.clone())
}

async fn body(mut answer: Response) -> Result<Vec<u8>, CasFailure<HttpCasError>> {
    let mut bytes = Vec::new();
    let broken = |error| CasFailure { error: HttpCasError::Body(error), fault: Fault::transient() };
    while let Some(chunk) = answer.chunk().await.map_err(broken)? {
        if bytes.len() + chunk.len() > RESOURCE_BYTES_MAX {
            let fault = Fault::permanent().not_executed();
            return Err(CasFailure { error: HttpCasError::TooLarge, fault });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// A client error means that this request was refused; of any other status it is unknown what was done before it.
fn refused(status: StatusCode) -> CasFailure<HttpCasError> {
    let fault = by_default(status).unwrap_or(Fault::permanent());
    let is_refusal = status.is_client_error()
        && !matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS
        );
    let fault = if is_refusal { Fault::Permanent(Executed::No) } else { fault };
    CasFailure { error: HttpCasError::Status(status), fault }
}

fn unanswered(stopped: Stopped<reqwest::Error>) -> CasFailure<HttpCasError> {
    let fault = stopped.error.as_ref().and_then(crate::classify::reqwest);
    let fault = fault.unwrap_or(Fault::transient().executed(stopped.report.executed));
    CasFailure { error: HttpCasError::Sent(stopped), fault }
}
