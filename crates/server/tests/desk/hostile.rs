//! Texts that would do something to a page: in every place that a publisher, a handler or an operator can fill, they are
//! text.

use std::time::Duration;

use redrive::{Event, Failure, Reply};
use serde_json::json;

use crate::browser::{Browser, encoded};
use crate::dead_letters::engine;
use crate::test_server::TestServer;

/// Strings that break out of a weaker page.
fn strings() -> Vec<String> {
    let tags = [
        "<script>alert(1)</script>",
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "<svg onload=alert(1)>",
        "<svg><script>alert(1)</script></svg>",
        "<iframe src=javascript:alert(1)>",
        "<a href=\"javascript:alert(1)\">x</a>",
        "<style>*{display:none}</style>",
        "<base href=//evil.example/>",
        "<meta http-equiv=refresh content=0;url=//evil.example>",
        "<form action=//evil.example>",
        "<!-- -->",
        "<![CDATA[x]]>",
        "</title><b>",
        "</textarea><b>",
        "</option></select><b>",
        "</code></pre><b>",
        "<math><mi xlink:href=\"javascript:alert(1)\">",
        "<template><b></template>",
        "<noscript><p title=\"</noscript>\">",
    ];
    let attributes = [
        "\" onmouseover=\"alert(1)",
        "' onmouseover='alert(1)",
        "\"><b>",
        "'><b>",
        "` onmouseover=`alert(1)",
        "x\" style=\"position:fixed",
        "\" autofocus onfocus=alert(1) x=\"",
        "javascript:alert(1)",
        "data:text/html,<b>",
        "//evil.example",
        "\\\\evil.example",
        "%22%3E%3Cb%3E",
        "&quot;&gt;&lt;b&gt;",
        "&#34;&#62;&#60;b&#62;",
        "&lt;b&gt;",
    ];
    let templates = [
        "{{ 7*7 }}",
        "{% raw %}",
        "{{constructor.constructor('alert(1)')()}}",
        "${7*7}",
        "#{7*7}",
        "<%= 7*7 %>",
    ];
    let invisible = [
        "nul\0nul",
        "bell\u{7}",
        "esc\u{1b}[31m",
        "c1\u{9b}x",
        "\u{202e}txt.exe",
        "\u{2066}iso",
        "a\u{200d}b",
        "\u{feff}bom",
        "line\nbreak",
        "tab\tbed",
        "cr\rlf",
        "\u{2028}sep",
        "e\u{301}",
        "\u{fffe}",
    ];
    let formulas = ["=1+1", "+1", "-1", "@SUM(1)", "\t=1"];
    let all = tags.iter().chain(&attributes).chain(&templates).chain(&invisible).chain(&formulas);
    let mut all: Vec<String> = all.map(|text| (*text).to_owned()).collect();
    all.push("w".repeat(120));
    assert!(all.len() > 60);
    all
}

/// A text as a page shows it: what is invisible, as its code.
fn visible(text: &str) -> String {
    let shown = |c: char| {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let is_hidden =
            turns || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{200b}') || c.is_control();
        if is_hidden && c != '\n' && c != '\t' { c.escape_default().to_string() } else { c.to_string() }
    };
    text.chars().map(shown).collect()
}

/// A text as a name may have it.
fn named(text: &str) -> String {
    text.replace(char::is_control, "")
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn a_hostile_text_is_text_in_every_place() {
    let server = TestServer::open("[queues.orders.pull]\n[server]\nedit = true\n").await;
    let redrive = engine(&server);
    let strings = strings();
    for (at, text) in strings.iter().enumerate() {
        // In the id, the key, the tenant, a header, the payload; the worker then says it as kind, code and message. Names
        // with control characters are refused by the engine.
        let name = named(text);
        let mut event = Event::new("orders", format!("{at} {name}")).tenant(&name);
        event.key = Some(name.clone());
        event.payload = json!({ "text": text, text: 1 }).to_string().into_bytes();
        event.meta_mut().headers.push(("x-hostile".to_owned(), name));
        redrive.publish(event).await.unwrap_or_else(|error| panic!("{text:?}: {error}"));
    }
    loop {
        let leases = redrive.lease("orders", 100, Duration::from_secs(60)).await.expect("leases");
        if leases.is_empty() {
            break;
        }
        let reply = |id: &str| -> Reply {
            let text = id.split_once(' ').map_or(id, |(_, text)| text).to_owned();
            Failure::permanent_text(text.clone()).kind(&*text).code(&*text).not_executed().into()
        };
        let replies = leases.iter().map(|lease| (lease.held(), reply(&lease.event.id))).collect();
        redrive.settle(replies).await.expect("settled");
    }
    let desk = redrive.desk(&*strings[0], "test");
    desk.set(redrive::desk::Rule::Pause { queue: "orders".to_owned() }, None, &strings[1])
        .await
        .expect("a rule");
    let mut browser = Browser::open(&server);
    for address in [
        "/desk",
        "/desk/groups?by=key",
        "/desk/groups?by=tenant",
        "/desk/events",
        "/desk/keys",
        "/desk/flow",
        "/desk/audit",
    ] {
        let page = browser.get(address).await;
        assert_eq!(page.status, 200, "{address}: {}", page.said());
        assert_eq!(page.violations(), Vec::<String>::new(), "{address}");
    }
    let list = browser.get("/desk/events?limit=1000").await;
    let ids = list.texts("a.id");
    for (at, text) in strings.iter().enumerate() {
        let id = format!("{at} {}", named(text));
        assert!(ids.contains(&squeezed(&visible(&id))), "{id:?} is not in the list as text");
        let address = format!(
            "/desk/event?queue=orders&tenant={}&id={}&body=json",
            encoded(&named(text)),
            encoded(&id)
        );
        let page = browser.get(&address).await;
        assert_eq!(page.status, 200, "{id:?}: {}", page.said());
        assert_eq!(page.violations(), Vec::<String>::new(), "{id:?}");
        assert_eq!(page.texts("h1 .id"), [squeezed(&visible(&id))]);
        // What the engine keeps of an error is short, and on one line.
        if text.len() < 100 && !text.chars().any(char::is_control) {
            let causes = page.texts(".timeline .cause");
            assert!(causes.contains(&squeezed(&visible(text))), "{id:?}: {causes:?}");
        }
    }
    // What comes from the address is text, too.
    for text in &strings {
        let asked = encoded(text);
        for address in [
            format!("/desk/find?q={asked}"),
            format!("/desk/events?match={asked}&queue={asked}"),
            format!("/desk/groups?by={asked}"),
            format!("/desk/{asked}"),
            format!("/desk/ledger?key={asked}"),
            format!("/desk/redrive?rate={asked}&planned=1"),
        ] {
            let page = browser.get(&address).await;
            assert!(page.status < 500, "{address}: {}", page.said());
            assert_eq!(page.violations(), Vec::<String>::new(), "{address}");
        }
    }
}

#[tokio::test]
async fn a_large_a_deep_and_a_binary_payload_are_shown_quickly() {
    let server = TestServer::open("[queues.orders.pull]\n").await;
    let redrive = engine(&server);
    let payloads = [
        ("large", format!("\"{}\"", "a".repeat((1 << 20) - 2)).into_bytes()),
        ("deep", ("[".repeat(10_000) + &"]".repeat(10_000)).into_bytes()),
        ("bytes", (0..=255).cycle().take(100_000).collect()),
        ("broken", b"{\"a\": \xed\xa0\x80}".to_vec()),
    ];
    for (id, payload) in &payloads {
        let mut event = Event::new("orders", *id);
        event.payload.clone_from(payload);
        redrive.publish(event).await.expect("it is kept");
    }
    let mut browser = Browser::open(&server);
    for (id, payload) in &payloads {
        for view in ["json", "text", "hex"] {
            let page = browser.get(&format!("/desk/event?queue=orders&id={id}&body={view}")).await;
            assert_eq!(page.status, 200);
            assert!(page.text.len() < 512 << 10, "{id} as {view}: {} bytes", page.text.len());
            assert!(page.said().contains(&format!("{} bytes", payload.len())), "{id}");
        }
        let raw = server
            .client
            .get(server.url(&format!("/desk/event/raw?queue=orders&id={id}")))
            .send()
            .await
            .expect("an answer");
        assert_eq!(raw.headers()["content-type"], "text/plain; charset=utf-8");
        assert!(raw.headers()["content-disposition"].to_str().expect("text").starts_with("attachment"));
        assert_eq!(raw.bytes().await.expect("bytes"), *payload);
    }
}
