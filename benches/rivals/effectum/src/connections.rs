//! Every connection of this process, met where SQLite opens it.
//!
//! effectum hides its connections and has no setting for `synchronous`. SQLite calls a hook for every connection that
//! opens; there we count commits and, with FULL, refuse statements that would lower it.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, ffi};

static COMMITS: AtomicU64 = AtomicU64::new(0);

static KEPT_FULL: AtomicBool = AtomicBool::new(false);

static FULL: AtomicBool = AtomicBool::new(false);

/// From now on, counts the commits of connections that open, and holds them to FULL if asked to.
pub(crate) fn watch(full: bool) -> Result<(), String> {
    FULL.store(full, Ordering::Relaxed);
    // SAFETY: the entry point has the signature that SQLite calls it with, and lives as long as the program.
    let code = unsafe { ffi::sqlite3_auto_extension(Some(opened)) };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(format!("sqlite3_auto_extension: {code}")) }
}

/// Committed write transactions of this process.
pub(crate) fn commits() -> u64 {
    COMMITS.load(Ordering::Relaxed)
}

/// Whether a connection was kept from lowering `synchronous`.
pub(crate) fn kept_full() -> bool {
    KEPT_FULL.load(Ordering::Relaxed)
}

unsafe extern "C" fn opened(
    db: *mut ffi::sqlite3,
    _error: *mut *const c_char,
    _api: *const ffi::sqlite3_api_routines,
) -> c_int {
    // SAFETY: SQLite hands over a connection that is open; what is made from it does not close it.
    let Ok(connection) = (unsafe { Connection::from_handle(db) }) else {
        return ffi::SQLITE_ERROR;
    };
    connection.commit_hook(Some(|| {
        COMMITS.fetch_add(1, Ordering::Relaxed);
        false
    }));
    if FULL.load(Ordering::Relaxed) {
        connection.authorizer(Some(|context: AuthContext<'_>| match context.action {
            AuthAction::Pragma { pragma_name: "synchronous", pragma_value: Some(_) } => {
                KEPT_FULL.store(true, Ordering::Relaxed);
                Authorization::Ignore
            }
            _ => Authorization::Allow,
        }));
    }
    // Dropped, it would take the hooks along.
    std::mem::forget(connection);
    ffi::SQLITE_OK
}
