//! The subscriber, an external service, which counts deliveries and knows nothing of retries; and its dedupe sink, a
//! window on a file.
//!
//! The window is on the subscriber's side, because delivering and marking are two steps: if the pipeline did both, a
//! `SIGKILL` between them would deliver twice. If the effect is in a database, one transaction for both is better.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use redrive::window::{Once, Window, WindowSettings, WindowStats};
use tokio::net::TcpListener;
use tokio::sync::{RwLock, watch};

/// How long the acknowledgement takes, so that a kill most likely hits a delivery there.
const ACKNOWLEDGED: Duration = Duration::from_millis(20);

/// The sink, running. Ends with the program.
#[derive(Debug)]
pub(crate) struct Sink {
    address: SocketAddr,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: String,
    /// Held while something is delivered: it is not closed in the middle of that.
    window: RwLock<Window>,
    /// The subscriber: deliveries by id.
    told: Mutex<HashMap<String, u32>>,
    tellings: watch::Sender<u32>,
}

impl Sink {
    pub(crate) async fn start(folder: &Path) -> anyhow::Result<Self> {
        let file = format!("sqlite:{}", folder.join("seen.db").display());
        let window = RwLock::new(Window::open(&file, WindowSettings::default()).await?);
        let tellings = watch::Sender::new(0);
        let inner = Arc::new(Inner { file, window, told: Mutex::default(), tellings });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = Router::new().route("/", post(receive)).with_state(Arc::clone(&inner));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, inner })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The number of deliveries.
    pub(crate) fn told(&self) -> u32 {
        *self.inner.tellings.borrow()
    }

    /// Waits for a number of deliveries.
    pub(crate) async fn until(&self, told: u32) {
        // The sender is here: this does not fail.
        let _ = self.inner.tellings.subscribe().wait_for(|now| *now >= told).await;
    }

    /// Ids with this prefix, and those that were delivered more than once.
    pub(crate) fn counted(&self, beginning: &str) -> (u32, u32) {
        let told = self.inner.told();
        let times = told.iter().filter(|(id, _)| id.starts_with(beginning)).map(|(_, times)| *times);
        times.fold((0, 0), |(ids, twice), times| (ids + 1, twice + u32::from(times > 1)))
    }

    /// Closes the window and opens it again. Returns its counts since it was opened.
    pub(crate) async fn restart(&self) -> anyhow::Result<WindowStats> {
        let mut window = self.inner.window.write().await;
        let figures = window.figures();
        window.close().await;
        *window = Window::open(&self.inner.file, WindowSettings::default()).await?;
        Ok(figures)
    }
}

async fn receive(State(inner): State<Arc<Inner>>, id: String) -> StatusCode {
    // In its own task: a sender that is killed and disconnects must not separate delivering from marking.
    let delivery = tokio::spawn(async move { inner.deliver(&id).await });
    let status = delivery.await.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    tokio::time::sleep(ACKNOWLEDGED).await;
    status
}

impl Inner {
    async fn deliver(&self, id: &str) -> StatusCode {
        let tell = async {
            *self.told().entry(id.to_owned()).or_default() += 1;
            self.tellings.send_modify(|told| *told += 1);
            Ok(())
        };
        match self.window.read().await.once(id, tell).await {
            Ok(Once::Done(()) | Once::Seen { .. }) => StatusCode::OK,
            // Another delivery is at it, or nothing can be said of it now.
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn told(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
