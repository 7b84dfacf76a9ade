//! Signing in with a token, signing out, and the colours.

use std::time::{Instant, SystemTime};

use askama::Template;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use http::header::{HOST, ORIGIN, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::page::{self, Frame};
use super::visitor::{self, Form, PLAIN_COOKIE, SECURE_COOKIE, THEME_COOKIE};
use super::{Shared, link};
use crate::auth::{self, Origin, TokenRefusal};

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/desk/sign-in", get(ask).post(sign_in))
        .route("/desk/sign-out", post(sign_out))
        .route("/desk/theme", post(theme))
}

#[derive(Template)]
#[template(path = "desk/sign_in.html")]
struct SignInPage {
    frame: Frame,
    next: String,
    wrong: &'static str,
}

async fn ask(State(shared): State<Shared>, request: Request) -> Response {
    let query = link::parse(request.uri().query().unwrap_or_default());
    let next = query.into_iter().find(|(name, _)| name == "next").map(|(_, next)| next);
    let next = next.filter(|next| visitor::is_page(next)).unwrap_or_else(|| "/desk".to_owned());
    if shared.app.live().callers.is_empty() {
        return Redirect::to(&next).into_response();
    }
    form(StatusCode::OK, next, "")
}

fn form(status: StatusCode, next: String, wrong: &'static str) -> Response {
    let page = SignInPage { frame: Frame::outside("Sign in"), next, wrong };
    match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => page::bare(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn sign_in(State(shared): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if let Err(problem) = visitor::from_same_origin(&parts.headers) {
        return page::bare(problem.status, &problem.detail);
    }
    let fields = match visitor::fields(body).await {
        Ok(fields) => fields,
        Err(problem) => return page::bare(problem.status, &problem.detail),
    };
    let field = |name: &str| fields.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
    let next = Some(field("next")).filter(|next| visitor::is_page(next)).unwrap_or("/desk").to_owned();
    let Some(kind) = CookieKind::of(&shared, &parts.headers) else {
        let wrong = "The desk keeps sessions over https, or on a loopback address. Set tls in the configuration, \
                     or put a proxy with TLS in front.";
        return form(StatusCode::FORBIDDEN, next, wrong);
    };
    let hash = auth::token_hash(field("token").trim());
    let known = shared.app.live().callers.by_hash(&hash, SystemTime::now());
    if let Err(refusal) = known {
        if let Some(Origin(from)) = parts.extensions.get() {
            shared.app.failed_sign_ins.count(from);
        }
        let wrong = match refusal {
            TokenRefusal::Unknown => "This token is not known.",
            TokenRefusal::Expired => "This token has expired. Create one with: redrive token new",
        };
        return form(StatusCode::UNAUTHORIZED, next, wrong);
    }
    match shared.sessions.begin(hash, Instant::now()) {
        Ok(cookie) => with_cookie(Redirect::to(&next).into_response(), &kind.line(&cookie)),
        Err(_) => page::bare(StatusCode::INTERNAL_SERVER_ERROR, "the system has no random bytes"),
    }
}

/// Over TLS, or on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CookieKind {
    Secure,
    Plain,
}

impl CookieKind {
    /// Secure where the listener, or a proxy before it, speaks TLS; plain on loopback; none otherwise.
    fn of(shared: &Shared, headers: &HeaderMap) -> Option<Self> {
        let text = |name: http::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let live = shared.app.live();
        if live.config.tls.cert_file.is_some() || text(ORIGIN).is_some_and(|it| it.starts_with("https://")) {
            return Some(Self::Secure);
        }
        let host = text(HOST).unwrap_or_default();
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
        let is_loopback = name.eq_ignore_ascii_case("localhost")
            || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        is_loopback.then_some(Self::Plain)
    }

    fn line(self, value: &str) -> String {
        match self {
            Self::Secure => format!("{SECURE_COOKIE}={value}; Path=/; Secure; HttpOnly; SameSite=Lax"),
            Self::Plain => format!("{PLAIN_COOKIE}={value}; Path=/desk; HttpOnly; SameSite=Lax"),
        }
    }
}

fn with_cookie(mut response: Response, line: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(line) {
        response.headers_mut().append(SET_COOKIE, value);
    }
    response
}

async fn sign_out(form: Form) -> Response {
    if let Some(cookie) = &form.visitor.cookie {
        form.visitor.shared.sessions.end(cookie);
    }
    let response = Redirect::to("/desk/sign-in").into_response();
    let response = with_cookie(
        response,
        &format!("{SECURE_COOKIE}=; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=0"),
    );
    with_cookie(response, &format!("{PLAIN_COOKIE}=; Path=/desk; HttpOnly; SameSite=Lax; Max-Age=0"))
}

/// Chooses light or dark; `system` follows the system again.
async fn theme(form: Form) -> Response {
    let response = Redirect::to(&form.back("/desk")).into_response();
    let line = match form.field("theme") {
        chosen @ ("light" | "dark") => {
            format!("{THEME_COOKIE}={chosen}; Path=/desk; HttpOnly; SameSite=Lax; Max-Age=31536000")
        }
        _ => format!("{THEME_COOKIE}=; Path=/desk; HttpOnly; SameSite=Lax; Max-Age=0"),
    };
    with_cookie(response, &line)
}
