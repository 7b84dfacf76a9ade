//! The client libraries of `clients/`, each through the same script: against the program while it is killed, with signed
//! webhooks, and through the gateway. `clients/README.md` has the protocol of their drivers.

#[path = "clients/driver.rs"]
mod driver;

#[path = "clients/scenarios.rs"]
mod scenarios;

use driver::Language;

#[tokio::test(flavor = "multi_thread")]
async fn python_loses_and_doubles_nothing() {
    scenarios::all(Language::Python).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typescript_loses_and_doubles_nothing() {
    scenarios::all(Language::TypeScript).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn go_loses_and_doubles_nothing() {
    scenarios::all(Language::Go).await;
}
