//! Signing secrets: set, rotated, locked at rest, and never told.

use std::path::Path;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use redrive_server::config::SecretSettings;
use redrive_server::secrets::Secrets;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::push::queue;
use crate::receiver::{Got, Receiver};
use crate::test_server::{TestServer, answer};

/// A folder with keys in it.
pub(crate) fn keys(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in names {
        redrive_server::secrets::make_key(&folder.path().join(name)).expect("a key");
    }
    folder
}

fn key_file(folder: &TempDir, name: &str) -> String {
    format!("secrets.key_file = \"{}\"\n", folder.path().join(name).display())
}

/// HMAC-SHA-256 from its definition, so that a mistake of the library's user shows.
fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; 64];
    block[..key.len()].copy_from_slice(key);
    let pad = |with: u8| block.map(|byte| byte ^ with);
    let inner = Sha256::digest([pad(0x36).as_slice(), message].concat());
    Sha256::digest([pad(0x5c).as_slice(), &inner].concat()).to_vec()
}

/// Which of these secrets signed what came, in the order of the signatures.
pub(crate) fn signers<'s>(got: &Got, secrets: &[&'s str]) -> Vec<&'s str> {
    let message = [
        format!("{}.{}.", got.text("webhook-id"), got.text("webhook-timestamp")).as_bytes(),
        got.body.as_slice(),
    ]
    .concat();
    let signer = |signature: &str| {
        let bytes =
            |secret: &str| STANDARD.decode(secret.strip_prefix("whsec_").expect("a secret")).expect("base64");
        let signs =
            |secret: &&&str| signature == format!("v1,{}", STANDARD.encode(hmac(&bytes(secret), &message)));
        secrets.iter().find(signs).copied().unwrap_or_else(|| panic!("no secret made {signature}"))
    };
    got.text("webhook-signature").split(' ').map(signer).collect()
}

fn minted(told: &Value) -> String {
    told["value"].as_str().unwrap_or_else(|| panic!("a secret: {told}")).to_owned()
}

impl TestServer {
    async fn put(&self, path: &str, body: Value) -> (u16, Value) {
        answer(self.client.put(self.url(path)).json(&body)).await
    }
}

#[tokio::test]
async fn a_signature_is_good_and_a_rotation_signs_with_both() {
    let mut receiver = Receiver::friendly().await;
    let keys = keys(&["key"]);
    let settings =
        format!("{}{}", key_file(&keys, "key"), queue(receiver.address, "", "secret = \"orders\""));
    let mut server = TestServer::open(&settings).await;
    let given = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let (status, told) = server.put("/v1/secrets/orders", json!({ "value": given })).await;
    assert_eq!((status, &told), (200, &json!({ "name": "orders", "version": 1 })));
    server.publish(json!({ "id": "a", "payload": "x" })).await;
    let got = receiver.next().await;
    assert_eq!(signers(&got, &[given]), [given]);
    assert_eq!(got.text("idempotency-key"), format!("\"{}\"", got.text("webhook-id")));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("now").as_secs();
    assert!(got.text("webhook-timestamp").parse::<u64>().expect("seconds").abs_diff(now) < 60);

    let (_, told) = server.post("/v1/secrets/orders/rotate", json!({ "keep_old": "1h" })).await;
    let newer = minted(&told);
    server.publish(json!({ "id": "b" })).await;
    assert_eq!(signers(&receiver.next().await, &[given, &newer]), [&newer, given]);

    server.stop().await;
    server.start().await;
    server.publish(json!({ "id": "c" })).await;
    assert_eq!(signers(&receiver.next().await, &[given, &newer]), [&newer, given]);

    assert_eq!(server.post("/v1/secrets/orders/drop-old", json!({})).await.0, 200);
    server.publish(json!({ "id": "d" })).await;
    assert_eq!(signers(&receiver.next().await, &[given, &newer]), [&newer]);

    // At once: nothing of the old one is left.
    let (_, told) = server.post("/v1/secrets/orders/rotate", json!({ "keep_old": "0s" })).await;
    server.publish(json!({ "id": "e" })).await;
    assert_eq!(signers(&receiver.next().await, &[&newer, &minted(&told)]), [&minted(&told)]);
}

#[tokio::test]
async fn who_changes_a_secret_is_in_the_audit_and_its_value_is_not() {
    let keys = keys(&["key"]);
    let server = TestServer::open(&format!("{}[queues.orders.pull]\n", key_file(&keys, "key"))).await;
    let given = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    assert_eq!(server.put("/v1/secrets/shop", json!({ "value": given })).await.0, 200);
    assert_eq!(server.post("/v1/secrets/shop/rotate", json!({ "value": given })).await.0, 200);
    assert_eq!(server.post("/v1/secrets/shop/drop-old", json!({})).await.0, 200);
    assert_eq!(answer(server.client.delete(server.url("/v1/secrets/shop"))).await.0, 200);
    assert_eq!(server.post("/v1/secrets/shop/rotate", json!({ "value": given })).await.0, 404);
    assert_eq!(server.client.post(server.url("/v1/backup")).send().await.expect("an answer").status(), 200);
    let (_, audit) = server.get("/v1/audit").await;
    let lines: Vec<_> = audit["lines"].as_array().expect("lines").iter().rev().collect();
    let brief: Vec<_> = lines
        .iter()
        .map(|line| (line["verb"].as_str(), line["target"].as_str(), line["count"].as_u64()))
        .collect();
    let line = |verb, target, count| (Some(verb), Some(target), Some(count));
    assert_eq!(
        brief,
        [
            line("set-secret", "secret shop", 1),
            line("rotate-secret", "secret shop", 1),
            line("drop-old-secret", "secret shop", 1),
            line("remove-secret", "secret shop", 1),
            line("rotate-secret", "secret shop", 1),
            line("rotate-secret", "secret shop", 0),
            line("backup", "store", 1),
        ]
    );
    assert!(lines.iter().all(|line| line["who"] == "local" && line["from"] == "127.0.0.1"), "{audit}");
    assert!(!audit.to_string().contains("MfKQ9r8G"), "{audit}");
}

#[tokio::test]
async fn what_should_be_signed_is_not_sent_without_its_secret() {
    let mut receiver = Receiver::friendly().await;
    let keys = keys(&["key"]);
    let once = "attempts = 1\nbudget = \"none\"";
    let settings =
        format!("{}{}", key_file(&keys, "key"), queue(receiver.address, once, "secret = \"orders\""));
    let server = TestServer::open(&settings).await;
    let (status, ready) = server.get("/readyz").await;
    let warning = "queues whose signing secret is missing or locked: 1; see the log";
    assert_eq!((status, &ready["warnings"]), (200, &json!([warning])));
    server.publish(json!({ "id": "a" })).await;
    let found = server.fate("a", 1).await;
    let history = found.history.expect("its attempt history");
    let failed = history.records().next().expect("an attempt");
    assert_eq!(failed.executed, Some(redrive::Executed::No));
    assert_eq!(failed.cause.as_ref().expect("a cause").kind, "no-secret");
    assert!(receiver.is_quiet());
    server.put("/v1/secrets/orders", json!({})).await;
    assert_eq!(server.get("/readyz").await.1, json!({ "status": "ok" }));
    server.publish(json!({ "id": "b" })).await;
    assert!(!receiver.next().await.text("webhook-signature").is_empty());
}

/// Whether a file in this folder has these bytes in it.
fn is_in_files(folder: &Path, bytes: &[u8]) -> bool {
    std::fs::read_dir(folder).expect("a folder").any(|file| {
        let content = std::fs::read(file.expect("a file").path()).expect("its bytes");
        content.windows(bytes.len()).any(|window| window == bytes)
    })
}

#[tokio::test]
async fn a_secret_is_told_once_and_locked_at_rest() {
    let keys = keys(&["key"]);
    let mut server = TestServer::open(&format!("{}[queues.orders.pull]\n", key_file(&keys, "key"))).await;
    let secret = minted(&server.put("/v1/secrets/orders", json!({})).await.1);
    let bytes = STANDARD.decode(secret.strip_prefix("whsec_").expect("a secret")).expect("base64");
    let (_, listed) = server.get("/v1/secrets").await;
    assert_eq!(
        (&listed["secrets"][0]["name"], &listed["secrets"][0]["versions"][0]["version"]),
        (&json!("orders"), &json!(1))
    );
    assert!(!listed.to_string().contains(&secret[6..]));
    let app = format!("{:?}", server.server.as_ref().expect("it runs").app());
    assert!(app.contains("orders") && !app.contains(&secret[6..]) && !app.contains(&format!("{bytes:?}")));
    // The table is there, and what it holds is not the secret.
    assert!(is_in_files(server.folder.path(), b"server_secret"));
    assert!(
        !is_in_files(server.folder.path(), &bytes)
            && !is_in_files(server.folder.path(), &secret.as_bytes()[6..])
    );
    server.stop().await;
    assert!(!is_in_files(server.folder.path(), &bytes));
}

#[tokio::test]
async fn a_key_is_changed_with_the_old_one_beside_it() {
    let mut receiver = Receiver::friendly().await;
    let keys = keys(&["old", "new"]);
    let rest = queue(receiver.address, "", "secret = \"orders\"");
    let mut server = TestServer::open(&format!("{}{rest}", key_file(&keys, "old"))).await;
    let secret = minted(&server.put("/v1/secrets/orders", json!({})).await.1);
    server.stop().await;
    let old = format!("secrets.old_key_file = \"{}\"\n", keys.path().join("old").display());
    for (key, signed) in [
        (key_file(&keys, "new"), false),
        (format!("{}{old}", key_file(&keys, "new")), true),
        // It was locked anew, so the old key is not needed any more, and no good.
        (key_file(&keys, "new"), true),
        (key_file(&keys, "old"), false),
    ] {
        server.set(&format!("{key}{rest}"));
        server.start().await;
        assert_eq!(server.get("/readyz").await.1["warnings"].is_null(), signed, "{key}");
        assert_eq!(server.get("/v1/secrets").await.1["secrets"][0]["versions"][0]["open"], json!(signed));
        if signed {
            server.publish(json!({ "id": key.escape_debug().to_string() })).await;
            assert_eq!(signers(&receiver.next().await, &[&secret]), [&secret]);
        }
        server.stop().await;
    }
}

/// A wrong key must not suggest setting an existing secret again.
#[tokio::test]
async fn a_key_that_does_not_fit_is_told_as_such() {
    let mut receiver = Receiver::friendly().await;
    let keys = keys(&["key", "other"]);
    let rest = queue(receiver.address, "attempts = 1\nbudget = \"none\"", "secret = \"orders\"");
    let mut server = TestServer::open(&format!("{}{rest}", key_file(&keys, "key"))).await;
    minted(&server.put("/v1/secrets/orders", json!({})).await.1);
    server.stop().await;
    for key in [key_file(&keys, "other"), String::new()] {
        server.set(&format!("{key}{rest}"));
        server.start().await;
        let warnings = redrive_server::reload::warnings(server.server.as_ref().expect("it runs").app());
        let told = "queues.orders.push: the key does not open the secret `orders`; set secrets.key_file";
        assert!(warnings.len() == 1 && warnings[0].starts_with(told), "{warnings:?}");
        let id = format!("a{}", key.len());
        server.publish(json!({ "id": id })).await;
        let history = server.fate(&id, 1).await.history.expect("its attempt history");
        let cause = history.records().next().and_then(|record| record.cause.clone()).expect("a cause");
        assert_eq!(cause.kind, "secret-locked", "{cause:?}");
        server.stop().await;
    }
    assert!(receiver.is_quiet());
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_without_being_repeated() {
    let none = TestServer::open("[queues.orders.pull]\n").await;
    let (status, problem) = none.put("/v1/secrets/orders", json!({})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("no-key")));
    let keys = keys(&["key"]);
    let server = TestServer::open(&format!("{}[queues.orders.pull]\n", key_file(&keys, "key"))).await;
    for (path, body, status) in [
        ("/v1/secrets/orders", json!({ "value": "geheim" }), 422),
        ("/v1/secrets/orders", json!({ "value": "whsec_geheim" }), 422),
        ("/v1/secrets/orders", json!({ "geheim": "geheim" }), 400),
        ("/v1/secrets/orders", json!("geheim"), 400),
        ("/v1/secrets/orders", json!({ "keep_old": "1h" }), 400),
        ("/v1/secrets/a%20b", json!({}), 422),
    ] {
        let (told, problem) = server.put(path, body.clone()).await;
        assert_eq!(told, status, "{body}: {problem}");
        assert!(!problem.to_string().contains("geheim"), "{problem}");
    }
    assert_eq!(server.post("/v1/secrets/orders/rotate", json!({})).await.0, 404);
    assert_eq!(server.post("/v1/secrets/orders/rotate", json!({ "keep_old": "1year" })).await.0, 400);
    assert_eq!(server.post("/v1/secrets/orders/drop-old", json!({})).await.0, 404);
    assert_eq!(answer(server.client.delete(server.url("/v1/secrets/orders"))).await.0, 404);
}

#[tokio::test]
async fn an_address_or_a_body_that_cannot_be_read_is_a_problem() {
    let server = TestServer::open("[queues.orders.pull]\n").await;
    let name = server.client.delete(server.url("/v1/secrets/%FF"));
    let list = server.client.put(server.url("/v1/secrets/a")).body("[null, null]");
    for request in [name, list] {
        let (status, problem) = crate::test_server::answer(request).await;
        assert_eq!((status, &problem["code"]), (400, &json!("bad-request")), "{problem}");
    }
}

#[tokio::test]
async fn a_list_has_pages_and_what_is_removed_is_gone() {
    let keys = keys(&["key"]);
    let server = TestServer::open(&format!("{}[queues.orders.pull]\n", key_file(&keys, "key"))).await;
    for name in ["c", "a", "b-1", "b"] {
        assert_eq!(server.put(&format!("/v1/secrets/{name}"), json!({})).await.0, 200);
    }
    let mut names = Vec::new();
    let mut after = String::new();
    loop {
        let (_, page) = server.get(&format!("/v1/secrets?limit=3&after={after}")).await;
        names.extend(page["secrets"].as_array().expect("a list").iter().map(|secret| secret["name"].clone()));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(names, ["a", "b", "b-1", "c"]);
    assert_eq!(answer(server.client.delete(server.url("/v1/secrets/b"))).await.0, 200);
    let (_, page) = server.get("/v1/secrets").await;
    assert_eq!(page["secrets"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn secrets_are_for_operators_of_the_house() {
    let hash = "sha256:d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272";
    for (token, told) in [
        ("rights = [\"publish\", \"consume\", \"read\"]", "forbidden"),
        ("rights = [\"operate\"]\ntenant = \"acme\"", "not-one-tenant"),
    ] {
        let server =
            TestServer::open(&format!("[tokens.a]\nhash = \"{hash}\"\n{token}\n[queues.orders.pull]\n"))
                .await;
        let url = |path: &str| server.url(path);
        for request in [
            server.client.get(url("/v1/secrets")),
            server.client.put(url("/v1/secrets/a")),
            server.client.delete(url("/v1/secrets/a")),
            server.client.post(url("/v1/secrets/a/rotate")),
            server.client.post(url("/v1/secrets/a/drop-old")),
            server.client.post(url("/v1/reload")),
        ] {
            let (status, problem) = answer(request.bearer_auth("sesame")).await;
            assert_eq!((status, &problem["code"]), (403, &json!(told)));
        }
    }
}

/// Time passes where it is told to.
#[tokio::test]
async fn an_old_version_signs_until_its_time_is_over_and_there_are_few() {
    let keys = keys(&["key"]);
    let settings = SecretSettings { key_file: Some(keys.path().join("key")), old_key_file: None };
    let redrive = redrive::Redrive::open("memory:").await.expect("a store");
    let secrets = Secrets::default();
    secrets.load(&redrive, &settings).await.expect("keys");
    let value = || redrive_server::secrets::SecretValue::mint().expect("chance");
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    let now = SystemTime::now();
    let signing = |at| secrets.signing("orders", at).expect("it is known");
    let values = [value(), value(), value(), value(), value()];
    secrets.set(&redrive, "orders", &values[0]).await.expect("set");
    secrets.rotate(&redrive, "orders", &values[1], hours(1)).await.expect("rotated");
    assert_eq!((signing(now).len(), signing(now + hours(2)).len()), (2, 1));
    for value in &values[2..] {
        secrets.rotate(&redrive, "orders", value, hours(4)).await.expect("rotated");
    }
    let newest: Vec<_> = signing(now).iter().map(|value| (**value).clone()).collect();
    assert_eq!(newest, [values[4].clone(), values[3].clone(), values[2].clone()]);
    // What was set stands alone.
    assert_eq!(secrets.set(&redrive, "orders", &values[0]).await.expect("set"), 6);
    assert_eq!(signing(now).len(), 1);
    // Another process that opens the same store finds them.
    let again = Secrets::default();
    again.load(&redrive, &settings).await.expect("keys");
    assert_eq!(*again.signing("orders", now).expect("it is known")[0], values[0]);
}

#[tokio::test]
async fn a_name_that_is_no_text_is_a_problem_like_every_other() {
    let server = TestServer::open("[queues.orders.pull]\n").await;
    let (status, problem) = answer(server.client.put(server.url("/v1/secrets/%ff"))).await;
    assert_eq!((status, &problem["code"]), (400, &json!("bad-request")));
}

/// A server of its own over a schema that others share.
async fn node(schema: &str, keys: &TempDir) -> TestNode {
    let settings = format!(
        "[store]\nschema = \"{schema}\"\nshards = 2\n[queues.orders.pull]\n[secrets]\nkey_file = \"{}\"\n",
        keys.path().join("a").display()
    );
    let mut config: redrive_server::config::Config = toml::from_str(&settings).expect("settings");
    config.server.listen.set_port(0);
    config.store.address = redrive_testkit::postgres::Server::shared().url();
    TestNode(redrive_server::serve::Server::start(config).await.expect("a server"))
}

struct TestNode(redrive_server::serve::Server);

impl TestNode {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.0.address())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_revoked_on_one_node_is_gone_from_the_others_within_five_seconds() {
    let (schema, keys) = (redrive_testkit::postgres::a_name("revoked"), keys(&["a"]));
    let (here, there) = (node(&schema, &keys).await, node(&schema, &keys).await);
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let names = async || {
        let (_, told) = answer(client.get(there.url("/v1/secrets"))).await;
        told["secrets"].as_array().map_or(0, Vec::len)
    };
    let until = async |count: usize| {
        let asked = tokio::time::Instant::now();
        while names().await != count {
            assert!(asked.elapsed() < redrive_server::secrets::FRESH, "it has {} secrets", names().await);
        }
    };
    assert_eq!(answer(client.put(here.url("/v1/secrets/orders"))).await.0, 200);
    until(1).await;
    assert_eq!(answer(client.delete(here.url("/v1/secrets/orders"))).await.0, 200);
    until(0).await;
    for node in [here, there] {
        node.0.stop(Duration::from_secs(5)).await.expect("a clean stop");
    }
}
