//! Claims and commits by many callers at once, on the disk and not.

use std::path::Path;
use std::time::{Duration, Instant};

use redrive::window::{Claim, Window, WindowSettings};
use redrive_benches::measure::median;
use redrive_benches::turn;

/// Callers, each of which claims, has no effect, commits, and waits for it.
const CALLERS: [usize; 4] = [1, 16, 256, 1_000];
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(700);

/// What was measured with so many callers.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) callers: usize,
    /// Commits a second in memory.
    pub(crate) memory: f64,
    /// Commits a second in a file.
    pub(crate) file: f64,
    /// Syncs a second that these took.
    pub(crate) syncs: f64,
}

/// Measures both, in turns.
pub(crate) fn measure(folder: &Path) -> Result<Vec<Figures>, String> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    for callers in CALLERS {
        eprintln!("bench: commits, {callers} callers");
        let (mut memory, mut file, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let path = folder.join(format!("seen-{callers}-{round}.db"));
            memory.push(runtime.block_on(turn("memory:", callers))?.0);
            let (commits, synced) = runtime.block_on(turn(&format!("sqlite:{}", path.display()), callers))?;
            file.push(commits);
            syncs.push(synced);
        }
        let middle = |values: Vec<f64>| median(values.into_iter());
        all.push(Figures { callers, memory: middle(memory), file: middle(file), syncs: middle(syncs) });
    }
    Ok(all)
}

/// Commits and syncs a second.
async fn turn(address: &str, callers: usize) -> Result<(f64, f64), String> {
    let settings = WindowSettings { count: 10_000_000, ..WindowSettings::default() };
    let window = Window::open(address, settings).await.map_err(|error| error.to_string())?;
    let start = Instant::now();
    let tasks: Vec<_> =
        (0..callers).map(|caller| tokio::spawn(call(window.clone(), caller, start))).collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.map_err(|error| error.to_string())??;
    }
    let (took, syncs) = (start.elapsed().as_secs_f64(), window.syncs());
    window.close().await;
    let rate = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / took;
    Ok((rate(done), rate(syncs)))
}

async fn call(window: Window, caller: usize, start: Instant) -> Result<u64, String> {
    let mut done = 0;
    while start.elapsed() < TIME {
        let id = turn::id(caller as u64 * 100_000_000 + done);
        match window.claim(&id).await.map_err(|error| error.to_string())? {
            Claim::First(ticket) => ticket.commit().await.map_err(|error| error.to_string())?,
            other => return Err(format!("{id} is new: {other:?}")),
        }
        done += 1;
        // In memory nothing waits, and the others want their turn.
        tokio::task::consume_budget().await;
    }
    Ok(done)
}
