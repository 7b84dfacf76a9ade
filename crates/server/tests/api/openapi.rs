//! The API's description: the routes that there are, and what is checked in.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::test_server::TestServer;

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

fn document() -> Value {
    serde_json::from_str(&redrive_server::api::openapi::text()).expect("it is JSON")
}

/// Every method of every path that the document has.
fn described() -> BTreeSet<(String, String)> {
    let document = document();
    let paths = document["paths"].as_object().expect("paths").iter();
    let methods = paths.flat_map(|(path, item)| {
        let methods = METHODS.iter().filter(|method| item.get(**method).is_some());
        methods.map(|method| (path.clone(), (*method).to_owned())).collect::<Vec<_>>()
    });
    methods.collect()
}

/// Every method of every path that the source routes: `.route("/path", get(…).post(…))`, or in a loop over words
/// `.route(&format!("/path/{}", …), post(…))`.
fn routed(folder: &Path, found: &mut BTreeSet<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            routed(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = std::fs::read_to_string(&path).expect("a file");
            for call in source.split(".route(").skip(1) {
                let (paths, methods) = route(call, &source);
                assert!(!methods.is_empty(), "no method can be read of {paths:?}");
                let routes = paths.iter().flat_map(|path| methods.iter().map(move |method| (path, method)));
                found.extend(routes.map(|(path, method)| (path.clone(), (*method).to_owned())));
            }
        }
    }
}

/// The paths and the methods of one call, from after its bracket on.
fn route(call: &str, source: &str) -> (Vec<String>, Vec<&'static str>) {
    let (before, rest) = call.split_once('"').expect("a path");
    let (path, rest) = rest.split_once('"').expect("its end");
    let is_made = before.contains("format!(");
    let mut depth = if is_made { 2 } else { 1 };
    let end = rest.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    let rest = &rest[..end.expect("its last bracket")];
    let words = rest.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '(');
    let methods = METHODS.into_iter().filter(|method| {
        let called = format!("{method}(");
        words.clone().any(|word| word.starts_with(&called))
    });
    let methods = methods.collect();
    if !is_made {
        return (vec![path.to_owned()], methods);
    }
    // The words of a loop are what its enum is matched to: `Self::Kill => "kill",`.
    let words = source.split("=> \"").skip(1).filter_map(|rest| rest.split_once("\",").map(|(word, _)| word));
    let paths = words.map(|word| path.replace("{{", "<").replace("}}", ">").replace("{}", word));
    let paths: Vec<_> = paths.map(|path| path.replace('<', "{").replace('>', "}")).collect();
    assert!(path.contains("{}") && !paths.is_empty(), "{path} cannot be read");
    (paths, methods)
}

#[test]
fn what_is_described_is_routed_and_the_reverse() {
    let mut found = BTreeSet::new();
    routed(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api"), &mut found);
    for path in ["/v1/queues/{queue}/leases", "/v1/events/retry-now", "/v1/queues/{queue}/events/{id}/kill"] {
        assert!(found.contains(&(path.to_owned(), "post".to_owned())), "{path} is not in {found:?}");
    }
    assert_eq!(described(), found, "the document is on the left, the routes on the right");
}

#[test]
fn every_reference_leads_somewhere() {
    fn walk(whole: &Value, part: &Value) {
        match part {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    let pointer = reference.strip_prefix('#').expect("a reference within");
                    assert!(whole.pointer(pointer).is_some(), "{reference}");
                }
                members.values().for_each(|part| walk(whole, part));
            }
            Value::Array(parts) => parts.iter().for_each(|part| walk(whole, part)),
            _ => {}
        }
    }
    let document = document();
    walk(&document, &document);
}

/// What generators of clients stumble over.
#[test]
fn the_document_can_be_generated_from() {
    fn walk(path: &str, part: &Value) {
        match part {
            Value::Object(members) => {
                // A property may have any name; words of a schema stand elsewhere.
                let is_schema = !path.ends_with("/properties");
                for word in ["const", "prefixItems", "contentEncoding"].iter().filter(|_| is_schema) {
                    assert!(!members.contains_key(*word), "{path} has {word}");
                }
                assert!(
                    !is_schema || !members.get("type").is_some_and(Value::is_array),
                    "{path} is a union of types"
                );
                let reference = members.get("$ref").and_then(Value::as_str).unwrap_or_default();
                assert!(!reference.contains("/properties/"), "{path} refers to {reference}");
                let is_array = is_schema && members.get("type").is_some_and(|kind| kind == "array");
                assert!(!is_array || members.contains_key("items"), "{path} has no items");
                members.iter().for_each(|(name, part)| walk(&format!("{path}/{name}"), part));
            }
            Value::Array(parts) => parts.iter().for_each(|part| walk(path, part)),
            _ => {}
        }
    }
    let document = document();
    assert_eq!(document["openapi"], "3.0.3");
    walk("", &document);
}

/// To write the file anew: `UPDATE=1 cargo test -p redrive-server --test api openapi`.
#[test]
fn the_document_that_is_checked_in_is_the_one_that_is_served() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/openapi.json");
    let text = redrive_server::api::openapi::text();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &text).expect("it is written");
    }
    let kept = std::fs::read_to_string(&file).expect("docs/reference/openapi.json");
    assert!(kept == text, "docs/reference/openapi.json is not what is served; write it anew with UPDATE=1");
}

#[tokio::test]
async fn the_document_is_told_without_a_token_and_each_path_answers() {
    let hash = crate::pull::sha256("sesame");
    let tokens = format!("[tokens.shop]\nhash = 'sha256:{hash}'\nrights = ['publish']\n[queues.jobs.pull]\n");
    let server = TestServer::open(&tokens).await;
    let (status, told) = server.get("/openapi.json").await;
    assert_eq!((status, told), (200, document()));
    for (path, method) in described() {
        let path = path.replace(['{', '}'], "");
        let method = reqwest::Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
        let request = server.client.request(method.clone(), server.url(&path));
        let (status, told) = crate::test_server::answer(request).await;
        assert!([200, 401].contains(&status), "{method} {path}: {status} {told}");
        let other =
            server.client.request(reqwest::Method::TRACE, server.url(&path)).send().await.expect("an answer");
        assert_eq!(other.status(), 405, "{path}");
        let allowed = other.headers()["allow"].to_str().expect("text").to_owned();
        assert!(allowed.contains(method.as_str()), "{path} says that it knows {allowed}");
    }
    let (status, problem) = server.get("/v1/nothing").await;
    assert_eq!((status, &problem["code"]), (404, &json!("not-found")));
}
