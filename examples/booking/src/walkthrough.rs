//! A short story for a reader: ten intents, a fault for most of them, and one table at the end.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::booking_request::BookingRequest;
use crate::faults::audit::{self, Per};
use crate::faults::clients::{ClientAnswer, Clients, Intent};
use crate::faults::fault_counts::FaultCounts;
use crate::faults::process::{AppProcess, PlannedEnd, Point, Role, Setting};
use crate::faults::proxy::{Cut, Proxy};
use crate::faults::shared_store::Shared;

/// The lease of a run. A process that takes over from a dead one waits for so long.
const LEASE: Duration = Duration::from_secs(1);
/// How long the outbox may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked at.
const LOOKS: Duration = Duration::from_millis(20);

/// The programs, as in [`Testbed`](crate::faults::testbed::Testbed), but with planned faults.
struct Walkthrough {
    folder: TempDir,
    shared: Shared,
    settings: [Setting; 4],
    proxies: [Proxy; 4],
    lives: [Option<AppProcess>; 4],
    clients: Clients,
    tally: Arc<FaultCounts>,
    rows: Vec<(&'static str, u32, Vec<BookingRequest>)>,
}

/// Which program is which.
const API_1: usize = 0;
const MAILER: usize = 3;

/// Runs it with a store in a file or on a server. Returns 1 if the figures do not add up.
pub(crate) async fn tell(server: Option<&str>) -> anyhow::Result<ExitCode> {
    let mut stage = Walkthrough::set(server).await?;
    println!("two API processes on one store, a payment provider, an email program; a lease is {LEASE:?}\n");

    println!("Ada books.");
    stage.ask("Ada", "cabin-1", 1, 0).await?;

    println!(
        "Ben books. The connection is cut when it is done and before he hears of it; he asks the other process."
    );
    stage.proxies[API_1].order(0, Cut::Answer);
    stage.ask("Ben", "cabin-2", 1, 0).await?;

    println!("Cleo books. The process is killed when her deposit is authorised and nothing is written.");
    stage.start(API_1, Some("after-provider")).await?;
    stage.ask("Cleo", "cabin-3", 1, 0).await?;

    println!("Dora books. The process is killed after the commit and before the answer.");
    stage.start(API_1, Some("after-commit")).await?;
    stage.ask("Dora", "cabin-4", 1, 0).await?;
    stage.start(API_1, None).await?;

    println!("Eli books, and twenty clients send his request at once, to both processes.");
    stage.ask("Eli", "cabin-5", 20, 0).await?;

    println!("Fay books two berths in the same words, under two keys.");
    stage.ask("Fay", "cabin-6", 1, 0).await?;
    stage.ask("Fay", "cabin-6", 1, 1).await?;

    println!("Gus wants Ada's cabin, and is told no, each time he asks.");
    let refused = stage.ask("Gus", "cabin-1", 2, 0).await?;
    ensure!(!refused.is_booked(), "Gus was told {refused:?}");

    println!("Hal books. The email program is killed when his email is sent and before it says so.");
    stage.start(MAILER, Some("mailer-after-effect")).await?;
    stage.ask("Hal", "cabin-7", 1, 0).await?;
    stage.until_gone(MAILER).await?;
    stage.start(MAILER, None).await?;

    println!(
        "The process that runs the outbox is killed for good. Ida asks the other, which runs it from now on."
    );
    let owner = stage.owner()?;
    stage.kill(owner).await?;
    stage.ask("Ida", "cabin-8", 1, 0).await?;
    stage.account().await
}

impl Walkthrough {
    async fn set(server: Option<&str>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let shared = Shared::make(folder.path(), server).await?;
        let tally = Arc::new(FaultCounts::default());
        let proxy = |name| Proxy::start(name, Arc::clone(&tally));
        let proxies = [
            proxy("the api").await?,
            proxy("the api").await?,
            proxy("the provider").await?,
            proxy("the mailer").await?,
        ];
        let others = [proxies[2].url(), proxies[MAILER].url()];
        let setting = |role, name| {
            let (folder, others) = (folder.path().to_owned(), others.clone());
            Setting { role, name, folder, store: shared.address(), lease: LEASE, others }
        };
        let settings = [
            setting(Role::Api, "api-1"),
            setting(Role::Api, "api-2"),
            setting(Role::Provider, "provider"),
            setting(Role::Mailer, "mailer"),
        ];
        let clients = Clients::new([proxies[0].url(), proxies[1].url()], LEASE, Arc::clone(&tally))?;
        let lives = [None, None, None, None];
        let mut stage = Self { folder, shared, settings, proxies, lives, clients, tally, rows: Vec::new() };
        for program in [2, 3, 0, 1] {
            stage.start(program, None).await?;
        }
        Ok(stage)
    }

    /// Restarts a program, perhaps with a crash point.
    async fn start(&mut self, program: usize, dies_at: Option<&'static str>) -> anyhow::Result<()> {
        self.kill(program).await?;
        let dies_at = dies_at.map(|name| Point { name, time: 1, in_store: false });
        let fate = PlannedEnd { dies_at, ..PlannedEnd::default() };
        let life = self.settings[program].start(fate).await?.context("it died before it listened")?;
        self.proxies[program].aim(Some(life.address));
        self.lives[program] = Some(life);
        Ok(())
    }

    async fn kill(&mut self, program: usize) -> anyhow::Result<()> {
        self.proxies[program].aim(None);
        if let Some(mut life) = self.lives[program].take() {
            life.child.kill().await?;
        }
        Ok(())
    }

    /// Which of the API's processes runs the outbox; the first one where both do.
    fn owner(&self) -> anyhow::Result<usize> {
        let Some(pid) = self.shared.owner()? else { return Ok(API_1) };
        let owns = |life: &Option<AppProcess>| life.as_ref().and_then(|life| life.child.id()) == Some(pid);
        self.lives[..2].iter().position(owns).context("none of the two owns the store")
    }

    /// Waits until a program has died.
    async fn until_gone(&mut self, program: usize) -> anyhow::Result<()> {
        let life = self.lives[program].as_mut().context("it runs")?;
        tokio::time::timeout(PATIENCE, life.child.wait()).await.context("it does not die")??;
        Ok(())
    }

    /// A guest's intent, from several clients at once, until all have the same answer.
    async fn ask(
        &mut self,
        guest: &'static str,
        cabin: &str,
        clients: usize,
        number: u32,
    ) -> anyhow::Result<ClientAnswer> {
        let wish = BookingRequest { guest: guest.to_owned(), cabin: cabin.to_owned() };
        let intent = Intent { key: format!("{guest}-{number}"), wish: wish.clone(), clients };
        let mut asking = JoinSet::new();
        for client in 0..clients {
            let (clients, intent) = (self.clients.clone(), intent.clone());
            asking.spawn(async move { clients.ask(&intent, client, client % 2 == 1).await });
        }
        let mut first = None;
        while let Some(told) = asking.join_next().await {
            let (told, _) = told??;
            let first = first.get_or_insert_with(|| told.clone());
            ensure!(*first == told, "{guest} was told {first:?}, and also {told:?}");
        }
        let told = first.context("no client asked")?;
        println!("  {} {}", told.status, told.body);
        self.rows.push((guest, u32::from(told.is_booked()), vec![wish]));
        Ok(told)
    }

    /// Waits for the outbox, and prints the figures.
    async fn account(self) -> anyhow::Result<ExitCode> {
        let until = Instant::now() + PATIENCE;
        let books = loop {
            let books = audit::read(self.folder.path(), &self.shared).await?;
            if books.stored.outbox == 0 {
                break books;
            }
            ensure!(Instant::now() < until, "{} events are still in the outbox", books.stored.outbox);
            sleep(LOOKS).await;
        };
        let mut booked = Per::new();
        for (_, count, wishes) in &self.rows {
            wishes.iter().for_each(|wish| *booked.entry(wish.clone()).or_default() += count);
        }
        booked.retain(|_, count| *count > 0);
        println!("\n{:<10}{:>8}{:>10}{:>16}{:>8}", "", "intents", "bookings", "authorisations", "emails");
        let row = |name: &str, [intents, bookings, authorisations, emails]: [u32; 4]| {
            println!("{name:<10}{intents:>8}{bookings:>10}{authorisations:>16}{emails:>8}");
        };
        let per = [&booked, &books.stored.bookings, &books.authorisations, &books.emails];
        for wish in booked.keys() {
            row(&wish.guest, per.map(|per| per.get(wish).copied().unwrap_or_default()));
        }
        row("all", per.map(|per| per.values().sum()));
        println!("{:<10}refused, and nothing was kept but the answer", "Gus");
        let keys = u32::try_from(self.rows.len())?;
        let mut found = books.violations(&booked, keys);
        found.extend(self.tally.so_far().violations);
        found.iter().for_each(|what| println!("WRONG {what}"));
        if found.is_empty() {
            println!("ok    one booking, one authorisation and one email for each intent");
        }
        Ok(ExitCode::from(u8::from(!found.is_empty())))
    }
}
