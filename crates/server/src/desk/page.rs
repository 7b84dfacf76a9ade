//! The frame around every page: navigation, who looks, what was done last, and the command at the foot.

use askama::Template;
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::header::ETAG;
use http::{HeaderValue, StatusCode};
use sha2::{Digest as _, Sha256};

use super::api::Problem;
use super::assets;
use super::command::Command;
use super::link;
use super::session::Notice;
use super::visitor::Visitor;
use crate::config::Right;

/// What every page has.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frame {
    pub(crate) title: String,
    pub(crate) nav: Vec<NavItem>,
    pub(crate) who: String,
    pub(crate) tenant: String,
    /// Whether there is a session that can be ended.
    pub(crate) can_leave: bool,
    /// Whether the visitor may change anything.
    pub(crate) may_operate: bool,
    pub(crate) form: String,
    pub(crate) theme: &'static str,
    pub(crate) notice: Option<Notice>,
    /// The command that gives the same; empty if there is none.
    pub(crate) command: String,
    /// This page's address, to come back to.
    pub(crate) here: String,
    /// Seconds between two updates; 0 for none.
    pub(crate) live: u32,
    pub(crate) style: String,
    pub(crate) script: String,
    pub(crate) icon: String,
}

/// An entry of the navigation.
#[derive(Debug, Clone)]
pub(crate) struct NavItem {
    pub(crate) name: &'static str,
    pub(crate) link: &'static str,
    pub(crate) icon: &'static str,
    pub(crate) key: &'static str,
    pub(crate) is_here: bool,
}

/// Name, address, icon, key, and who sees it.
const NAV: [(&str, &str, &str, &str, Audience); 9] = [
    ("Overview", "/desk", "overview", "o", Audience::Readers),
    ("Groups", "/desk/groups", "groups", "g", Audience::Readers),
    ("Events", "/desk/events", "events", "e", Audience::Readers),
    ("Jobs", "/desk/jobs", "jobs", "j", Audience::Readers),
    ("Flow", "/desk/flow", "flow", "f", Audience::AllTenants),
    ("Keys", "/desk/keys", "keys", "k", Audience::Readers),
    ("Ledger", "/desk/ledger", "ledger", "l", Audience::AllQueues),
    ("Discarded", "/desk/discarded", "discarded", "d", Audience::Readers),
    ("Audit", "/desk/audit", "audit", "a", Audience::Everything),
];

#[derive(Clone, Copy)]
enum Audience {
    Readers,
    AllTenants,
    AllQueues,
    Everything,
}

impl Audience {
    fn has(self, visitor: &Visitor) -> bool {
        let caller = &visitor.caller;
        visitor.may(Right::Read)
            && match self {
                Self::Readers => true,
                Self::AllTenants => caller.for_all_tenants("").is_ok(),
                Self::AllQueues => caller.for_all_queues("").is_ok(),
                Self::Everything => caller.for_everything("").is_ok(),
            }
    }
}

impl Frame {
    /// A frame without a visitor, for the sign-in.
    pub(crate) fn outside(title: &str) -> Self {
        let [style, script, icon] = assets::addresses();
        Self { title: title.to_owned(), style, script, icon, ..Self::default() }
    }
}

impl Visitor {
    /// The frame of a page. `at` is the navigation's entry that it belongs to.
    pub(crate) fn frame(&self, title: impl Into<String>, at: &str, command: Command) -> Frame {
        let nav = NAV.iter().filter(|(.., audience)| audience.has(self));
        let item =
            |&(name, link, icon, key, _): &(&'static str, &'static str, &'static str, &'static str, _)| {
                NavItem { name, link, icon, key, is_here: name == at }
            };
        let told = self.asked("told").and_then(|name| self.shared.sessions.told(name, &self.caller.name));
        Frame {
            title: title.into(),
            nav: nav.map(item).collect(),
            who: self.caller.name.to_string(),
            tenant: self.caller.tenant.as_deref().unwrap_or_default().to_owned(),
            can_leave: self.cookie.is_some(),
            may_operate: self.may(Right::Operate),
            form: self.form_token.clone(),
            theme: self.theme,
            notice: told,
            command: command.to_string(),
            here: self.here(),
            live: 0,
            ..Frame::outside("")
        }
        .titled()
    }

    /// The address of this page, without the last message.
    pub(crate) fn here(&self) -> String {
        let pairs = self.query.iter().filter(|(name, _)| name != "told");
        link::address(&self.path, pairs.map(|(name, value)| (name.as_str(), value.as_str())))
    }

    /// A page, or 304 if the browser has it.
    pub(crate) fn show(&self, page: &impl Template) -> Response {
        let text = match page.render() {
            Ok(text) => text,
            Err(error) => return bare(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        };
        let hash: String = Sha256::digest(&text).iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        let tag = format!("\"{hash}\"");
        let tag_value = HeaderValue::from_str(&tag).ok();
        let mut response = if self.if_none_match.as_deref() == Some(tag.as_str()) {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            Html(text).into_response()
        };
        if let Some(value) = tag_value {
            response.headers_mut().insert(ETAG, value);
        }
        response
    }

    /// The page, or what is wrong.
    pub(crate) fn answer(&self, page: Result<Response, Problem>) -> Response {
        page.unwrap_or_else(|problem| self.problem(&problem))
    }

    /// Goes to a page, which says what was done.
    pub(crate) fn go(&self, to: &str, notice: Notice) -> Response {
        let notice = Notice { who: self.caller.name.to_string(), ..notice };
        let name = self.shared.sessions.tell(notice);
        let (path, query) = to.split_once('?').unwrap_or((to, ""));
        let mut pairs = link::parse(query);
        pairs.retain(|(name, _)| name != "told");
        pairs.push(("told".to_owned(), name));
        Redirect::to(&link::address_of(path, &pairs)).into_response()
    }

    /// Goes back to where a form was sent from, with the refusal.
    pub(crate) fn refuse(&self, to: &str, problem: &Problem) -> Response {
        self.go(to, Notice::bad(problem.detail.clone()))
    }

    fn problem(&self, problem: &Problem) -> Response {
        #[derive(Template)]
        #[template(path = "desk/problem.html")]
        struct ProblemPage {
            frame: Frame,
            what: &'static str,
            detail: String,
            status: u16,
        }
        let what = match problem.status.as_u16() {
            403 => "Not with this token",
            404 => "Not found",
            400 | 422 => "This cannot be asked for",
            409 => "Refused",
            503 => "The store does not answer",
            _ => "Something went wrong",
        };
        let frame = self.frame(what, "", Command::none());
        let (detail, status) = (problem.detail.clone(), problem.status.as_u16());
        let page = self.show(&ProblemPage { frame, what, detail, status });
        (problem.status, page).into_response()
    }
}

impl Frame {
    fn titled(mut self) -> Self {
        if self.title.is_empty() {
            self.title.push_str("Redrive");
        }
        self
    }

    /// With updates every few seconds.
    pub(crate) const fn live(mut self, seconds: u32) -> Self {
        self.live = seconds;
        self
    }
}

/// A page for no visitor: a status and one sentence.
pub(super) fn bare(status: StatusCode, detail: &str) -> Response {
    #[derive(Template)]
    #[template(path = "desk/bare.html")]
    struct BarePage<'a> {
        frame: Frame,
        status: u16,
        what: &'a str,
        detail: &'a str,
    }
    let what = status.canonical_reason().unwrap_or("Redrive");
    let page = BarePage { frame: Frame::outside(what), status: status.as_u16(), what, detail };
    let text = page.render().unwrap_or_else(|_| "this page cannot be shown".to_owned());
    (status, Html(text)).into_response()
}
