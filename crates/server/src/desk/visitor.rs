//! Who looks at a page, and whether a form is theirs.
//!
//! The cookie counts here alone: the API does not know it. A form counts if the browser says that the page came from here
//! (`Sec-Fetch-Site`, or else `Origin`) and if it carries the session's form token. The cookie is `Lax`, so that a link
//! in a chat opens the page it names; no `GET` changes anything.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Redirect, Response};
use http::header::{COOKIE, HOST, IF_NONE_MATCH, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};

use super::link::{self, Pairs};
use super::page;
use super::{Problem, Shared};
use crate::app::App;
use crate::auth::{self, Caller, Origin};
use crate::config::Right;

/// The cookie over TLS, which the browser keeps for this host alone.
pub(super) const SECURE_COOKIE: &str = "__Host-redrive";
/// The cookie on a loopback address without TLS.
pub(super) const PLAIN_COOKIE: &str = "redrive";
/// The cookie of the colours.
pub(super) const THEME_COOKIE: &str = "redrive-theme";

/// A form's body, in bytes; an edited payload is the largest.
const FORM_MAX: usize = 4 << 20;
/// How long a form may take to arrive.
const FORM_TIME: Duration = Duration::from_secs(30);

/// A signed-in visitor, or a local one.
#[derive(Debug, Clone)]
pub(crate) struct Visitor {
    pub(super) shared: Shared,
    pub(super) caller: Caller,
    pub(super) origin: Option<Origin>,
    /// The session's cookie; a local visitor has none.
    pub(super) cookie: Option<String>,
    pub(super) form_token: String,
    /// `light`, `dark`, or empty for what the system has.
    pub(super) theme: &'static str,
    /// The path of the page.
    pub(super) path: String,
    /// Its parameters, without empty ones.
    pub(super) query: Pairs,
    pub(super) if_none_match: Option<String>,
}

impl Visitor {
    /// Whether the visitor has a right.
    pub(crate) fn may(&self, right: Right) -> bool {
        self.caller.may(right).is_ok()
    }

    /// A parameter of the page.
    pub(crate) fn asked(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The server's state.
    pub(crate) fn app(&self) -> &Arc<App> {
        &self.shared.app
    }
}

/// The value of a cookie.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

fn theme(headers: &HeaderMap) -> &'static str {
    match cookie(headers, THEME_COOKIE) {
        Some("light") => "light",
        Some("dark") => "dark",
        _ => "",
    }
}

impl FromRequestParts<Shared> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Response> {
        let (caller, cookie) = who(parts, shared).await?;
        let query = link::parse(parts.uri.query().unwrap_or_default());
        let matches = parts.headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
        Ok(Self {
            form_token: shared.sessions.form_token(cookie.as_deref()),
            shared: shared.clone(),
            caller,
            origin: parts.extensions.get::<Origin>().cloned(),
            cookie,
            theme: theme(&parts.headers),
            path: parts.uri.path().to_owned(),
            query,
            if_none_match: matches.map(str::to_owned),
        })
    }
}

/// The caller and the cookie of a request; the way to the sign-in without one.
async fn who(parts: &mut Parts, shared: &Shared) -> Result<(Caller, Option<String>), Response> {
    if shared.app.live().callers.is_empty() {
        let caller = Caller::from_request_parts(parts, &shared.app).await;
        return caller
            .map(|caller| (caller, None))
            .map_err(|problem| page::bare(problem.status, &problem.detail));
    }
    let cookie = [SECURE_COOKIE, PLAIN_COOKIE].iter().find_map(|name| cookie(&parts.headers, name));
    let found = cookie.and_then(|cookie| Some((cookie, shared.sessions.find(cookie, Instant::now())?)));
    let known = found.and_then(|(cookie, hash)| {
        let caller = shared.app.live().callers.by_hash(&hash, SystemTime::now()).ok()?;
        Some((caller, Some(cookie.to_owned())))
    });
    if let Some(known) = known {
        auth::signed_in(parts);
        return Ok(known);
    }
    if parts.method != Method::GET {
        let detail = "you are not signed in, or your session is over; sign in and send the form again";
        return Err(page::bare(StatusCode::UNAUTHORIZED, detail));
    }
    let next = parts.uri.path_and_query().map_or("/desk", |address| address.as_str());
    Err(Redirect::to(&link::address("/desk/sign-in", [("next", next)])).into_response())
}

/// A form that a visitor sent.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) visitor: Visitor,
    /// Its fields, without empty ones.
    pub(crate) fields: Pairs,
}

impl Form {
    /// A field; empty if absent.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.given(name).unwrap_or_default()
    }

    /// A field, if it is there.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All fields of a name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Where to go afterwards: a page of the desk.
    pub(crate) fn back(&self, otherwise: &str) -> String {
        let back = self.field("back");
        if is_page(back) { back.to_owned() } else { otherwise.to_owned() }
    }
}

/// Whether an address is one of the desk's, and of no other site.
pub(super) fn is_page(address: &str) -> bool {
    let path = address.split(['?', '#']).next().unwrap_or_default();
    let is_plain = address.chars().all(|c| c.is_ascii_graphic() && c != '\\');
    is_plain && (path == "/desk" || path.starts_with("/desk/"))
}

impl FromRequest<Shared> for Form {
    type Rejection = Response;

    async fn from_request(request: Request, shared: &Shared) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        from_same_origin(&parts.headers).map_err(|problem| page::bare(problem.status, &problem.detail))?;
        let visitor = Visitor::from_request_parts(&mut parts, shared).await?;
        let fields = fields(body).await.map_err(|problem| page::bare(problem.status, &problem.detail))?;
        let form = Self { visitor, fields };
        let cookie = form.visitor.cookie.as_deref();
        if !shared.sessions.is_form_token(cookie, form.field("form")) {
            let detail = "this form is of another session, or of before a restart; load the page again";
            return Err(page::bare(StatusCode::FORBIDDEN, detail));
        }
        Ok(form)
    }
}

/// Reads a form's fields.
pub(super) async fn fields(body: axum::body::Body) -> Result<Pairs, Problem> {
    let reading = axum::body::to_bytes(body, FORM_MAX);
    let Ok(read) = tokio::time::timeout(FORM_TIME, reading).await else {
        return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "the form did not arrive in time"));
    };
    let bytes = read.map_err(|_| {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the form is too large; use the command line")
    })?;
    let pairs = url::form_urlencoded::parse(&bytes);
    Ok(pairs.filter(|(_, value)| !value.is_empty()).map(|(n, v)| (n.into(), v.into())).collect())
}

/// Refuses a form that another site's page sent.
pub(super) fn from_same_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let is_ours = match (text("sec-fetch-site"), text(ORIGIN.as_str())) {
        (Some(site), _) => site == "same-origin",
        (None, Some(origin)) => {
            let host = origin.split_once("://").map(|(_, host)| host);
            host.is_some() && host == text(HOST.as_str())
        }
        // No browser: the form token decides.
        (None, None) => true,
    };
    let detail = "this form was sent by a page of another site; open the desk and send it from there";
    if is_ours { Ok(()) } else { Err(Problem::new(StatusCode::FORBIDDEN, detail)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_desk_are_gone_back_to() {
        for good in ["/desk", "/desk/groups?by=queue", "/desk/event?id=%2F"] {
            assert!(is_page(good), "{good}");
        }
        for bad in [
            "",
            "//evil.example/desk",
            "/\\evil",
            "https://evil.example/desk",
            "/deskother",
            "/v1/x",
            "/desk\n",
        ] {
            assert!(!is_page(bad), "{bad}");
        }
    }

    #[test]
    fn a_form_of_another_site_is_refused() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            pairs
                .iter()
                .map(|(name, value)| {
                    (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
                })
                .collect::<HeaderMap>()
        };
        let good: [&[_]; 4] = [
            &[("host", "desk:1")],
            &[("host", "desk:1"), ("origin", "https://desk:1")],
            &[("host", "inner"), ("origin", "https://desk"), ("sec-fetch-site", "same-origin")],
            &[("host", "desk:1"), ("sec-fetch-site", "same-origin")],
        ];
        for pairs in good {
            assert!(from_same_origin(&headers(pairs)).is_ok(), "{pairs:?}");
        }
        let bad: [&[_]; 5] = [
            &[("host", "desk:1"), ("origin", "https://evil")],
            &[("host", "desk:1"), ("origin", "https://desk:2")],
            &[("host", "desk:1"), ("origin", "null")],
            &[("host", "desk:1"), ("origin", "https://desk:1"), ("sec-fetch-site", "cross-site")],
            &[("host", "desk:1"), ("sec-fetch-site", "same-site")],
        ];
        for pairs in bad {
            assert!(from_same_origin(&headers(pairs)).is_err(), "{pairs:?}");
        }
    }
}
