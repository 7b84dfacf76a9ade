//! Events that are dead, done or put back, because a worker in the test said so.

use std::time::Duration;

use redrive::{Failure, Redrive, Reply};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::test_server::{TestServer, answer};

/// How long a test waits for what is to come in any case.
const PATIENCE: Duration = Duration::from_secs(60);

/// Publishes events of a tenant, with a key if there is one.
pub(crate) async fn publish(server: &TestServer, queue: &str, tenant: &str, key: Option<&str>, ids: &[&str]) {
    let event = |id: &&str| json!({ "id": id, "tenant": tenant, "key": key, "payload": { "order": id } });
    let redrive = engine(server);
    for event in ids.iter().map(event) {
        let mut published = redrive::Event::new(queue, event["id"].as_str().expect("an id")).tenant(tenant);
        published.key = key.map(str::to_owned);
        published.payload = event["payload"].to_string().into_bytes();
        redrive.publish(published).await.expect("it is kept");
    }
}

/// The engine of a server.
pub(crate) fn engine(server: &TestServer) -> &Redrive {
    &server.server.as_ref().expect("it runs").app().redrive
}

/// Has a worker fail with all that it can lease, and say that it will not help to try again; gives how many.
pub(crate) async fn die(server: &TestServer, queue: &str) -> usize {
    work(server, queue, |id| {
        Failure::permanent_text(format!("no customer for {id}"))
            .kind("Shop")
            .code("404")
            .not_executed()
            .into()
    })
    .await
}

/// Has a worker fail with all that it can lease, and say that it may be tried again; gives how many.
pub(crate) async fn fail(server: &TestServer, queue: &str) -> usize {
    work(server, queue, |id| {
        Failure::transient_text(format!("no room for {id}")).kind("Shop").code("503").into()
    })
    .await
}

/// Has a worker do all that it can lease; gives how many.
pub(crate) async fn succeed(server: &TestServer, queue: &str) -> usize {
    work(server, queue, |_| Reply::ok()).await
}

async fn work(server: &TestServer, queue: &str, reply: impl Fn(&str) -> Reply) -> usize {
    let mut count = 0;
    loop {
        let leases = engine(server).lease(queue, 100, Duration::from_secs(60)).await.expect("leases");
        if leases.is_empty() {
            return count;
        }
        count += leases.len();
        let replies = leases.iter().map(|lease| (lease.held(), reply(&lease.event.id))).collect();
        engine(server).settle(replies).await.expect("settled");
    }
}

/// Asks again and again until the answer is as it is to be.
pub(crate) async fn until(server: &TestServer, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let asking = async {
        loop {
            let (_, answer) = server.get(path).await;
            if is_so(&answer) {
                return answer;
            }
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("it comes to that")
}

/// Settings for a token, whose text is its name.
pub(crate) fn token(name: &str, rights: &str, tenant: Option<&str>) -> String {
    let hash: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let tenant = tenant.map_or(String::new(), |tenant| format!("tenant = \"{tenant}\"\n"));
    format!("[tokens.{name}]\nhash = \"sha256:{hash}\"\nrights = [{rights}]\n{tenant}")
}

/// Gets with a token.
pub(crate) async fn get_as(server: &TestServer, token: &str, path: &str) -> (u16, Value) {
    answer(server.client.get(server.url(path)).bearer_auth(token)).await
}

/// Posts with a token.
pub(crate) async fn post_as(server: &TestServer, token: &str, path: &str, body: Value) -> (u16, Value) {
    answer(server.client.post(server.url(path)).bearer_auth(token).json(&body)).await
}

/// One member of each thing in a list.
pub(crate) fn each<'a>(answer: &'a Value, list: &str, member: &str) -> Vec<&'a str> {
    let list = answer[list].as_array().unwrap_or_else(|| panic!("no list {list} in {answer}"));
    list.iter().map(|one| one[member].as_str().unwrap_or_default()).collect()
}
