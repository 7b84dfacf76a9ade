//! The engine over a SQLite file, in processes that die: killed at named points and at random times, by their
//! own handlers, by a full disk, by a disk that fails, and over a file with damage in it.
#![cfg(all(feature = "sqlite", unix))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bits;
mod disk;
mod killer;
mod opening;
mod points;
mod shop;
mod sync;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use redrive::Redrive;
use redrive::engine::OpenOptions;
use redrive::prelude::*;
use redrive_testkit::crash;

const SECOND: Duration = Duration::from_secs(1);

/// The role of the child, and the folder of its files.
const ROLE: &str = "REDRIVE_TEST_ROLE";
const FOLDER: &str = "REDRIVE_TEST_FOLDER";

/// The command that runs this binary as a child.
fn child(role: &str, folder: &Path) -> Command {
    let mut command = crash::this_test("as_a_child");
    command.env(ROLE, role).env(FOLDER, folder).env("RUST_BACKTRACE", "0");
    command
}

/// Not a test by itself: the children that the tests kill.
#[test]
fn as_a_child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match role.as_str() {
            "shop" => shop::run(&folder, false).await,
            "busy shop" => shop::run(&folder, true).await,
            "killer" => killer::run(&folder, true).await,
            "killer in a transaction" => killer::run_in(&folder).await,
            "office" => killer::run(&folder, false).await,
            "till" => sync::run(&folder).await,
            "visitor" => opening::run(&folder).await,
            "nobody" => {}
            other => panic!("unknown role {other}"),
        }
    });
}

fn file(folder: &Path) -> PathBuf {
    folder.join("shop.db")
}

async fn open(folder: &Path) -> Redrive {
    // The machine's own disk is not what is tested here.
    let options = OpenOptions::new().disk_least(0);
    options.open(&format!("sqlite:{}", file(folder).display())).await.unwrap()
}

/// Many attempts, some milliseconds apart.
fn quick() -> Policy {
    let wait = Backoff::constant(Duration::from_millis(5));
    Policy::builder().attempts(20).backoff(wait).no_budget().build().unwrap()
}
