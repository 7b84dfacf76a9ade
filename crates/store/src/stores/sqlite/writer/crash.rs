//! Points at which the process kills itself on request, for the crash explorer.
//!
//! `REDRIVE_CRASH_AT=after-commit:3` kills it the third time it passes that point, with a signal that cannot be
//! caught, as a power switch would. Without the feature `planted` a point does nothing.

/// The points, in the order in which a write passes them.
const POINTS: &[&str] = &[
    "after-begin",
    "after-work",
    "before-commit",
    "strike-before-commit",
    "after-commit",
    "strike-after-commit",
    "take-after-epoch",
    "before-answer",
    "before-checkpoint",
    "after-checkpoint",
    "note-before",
    "note-after",
];

/// The points at which the process can be made to kill itself, for the crash explorer.
#[must_use]
pub const fn crash_points() -> &'static [&'static str] {
    POINTS
}

/// Passes a point.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(in crate::stores::sqlite) const fn point(_: &'static str) {}

/// Passes a point, and dies there if requested.
#[cfg(feature = "planted")]
pub(in crate::stores::sqlite) fn point(name: &'static str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ASKED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);

    let asked = ASKED.get_or_init(|| {
        let text = std::env::var("REDRIVE_CRASH_AT").ok()?;
        let (name, times) = text.rsplit_once(':')?;
        Some((name.to_owned(), times.parse().ok()?))
    });
    let Some((at, times)) = asked else { return };
    if at == name && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == *times {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
