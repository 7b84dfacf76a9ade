//! A server of one's own, and a client to talk to it.

use redrive_server::config::Config;
use redrive_server::serve::Server;
use serde_json::Value;
use tempfile::TempDir;

/// A server on a free port with a store of its own.
pub(crate) struct TestServer {
    pub(crate) server: Option<Server>,
    pub(crate) client: reqwest::Client,
    pub(crate) folder: TempDir,
    settings: String,
}

impl TestServer {
    /// A server with these settings; listener and store are its own.
    pub(crate) async fn open(settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = Self {
            server: None,
            client: reqwest::Client::builder().no_proxy().build().expect("a client"),
            folder,
            settings: settings.to_owned(),
        };
        server.start().await;
        server
    }

    /// Other settings, from the next start on.
    pub(crate) fn settings_are(&mut self, settings: &str) {
        settings.clone_into(&mut self.settings);
    }

    /// Starts it on the same store, after a stop.
    pub(crate) async fn start(&mut self) {
        let mut config: Config = toml::from_str(&self.settings).expect("settings");
        config.server.listen.set_port(0);
        config.store.address = format!("sqlite:{}", self.folder.path().join("redrive.db").display());
        config.check().expect("settings that can be meant");
        self.server = Some(Server::start(config).await.expect("a server"));
    }

    /// Other settings, from the next start on.
    pub(crate) fn set(&mut self, settings: &str) {
        settings.clone_into(&mut self.settings);
    }

    pub(crate) async fn stop(&mut self) {
        let server = self.server.take().expect("it runs");
        server.stop(std::time::Duration::from_secs(5)).await.expect("a clean stop");
    }

    /// The address of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.as_ref().expect("it runs").address())
    }

    /// Posts JSON; the status and the answer's JSON.
    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        answer(self.client.post(self.url(path)).json(&body)).await
    }

    /// Gets JSON.
    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.client.get(self.url(path))).await
    }
}

/// Sends a request; the status and the answer's JSON, which is null where there is none.
pub(crate) async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.expect("an answer");
    let status = response.status().as_u16();
    let body = response.bytes().await.expect("a body");
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}
