//! What the user's own work must not do in the transaction that all calls of the group share.
//!
//! The work of a job has the writer's connection. While it runs, an authorizer refuses everything that would reach
//! beyond its savepoint: transaction statements, other databases, settings, and writes to tables that begin with
//! `redrive_`. A progress handler interrupts its statements when its time is over.
//!
//! An `INSERT OR ROLLBACK` still ends the transaction of all. That is detected afterwards; but later writes of the
//! work would commit by themselves, statement by statement, so a commit hook refuses every commit while work runs.
//!
//! All three are always installed and check a flag, because installing an authorizer makes SQLite prepare every
//! statement anew. SQLite calls the authorizer only when a statement is prepared, so for ours it costs nothing; the
//! progress handler costs one load of a number every [`OPS`] steps of a statement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use crate::stores::shared::numbers::nanos;

/// How many steps a statement makes between two checks of the clock: some ten microseconds.
const OPS: i32 = 1000;

/// Pragmas that only read.
const HARMLESS: &[&str] = &[
    "collation_list",
    "compile_options",
    "data_version",
    "database_list",
    "foreign_key_check",
    "foreign_key_list",
    "function_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "table_info",
    "table_list",
    "table_xinfo",
];

/// Whether the user's work runs, and its deadline.
#[derive(Debug)]
pub(in crate::stores::sqlite) struct Guard {
    began: Instant,
    /// The user's work has begun and not ended.
    working: AtomicBool,
    /// The same, and none of our own statements runs in the middle of it.
    inside: AtomicBool,
    /// In nanoseconds since `began`; the largest number if there is no limit.
    deadline: AtomicU64,
}

impl Guard {
    /// Installs a guard on a connection.
    pub(in crate::stores::sqlite) fn install(conn: &mut Connection) -> rusqlite::Result<Arc<Self>> {
        let guard = Arc::new(Self {
            began: Instant::now(),
            working: AtomicBool::new(false),
            inside: AtomicBool::new(false),
            deadline: AtomicU64::new(u64::MAX),
        });
        let asked = Arc::clone(&guard);
        conn.authorizer(Some(move |context: AuthContext<'_>| {
            if asked.inside.load(Relaxed) && !is_allowed(context.action) {
                Authorization::Deny
            } else {
                Authorization::Allow
            }
        }))?;
        let asked = Arc::clone(&guard);
        conn.commit_hook(Some(move || asked.working.load(Relaxed)))?;
        let asked = Arc::clone(&guard);
        conn.progress_handler(OPS, Some(move || asked.is_over()))?;
        Ok(guard)
    }

    /// The user's work begins.
    pub(in crate::stores::sqlite) fn enter(&self, time: Duration) {
        let until = nanos(self.began.elapsed()).saturating_add(nanos(time));
        self.deadline.store(until, Relaxed);
        self.working.store(true, Relaxed);
        self.inside.store(true, Relaxed);
    }

    /// The user's work ended. Returns whether it took too long.
    pub(in crate::stores::sqlite) fn leave(&self) -> bool {
        let over = self.is_over();
        self.working.store(false, Relaxed);
        self.inside.store(false, Relaxed);
        self.deadline.store(u64::MAX, Relaxed);
        over
    }

    /// Runs our own statements in the middle of the user's work: they are neither refused nor interrupted.
    pub(in crate::stores::sqlite) fn outside<T>(&self, ours: impl FnOnce() -> T) -> T {
        let was_inside = self.inside.swap(false, Relaxed);
        let deadline = self.deadline.swap(u64::MAX, Relaxed);
        let done = ours();
        self.deadline.store(deadline, Relaxed);
        self.inside.store(was_inside, Relaxed);
        done
    }

    fn is_over(&self) -> bool {
        let deadline = self.deadline.load(Relaxed);
        deadline != u64::MAX && nanos(self.began.elapsed()) > deadline
    }
}

fn is_allowed(action: AuthAction<'_>) -> bool {
    use AuthAction as A;
    match action {
        A::Transaction { .. } | A::Savepoint { .. } | A::Attach { .. } | A::Detach { .. } => false,
        A::Pragma { pragma_name, .. } => HARMLESS.contains(&pragma_name.to_ascii_lowercase().as_str()),
        A::Insert { table_name }
        | A::Update { table_name, .. }
        | A::Delete { table_name }
        | A::AlterTable { table_name, .. }
        | A::CreateTable { table_name }
        | A::CreateTempTable { table_name }
        | A::CreateVtable { table_name, .. }
        | A::DropTable { table_name }
        | A::DropTempTable { table_name }
        | A::DropVtable { table_name, .. }
        | A::Analyze { table_name }
        | A::CreateIndex { table_name, .. }
        | A::CreateTempIndex { table_name, .. }
        | A::DropIndex { table_name, .. }
        | A::DropTempIndex { table_name, .. }
        | A::CreateTrigger { table_name, .. }
        | A::CreateTempTrigger { table_name, .. }
        | A::DropTrigger { table_name, .. }
        | A::DropTempTrigger { table_name, .. } => !is_ours(table_name),
        A::CreateView { view_name }
        | A::CreateTempView { view_name }
        | A::DropView { view_name }
        | A::DropTempView { view_name } => !is_ours(view_name),
        A::Reindex { index_name } => !is_ours(index_name),
        _ => true,
    }
}

fn is_ours(name: &str) -> bool {
    name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("redrive_"))
}
