//! A world: two API processes on one store, a provider, an email program, a proxy before each, and guests.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::audit::{self, EffectRecords, Per};
use super::clients::{ClientAnswer, Clients, Intent};
use super::fault_counts::FaultCounts;
use super::process::{Role, Setting};
use super::proxy::{Cut, Proxy};
use super::shared_store::Shared;
use super::supervisor::{Storm, Supervisor};
use crate::booking_request::BookingRequest;

/// The lease of a run: short, so that others soon take over from a killed process.
const LEASE: Duration = Duration::from_secs(1);
/// The same on a server: transactions may stall for a third of a process' lease, and a busy machine stalls them.
const LEASE_ON_A_SERVER: Duration = Duration::from_secs(2);
/// How long the outbox has to be empty. A suspect waits for two seconds of quiet, and there may be some.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked at.
const LOOKS: Duration = Duration::from_millis(20);

/// Cuts ordered per round; those that match nothing do not count.
const CUTS: u32 = 18;
/// Guests with an intent each, beside the others.
const SINGLES: usize = 10;
/// Clients that send one key at once.
const CROWD: usize = 20;

/// Another task failed, and reports it.
#[derive(Debug)]
pub(crate) struct Meanwhile;

impl fmt::Display for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("something went wrong elsewhere")
    }
}

impl std::error::Error for Meanwhile {}

/// A world.
#[derive(Debug)]
pub(crate) struct Testbed {
    name: String,
    folder: TempDir,
    shared: Shared,
    lease: Duration,
    proxies: [Proxy; 4],
    clients: Clients,
    storm: Arc<Storm>,
    tally: Arc<FaultCounts>,
    posts: JoinSet<()>,
    /// The clients' answers so far.
    booked: Per,
    keys: u32,
}

impl Testbed {
    /// Starts all programs.
    pub(crate) async fn start(
        name: String,
        server: Option<&str>,
        storm: Storm,
        tally: Arc<FaultCounts>,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("booking-").tempdir()?;
        let shared = Shared::make(folder.path(), server).await?;
        let lease = if server.is_some() { LEASE_ON_A_SERVER } else { LEASE };
        let storm = Arc::new(storm);
        let proxy = |name| Proxy::start(name, Arc::clone(&tally));
        let (one, two) = (proxy("the api").await?, proxy("the api").await?);
        let (provider, mailer) = (proxy("the provider").await?, proxy("the mailer").await?);
        let others = [provider.url(), mailer.url()];
        let mut posts = JoinSet::new();
        let programs = [
            (Role::Provider, "provider", &provider),
            (Role::Mailer, "mailer", &mailer),
            (Role::Api, "api-1", &one),
            (Role::Api, "api-2", &two),
        ];
        for (role, name, proxy) in programs {
            let (folder, store) = (folder.path().to_owned(), shared.address());
            let setting = Setting { role, name, folder, store, lease, others: others.clone() };
            let (proxy, storm, tally) = (proxy.clone(), Arc::clone(&storm), Arc::clone(&tally));
            posts.spawn(Supervisor { setting, proxy, storm, tally }.keep());
        }
        let clients = Clients::new([one.url(), two.url()], lease, Arc::clone(&tally))?;
        let proxies = [one, two, provider, mailer];
        Ok(Self {
            name,
            folder,
            shared,
            lease,
            proxies,
            clients,
            storm,
            tally,
            posts,
            booked: Per::new(),
            keys: 0,
        })
    }

    /// One round: intents under faults, then quiet, then the account.
    pub(crate) async fn round(&mut self, number: u64) -> anyhow::Result<()> {
        let intents = self.intents(number);
        self.order_cuts();
        self.storm.rise();
        let told = self.ask_all(&intents).await?;
        self.storm.calm();
        self.proxies.iter().for_each(Proxy::calm);

        for (intent, told) in intents.iter().zip(&told) {
            for door in 0..2 {
                let (again, replayed) = self.clients.ask(intent, door, false).await?;
                ensure!(again == *told, "{} was told {told:?}, and later {again:?}", intent.key);
                ensure!(replayed, "{} ran again long after it was answered", intent.key);
            }
            self.keys += 1;
            if told.is_booked() {
                *self.booked.entry(intent.wish.clone()).or_default() += 1;
            }
        }
        let booked = told.iter().filter(|told| told.is_booked()).count();
        self.tally.saw("intents", intents.len());
        self.tally.saw("booked", booked);
        self.tally.saw("refused, for another guest has the cabin", intents.len() - booked);
        self.settle().await
    }

    /// The last check, after all stopped processes were continued and have finished.
    pub(crate) async fn last_look(&self) -> anyhow::Result<()> {
        sleep(self.lease * 4).await;
        self.settle().await
    }

    /// Waits until the outbox is empty, and compares.
    async fn settle(&self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        let books = loop {
            let books = self.books().await?;
            if books.stored.outbox == 0 {
                break books;
            }
            ensure!(
                Instant::now() < until,
                "{} events are still in the outbox after {PATIENCE:?}",
                books.stored.outbox
            );
            ensure!(self.tally.is_fine(), Meanwhile);
            sleep(LOOKS).await;
        };
        let found = books.violations(&self.booked, self.keys);
        if !found.is_empty() {
            bail!("{}", found.join("\n"));
        }
        Ok(())
    }

    /// All records now.
    pub(crate) async fn books(&self) -> anyhow::Result<EffectRecords> {
        audit::read(self.folder.path(), &self.shared).await
    }

    /// The clients' answers.
    pub(crate) fn booked(&self) -> &Per {
        &self.booked
    }

    /// Ends all programs, and keeps the files for inspection.
    pub(crate) async fn keep(mut self) -> PathBuf {
        self.posts.shutdown().await;
        self.folder.keep()
    }

    /// Single requests; twenty clients with one key; one guest with two equal intents; two guests who want one cabin.
    fn intents(&self, round: u64) -> Vec<Intent> {
        let name = &self.name;
        let intent = |guest: &str, cabin: &str, number: usize, clients| Intent {
            key: format!("{name}-{round}-{cabin}-{guest}-{number}"),
            wish: BookingRequest { guest: format!("{guest} of {name}"), cabin: format!("{round}/{cabin}") },
            clients,
        };
        let mut intents: Vec<_> =
            (0..SINGLES).map(|at| intent("Single", &format!("single-{at}"), 1, 1)).collect();
        intents.push(intent("Crowd", "crowd", 1, CROWD));
        intents.extend([1, 2].map(|number| intent("Twice", "twice", number, 1)));
        intents.extend(["Rival", "Revel"].map(|guest| intent(guest, "rivals", 1, 2)));
        intents
    }

    fn order_cuts(&self) {
        for _ in 0..CUTS {
            let (Some(proxy), Some(cut)) = (self.storm.pick(&self.proxies), self.storm.pick(&Cut::ALL))
            else {
                return;
            };
            proxy.order(u32::try_from(self.storm.below(3)).unwrap_or_default(), *cut);
        }
    }

    /// Every client of every intent, at once; and the answer to each intent, which must be unique.
    async fn ask_all(&self, intents: &[Intent]) -> anyhow::Result<Vec<ClientAnswer>> {
        let mut asking = JoinSet::new();
        for (at, intent) in intents.iter().enumerate() {
            for client in 0..intent.clients {
                let (clients, intent) = (self.clients.clone(), intent.clone());
                let late = Duration::from_millis(self.storm.below(1500));
                let waits = self.storm.below(4) == 0;
                asking.spawn(async move {
                    // A crowd comes at once.
                    if intent.clients == 1 {
                        sleep(late).await;
                    }
                    clients.ask(&intent, client, waits).await.map(|(told, _)| (at, told))
                });
            }
        }
        let mut all: Vec<Option<ClientAnswer>> = vec![None; intents.len()];
        loop {
            let told = tokio::select! {
                told = asking.join_next() => told,
                () = self.tally.wrong() => return Err(Meanwhile.into()),
            };
            let Some(told) = told else { break };
            let (at, told) = told.context("a client")??;
            match &all[at] {
                None => all[at] = Some(told),
                Some(first) => ensure!(*first == told, "{}: {first:?}, and also {told:?}", intents[at].key),
            }
        }
        all.into_iter().collect::<Option<_>>().context("no client asked")
    }
}
