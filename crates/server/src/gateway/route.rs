//! Routes: the settings of one as an endpoint of the layer, and the proxy with its options.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use redrive::api::{
    Effects, Endpoint, FingerprintParts, Idempotent, OnUnknown, ReplyProtection, RunMode, Tenant,
};
use redrive::http::idempotency_key;
use redrive::http::idempotent::{Body as LayerBody, IdempotentService, KeyedOperation};
use redrive::http::retry_hints::is_in_progress;
use tower::{Layer as _, Service};

use super::credentials::Credentials;
use super::proxy::{EnrolledRequest, Proxy, ProxyFuture, peer};
use super::unknown_budget::UnknownBudget;
use super::upstream::Connections;
use super::upstream_error::{OUTCOME, UpstreamError};
use crate::config::{
    EffectsWord, HeaderSettings, KeyWord, PrincipalSettings, PrincipalWord, RouteSettings, TenantSettings,
    UnknownWord, UpstreamKeyWord,
};
use crate::push::network::Network;

/// What keys for the upstream are derived for.
const DERIVED_FOR: &str = "upstream";

/// What to do about outcomes that are unknown without need.
const UNKNOWN_HINT: &str = "if the API executes nothing when it answers 429 or 503, its operator can list these in not_executed of this route";

/// The trusted proxies.
type Trusted = Arc<[Network]>;

/// An endpoint from the settings, without trusted proxies.
///
/// # Errors
/// If a header is invalid, or the effects are impossible.
pub fn endpoint(route: &RouteSettings) -> Result<Endpoint<Tenant, Effects>, String> {
    trusting(route, Arc::new([]), Credentials::Guessed, ReplyProtection::new())
}

/// An endpoint with trusted proxies, credential headers and reply protection.
pub(super) fn trusting(
    route: &RouteSettings,
    trusted: Trusted,
    credentials: Credentials,
    protection: ReplyProtection,
) -> Result<Endpoint<Tenant, Effects>, String> {
    let redact = &route.redact;
    let protection =
        protection.without_headers(&redact.headers).and_then(|protection| protection.without(&redact.body));
    let protection = protection.map_err(|error| format!("redact: {error}"))?;
    let tenant = match &route.tenant {
        TenantSettings::Fixed(name) => Tenant::fixed(name),
        TenantSettings::Header(header) => Tenant::from(told(header, trusted.clone())?),
    };
    let endpoint = Endpoint::new(&route.on).tenant(tenant).effects(effects(route)?);
    let endpoint = match &route.principal {
        PrincipalSettings::Word(PrincipalWord::None) => endpoint,
        PrincipalSettings::Word(PrincipalWord::Credentials) => {
            endpoint.credentials(move |parts| credentials.read(parts))
        }
        // A caller whose name came and went would have two keys of the same name, and run twice.
        PrincipalSettings::Header(header) => endpoint.principal(told(header, trusted)?).principal_required(),
    };
    let endpoint = match route.key {
        KeyWord::Optional => endpoint.optional(),
        KeyWord::Required => endpoint.required(),
    };
    let endpoint = if route.stay_open { endpoint.stay_open() } else { endpoint };
    let endpoint = endpoint.unknown_hint(UNKNOWN_HINT);
    let settings = &route.fingerprint;
    let parts = FingerprintParts { only: settings.only.clone(), without: settings.without.clone() };
    let headers: Vec<HeaderName> =
        settings.headers.iter().map(|name| header(name)).collect::<Result<_, _>>()?;
    let endpoint = if route.uuid_time { endpoint.uuid_time() } else { endpoint };
    Ok(endpoint
        .identity(&route.identity)
        .horizon(route.horizon)
        .skew(route.skew)
        .protect(protection)
        .fingerprint(parts)
        .headers(headers)
        .retention(route.retention)
        .lease(route.lease)
        .max_run(route.max_run)
        .wait(route.wait)
        .wait_max(route.wait_max)
        .body_max(route.body_max)
        .reply_max(route.reply_max)
        .concurrency(route.concurrency)
        // A forgotten reply has no wait to honour.
        .backoff_max(route.retention.min(std::time::Duration::from_secs(3600))))
}

fn effects(route: &RouteSettings) -> Result<Effects, String> {
    match (route.effects, route.on_unknown.unwrap_or_default()) {
        (EffectsWord::Keyed, _) => Ok(Effects::Keyed),
        (EffectsWord::Opaque, UnknownWord::Hold) => Ok(Effects::Opaque(OnUnknown::Hold)),
        (EffectsWord::Opaque, UnknownWord::Rerun) => Ok(Effects::Opaque(OnUnknown::Rerun)),
        (EffectsWord::Transactional, _) => Err("a gateway never takes part in a transaction".to_owned()),
    }
}

fn header(name: &str) -> Result<HeaderName, String> {
    HeaderName::try_from(name).map_err(|_| format!("`{name}` is not a valid header name"))
}

/// A trusted proxy's header; it must occur exactly once.
fn told(
    settings: &HeaderSettings,
    trusted: Trusted,
) -> Result<impl Fn(&Parts) -> Option<String> + Send + Sync + use<>, String> {
    let name = header(&settings.header)?;
    let trusts = move |peer: IpAddr| trusted.iter().any(|network| network.contains(peer));
    Ok(move |parts: &Parts| {
        peer(&parts.extensions).filter(|peer| trusts(*peer))?;
        let mut values = parts.headers.get_all(&name).iter();
        let value = values.next().filter(|value| !value.is_empty())?;
        values
            .next()
            .is_none()
            .then(|| std::str::from_utf8(value.as_bytes()).ok().map(str::to_owned))
            .flatten()
    })
}

/// A route that requests go through.
#[derive(Debug, Clone)]
pub(super) struct Route {
    name: Arc<str>,
    body_max: usize,
    /// A request without a key may have one in its body.
    reads_all: bool,
    /// Where the API says whether a caller may have a stored reply.
    authorise: Option<PathAndQuery>,
    layer: Idempotent,
    service: IdempotentService<RouteProxy>,
}

impl Route {
    /// # Errors
    /// With the invalid setting.
    pub(super) fn new(
        settings: &RouteSettings,
        endpoint: Endpoint<Tenant, Effects>,
        ledger: Arc<dyn redrive::http::idempotent::Ledger>,
        proxy: Proxy,
        budget: &UnknownBudget,
    ) -> Result<Self, String> {
        let effects = effects(settings)?;
        let layer = Idempotent::new(ledger, endpoint).map_err(|error| error.to_string())?;
        let statuses = settings.not_executed.iter().filter_map(|status| StatusCode::from_u16(*status).ok());
        let terms = EnrolledRequest {
            key: None,
            // A request that may not run again must not be lost on a connection that was about to close.
            connections: if effects.may_rerun() { Connections::Kept } else { Connections::Fresh },
            may_rerun: effects.may_rerun(),
            reply_max: settings.reply_max,
            not_executed: statuses.collect(),
            upstream_outcome: settings.upstream_outcome,
            release_on_401: settings.release_on_401,
        };
        let key = (effects == Effects::Keyed).then_some(settings.upstream_key);
        let budget = (!effects.may_rerun()).then(|| budget.clone());
        let service = layer.layer(RouteProxy { proxy, terms, key, budget });
        let (body_max, reads_all) = (settings.body_max, !settings.identity.is_empty());
        let wrong = |_| "authorise is not a path".to_owned();
        let authorise = settings.authorise.as_deref().map(|path| path.parse().map_err(wrong)).transpose()?;
        Ok(Self { name: settings.on.as_str().into(), body_max, reads_all, authorise, layer, service })
    }

    /// As the settings call it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes a request's body may have.
    pub(super) const fn body_max(&self) -> usize {
        self.body_max
    }

    /// Whether the body of a request without a key is held, too.
    pub(super) const fn reads_all(&self) -> bool {
        self.reads_all
    }

    /// Where the API is asked before a replay.
    pub(super) const fn authorise(&self) -> Option<&PathAndQuery> {
        self.authorise.as_ref()
    }

    /// What answers a request.
    pub(super) fn service(&self) -> IdempotentService<RouteProxy> {
        self.service.clone()
    }

    /// The layer, to be drained.
    pub(super) const fn layer(&self) -> &Idempotent {
        &self.layer
    }
}

/// The proxy behind the layer.
#[derive(Debug, Clone)]
pub(super) struct RouteProxy {
    proxy: Proxy,
    terms: EnrolledRequest,
    key: Option<UpstreamKeyWord>,
    /// For requests whose outcome may become unknown.
    budget: Option<UnknownBudget>,
}

impl RouteProxy {
    /// The options for forwarding a request; `None` without a key, because no record covers it.
    fn terms(&self, operation: &KeyedOperation) -> Option<EnrolledRequest> {
        let key = self.key.and_then(|word| match word {
            UpstreamKeyWord::Plain => plain(operation.key()),
            UpstreamKeyWord::Quoted => idempotency_key::quoted(operation.key()),
            UpstreamKeyWord::Derived => HeaderValue::try_from(operation.derive(DERIVED_FOR)).ok(),
        });
        (operation.mode() != RunMode::Unkeyed).then(|| EnrolledRequest { key, ..self.terms.clone() })
    }
}

/// A key without quotation marks, unless it needs them: one spelling, whichever the client used this time.
fn plain(text: &str) -> Option<HeaderValue> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b','));
    if is_plain { HeaderValue::try_from(text).ok() } else { idempotency_key::quoted(text) }
}

impl Service<Request<LayerBody>> for RouteProxy {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ProxyFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<LayerBody>) -> ProxyFuture {
        let operation = request.extensions().get::<KeyedOperation>().cloned();
        let Some(terms) = operation.as_ref().and_then(|operation| self.terms(operation)) else {
            return self.proxy.call(request);
        };
        request.extensions_mut().insert(terms);
        let (Some(budget), Some(operation)) = (&self.budget, operation) else {
            return self.proxy.call(request);
        };
        let entered = match budget.enter(operation.tenant(), self.proxy.client(&request)) {
            Ok(entered) => entered,
            Err(exceeded) => return Box::pin(async move { Ok(UpstreamError::too_many_unknown(exceeded)) }),
        };
        let answering = self.proxy.call(request);
        let name = operation.scope().operation.clone();
        Box::pin(async move {
            let response = answering.await?;
            if is_known(&response) {
                entered.settle();
            } else {
                undeclared(&name, response.status());
            }
            Ok(response)
        })
    }
}

/// Whether the layer knows the outcome by this response, on a route that holds what is unknown.
fn is_known(response: &Response<Body>) -> bool {
    match response.headers().get(OUTCOME).map(HeaderValue::as_bytes) {
        Some(b"none" | b"final") => true,
        Some(b"unknown") => false,
        _ => {
            !matches!(response.status().as_u16(), 408 | 425 | 429 | 500..=599)
                && !is_in_progress(response.status(), response.headers())
        }
    }
}

/// Says which setting would have made a difference.
fn undeclared(route: &str, status: StatusCode) {
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        tracing::warn!(
            route,
            status = status.as_u16(),
            "the outcome is unknown; if the API executes nothing when it answers so, add the status to not_executed of this route"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_spelling_upstream() {
        for (key, spelt) in [("order-17", "order-17"), ("a b", "\"a b\""), ("a\"b", r#""a\"b""#)] {
            assert_eq!(plain(key).expect("a key"), spelt);
        }
    }
}
