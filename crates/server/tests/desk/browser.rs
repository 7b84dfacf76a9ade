//! A browser without scripts: it follows links and sends the forms that a page has, and nothing else.

use reqwest::header::{COOKIE, LOCATION, ORIGIN, SET_COOKIE};
use reqwest::redirect::Policy;

use crate::html::Document;
use crate::test_server::TestServer;

/// A browser with one session.
pub(crate) struct Browser {
    client: reqwest::Client,
    origin: String,
    cookie: Option<String>,
}

/// A page that was loaded.
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) address: String,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Browser {
    pub(crate) fn open(server: &TestServer) -> Self {
        let client =
            reqwest::Client::builder().no_proxy().redirect(Policy::none()).build().expect("a client");
        Self { client, origin: server.url(""), cookie: None }
    }

    /// A browser that is signed in.
    pub(crate) async fn signed_in(server: &TestServer, token: &str) -> Self {
        let mut browser = Self::open(server);
        let page = browser.get("/desk/sign-in").await;
        let page = browser.send(&page, "/desk/sign-in", &[("token", token)]).await;
        assert_eq!(page.status, 200, "{}", page.said());
        browser
    }

    /// The same, for a token that may not see the first page.
    pub(crate) async fn signed_in_anywhere(server: &TestServer, token: &str) -> Self {
        let mut browser = Self::open(server);
        let page = browser.get("/desk/sign-in").await;
        browser.send(&page, "/desk/sign-in", &[("token", token)]).await;
        browser
    }

    pub(crate) fn cookie(&self) -> Option<&str> {
        self.cookie.as_deref()
    }

    /// Loads a page, following redirects within the desk.
    pub(crate) async fn get(&mut self, address: &str) -> Page {
        let mut address = address.to_owned();
        for _ in 0..5 {
            let mut request =
                self.client.get(format!("{}{address}", self.origin)).header("accept", "text/html");
            if let Some(cookie) = &self.cookie {
                request = request.header(COOKIE, cookie);
            }
            let page = self.read(address, request).await;
            match page.goes_to() {
                Some(next) => address = next,
                None => return page,
            }
        }
        panic!("too many redirects: {address}");
    }

    /// Posts fields as a page of this origin would.
    pub(crate) async fn post(&mut self, action: &str, fields: &[(String, String)]) -> Page {
        let body = fields.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
        let mut request = self.client.post(format!("{}{action}", self.origin)).header(ORIGIN, &self.origin);
        request = request.header("content-type", "application/x-www-form-urlencoded");
        if let Some(cookie) = &self.cookie {
            request = request.header(COOKIE, cookie);
        }
        let page = self.read(action.to_owned(), request.body(body.collect::<Vec<_>>().join("&"))).await;
        match page.goes_to() {
            Some(next) => self.get(&next).await,
            None => page,
        }
    }

    /// Sends a form of a page, by its action, with what a person fills in. A button's name and value is a field.
    pub(crate) async fn send(&mut self, page: &Page, action: &str, filled: &[(&str, &str)]) -> Page {
        let form = page
            .form(action)
            .unwrap_or_else(|| panic!("no form to {action} on {}: {}", page.address, page.said()));
        let mut fields = form;
        for (name, value) in filled {
            fields.retain(|(known, _)| known != name);
            fields.push(((*name).to_owned(), (*value).to_owned()));
        }
        self.post(action, &fields).await
    }

    /// Follows a link of a page, by its text.
    pub(crate) async fn follow(&mut self, page: &Page, text: &str) -> Page {
        let link = page.links().into_iter().find(|(told, _)| told == text);
        let (_, address) =
            link.unwrap_or_else(|| panic!("no link {text} on {}: {:?}", page.address, page.links()));
        self.get(&address).await
    }

    async fn read(&mut self, address: String, request: reqwest::RequestBuilder) -> Page {
        let response = request.send().await.expect("an answer");
        for line in response.headers().get_all(SET_COOKIE) {
            let line = line.to_str().expect("text");
            let pair = line.split(';').next().expect("a pair");
            if pair.starts_with("redrive=") {
                self.cookie = Some(pair.to_owned()).filter(|pair| pair != "redrive=");
            }
        }
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = String::from_utf8_lossy(&response.bytes().await.expect("a body")).into_owned();
        Page { status, address, headers, text }
    }
}

pub(crate) fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

impl Page {
    fn goes_to(&self) -> Option<String> {
        let is_redirect = (300..400).contains(&self.status) && self.status != 304;
        is_redirect.then(|| self.headers[LOCATION].to_str().expect("text").to_owned())
    }

    pub(crate) fn document(&self) -> Document {
        Document::parse(&self.text)
    }

    /// The texts of elements.
    pub(crate) fn texts(&self, what: &str) -> Vec<String> {
        self.document().select(what).into_iter().map(|element| element.words()).collect()
    }

    /// What the page says in its main part.
    pub(crate) fn said(&self) -> String {
        self.texts("main").join(" ")
    }

    /// Texts and addresses of its links.
    pub(crate) fn links(&self) -> Vec<(String, String)> {
        let link =
            |link: &crate::html::Element| (link.words(), link.attr("href").unwrap_or_default().to_owned());
        self.document().select("a[href]").into_iter().map(link).collect()
    }

    /// Where its forms go that change something.
    pub(crate) fn actions(&self) -> Vec<String> {
        let action = |form: &crate::html::Element| form.attr("action").unwrap_or_default().to_owned();
        self.document().select("form[method=post]").into_iter().map(action).collect()
    }

    /// The hidden and filled-in fields of a form.
    pub(crate) fn form(&self, action: &str) -> Option<Vec<(String, String)>> {
        let document = self.document();
        let form = document.select("form").into_iter().find(|form| form.attr("action") == Some(action))?;
        let mut fields = Vec::new();
        for field in document.within(form, "input").filter(|field| field.attr("name").is_some()) {
            let is_box = matches!(field.attr("type"), Some("checkbox" | "radio"));
            if !is_box || field.attr("checked").is_some() {
                let value = field.attr("value").unwrap_or_default();
                fields.push((field.attr("name").unwrap_or_default().to_owned(), value.to_owned()));
            }
        }
        for area in document.within(form, "textarea") {
            fields.push((area.attr("name").unwrap_or_default().to_owned(), area.text.clone()));
        }
        Some(fields)
    }

    /// Every attribute of every element: element, name, value.
    pub(crate) fn attributes(&self) -> Vec<(String, String, String)> {
        let elements = self.document().elements.into_iter();
        let of = |element: crate::html::Element| {
            let name = element.name;
            element.attributes.into_iter().map(move |(attribute, value)| (name.clone(), attribute, value))
        };
        elements.flat_map(of).collect()
    }

    /// What would break the policy of scripts and styles: inline ones, handlers, foreign addresses, broken markup.
    pub(crate) fn violations(&self) -> Vec<String> {
        let is_html = self
            .headers
            .get("content-type")
            .is_some_and(|it| it.to_str().unwrap_or_default().contains("html"));
        if !is_html {
            return Vec::new();
        }
        let document = self.document();
        let mut found = document.errors.clone();
        for script in document.select("script, style, iframe, object, embed, base, meta[http-equiv]") {
            let is_ours = script.attr("src").is_some_and(|src| src.starts_with("/desk/assets/"))
                && script.words().is_empty();
            if !is_ours {
                found.push(format!("{script:?}"));
            }
        }
        for (element, name, value) in self.attributes() {
            let is_address = matches!(name.as_str(), "href" | "src" | "action" | "formaction");
            let is_ours = value.starts_with("/desk") || value.starts_with('#') || value.is_empty();
            if name.starts_with("on") || name == "style" || (is_address && !is_ours) {
                found.push(format!("<{element} {name}=\"{value}\">"));
            }
        }
        found
    }
}
