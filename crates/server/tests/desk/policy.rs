//! Headers, forms, cookies and rights, over every route that the source has.

use std::path::Path;

use crate::browser::Browser;
use crate::dead_letters::{die, publish, token};
use crate::test_server::TestServer;

/// Paths and methods of every `.route("/desk…", …)` of the source.
fn routes() -> Vec<(String, bool)> {
    fn walk(folder: &Path, found: &mut Vec<(String, bool)>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, found);
            } else {
                let source = std::fs::read_to_string(&path).expect("a file");
                for call in source.split(".route(").skip(1) {
                    let Some(rest) = call.trim_start().strip_prefix('"') else { continue };
                    let (path, rest) = rest.split_once('"').expect("its end");
                    let rest = rest.split(".route(").next().unwrap_or_default();
                    let rest = rest.split(';').next().unwrap_or_default();
                    let rest = rest.split("\n        .").next().unwrap_or_default();
                    if rest.contains("post(") {
                        found.push((path.to_owned(), true));
                    }
                    if rest.contains("get(") {
                        found.push((path.to_owned(), false));
                    }
                }
            }
        }
    }
    let mut found = Vec::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    walk(&source.join("desk"), &mut found);
    let main = std::fs::read_to_string(source.join("desk.rs")).expect("a file");
    assert!(main.contains("/desk/assets/{name}"));
    found.push(("/desk/assets/none.css".to_owned(), false));
    for path in &mut found {
        path.0 = path.0.replace("{id}", "1").replace("{verb}", "pause").replace("{*rest}", "nowhere");
    }
    for known in ["/desk/groups", "/desk/event/raw", "/desk/act", "/desk/redrive/start", "/desk/sign-in"] {
        assert!(found.iter().any(|(path, _)| path == known), "{known} is not in {found:?}");
    }
    found
}

const SETTINGS: &str = "[queues.orders.pull]\n[queues.mail.pull]\n[server]\nedit = true\n";

async fn server() -> TestServer {
    let tokens = [
        token("ada", "\"read\", \"operate\", \"publish\"", None),
        token("reader", "\"read\"", None),
        token("acme-ops", "\"read\", \"operate\"", Some("acme")),
        token("publisher", "\"publish\"", None),
    ];
    let server = TestServer::open(&format!("{SETTINGS}{}", tokens.join("\n"))).await;
    publish(&server, "orders", "acme", Some("acme-key"), &["acme-1", "acme-2"]).await;
    publish(&server, "orders", "globex", Some("globex-key"), &["globex-1", "globex-2"]).await;
    assert!(die(&server, "orders").await >= 2);
    server
}

#[tokio::test]
async fn every_answer_has_the_headers_and_nothing_inline() {
    let server = server().await;
    let mut browser = Browser::signed_in(&server, "ada").await;
    let pages = routes();
    for (path, is_post) in &pages {
        let page = if *is_post { browser.post(path, &[]).await } else { browser.get(path).await };
        let header =
            |name: &str| page.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let policy = header("content-security-policy");
        let is_file = policy.starts_with("sandbox");
        assert!(is_file || policy.starts_with("default-src 'none'; script-src 'self'"), "{path}: {policy}");
        assert!(
            is_file || policy.contains("frame-ancestors 'none'; require-trusted-types-for 'script'"),
            "{path}"
        );
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header("referrer-policy"), "same-origin", "{path}");
        assert_eq!(header("cross-origin-opener-policy"), "same-origin", "{path}");
        assert_eq!(header("cache-control"), "no-store", "{path}");
        assert_eq!(page.violations(), Vec::<String>::new(), "{path}");
        assert!(page.status < 500, "{path}: {} {}", page.status, page.said());
    }
}

#[tokio::test]
async fn a_form_of_another_page_is_refused() {
    let server = server().await;
    let browser = Browser::signed_in(&server, "ada").await;
    let cookie = browser.cookie().expect("a session").to_owned();
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .expect("a client");
    for (path, _) in routes().into_iter().filter(|(path, is_post)| *is_post && path != "/desk/sign-in") {
        let cases: [(&str, &str); 4] = [
            ("origin", "https://evil.example"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            // No form token.
            ("x-plain", "1"),
        ];
        for (name, value) in cases {
            let request = client.post(server.url(&path)).header("cookie", &cookie).header(name, value);
            let status = request.body("").send().await.expect("an answer").status();
            assert_eq!(status, 403, "{path} with {name}: {value}");
        }
        let status = client.post(server.url(&path)).send().await.expect("an answer").status();
        assert_eq!(status, 401, "{path} without a session");
    }
    let status = client
        .post(server.url("/desk/sign-in"))
        .header("origin", "https://evil.example")
        .body("token=ada")
        .send();
    assert_eq!(status.await.expect("an answer").status(), 403);
}

#[tokio::test]
async fn the_cookie_counts_under_the_desk_alone_and_a_link_from_elsewhere_opens_its_page() {
    let server = server().await;
    let mut browser = Browser::signed_in(&server, "ada").await;
    let cookie = browser.cookie().expect("a session").to_owned();
    let client = &server.client;
    let answer =
        client.get(server.url("/v1/dead/groups")).header("cookie", &cookie).send().await.expect("an answer");
    assert_eq!(answer.status(), 401);
    let link = client
        .get(server.url("/desk/groups"))
        .header("cookie", &cookie)
        .header("sec-fetch-site", "cross-site");
    assert_eq!(link.send().await.expect("an answer").status(), 200);
    // Without a session, the sign-in leads back to the page.
    let mut other = Browser::open(&server);
    let page = other.get("/desk/groups?by=queue").await;
    assert_eq!(page.texts("h1"), ["Sign in"]);
    let wrong = other.send(&page, "/desk/sign-in", &[("token", "guess")]).await;
    assert_eq!(
        (wrong.status, wrong.texts("[role=alert]")),
        (401, vec!["This token is not known.".to_owned()])
    );
    let page = other.send(&page, "/desk/sign-in", &[("token", "ada")]).await;
    assert!(page.address.starts_with("/desk/groups?by=queue"), "{}", page.address);
    // And signing out ends it.
    let page = browser.get("/desk").await;
    browser.send(&page, "/desk/sign-out", &[]).await;
    let answer = client.get(server.url("/desk")).header("cookie", &cookie).send().await.expect("an answer");
    assert!(answer.url().path().ends_with("/sign-in"), "{}", answer.url());
}

#[tokio::test]
async fn a_tenants_token_sees_no_other_tenant() {
    let server = server().await;
    let mut all = Browser::signed_in(&server, "ada").await;
    assert!(all.get("/desk/events").await.text.contains("globex-1"), "the other tenant's are there");
    let mut browser = Browser::signed_in(&server, "acme-ops").await;
    let nav = browser.get("/desk").await.texts("header nav a");
    assert!(!nav.iter().any(|name| ["Flow", "Audit"].contains(&name.as_str())), "{nav:?}");
    assert!(browser.get("/desk/events").await.text.contains("acme-1"));
    let mut addresses: Vec<String> =
        routes().into_iter().filter(|(_, is_post)| !is_post).map(|(path, _)| path).collect();
    addresses.extend([
        "/desk/groups?by=key".to_owned(),
        "/desk/groups?tenant=globex".to_owned(),
        "/desk/events?state=open".to_owned(),
        "/desk/events?tenant=globex".to_owned(),
        "/desk/event?queue=orders&tenant=globex&id=globex-1&body=json".to_owned(),
        "/desk/event/raw?queue=orders&tenant=globex&id=globex-1".to_owned(),
        "/desk/keys?queue=orders&tenant=globex&key=globex-key".to_owned(),
        "/desk/find?q=globex-1".to_owned(),
        "/desk/export?form=csv".to_owned(),
        "/desk/redrive?act=redrive".to_owned(),
    ]);
    for address in addresses {
        let page = browser.get(&address).await;
        // What was asked for may be said; what is stored may not.
        let told = page.text.replace("tenant `globex`", "").replace("tenant &#39;globex&#39;", "");
        for secret in ["globex-2", "globex-key", "no customer for globex"] {
            let is_asked = page.address.contains("globex-key") && secret == "globex-key";
            assert!(is_asked || !told.contains(secret), "{address} tells {secret}");
        }
        assert!(page.status < 500, "{address}: {}", page.said());
    }
}

#[tokio::test]
async fn a_token_that_may_only_read_has_no_buttons_and_one_that_may_not_read_no_pages() {
    let server = server().await;
    let mut browser = Browser::signed_in(&server, "reader").await;
    for (path, _) in routes().into_iter().filter(|(path, is_post)| !is_post && path != "/desk/sign-in") {
        let page = browser.get(&path).await;
        let others: Vec<String> = page.actions();
        let others: Vec<&String> = others
            .iter()
            .filter(|to| !["/desk/sign-out", "/desk/theme", "/desk/confirm"].contains(&to.as_str()))
            .collect();
        let starts = others.iter().all(|to| *to == "/desk/redrive/start");
        assert!(starts, "{path}: {others:?}");
        assert_eq!(
            page.texts("main button.main, main button[name=verb], main button.harsh").len(),
            0,
            "{path}"
        );
    }
    let page = browser.get("/desk").await;
    let form = page
        .form("/desk/theme")
        .expect("a form")
        .into_iter()
        .find(|(name, _)| name == "form")
        .expect("its token");
    let which = "queue=orders&tenant=acme&id=acme-1".to_owned();
    let fields = [form.clone(), ("verb".to_owned(), "discard".to_owned()), ("which".to_owned(), which)];
    assert_eq!(browser.post("/desk/act", &fields).await.status, 403);
    assert_eq!(
        browser
            .post("/desk/redrive/start", &[form.clone(), ("act".to_owned(), "discard".to_owned())])
            .await
            .status,
        403
    );
    assert_eq!(
        browser.post("/desk/flow/pause", &[form, ("queue".to_owned(), "orders".to_owned())]).await.status,
        403
    );
    let mut blind = Browser::signed_in_anywhere(&server, "publisher").await;
    let page = blind.get("/desk/groups").await;
    assert_eq!(page.status, 403);
    assert!(page.said().contains("may not read"), "{}", page.said());
}

#[tokio::test]
async fn browsers_are_shown_the_desk_and_programs_a_text() {
    let server = TestServer::open(SETTINGS).await;
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .expect("a client");
    let page = client.get(server.url("/")).header("accept", "text/html,*/*").send().await.expect("an answer");
    assert_eq!((page.status().as_u16(), page.headers()["location"].to_str().expect("text")), (303, "/desk"));
    let text = client.get(server.url("/")).send().await.expect("an answer");
    assert_eq!(text.status(), 200);
    assert!(text.text().await.expect("a text").contains("/openapi.json"));
    // Without tokens, another host's page cannot reach it.
    let page =
        client.get(server.url("/desk")).header("host", "evil.example").send().await.expect("an answer");
    assert_eq!(page.status(), 403);
}
