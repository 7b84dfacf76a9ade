//! Routes: what the settings say of one, as an endpoint of the layer, and the proxy on its terms.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use redrive::api::{Effects, Endpoint, Idempotent, Keep, Mode, OnUnknown, Parts as Fingerprint, Tenant};
use redrive::http::idempotent::{Body as LayerBody, Guarded, Operation};
use redrive::http::key;
use tower::{Layer as _, Service};

use super::caller::Credentials;
use super::proxy::{Enrolled, Passing, Proxy, peer};
use super::upstream::Connections;
use crate::config::{
    EffectsWord, HeaderSettings, KeyWord, PrincipalSettings, PrincipalWord, RouteSettings, TenantSettings,
    UnknownWord, UpstreamKeyWord,
};
use crate::push::address::Network;

/// What keys for the upstream are derived for.
const DERIVED_FOR: &str = "upstream";

/// Whose word is taken on tenants and principals.
type Trusted = Arc<[Network]>;

/// An endpoint as the settings want it. Nobody is trusted yet.
///
/// # Errors
/// Where a header is none, or effects cannot be had.
pub fn endpoint(route: &RouteSettings) -> Result<Endpoint<Tenant, Effects>, String> {
    trusting(route, Arc::new([]), Credentials::Guessed, Keep::new())
}

/// An endpoint that takes the word of these, tells others apart by such credentials, and keeps answers so.
pub(super) fn trusting(
    route: &RouteSettings,
    trusted: Trusted,
    credentials: Credentials,
    keep: Keep,
) -> Result<Endpoint<Tenant, Effects>, String> {
    let redact = &route.redact;
    let keep = keep.without_headers(&redact.headers).and_then(|keep| keep.without(&redact.body));
    let keep = keep.map_err(|error| format!("redact: {error}"))?;
    let tenant = match &route.tenant {
        TenantSettings::Fixed(name) => Tenant::fixed(name),
        TenantSettings::Header(header) => Tenant::from(told(header, trusted.clone())?),
    };
    let endpoint = Endpoint::new(&route.on).tenant(tenant).effects(effects(route)?);
    let endpoint = match &route.principal {
        PrincipalSettings::Word(PrincipalWord::None) => endpoint,
        PrincipalSettings::Word(PrincipalWord::Credentials) => {
            endpoint.principal(move |parts| credentials.read(parts))
        }
        PrincipalSettings::Header(header) => {
            let told = told(header, trusted)?;
            // Whoever is not named by those in front is at most the one who has these credentials.
            endpoint.principal(move |parts| {
                told(parts).map(|name| format!("={name}")).or_else(|| credentials.read(parts))
            })
        }
    };
    let endpoint = match route.key {
        KeyWord::Optional => endpoint.optional(),
        KeyWord::Required => endpoint.required(),
    };
    let endpoint = if route.stay_open { endpoint.stay_open() } else { endpoint };
    let settings = &route.fingerprint;
    let parts = Fingerprint { only: settings.only.clone(), without: settings.without.clone() };
    let headers: Vec<HeaderName> =
        settings.headers.iter().map(|name| header(name)).collect::<Result<_, _>>()?;
    let endpoint = if route.uuid_time { endpoint.uuid_time() } else { endpoint };
    Ok(endpoint
        .identity(&route.identity)
        .horizon(route.horizon)
        .skew(route.skew)
        .keep(keep)
        .fingerprint(parts)
        .headers(headers)
        .retention(route.retention)
        .lease(route.lease)
        .max_run(route.max_run)
        .wait_max(route.wait_max)
        .body_max(route.body_max)
        .reply_max(route.reply_max)
        .concurrency(route.concurrency)
        // An answer that is forgotten has no wait to be honoured.
        .backoff_max(route.retention.min(std::time::Duration::from_secs(3600))))
}

fn effects(route: &RouteSettings) -> Result<Effects, String> {
    match (route.effects, route.on_unknown.unwrap_or_default()) {
        (EffectsWord::Keyed, _) => Ok(Effects::Keyed),
        (EffectsWord::Opaque, UnknownWord::Hold) => Ok(Effects::Opaque(OnUnknown::Hold)),
        (EffectsWord::Opaque, UnknownWord::Rerun) => Ok(Effects::Opaque(OnUnknown::Rerun)),
        (EffectsWord::Transactional, _) => Err("a gateway is in nobody's transaction".to_owned()),
    }
}

fn header(name: &str) -> Result<HeaderName, String> {
    HeaderName::try_from(name).map_err(|_| format!("`{name}` is no header"))
}

/// What a proxy in front says, in one header and no more than once.
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
        values.next().is_none().then(|| value.to_str().ok().map(str::to_owned)).flatten()
    })
}

/// A route that requests go through.
#[derive(Debug, Clone)]
pub(super) struct Route {
    name: Arc<str>,
    body_max: usize,
    /// A request without a key may have one in its body.
    reads_all: bool,
    layer: Idempotent,
    service: Guarded<Behind>,
}

impl Route {
    /// # Errors
    /// With what is wrong with its settings.
    pub(super) fn new(
        settings: &RouteSettings,
        endpoint: Endpoint<Tenant, Effects>,
        ledger: Arc<dyn redrive::http::idempotent::Ledger>,
        proxy: Proxy,
    ) -> Result<Self, String> {
        let effects = effects(settings)?;
        let layer = Idempotent::new(ledger, endpoint).map_err(|error| error.to_string())?;
        let statuses = settings.not_executed.iter().filter_map(|status| StatusCode::from_u16(*status).ok());
        let terms = Enrolled {
            key: None,
            // What may not run again must not be lost in a connection that was about to close.
            connections: if effects.may_rerun() { Connections::Kept } else { Connections::Fresh },
            may_rerun: effects.may_rerun(),
            reply_max: settings.reply_max,
            not_executed: statuses.collect(),
            upstream_outcome: settings.upstream_outcome,
        };
        let key = (effects == Effects::Keyed).then_some(settings.upstream_key);
        let service = layer.layer(Behind { proxy, terms, key });
        let (body_max, reads_all) = (settings.body_max, !settings.identity.is_empty());
        Ok(Self { name: settings.on.as_str().into(), body_max, reads_all, layer, service })
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

    /// What answers a request.
    pub(super) fn service(&self) -> Guarded<Behind> {
        self.service.clone()
    }

    /// The layer, to be drained.
    pub(super) const fn layer(&self) -> &Idempotent {
        &self.layer
    }
}

/// The proxy behind the layer.
#[derive(Debug, Clone)]
pub(super) struct Behind {
    proxy: Proxy,
    terms: Enrolled,
    key: Option<UpstreamKeyWord>,
}

impl Behind {
    /// On which terms a request is passed on; none where it has no key, because then nobody answers for it.
    fn terms(&self, operation: &Operation) -> Option<Enrolled> {
        let key = self.key.and_then(|word| match word {
            UpstreamKeyWord::Plain => plain(operation.key()),
            UpstreamKeyWord::Quoted => key::quoted(operation.key()),
            UpstreamKeyWord::Derived => HeaderValue::try_from(operation.derive(DERIVED_FOR)).ok(),
        });
        (operation.mode() != Mode::Unkeyed).then(|| Enrolled { key, ..self.terms.clone() })
    }
}

/// A key without quotation marks, unless it needs them: one spelling, whichever the client used this time.
fn plain(text: &str) -> Option<HeaderValue> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b','));
    if is_plain { HeaderValue::try_from(text).ok() } else { key::quoted(text) }
}

impl Service<Request<LayerBody>> for Behind {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Passing;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<LayerBody>) -> Passing {
        let terms = request.extensions().get::<Operation>().and_then(|operation| self.terms(operation));
        if let Some(terms) = terms {
            request.extensions_mut().insert(terms);
        }
        self.proxy.call(request)
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
