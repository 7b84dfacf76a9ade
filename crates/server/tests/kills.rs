//! The server is killed under load, again and again, and nothing is lost: every event that was acknowledged is done,
//! and took effect once at a receiver that dedupes by `Idempotency-Key`.
//!
//! The server is the program itself in a process of its own, always on the same file. It is killed with SIGKILL once
//! it has acknowledged a number of events, which the seed chooses; so every life has load, and no clock decides.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use redrive::event::State as EventState;
use redrive::{RandomSource, Redrive, SeededRandom};
use serde_json::json;
use tokio::sync::{Notify, watch};

const KILLS: u32 = 50;
const PUBLISHERS: u32 = 8;
/// Acknowledged events in a life of the server, at most.
const LIFE_MAX: u64 = 60;
/// Every so many events one is nonsense, and dies.
const NONSENSE: u32 = 29;

/// Every event is known by then, or something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// What arrives, and what takes effect.
#[derive(Default)]
struct Receiver {
    book: Mutex<Book>,
    news: Notify,
}

#[derive(Default)]
struct Book {
    /// Arrivals by `Idempotency-Key`.
    log: HashMap<String, u32>,
    /// What took effect, by `Idempotency-Key`: this is the receiver's dedupe.
    done: HashSet<String>,
    /// How often each event took effect, by its id. More than once if it ever came under another key.
    effects: HashMap<String, u32>,
    refused: HashSet<String>,
}

impl Receiver {
    async fn start(self: &Arc<Self>) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("its address"));
        let router = Router::new().route("/", post(receive)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no holder panics")
    }

    /// How many events have been dealt with.
    fn dealt_with(&self) -> usize {
        let book = self.book();
        book.effects.len() + book.refused.len()
    }
}

async fn receive(State(receiver): State<Arc<Receiver>>, headers: HeaderMap, body: String) -> StatusCode {
    let text = |name: &str| headers[name].to_str().expect("plain text").to_owned();
    let (key, id) = (text("idempotency-key"), text("redrive-id"));
    let status = {
        let mut book = receiver.book();
        let arrivals = book.log.entry(key.clone()).or_default();
        *arrivals += 1;
        if *arrivals == 1 && id.ends_with('3') {
            // Those come again, killed or not.
            return StatusCode::SERVICE_UNAVAILABLE;
        }
        if body.contains("nonsense") {
            book.refused.insert(id);
            StatusCode::UNPROCESSABLE_ENTITY
        } else if book.done.insert(key) {
            *book.effects.entry(id).or_default() += 1;
            StatusCode::CREATED
        } else {
            // The key was seen, so nothing happens.
            StatusCode::OK
        }
    };
    receiver.news.notify_waiters();
    status
}

/// The server as a process.
struct Served {
    child: Child,
    address: String,
}

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
        let told = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, after) = line.split_once("listening on http://")?;
            after.split([',', ' ']).next().map(str::to_owned)
        });
        // Read on, so that it is never held up by what it has to say.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, address: told.expect("it says where it listens") }
    }

    fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it is gone");
    }
}

impl Drop for Served {
    /// A test that fails leaves no server behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the publishers share.
struct Load {
    /// Where the server is; empty while it is not.
    address: watch::Receiver<String>,
    acknowledged: watch::Sender<u64>,
    stop: watch::Receiver<bool>,
}

/// Publishes one event after another, each until it is acknowledged: the ids.
async fn publisher(number: u32, mut load: Load) -> Vec<String> {
    let client =
        reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build().expect("a client");
    let mut ids = Vec::new();
    while !*load.stop.borrow() {
        let at = u32::try_from(ids.len()).expect("few");
        let id = format!("{number}-{at}");
        let payload = if at % NONSENSE == NONSENSE - 1 { "nonsense" } else { "sense" };
        let event = json!({ "id": id, "payload": payload, "key": format!("key-{}", at % 5) });
        loop {
            let address = load.address.wait_for(|address| !address.is_empty()).await.expect("a test").clone();
            let request = client.post(format!("http://{address}/v1/queues/orders/events")).json(&event);
            match request.send().await {
                Ok(response) if response.status() == StatusCode::ACCEPTED => break,
                Ok(response) => panic!("{id}: {}", response.status()),
                // It was killed, and it is unknown whether the event is stored: publish it again to the next one.
                Err(_) => drop(load.address.wait_for(|now| *now != address).await),
            }
        }
        ids.push(id);
        load.acknowledged.send_modify(|count| *count += 1);
    }
    ids
}

/// What the server knows of events that never arrived.
async fn missing(receiver: &Receiver, ids: &HashSet<String>, address: &str) -> String {
    let missing: Vec<String> = {
        let book = receiver.book();
        ids.iter()
            .filter(|id| !book.effects.contains_key(*id) && !book.refused.contains(*id))
            .cloned()
            .collect()
    };
    let mut told = Vec::new();
    for id in missing.iter().take(5) {
        let url = format!("http://{address}/v1/queues/orders/events/{id}");
        let answer = reqwest::get(url).await.expect("an answer").text().await.expect("its text");
        told.push(format!("{id}: {answer}"));
    }
    format!("{} of them, such as {}", missing.len(), told.join("\n"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_under_load_it_loses_nothing_and_repeats_no_effect() {
    let receiver = Arc::new(Receiver::default());
    let url = receiver.start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (config, file) = (folder.path().join("redrive.toml"), folder.path().join("redrive.db"));
    let settings = format!(
        "[store]\naddress = \"sqlite:{}\"\n[server]\nlisten = \"127.0.0.1:0\"\n[push]\nallow = [\"127.0.0.0/8\"]\n\
         [queues.orders]\norder = \"key\"\nconcurrency = 8\n\
         [queues.orders.policy]\nattempts = 20\nattempt_time = \"5s\"\n\
         [queues.orders.policy.budget]\nshare = 1.0\nfloor = 1000\nwindow = \"10s\"\n\
         [queues.orders.policy.backoff.exponential]\nbase = \"5ms\"\nfactor = 2.0\ncap = \"50ms\"\n\
         [queues.orders.push]\nurl = \"{url}\"\n",
        file.display()
    );
    std::fs::write(&config, settings).expect("its settings");

    let (address, addresses) = watch::channel(String::new());
    let (acknowledged, mut count) = watch::channel(0);
    let (stop, stopped) = watch::channel(false);
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|number| {
            let (address, acknowledged) = (addresses.clone(), acknowledged.clone());
            tokio::spawn(publisher(number, Load { address, acknowledged, stop: stopped.clone() }))
        })
        .collect();

    let mut random = SeededRandom::new(17);
    for _ in 0..KILLS {
        let served = Served::start(&config);
        address.send_replace(served.address.clone());
        let enough = *count.borrow() + 1 + random.roll() % LIFE_MAX;
        tokio::time::timeout(PATIENCE, count.wait_for(|count| *count >= enough))
            .await
            .expect("a life of load")
            .expect("publishers");
        served.kill();
        address.send_replace(String::new());
    }

    stop.send_replace(true);
    let last = Served::start(&config);
    address.send_replace(last.address.clone());
    let mut ids = HashSet::new();
    for publisher in publishers {
        ids.extend(publisher.await.expect("a publisher"));
    }
    let settled = async {
        loop {
            let news = receiver.news.notified();
            if receiver.dealt_with() >= ids.len() {
                break;
            }
            let _ = tokio::time::timeout(Duration::from_secs(1), news).await;
        }
    };
    if tokio::time::timeout(PATIENCE, settled).await.is_err() {
        panic!("these never arrived: {}", missing(&receiver, &ids, &last.address).await);
    }
    // Asked to stop, it writes what is left and closes; then the file itself is asked.
    let pid = last.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    let mut last = last;
    assert!(last.child.wait().expect("it stops").success());

    let redrive = Redrive::open(&format!("sqlite:{}", file.display())).await.expect("the store");
    let mut states = HashMap::new();
    for id in &ids {
        let found = redrive.event("", "orders", id).await.expect("it can be read");
        states.insert(id, found.unwrap_or_else(|| panic!("{id} was acknowledged, and is lost")).state);
    }
    let book = receiver.book();
    let (mut done, mut dead) = (0, 0);
    for (id, state) in &states {
        let effects = book.effects.get(*id).copied().unwrap_or_default();
        match state {
            EventState::Done => {
                done += 1;
                assert_eq!(effects, 1, "{id} is done");
            }
            EventState::Dead => {
                dead += 1;
                assert!(effects == 0 && book.refused.contains(*id), "{id} died of something else");
            }
            state => panic!("{id} is {state}, and everything had arrived"),
        }
    }
    assert_eq!(ids.len(), done + dead);
    let arrivals: u32 = book.log.values().sum();
    let again = book.log.values().filter(|arrivals| **arrivals > 1).count();
    assert!(book.effects.keys().all(|id| ids.contains(id)), "an effect without an event");
    println!(
        "{KILLS} kills: {} published = {done} done + {dead} dead + 0 pending; {arrivals} arrivals, {again} \
         events arrived more than once, each took effect once",
        ids.len()
    );
    assert!(done > 0 && dead > 0);
}
