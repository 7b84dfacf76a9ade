//! Every guarantee holds for a store that is moved whenever its process dies: from a file to a database and back.
#![cfg(all(feature = "postgres", feature = "sqlite", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::PathBuf;
use std::sync::Arc;

use redrive_store::moving::{self, MoveControl, MoveOptions, StoreLocation};
use redrive_store::postgres::sqlx::{self, AssertSqlSafe, Connection as _, PgConnection};
use redrive_store::{Postgres, Sqlite, Store, Tx, postgres, sqlite};
use redrive_testkit::conformance::Subject;
use redrive_testkit::postgres::{Server, a_name};
use rusqlite::Connection;

/// The present location of a store.
enum Home {
    File(PathBuf, tempfile::TempDir),
    Database(String),
}

struct Wanderer {
    store: Arc<dyn Store>,
    home: Home,
    /// Effects in earlier locations: the user's own tables are not moved.
    left: usize,
}

fn settings(schema: &str) -> postgres::PostgresSettings {
    let mut settings = postgres::PostgresSettings::default();
    schema.clone_into(&mut settings.schema);
    settings.shards = 3;
    settings.connections = 8;
    settings
}

async fn raw(sql: String) -> Vec<sqlx::postgres::PgRow> {
    let mut conn = PgConnection::connect(&Server::shared().url()).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut conn).await.unwrap()
}

impl Home {
    fn file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::File(folder.path().join("store.db"), folder)
    }

    fn database() -> Self {
        Self::Database(a_name("wanderer"))
    }

    fn place(&self) -> StoreLocation {
        match self {
            Self::File(path, _) => StoreLocation::File(path.clone()),
            Self::Database(schema) => StoreLocation::Database(Server::shared().url(), settings(schema)),
        }
    }

    async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::File(path, _) => {
                let mut settings = sqlite::SqliteSettings::default();
                settings.disk_least = 0;
                Arc::new(Sqlite::open(path, settings).unwrap())
            }
            Self::Database(schema) => {
                let url = format!("{}&options[search_path]={schema}", Server::shared().url());
                Arc::new(Postgres::open(&url, settings(schema)).await.unwrap())
            }
        }
    }

    /// Creates a table of the user's own.
    async fn furnish(&self) {
        match self {
            Self::File(path, _) => {
                Connection::open(path).unwrap().execute_batch("CREATE TABLE effect (name TEXT)").unwrap();
            }
            Self::Database(schema) => {
                raw(format!("CREATE TABLE {schema}.effect (name TEXT)")).await;
            }
        }
    }
}

async fn begin(home: Home) -> Wanderer {
    let store = home.open().await;
    home.furnish().await;
    Wanderer { store, home, left: 0 }
}

async fn effects(of: &Wanderer) -> usize {
    let here = match &of.home {
        Home::File(path, _) => {
            let raw = Connection::open(path).unwrap();
            let effects: u32 = raw.query_row("SELECT count(*) FROM effect", [], |row| row.get(0)).unwrap();
            effects as usize
        }
        Home::Database(schema) => raw(format!("SELECT name FROM {schema}.effect")).await.len(),
    };
    here + of.left
}

/// The process dies, and its store is moved.
async fn move_on(of: Wanderer) -> Wanderer {
    let left = effects(&of).await;
    let Wanderer { store, home, .. } = of;
    let (from, to) = match home {
        Home::File(path, _folder) => {
            // The files as they are: a process that dies closes nothing.
            let copy = Home::file();
            let Home::File(to, _) = &copy else { unreachable!() };
            for ending in ["", "-wal", "-notes"] {
                let named = |path: &PathBuf| path.with_file_name(format!("store.db{ending}"));
                if named(&path).exists() {
                    std::fs::copy(named(&path), named(to)).unwrap();
                }
            }
            (copy, Home::database())
        }
        Home::Database(schema) => {
            drop(store);
            // Its lease runs out.
            raw(format!("UPDATE {schema}.node SET until = clock_timestamp() - interval '1 s'")).await;
            (Home::Database(schema), Home::file())
        }
    };
    let (source, target) = (from.place(), to.place());
    let moved = move || moving::run(&source, &target, &MoveOptions::default(), |_| MoveControl::On).unwrap();
    tokio::task::spawn_blocking(moved).await.unwrap();
    let mut moved = begin(to).await;
    moved.left = left;
    moved
}

fn effect(tx: &mut dyn Tx, name: &str) {
    tx.execute("INSERT INTO effect VALUES ($1)", &[name.into()]).unwrap();
}

/// Begins in a file.
struct FromFile(Wanderer);

/// Begins in a database.
struct FromDatabase(Wanderer);

macro_rules! subject {
    ($name:ident, $home:expr) => {
        impl Subject for $name {
            async fn fresh() -> Self {
                Self(begin($home).await)
            }

            fn store(&self) -> Arc<dyn Store> {
                Arc::clone(&self.0.store)
            }

            async fn crash_and_reopen(self) -> Self {
                Self(move_on(self.0).await)
            }

            fn effect(tx: &mut dyn Tx, name: &str) {
                effect(tx, name);
            }

            async fn effects(&self) -> usize {
                effects(&self.0).await
            }
        }
    };
}

subject!(FromFile, Home::file());
subject!(FromDatabase, Home::database());

/// The conformance functions in which a process dies. Three more name what a move changes: the incarnation
/// (`a_death_leaves_an_unclean_shard`) and the number of a shard (`a_death_charges_no_attempt`,
/// `failed_work_leaves_nothing`).
macro_rules! moves {
    ($($promise:ident,)*) => {
        mod from_file {
            $(
                #[tokio::test]
                async fn $promise() {
                    use redrive_testkit::conformance::{self, Subject as _};
                    conformance::$promise(super::FromFile::fresh().await).await;
                }
            )*
        }

        mod from_database {
            $(
                #[tokio::test]
                async fn $promise() {
                    use redrive_testkit::conformance::{self, Subject as _};
                    conformance::$promise(super::FromDatabase::fresh().await).await;
                }
            )*
        }
    };
}

moves! {
    a_lease_is_settled_by_its_attempt,
    a_lapse_is_as_of_its_lease,
    a_late_answer_counts_until_it_is_leased_again,
    only_who_did_it_is_told_so,
    a_lease_can_be_made_longer,
    a_lease_that_is_over_is_not_made_longer,
    every_order_leaves_a_line,
    a_note_is_a_line_and_nothing_else,
    what_was_noted_is_suspect_after_an_unclean_end,
    a_clean_release_leaves_no_suspects,
    the_last_note_counts,
    a_strike_outlives_the_death_it_foresaw,
    a_suspect_behind_another_is_not_handed_out,
    an_edit_takes_the_place_of_the_original,
    letters_from_elsewhere_are_kept,
    a_result_is_given_to_who_publishes_again,
    a_dropped_event_is_remembered_as_dropped,
    state_and_story_of_a_dead_letter_are_found,
    progress_comes_back_as_it_was_settled,
    letters_of_one_cause_are_a_group,
    letters_are_put_together_by_type_and_key,
    identity_outlives_its_event,
    a_declared_queue_survives_a_crash,
    what_was_accepted_survives_a_crash,
    a_job_is_known_from_its_start,
    a_job_goes_on_where_it_was,
    a_job_hears_what_became_of_its_letters,
    what_can_be_restored_is_listed,
    a_late_answer_ends_the_letter_of_its_lapse,
    a_late_failure_is_the_cause_of_its_letter,
    a_late_failure_may_be_tried_again,
    what_is_pulled_is_not_for_an_owner,
    a_lease_is_one_attempt,
    leases_of_a_queue_that_is_no_longer_pulled_lapse,
    a_late_answer_is_judged_by_attempts_that_a_handler_made_since,
    a_delayed_head_holds_up_its_key,
    a_retry_holds_up_its_key,
    what_was_discarded_can_be_restored,
    a_parked_key_goes_on_without_its_head,
    a_dead_letter_parks_its_key,
    parking_ends_at_its_time,
    a_redrive_keeps_identity_and_place,
    a_reroute_keeps_queue_order_and_identity,
    a_second_request_is_given_the_first_answer,
    the_fence_holds_inside_a_transaction,
    an_unknown_outcome_waits_until_it_is_resolved,
    resolving_a_request_leaves_a_line,
    rules_hold_until_they_are_lifted,
    a_change_of_rules_is_recalled,
    nothing_of_a_withheld_key_is_handed_out,
    a_withheld_suspect_is_not_handed_out,
    work_and_settle_commit_together,
    what_a_program_keeps_commits_with_its_work,
    a_marker_is_set_once,
}
