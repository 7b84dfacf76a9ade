//! Points at which a process kills itself on request.
//!
//! `BOOKING_CRASH_AT=before-commit:2` kills it the second time that it passes that point, with a signal that cannot be
//! caught: no destructor runs and nothing is flushed. Without the variable a point is a look at an empty option.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Signal, getpid, kill_process};

/// The variable that names the point.
pub(crate) const VARIABLE: &str = "BOOKING_CRASH_AT";

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
/// Those of the payment provider: around the effect.
pub(crate) const PROVIDER: &[&str] = &["provider-before-effect", "provider-after-effect"];
/// Those of the email program.
pub(crate) const MAILER: &[&str] = &["mailer-before-effect", "mailer-after-effect"];

/// Passes a point, and dies there if that was asked for.
pub(crate) fn pass(name: &'static str) {
    static ASKED: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static PASSED: AtomicU32 = AtomicU32::new(0);

    let asked = ASKED.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        let (name, times) = text.rsplit_once(':')?;
        Some((name.to_owned(), times.parse().ok()?))
    });
    let Some((at, times)) = asked else { return };
    if at == name && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == *times {
        let _ = kill_process(getpid(), Signal::KILL);
    }
}
