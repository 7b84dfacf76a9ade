//! Runs workers, kills them at their crash points, starts them again, and has a checker look at what they did.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use redrive::rusqlite::{Connection, OpenFlags};

use crate::life::Guard;
use crate::rows::{ALL, Row};
use crate::witness::Witness;

/// The exit status of a worker that died at its crash point.
pub(crate) const CRASHED: i32 = 86;

/// How often a worker is started again at most. A life without a crash finishes the work.
const LIVES_MAX: u32 = 3;

pub(crate) struct Runner {
    points: u64,
    seed: u64,
    address: String,
    /// Dropping its standard input ends it.
    _witness: (Child, ChildStdin),
}

impl Runner {
    pub(crate) fn start(points: u64, seed: u64) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("witness")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().context("the witness has an input")?;
        let mut address = String::new();
        BufReader::new(child.stdout.take().context("the witness speaks")?).read_line(&mut address)?;
        Ok(Self { points, seed, address: address.trim().to_owned(), _witness: (child, stdin) })
    }

    /// All configurations: fails unless each fails with its guard off, and none with its guard on.
    pub(crate) fn all(&self) -> Result<()> {
        println!(
            "{:<24} {:>12} {:>12}   of {} crashes each",
            "configuration", "guard off", "guard on", self.points
        );
        let mut wrong = Vec::new();
        for row in ALL {
            if let Some(why) = row.waits_for() {
                println!("{:<24} {:>12} {:>12}   {why}", row.name, "-", "-");
                continue;
            }
            let (off, on) = (self.failures(row, Guard::Off)?, self.failures(row, Guard::On)?);
            println!("{:<24} {off:>12} {on:>12}", row.name);
            if off == 0 || on > 0 {
                wrong.push(row.name);
            }
        }
        ensure!(wrong.is_empty(), "not as they should be: {}", wrong.join(", "));
        Ok(())
    }

    /// How many failures the checker of a configuration found, over all crash points.
    pub(crate) fn failures(&self, row: &Row, guard: Guard) -> Result<u64> {
        (1..=self.points).map(|point| self.one(row, guard, point)).sum()
    }

    fn one(&self, row: &Row, guard: Guard, point: u64) -> Result<u64> {
        let folder = tempfile::tempdir()?;
        let run = format!("{}/{guard}/{point}", row.name);
        let mut crash_at = point;
        for _ in 0..LIVES_MAX {
            let status = Command::new(std::env::current_exe()?)
                .args(["worker", row.name, "--guard", &guard.to_string(), "--run", &run])
                .args(["--witness", &self.address, "--seed", &self.seed.to_string()])
                .args(["--crash-at", &crash_at.to_string()])
                .arg("--dir")
                .arg(folder.path())
                .status()?;
            match status.code() {
                Some(0) => return self.check(row, &run, folder.path()),
                Some(CRASHED) => crash_at = u64::MAX,
                _ => bail!("a worker of {run} ended with {status}"),
            }
        }
        bail!("a worker of {run} did not finish")
    }

    fn check(&self, row: &Row, run: &str, folder: &Path) -> Result<u64> {
        let witness = Witness::new(self.address.parse()?, run.to_owned());
        let mut effects = witness.count()?;
        // Effects inside the worker's own database are rows; they are counted here, in another process.
        let file = folder.join("effects.db");
        if file.exists() {
            let file = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            let mut rows = file.prepare("SELECT id, count(*) FROM effect GROUP BY id")?;
            let rows = rows.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, u32>(1)?)))?;
            for row in rows {
                let (id, count) = row?;
                *effects.entry(id).or_default() += u64::from(count);
            }
        }
        Ok(row.check(&effects))
    }
}
