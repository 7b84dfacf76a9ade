//! Points at which a process kills itself on request, or stops.
//!
//! `BOOKING_CRASH_AT=before-commit:2` kills the process the second time it passes that point, with a signal that
//! cannot be caught: no destructor runs and nothing is flushed. `BOOKING_STOP_AT` stops it there, like a machine
//! without memory, until it is continued: by then another process has its lease, and it does not know. Without the
//! variables a point costs a look at two empty options.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Signal, getpid, kill_process};

/// The variable that names the point to die at.
pub(crate) const CRASH: &str = "BOOKING_CRASH_AT";
/// The variable that names the point to stop at.
pub(crate) const STOP: &str = "BOOKING_STOP_AT";
/// The message of a process before it stops.
pub(crate) const STOPPING: &str = "stopping";

/// The points of the API, in the order in which a request passes them; the last two are the outbox's.
pub(crate) const API: &[&str] = &[
    "before-claim",
    "after-claim",
    "before-provider",
    "in-renewal",
    "after-provider",
    "before-end",
    "in-commit",
    "after-commit",
    "before-email",
    "after-email",
];
/// The payment provider's points: around the effect.
pub(crate) const PROVIDER: &[&str] = &["provider-before-effect", "provider-after-effect"];
/// The email program's points.
pub(crate) const MAILER: &[&str] = &["mailer-before-effect", "mailer-after-effect"];

/// A point that was asked for.
struct CrashRequest {
    name: String,
    /// The how manieth time.
    time: u32,
    passed: AtomicU32,
}

impl CrashRequest {
    fn read(variable: &str) -> Option<Self> {
        let text = std::env::var(variable).ok()?;
        let (name, time) = text.rsplit_once(':')?;
        Some(Self { name: name.to_owned(), time: time.parse().ok()?, passed: AtomicU32::new(0) })
    }

    fn is_now(&self, name: &str) -> bool {
        self.name == name && self.passed.fetch_add(1, Ordering::SeqCst) + 1 == self.time
    }
}

/// Passes a point, and dies or stops there if that was asked for.
pub(crate) fn pass(name: &'static str) {
    static ASKED: OnceLock<[Option<CrashRequest>; 2]> = OnceLock::new();

    let [stop, crash] = ASKED.get_or_init(|| [STOP, CRASH].map(CrashRequest::read));
    if stop.as_ref().is_some_and(|stop| stop.is_now(name)) {
        println!("{STOPPING}");
        let _ = std::io::stdout().flush();
        let _ = kill_process(getpid(), Signal::STOP);
    }
    if crash.as_ref().is_some_and(|crash| crash.is_now(name)) {
        let _ = kill_process(getpid(), Signal::KILL);
    }
}
