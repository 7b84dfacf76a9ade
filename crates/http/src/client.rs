//! A `reqwest` client that retries what is safe to repeat.
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
//! - A body that is streamed cannot be replayed and is sent once.
//! - `Retry-After` is a floor for the wait, `redrive-no-retry` ends it.
//! - A problem document says whether another try may help (`retryable`), and is believed: a request that is still
//!   running is asked for again, one whose outcome is unknown never, by nobody around this call either.
//! - What the server's ledger says of a request is in [`Client::standing`], why it did not run in
//!   [`Client::refusal`].
//! - An answer comes back whatever its status, as `reqwest` has it; why it stopped is in its extensions:
//!   [`Client::report`].

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderValue, Method};
use redrive_core::classify::Answer;
use redrive_core::names::header;
use redrive_core::observe::Outcome;
use redrive_core::{Classify, Disposition, Fault, Policy, Report, StopReason, Stopped};
use redrive_retry::drive::{Drive, Judge, Operation};
use redrive_retry::{Attempt, scope};
use reqwest::{Error, IntoUrl, Request, RequestBuilder, Response};

use crate::repeat::{has_key, is_idempotent};
use crate::standing::Standing;
use crate::status::{ByStatus, StatusMap};
use crate::{classify, key, travel};

mod refusal;
#[cfg(feature = "tracing")]
mod span;

pub use refusal::{Code, Refusal};

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

    /// Gives every call that is not idempotent by its method a key, as [`Call::mint_key`] does for one. For
    /// servers that honour the header.
    #[must_use]
    pub const fn minting_keys(mut self) -> Self {
        self.mint = true;
        self
    }

    /// A GET.
    pub fn get(&self, url: impl IntoUrl) -> Call {
        self.request(Method::GET, url)
    }

    /// A HEAD.
    pub fn head(&self, url: impl IntoUrl) -> Call {
        self.request(Method::HEAD, url)
    }

    /// A POST: sent once, unless it has a key.
    pub fn post(&self, url: impl IntoUrl) -> Call {
        self.request(Method::POST, url)
    }

    /// A PUT.
    pub fn put(&self, url: impl IntoUrl) -> Call {
        self.request(Method::PUT, url)
    }

    /// A PATCH: sent once, unless it has a key.
    pub fn patch(&self, url: impl IntoUrl) -> Call {
        self.request(Method::PATCH, url)
    }

    /// A DELETE.
    pub fn delete(&self, url: impl IntoUrl) -> Call {
        self.request(Method::DELETE, url)
    }

    /// Any method.
    pub fn request(&self, method: Method, url: impl IntoUrl) -> Call {
        self.call(self.inner.request(method, url))
    }

    /// A request that was built elsewhere.
    ///
    /// # Errors
    /// As [`Call::send`].
    pub async fn execute(&self, request: Request) -> Result<Response, Stopped<Error>> {
        self.call(RequestBuilder::from_parts(self.inner.clone(), request)).send().await
    }

    fn call(&self, builder: RequestBuilder) -> Call {
        let (client, mint) = (self.clone(), self.mint);
        Call { client, builder, key: None, mint, deadline: None, independent: false }
    }

    /// Why the retries behind this response stopped.
    #[must_use]
    pub fn report(response: &Response) -> Option<Report> {
        response.extensions().get().copied()
    }

    /// How the request behind this response stands in the server's ledger.
    #[must_use]
    pub fn standing(response: &Response) -> Standing {
        Standing::of(response.headers())
    }

    /// What this response, a problem document, says of another try. One of at most 16 KiB is read, however it is
    /// framed; the body is still there.
    #[must_use]
    pub fn refusal(response: &Response) -> Option<&Refusal> {
        response.extensions().get()
    }
}

/// One logical call: built once, sent as often as it takes.
#[derive(Debug)]
#[must_use = "nothing is sent until `send` is called"]
pub struct Call {
    client: Client,
    builder: RequestBuilder,
    key: Option<HeaderValue>,
    mint: bool,
    deadline: Option<Instant>,
    independent: bool,
}

impl Call {
    /// Builds on with `reqwest`'s own words: headers, body, query, authentication.
    pub fn with(mut self, build: impl FnOnce(RequestBuilder) -> RequestBuilder) -> Self {
        self.builder = build(self.builder);
        self
    }

    /// The identity of this intent, the same over all attempts, also over those of another process: take it
    /// from what the call is about (`order-17`). A key that cannot be sent (empty, over 255 characters, not
    /// ASCII) makes `send` fail, as a request that cannot be built.
    pub fn idempotency_key(mut self, key: &str) -> Self {
        self.key = key::quoted(key);
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
    /// Not sent by itself. A minted key does not outlive its call, so there is nothing to be forgotten; of the caller's
    /// own key only the caller knows when it was first used, and a date that is too young protects nobody.
    pub fn first_sent(mut self, at: SystemTime) -> Self {
        self.builder = self.builder.header(header::REPEATABILITY_FIRST_SENT, httpdate::fmt_http_date(at));
        self
    }

    /// Has the server wait so long, in whole seconds, for a first try that is still running, instead of being told to
    /// come again: `Prefer: wait`. It may wait for less.
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

    /// Sends it, as often as the policy says.
    ///
    /// # Errors
    /// Where the last attempt got no answer, or where none followed although one was planned: an answer that
    /// is to be tried again is let go, with its connection, when the wait begins. Otherwise an answer comes
    /// back whatever its status.
    pub async fn send(self) -> Result<Response, Stopped<Error>> {
        self.send_unless(std::future::pending()).await
    }

    /// As [`send`](Self::send), but `cancel` ends a wait at once: for `token.cancelled()` of a cancellation
    /// token. An attempt that is under way is finished first.
    ///
    /// # Errors
    /// As [`send`](Self::send), and where it was cancelled while waiting.
    pub async fn send_unless(self, cancel: impl Future<Output = ()>) -> Result<Response, Stopped<Error>> {
        let Self { client, builder, key, mint, deadline, independent } = self;
        let Client { inner, policy, statuses, .. } = client;
        let request = builder.build().map(|request| named(request, key, mint));
        let once = !request.as_ref().is_ok_and(may_repeat);
        let sends = Sends { client: inner, next: Some(request) };
        let judge = ByStatus { statuses, errors: classify::reqwest as fn(&Error) -> Option<Fault> };
        let drive = Drive::new(&policy, sends, judge).only_once(once).independent(independent);
        drive.deadline(deadline).cancel_on(cancel).await.into_result()
    }
}

/// The request with the key that it was given; with a fresh one where that is wanted and needed.
fn named(mut request: Request, key: Option<HeaderValue>, mint: bool) -> Request {
    let method_is_enough = is_idempotent(request.method());
    let headers = request.headers_mut();
    if let Some(key) = key {
        headers.insert(header::IDEMPOTENCY_KEY, key);
    } else if mint && !method_is_enough && !has_key(headers) {
        headers.insert(header::IDEMPOTENCY_KEY, key::mint());
    }
    request
}

fn may_repeat(request: &Request) -> bool {
    let safe = is_idempotent(request.method()) || has_key(request.headers());
    let replayable = request.body().is_none_or(|body| body.as_bytes().is_some());
    safe && replayable
}

/// The attempts of one request. A request that could not be built fails as the first of them.
struct Sends {
    client: reqwest::Client,
    next: Option<Result<Request, Error>>,
}

impl Operation for Sends {
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
        travel::stamp(request.headers_mut());
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
    refusal::understood(client.execute(request).await?).await
}

impl<C: Classify<Error>> Judge<Response, Error> for ByStatus<C> {
    fn judge(&self, result: &Result<Response, Error>) -> Outcome {
        match result {
            Ok(response) => match Client::refusal(response) {
                None => self.judge_answer(response.status(), response.headers()),
                Some(refusal) => Outcome::Said(self.judge_refusal(response, refusal)),
            },
            Err(error) => self.errors.classify(error).disposition().into(),
        }
    }

    fn note(&self, response: &mut Response, report: &Report) {
        response.extensions_mut().insert(*report);
    }
}

impl<C> ByStatus<C> {
    /// What an answer means that says of itself whether another try may help.
    fn judge_refusal(&self, response: &Response, refusal: &Refusal) -> Disposition {
        let said = self.statuses.answer(response.status(), response.headers());
        // Whoever called it again from further out would do so under a new key, and run it twice.
        if refusal.retryable == Some(false) || travel::forbids_retry(response.headers()) {
            scope::forbid_outer_retry(StopReason::Permanent);
        }
        refusal.over(said, &self.statuses, response)
    }
}
