//! Key burning: a stranger uses ever so many keys before their owners do. The owners are not refused.

use crate::stage::{Gateway, each, post, scaled};
use crate::upstream::{Asked, Upstream, answer};

const ROUTE: &str = "[[gateway.routes]]\nmatch = \"POST /orders\"\ntenant = \"acme\"\neffects = \"keyed\"\n";

/// An API that authenticates its callers, as most do.
async fn api() -> Upstream {
    Upstream::answering(|asked: &Asked| match asked.header("authorization").as_deref() {
        Some("Bearer owner") => answer("201 Created", "", "made"),
        _ => answer("401 Unauthorized", "WWW-Authenticate: Bearer\r\n", "no"),
    })
    .await
}

/// How many owners are refused after a stranger used their keys.
async fn refused(gateway: &Gateway, keys: usize, (stranger, owner): (&'static str, &'static str)) -> usize {
    let statuses = async |headers: &'static str| {
        each(gateway.address, keys, move |mut client, number| async move {
            let found = client.ask(&post("/orders", &format!("k-{number}"), headers, "{}")).await;
            (client, found.status)
        })
        .await
    };
    let burnt = statuses(stranger).await;
    assert!(burnt.iter().all(|status| *status == 401), "the stranger is no caller of this API");
    statuses(owner).await.iter().filter(|status| **status != 201).count()
}

const BY_TOKEN: (&str, &str) = ("Authorization: Bearer stranger\r\n", "Authorization: Bearer owner\r\n");
const BY_NAME: (&str, &str) = ("X-User: eve\r\n", "X-User: ann\r\nAuthorization: Bearer owner\r\n");

#[tokio::test(flavor = "multi_thread")]
async fn owners_have_the_keys_that_a_stranger_used() {
    let upstream = api().await;
    let keys = scaled(400, 10_000);
    let gateway = Gateway::before(upstream.address, ROUTE).await;
    assert_eq!(refused(&gateway, keys, BY_TOKEN).await, 0);
    // Where a proxy names callers, also if a 401 proves nothing.
    let named = format!(
        "gateway.trusted = [\"127.0.0.1\"]\n{ROUTE}principal = {{ header = \"x-user\" }}\nrelease_on_401 = false\n"
    );
    let gateway = Gateway::before(upstream.address, &named).await;
    assert_eq!(refused(&gateway, keys, BY_NAME).await, 0);
}

/// The control: where neither a 401 releases a key nor callers have keys of their own, every key is burnt.
#[tokio::test(flavor = "multi_thread")]
async fn control_without_either_defence_every_key_is_burnt() {
    let upstream = api().await;
    let gateway = Gateway::before(upstream.address, &format!("{ROUTE}release_on_401 = false\n")).await;
    assert_eq!(refused(&gateway, 50, BY_TOKEN).await, 50);
}
