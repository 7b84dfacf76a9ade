//! A `reqwest` client that retries requests that are safe to repeat.
//!
//! ```
//! use redrive_core::Policy;
//! use redrive_http::Client;
//! # use redrive_testkit::{Reply, Scripted};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = Scripted::start([Reply::status(502), Reply::status(200), Reply::status(502)]).await;
//! # let (page, payments) = (server.url("/page"), server.url("/payments"));
//! let client = Client::new(reqwest::Client::new(), Policy::default());
//!
//! let page = client.get(page).send().await?.error_for_status()?;
//! assert_eq!(Client::report(&page).unwrap().attempts, 2);
//!
//! let paid = client.post(payments).with(|request| request.body("17 EUR")).mint_key().send().await?;
//! assert_eq!(paid.status(), 200);
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
//! ```
//!
//! - Idempotent methods are repeated, and every request that carries an `Idempotency-Key`. A POST without one
//!   is sent once.
//! - A streamed body cannot be replayed, so it is sent once.
//! - `Retry-After` is a floor for the wait, `redrive-no-retry` ends it.
//! - A problem document states whether a retry may help (`retryable`), and the client follows it. A request that is
//!   still running is asked for again. A request with an unknown outcome is never repeated, not even by outer layers.
//! - [`Client::ledger_status`] returns what the server's ledger says of a request, [`Client::problem`] why it did not
//!   run.
//! - A response is returned whatever its status, as in `reqwest`. The reason it stopped is in its extensions:
//!   [`Client::report`].

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderValue, Method};
use redrive_core::classify::Classification;
use redrive_core::names::header;
use redrive_core::observe::Outcome;
use redrive_core::{Classify, Disposition, Fault, Policy, Report, StopReason, Stopped};
use redrive_retry::drive::{Drive, Judge, MakeAttempt};
use redrive_retry::{Attempt, effects, scope};
use reqwest::{Error, IntoUrl, Request, RequestBuilder, Response};

use crate::ledger_status::LedgerStatus;
use crate::request_copy::{has_key, is_idempotent};
use crate::status::{StatusJudge, StatusMap};
use crate::{classify, idempotency_key, propagation};

mod problem_details;
#[cfg(feature = "tracing")]
mod span;

pub use problem_details::{ProblemCode, ProblemDetails};

/// A `reqwest::Client` under a policy. Cheap to clone; clones share the policy's budget and breaker.
#[derive(Debug, Clone)]
pub struct Client {
    inner: reqwest::Client,
    policy: Policy,
    statuses: StatusMap,
    mint: bool,
}

impl Client {
    /// This client under this policy.
    #[must_use]
    pub fn new(inner: reqwest::Client, policy: Policy) -> Self {
        Self { inner, policy, statuses: StatusMap::default(), mint: false }
    }

    /// Says what statuses mean to this destination.
    #[must_use]
    pub fn statuses(mut self, statuses: StatusMap) -> Self {
        self.statuses = statuses;
        self
    }

    /// Gives every call with a non-idempotent method a key, as [`ClientRequest::mint_key`] does for one call. For
    /// servers that honour the header.
    #[must_use]
    pub const fn minting_keys(mut self) -> Self {
        self.mint = true;
        self
    }

    /// A GET.
    pub fn get(&self, url: impl IntoUrl) -> ClientRequest {
        self.request(Method::GET, url)
    }

    /// A HEAD.
    pub fn head(&self, url: impl IntoUrl) -> ClientRequest {
        self.request(Method::HEAD, url)
    }

    /// A POST: sent once, unless it has a key.
    pub fn post(&self, url: impl IntoUrl) -> ClientRequest {
        self.request(Method::POST, url)
    }

    /// A PUT.
    pub fn put(&self, url: impl IntoUrl) -> ClientRequest {
        self.request(Method::PUT, url)
    }

    /// A PATCH: sent once, unless it has a key.
    pub fn patch(&self, url: impl IntoUrl) -> ClientRequest {
        self.request(Method::PATCH, url)
    }

    /// A DELETE.
    pub fn delete(&self, url: impl IntoUrl) -> ClientRequest {
        self.request(Method::DELETE, url)
    }

    /// Any method.
    pub fn request(&self, method: Method, url: impl IntoUrl) -> ClientRequest {
        self.call(self.inner.request(method, url))
    }

    /// A request that was built elsewhere.
    ///
    /// # Errors
    /// As [`ClientRequest::send`].
    pub async fn execute(&self, request: Request) -> Result<Response, Stopped<Error>> {
        self.call(RequestBuilder::from_parts(self.inner.clone(), request)).send().await
    }

    fn call(&self, builder: RequestBuilder) -> ClientRequest {
        let (client, mint) = (self.clone(), self.mint);
        ClientRequest { client, builder, key: None, mint, deadline: None, independent: false, once: false }
    }

    /// Why the retries behind this response stopped.
    #[must_use]
    pub fn report(response: &Response) -> Option<Report> {
        response.extensions().get().copied()
    }

    /// The status of this response's request in the server's ledger.
    #[must_use]
    pub fn ledger_status(response: &Response) -> LedgerStatus {
        LedgerStatus::of(response.headers())
    }

    /// The retry advice of this response, if it is a problem document. Documents of at most 16 KiB are read, however
    /// they are framed; the body stays available.
    #[must_use]
    pub fn problem(response: &Response) -> Option<&ProblemDetails> {
        response.extensions().get()
    }
}

/// One logical call: built once, sent as often as it takes.
#[derive(Debug)]
#[must_use = "nothing is sent until `send` is called"]
pub struct ClientRequest {
    client: Client,
    builder: RequestBuilder,
    key: Option<HeaderValue>,
    mint: bool,
    deadline: Option<Instant>,
    independent: bool,
    once: bool,
}

impl ClientRequest {
    /// Builds on with `reqwest`'s own words: headers, body, query, authentication.
    pub fn with(mut self, build: impl FnOnce(RequestBuilder) -> RequestBuilder) -> Self {
        self.builder = build(self.builder);
        self
    }

    /// The identity of this intent, the same for all attempts, including those of another process: derive it from the
    /// subject of the call (`order-17`). An invalid key (empty, over 255 characters, not ASCII) makes `send` fail
    /// like a request that cannot be built.
    pub fn idempotency_key(mut self, key: &str) -> Self {
        self.key = idempotency_key::quoted(key);
        if self.key.is_none() {
            // A value that no header can have, so that building the request fails and says so.
            self.builder = self.builder.header(header::IDEMPOTENCY_KEY, "\n");
        }
        self
    }

    /// A fresh key for this call, kept over all its attempts. It dies with the process: where the intent
    /// outlives it, use [`idempotency_key`](Self::idempotency_key).
    pub const fn mint_key(mut self) -> Self {
        self.mint = true;
        self
    }

    /// When this intent was first sent, by this process or another: `Repeatability-First-Sent`. A server that may have
    /// forgotten the first try refuses it then (412) instead of running it as new.
    ///
    /// Not sent by default. A minted key does not outlive its call, so its record cannot expire in between. For the
    /// caller's own key only the caller knows when it was first used, and a date that is too recent protects nothing.
    pub fn first_sent(mut self, at: SystemTime) -> Self {
        self.builder = self.builder.header(header::REPEATABILITY_FIRST_SENT, httpdate::fmt_http_date(at));
        self
    }

    /// Asks the server to wait up to `wait`, in whole seconds, for a first request that is still running, instead of
    /// answering "in flight": `Prefer: wait`. The server may wait for less.
    pub fn prefer_wait(mut self, wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        self.builder = self.builder.header(header::PREFER, format!("wait={seconds}"));
        self
    }

    /// No attempt makes sense after this.
    pub const fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Retries although another retry of this task, further out, retries as well.
    pub const fn independent(mut self) -> Self {
        self.independent = true;
        self
    }

    /// Sends it once, whatever the policy says: the caller repeats it, because its answers mean something else then.
    pub const fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Sends it, as often as the policy says.
    ///
    /// Inside the body of a transaction nothing is sent ([`effects`]), because the body may run again and may never
    /// commit: the call ends with [`StopReason::InTransaction`].
    ///
    /// # Errors
    /// If the last attempt got no response, or if a planned attempt did not follow: a response that is to be retried
    /// is dropped, with its connection, when the wait begins. Otherwise a response is returned whatever its status.
    pub async fn send(self) -> Result<Response, Stopped<Error>> {
        self.send_unless(std::future::pending()).await
    }

    /// Like [`send`](Self::send), but `cancel` ends a wait at once: for `token.cancelled()` of a cancellation token.
    /// An attempt in progress is finished first.
    ///
    /// # Errors
    /// Like [`send`](Self::send), and if it was cancelled while waiting.
    pub async fn send_unless(self, cancel: impl Future<Output = ()>) -> Result<Response, Stopped<Error>> {
        if effects::are_refused() {
            return Err(refused());
        }
        let Self { client, builder, key, mint, deadline, independent, once } = self;
        let Client { inner, policy, statuses, .. } = client;
        let request = builder.build().map(|request| named(request, key, mint));
        let once = once || !request.as_ref().is_ok_and(may_repeat);
        let sends = SendAttempt { client: inner, next: Some(request) };
        let judge = StatusJudge { statuses, errors: classify::reqwest as fn(&Error) -> Option<Fault> };
        let drive = Drive::new(&policy, sends, judge).only_once(once).independent(independent);
        drive.deadline(deadline).cancel_on(cancel).await.into_result()
    }
}

/// The request with the given key, or with a fresh one if minting is on and a key is needed.
fn named(mut request: Request, key: Option<HeaderValue>, mint: bool) -> Request {
    let method_is_enough = is_idempotent(request.method());
    let headers = request.headers_mut();
    if let Some(key) = key {
        headers.insert(header::IDEMPOTENCY_KEY, key);
    } else if mint && !method_is_enough && !has_key(headers) {
        headers.insert(header::IDEMPOTENCY_KEY, idempotency_key::mint());
    }
    request
}

/// The end of a call inside the body of a transaction.
fn refused() -> Stopped<Error> {
    Stopped { error: None, report: Report::not_started(StopReason::InTransaction) }
}

fn may_repeat(request: &Request) -> bool {
    let safe = is_idempotent(request.method()) || has_key(request.headers());
    let replayable = request.body().is_none_or(|body| body.as_bytes().is_some());
    safe && replayable
}

/// The attempts of one request. A request that could not be built fails as the first of them.
struct SendAttempt {
    client: reqwest::Client,
    next: Option<Result<Request, Error>>,
}

impl MakeAttempt for SendAttempt {
    type Value = Response;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Error>> + Send>>;

    fn call(&mut self, attempt: Attempt) -> Self::Future {
        let mut request = match self.next.take().expect("what cannot be copied is sent once") {
            Ok(request) => request,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        if attempt.number() < attempt.max() {
            self.next = request.try_clone().map(Ok);
        }
        propagation::inject(request.headers_mut());
        #[cfg(feature = "tracing")]
        {
            let span = span::of(attempt, &request);
            Box::pin(span::inside(span, ask(self.client.clone(), request)))
        }
        #[cfg(not(feature = "tracing"))]
        Box::pin(ask(self.client.clone(), request))
    }
}

async fn ask(client: reqwest::Client, request: Request) -> Result<Response, Error> {
    problem_details::understood(client.execute(request).await?).await
}

impl<C: Classify<Error>> Judge<Response, Error> for StatusJudge<C> {
    fn judge(&self, result: &Result<Response, Error>) -> Outcome {
        match result {
            Ok(response) => match Client::problem(response) {
                None => self.judge_answer(response.status(), response.headers()),
                Some(refusal) => Outcome::Classified(self.judge_refusal(response, refusal)),
            },
            Err(error) => self.errors.classify(error).disposition().into(),
        }
    }

    fn note(&self, response: &mut Response, report: &Report) {
        response.extensions_mut().insert(*report);
    }
}

impl<C> StatusJudge<C> {
    /// The disposition of a response that states whether a retry may help.
    fn judge_refusal(&self, response: &Response, refusal: &ProblemDetails) -> Disposition {
        let said = self.statuses.answer(response.status(), response.headers());
        // An outer layer that retried it would use a new key and run it twice.
        if refusal.retryable == Some(false) || propagation::forbids_retry(response.headers()) {
            scope::forbid_outer_retry(StopReason::Permanent);
        }
        refusal.over(said, &self.statuses, response)
    }
}
