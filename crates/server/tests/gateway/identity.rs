//! Whose a request is, what the upstream is told of its key, and what is stored of its answer.

use crate::keyed_requests::{MADE, ask, exchange, post};
use crate::test_gateway::{Gate, Talk, Upstream, code};

#[tokio::test]
async fn strangers_share_no_answers() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let request = post("/orders", "k", "x").replace("Host: a", "Host: a\nAuthorization: Bearer one");
    exchange(&gate, &upstream, &request, MADE).await;
    assert_eq!(ask(&gate, &request).await.0.status(), 201);
    for other in ["Authorization: Bearer two", "Cookie: one", "X-Api-Key: one"] {
        let (answer, body) = ask(&gate, &request.replace("Authorization: Bearer one", other)).await;
        assert_eq!((answer.status(), code(&body).as_str()), (422, "key-reused"), "{other}");
    }
}

#[tokio::test]
async fn an_account_beside_the_token_is_another_caller() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let of = |account: &str| {
        let headers = format!("Host: a\nAuthorization: Bearer one\nStripe-Account: {account}");
        post("/charges", "k", "x").replace("Host: a", &headers)
    };
    exchange(&gate, &upstream, &of("acct_A"), MADE).await;
    let (answer, body) = ask(&gate, &of("acct_B")).await;
    assert_eq!((answer.status(), code(&body).as_str()), (422, "key-reused"));
    assert_eq!(ask(&gate, &of("acct_A")).await.0.get("idempotent-replayed"), Some("true"));
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn callers_are_told_apart_by_headers_that_nobody_named() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let request = |n: usize, header: &str| {
        post("/orders", &format!("k{n}"), "x").replace("Host: a", &format!("Host: a\n{header}"))
    };
    for (n, name) in ["X-Auth-Token", "X-Session", "X-User", "Caller"].into_iter().enumerate() {
        exchange(&gate, &upstream, &request(n, &format!("{name}: one")), MADE).await;
        // What says nothing of the caller may be another.
        let same = ask(&gate, &request(n, &format!("{name}: one\nTraceparent: 7\nUser-Agent: b"))).await;
        assert_eq!((same.0.status(), same.0.get("idempotent-replayed")), (201, Some("true")), "{name}");
        for other in [format!("{name}: two"), "Accept: a".to_owned()] {
            let (answer, body) = ask(&gate, &request(n, &other)).await;
            assert_eq!((answer.status(), code(&body).as_str()), (422, "key-reused"), "{name}: {other}");
        }
    }
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn where_credentials_are_named_they_alone_count() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "gateway.credentials = [\"X-Caller\"]\n").await;
    let request = |header: &str| post("/orders", "k", "x").replace("Host: a", &format!("Host: a\n{header}"));
    exchange(&gate, &upstream, &request("X-Caller: one\nAuthorization: t1"), MADE).await;
    let (same, _) = ask(&gate, &request("X-Caller: one\nAuthorization: t2\nX-Tries: 2")).await;
    assert_eq!((same.status(), same.get("idempotent-replayed")), (201, Some("true")));
    for other in ["X-Caller: two\nAuthorization: t1", "Authorization: t1"] {
        assert_eq!(ask(&gate, &request(other)).await.0.status(), 422, "{other}");
    }
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn tenants_and_principals_are_those_that_a_trusted_proxy_names() {
    let route = "[[gateway.routes]]\nmatch = \"POST /orders\"\neffects = \"opaque\"\n\
                 tenant = { header = \"x-tenant\" }\nprincipal = { header = \"x-user\" }\n";
    let upstream = Upstream::open().await;
    let trusted =
        Gate::before(upstream.address(), &format!("gateway.trusted = [\"127.0.0.1\"]\n{route}")).await;
    let named = |tenant: &str, user: &str, token: &str| {
        let headers = format!("Host: a\nX-Tenant: {tenant}\nX-User: {user}\nAuthorization: {token}");
        post("/orders", "k", "x").replace("Host: a", &headers)
    };
    for tenant in ["acme", "other"] {
        let (_, first, _) = exchange(&trusted, &upstream, &named(tenant, "ada", "t1"), MADE).await;
        assert_eq!(first.get("idempotency-status"), Some("created"), "{tenant}");
    }
    // A new token of the same person is the same person.
    let (again, _) = ask(&trusted, &named("acme", "ada", "t2")).await;
    assert_eq!((again.status(), again.get("idempotent-replayed")), (201, Some("true")));
    // Another person has keys of their own, and a body under a used one is still refused.
    let (_, first, _) = exchange(&trusted, &upstream, &named("acme", "bob", "t1"), MADE).await;
    assert_eq!(first.get("idempotency-status"), Some("created"));
    let (answer, body) = ask(&trusted, &named("acme", "bob", "t1").replace("\n\nx", "\n\ny")).await;
    assert_eq!((answer.status(), code(&body).as_str()), (422, "key-reused"));
    let unnamed = named("acme", "", "t1");
    assert_eq!(
        code(&ask(&trusted, &unnamed).await.1),
        "principal-missing",
        "a name that comes and goes runs twice"
    );
    for nobody in [post("/orders", "k", "x"), named("a\nX-Tenant: b", "ada", "t1")] {
        assert_eq!(code(&ask(&trusted, &nobody).await.1), "tenant-missing");
    }
    let strange =
        Gate::before(upstream.address(), &format!("gateway.trusted = [\"10.0.0.1\"]\n{route}")).await;
    assert_eq!(code(&ask(&strange, &named("acme", "ada", "t1")).await.1), "tenant-missing");
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn the_upstream_hears_of_tenants_and_principals_from_trusted_proxies_alone() {
    let route = "[[gateway.routes]]\nmatch = \"POST /orders\"\neffects = \"opaque\"\ntenant = \"acme\"\n\
                 principal = { header = \"x-user\" }\n[[gateway.routes]]\nmatch = \"POST /mails\"\n\
                 effects = \"opaque\"\ntenant = { header = \"x-tenant\" }\n";
    let upstream = Upstream::open().await;
    let claims = "Host: a\nX-User: admin\nX_User: admin\nX-Tenant: other\nX-Other: kept";
    let keyed = post("/orders", "k", "x");
    let plain = "POST /mails HTTP/1.1\nHost: a\nContent-Length: 0\n\n".to_owned();
    let free = "GET /else HTTP/1.1\nHost: a\n\n".to_owned();
    for (trusted, told) in [("10.0.0.1", vec!["kept"]), ("127.0.0.1", vec!["admin", "other", "kept"])] {
        let gate =
            Gate::before(upstream.address(), &format!("gateway.trusted = [\"{trusted}\"]\n{route}")).await;
        // Enrolled, enrolled but without a key, and not enrolled.
        for request in [&keyed, &plain, &free] {
            let request = request.replace("Host: a", claims);
            if trusted != "127.0.0.1" && request.contains("Idempotency-Key") {
                assert_eq!(code(&ask(&gate, &request).await.1), "principal-missing");
                continue;
            }
            let (asked, _, _) = exchange(&gate, &upstream, &request, MADE).await;
            let heard = ["x-user", "x_user", "x-tenant", "x-other"].map(|name| asked.all(name)).concat();
            assert_eq!(heard, told, "{}", asked.first);
        }
    }
}

#[tokio::test]
async fn a_derived_key_is_another_for_each_tenant_and_the_same_each_time() {
    let route = |tenant: &str, word: &str| {
        format!(
            "[[gateway.routes]]\nmatch = \"POST /{tenant}\"\ntenant = \"{tenant}\"\neffects = \"keyed\"\n\
             upstream_key = \"{word}\"\n"
        )
    };
    let routes = [route("one", "derived"), route("two", "derived"), route("three", "quoted")].concat();
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &routes).await;
    let mut keys = Vec::new();
    for path in ["/one", "/one", "/two", "/three"] {
        let broken = "HTTP/1.1 503 No\nContent-Length: 0\nConnection: close\n\n";
        let (asked, _, _) = exchange(&gate, &upstream, &post(path, "k", "x"), broken).await;
        keys.push(asked.get("idempotency-key").expect("a key").to_owned());
    }
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[0], keys[2]);
    assert_eq!((keys[0].len(), keys[3].as_str()), (36, "\"k\""));
}

#[tokio::test]
async fn health_and_metrics_have_an_address_of_their_own() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "gateway.admin = \"127.0.0.1:0\"\n").await;
    let admin = gate.0.admin().expect("an address");
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/other", 404)] {
        let mut client = Talk::to(admin).await;
        client.say(&format!("GET {path} HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n")).await;
        assert_eq!(client.head().await.status(), status, "{path}");
        // A web page whose name leads here reads nothing.
        let mut client = Talk::to(admin).await;
        client.say(&format!("GET {path} HTTP/1.1\nHost: evil.example\nConnection: close\n\n")).await;
        assert_eq!(client.head().await.status(), 403, "{path}");
    }
    // The API's own are the API's.
    let health = "GET /healthz HTTP/1.1\nHost: a\n\n";
    let (asked, _, _) = exchange(&gate, &upstream, health, "HTTP/1.1 204 No\nConnection: close\n\n").await;
    assert_eq!(asked.first, "GET /healthz HTTP/1.1");
    // An unknown outcome can be reported to its own caller.
    exchange(&gate, &upstream, &post("/counted", "k", "x"), "").await;
    let mut client = Talk::to(admin).await;
    client.say("GET /metrics HTTP/1.1\nHost: localhost\nConnection: close\n\n").await;
    let metrics = client.rest().await;
    for line in [
        "redrive_ledger_unknown{endpoint=\"POST /{*path}\"} 1",
        "redrive_ledger_total{endpoint=\"POST /{*path}\",result=\"fresh\"}",
        "redrive_http_requests_total{route=\"POST /{*path}\",method=\"POST\",status=\"502\"}",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn outcomes_that_wait_for_a_person_are_shown() {
    let route = "[[gateway.routes]]\nmatch = \"POST /shown\"\ntenant = \"acme\"\neffects = \"opaque\"\n";
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &format!("gateway.admin = \"127.0.0.1:0\"\n{route}")).await;
    for key in ["a", "b"] {
        exchange(&gate, &upstream, &post("/shown", key, key), "").await;
    }
    let mut client = Talk::to(gate.0.admin().expect("an address")).await;
    client.say("GET /metrics HTTP/1.1\nHost: localhost\nConnection: close\n\n").await;
    let (_, shown) = client.message().await;
    for line in [
        "redrive_ledger_unknown{endpoint=\"POST /shown\"} 2\n",
        "redrive_ledger_total{endpoint=\"POST /shown\",result=\"fresh\"} 2\n",
    ] {
        assert!(shown.contains(line), "no {line} in\n{shown}");
    }
}

#[tokio::test]
async fn what_is_not_to_be_stored_is_not_and_what_is_can_be_sealed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    // 32 bytes in base64.
    std::fs::write(file("ledger.key"), "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI=").expect("a file");
    let settings = format!(
        "store.address = \"sqlite:{}\"\nledger.key_files = [\"{}\"]\n[[gateway.routes]]\nmatch = \"POST /cards\"\n\
         tenant = \"acme\"\neffects = \"opaque\"\nredact = {{ headers = [\"x-token\"], body = [\"/number\"] }}\n",
        file("gateway.db").display(),
        file("ledger.key").display()
    );
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &settings).await;
    let body = "{\"number\":\"number-4111\",\"brand\":\"brand-v\"}";
    let made = format!(
        "HTTP/1.1 201 Created\nContent-Type: application/json\nX-Token: token-7\nContent-Length: {}\n\n{body}",
        body.len()
    );
    let request = post("/cards", "k", "x");
    let (_, first, sent) = exchange(&gate, &upstream, &request, &made).await;
    assert_eq!((first.get("x-token"), sent.as_str()), (Some("token-7"), body));
    let (again, replayed) = ask(&gate, &request).await;
    assert_eq!(again.get("x-token"), None);
    assert_eq!(replayed, "{\"number\":null,\"brand\":\"brand-v\"}");
    gate.0.stop(std::time::Duration::ZERO).await.expect("it stops");
    // The file, and what is written beside it first.
    let files = ["gateway.db", "gateway.db-wal"].map(|name| std::fs::read(file(name)).unwrap_or_default());
    let stored = files.concat();
    for (text, is_there) in
        [("POST /cards", true), ("number-4111", false), ("token-7", false), ("brand-v", false)]
    {
        let found = stored.windows(text.len()).any(|window| window == text.as_bytes());
        assert_eq!(found, is_there, "{text}");
    }
}
