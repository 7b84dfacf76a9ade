//! The script that every library passes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use redrive_server::config::Config;
use redrive_server::gateway::Gateway;
use serde_json::{Value, json};

use crate::driver::{Driver, Language, PATIENCE};

const EVENTS: usize = 60;
/// Every so many published events the server is killed.
const LIFE: usize = 13;

pub(crate) async fn all(language: Language) {
    let Some(driver) = language.driver() else { return };
    webhooks(&driver).await;
    calls(&driver).await;
    kills(&driver).await;
}

/// The program, on a port that it keeps over its lives.
struct Served(Child);

impl Served {
    fn start(config: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(["serve", "--config"])
            .arg(config)
            .env_remove("REDRIVE_CONFIG")
            .env("REDRIVE_OBSERVE_LOG_FORM", "text")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut lines = BufReader::new(child.stderr.take().expect("its talk")).lines();
        let is_up = lines.by_ref().map_while(Result::ok).any(|line| line.contains("listening on http://"));
        assert!(is_up, "the server does not start");
        // Read on, so that it is never held up by what it has to say.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self(child)
    }
}

impl Drop for Served {
    /// SIGKILL, in the midst of whatever it does.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Publishers and workers while the server dies: everything that was published is done, under one key each.
async fn kills(driver: &[String]) {
    let folder = tempfile::tempdir().expect("a folder");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let config = folder.path().join("redrive.toml");
    let policy = "attempts = 20\nbudget = \"none\"\nbackoff.constant.delay = \"10ms\"\n";
    let settings = format!(
        "server.listen = \"127.0.0.1:{port}\"\nstore.address = \"sqlite:{}\"\n[queues.jobs.pull]\n\
         [queues.jobs.policy]\n{policy}",
        folder.path().join("redrive.db").display()
    );
    std::fs::write(&config, settings).expect("a configuration");
    let url = format!("http://127.0.0.1:{port}");
    let mut server = Served::start(&config);
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let publish = async |id: &str, payload: Value| -> Value {
        let request = client.post(format!("{url}/v1/queues/jobs/events"));
        let answer = request.json(&json!({ "id": id, "payload": payload })).send().await.expect("an answer");
        answer.json().await.expect("JSON")
    };
    assert_eq!(publish("poison", json!(null)).await["result"], "accepted");

    let mut worker = Driver::start(driver, &["work", &url, "jobs"]);
    let mut publisher = Driver::start(driver, &["publish", &url, "jobs", &EVENTS.to_string()]);
    let mut published = BTreeSet::new();
    let mut kills = 0;
    while let Some(line) = publisher.next().await {
        let result = line["result"].as_str().unwrap_or_else(|| panic!("{line}"));
        assert!(["accepted", "duplicate"].contains(&result), "{line}");
        assert!(published.insert(line["published"].as_str().expect("an id").to_owned()), "{line}");
        if published.len().is_multiple_of(LIFE) {
            kills += 1;
            drop(server);
            server = Served::start(&config);
        }
    }
    assert!(publisher.ends().await && kills >= 3 && published.len() == EVENTS, "{kills} {published:?}");

    // By the key of each event the receiver of an effect knows a repetition.
    let mut effects: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    while effects.len() < EVENTS {
        let line = worker.next().await.expect("it still works");
        let text = |name: &str| line[name].as_str().unwrap_or_else(|| panic!("{line}")).to_owned();
        effects.entry(text("effect")).or_default().insert(text("key"));
    }
    assert_eq!(effects.keys().cloned().collect::<BTreeSet<_>>(), published, "nothing is lost");
    assert!(effects.values().all(|keys| keys.len() == 1), "one key an event: {effects:?}");

    let deadline = tokio::time::Instant::now() + PATIENCE;
    for (id, state) in published.iter().map(|id| (id.as_str(), "done")).chain([("poison", "dead")]) {
        let payload = id.split_once('-').map(|(_, n)| json!({ "n": n.parse::<u32>().expect("a number") }));
        loop {
            let told = publish(id, payload.clone().unwrap_or(Value::Null)).await;
            assert_eq!(told["result"], "duplicate", "published twice or lost: {id} {told}");
            if told["first"]["state"] == state {
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "{id} is not {state}: {told}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
    worker.terminate();
    let mut stopped = false;
    while let Some(line) = worker.next().await {
        stopped |= line["stopped"] == true;
    }
    assert!(stopped && worker.ends().await, "it stops when asked to");
    drop(server);
}

/// The example of Standard Webhooks, and what is none.
async fn webhooks(driver: &[String]) {
    const SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const BODY: &str = r#"{"test": 2432232314}"#;
    let prefixed = format!("whsec_{SECRET}");
    let rotated = format!("v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= {SIGNATURE}");
    let mut verifier = Driver::start(driver, &["webhooks"]);
    let now = 1_614_265_330;
    for (secrets, signature, body, now, valid) in [
        (vec![prefixed.as_str()], SIGNATURE, BODY, now, true),
        (vec![SECRET], SIGNATURE, BODY, now + 200, true),
        (vec![OTHER, &prefixed], &rotated, BODY, now, true),
        (vec![OTHER], SIGNATURE, BODY, now, false),
        (vec![&prefixed], SIGNATURE, "{}", now, false),
        (vec![&prefixed], SIGNATURE, BODY, now + 301, false),
        (vec![&prefixed], "v1a,AAAA", BODY, now, false),
        (vec![&prefixed], "", BODY, now, false),
    ] {
        let headers = json!({
            "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330",
            "Webhook-Signature": signature,
        });
        let ask =
            json!({ "secrets": secrets, "headers": headers, "body": STANDARD.encode(body), "now": now });
        assert_eq!(verifier.ask(&ask).await["valid"], valid, "{ask}");
    }
    assert!(verifier.ends().await);
}

/// Calls through the gateway, of an API that fails first.
async fn calls(driver: &[String]) {
    static ORDERS: AtomicU32 = AtomicU32::new(0);
    let order = async || {
        let first = ORDERS.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
        if first { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::CREATED }
    };
    let upstream = Router::new()
        .route("/orders", post(order))
        .route("/mails", post(async || StatusCode::INTERNAL_SERVER_ERROR))
        .route("/full", post(async || StatusCode::CONFLICT));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, upstream).await });
    let route = |path: &str, effects: &str| {
        format!("[[gateway.routes]]\nmatch = \"POST {path}\"\ntenant = \"acme\"\neffects = \"{effects}\"\n")
    };
    let settings = format!(
        "store.address = \"memory:\"\ngateway.listen = \"127.0.0.1:0\"\ngateway.upstream = \"http://{address}\"\n{}{}{}",
        route("/orders", "keyed"),
        route("/full", "keyed"),
        route("/mails", "opaque")
    );
    let config: Config = toml::from_str(&settings).expect("settings");
    let gateway = Gateway::start(config).await.expect("it starts");
    let mut caller = Driver::start(driver, &["call", &format!("http://{}", gateway.address())]);
    let mut ask = async |path: &str, n: u32, key: &str| {
        caller.ask(&json!({ "path": path, "data": n, "key": key })).await
    };
    let first = ask("/orders", 1, "k").await;
    assert_eq!(
        (&first["status"], &first["replayed"], &first["key"]),
        (&json!(201), &json!(false), &json!("k"))
    );
    assert_eq!(ask("/orders", 1, "k").await["replayed"], true);
    assert_eq!(ask("/orders", 2, "k").await["problem"], "key-reused");
    assert_eq!(ask("/mails", 1, "m").await["problem"], "outcome-unknown", "and never a success");
    assert_eq!(ask("/full", 1, "f").await["status"], 409, "the API's own answer");
    assert!(caller.ends().await);
    gateway.stop(std::time::Duration::from_secs(5)).await.expect("a clean stop");
}
