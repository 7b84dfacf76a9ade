//! Kills a program again and again, and restarts it until it ends by itself.
//!
//! A promise that holds over a crash is best shown by crashes: real processes, a signal that cannot be
//! caught, and a check of what is left on the disk. The program under test continues its work from the state
//! it finds, and exits with 0 when nothing is left to do. An [`Explorer`] starts it, kills it as planned, and
//! starts it again.
//!
//! A kill is at a time ([`Kill::After`]), or at a named point ([`Kill::At`]): if Redrive is built with its
//! feature `planted`, the process kills itself there when `REDRIVE_CRASH_AT` names it. Times find crash
//! windows that no developer thought of; points find windows that are a microsecond wide.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use redrive_testkit::crash::{Explorer, Kill};
//! use std::process::Command;
//! use std::time::Duration;
//!
//! # let file = std::env::temp_dir().join(format!("redrive-crash-example-{}", std::process::id()));
//! // Does a third of its work in each life, and would never end in the first two.
//! let child = || {
//!     let mut sh = Command::new("sh");
//!     sh.arg("-c").arg("echo third >> $0; test $(wc -l < $0) = 3 || exec sleep 60").arg(&file);
//!     sh
//! };
//! let course = Explorer::new(child).run([Kill::After(Duration::from_millis(300)); 2])?;
//! assert_eq!((course.starts, course.deaths.len()), (3, 2));
//! # std::fs::remove_file(&file)?;
//! # Ok(())
//! # }
//! ```
//!
//! A test need not bring its own program: [`this_test`] starts the test's own binary with one of its tests,
//! which checks an environment variable and acts as the child if it is set.

use std::fmt;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use redrive_core::{RandomSource, SeededRandom};

/// The signal that cannot be caught.
const SIGKILL: i32 = 9;
/// The default time limit of a life: far longer than any test's work on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a life ends that does not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kill {
    /// The process kills itself when it passes this point for the n-th time, from 1.
    At(&'static str, u32),
    /// It is killed from outside after this time.
    After(Duration),
}

impl Kill {
    /// `count` kills at times below `within`, the same for the same seed.
    #[must_use]
    pub fn at_random(seed: u64, count: usize, within: Duration) -> Vec<Self> {
        let mut random = SeededRandom::new(seed);
        let micros = u64::try_from(within.as_micros()).unwrap_or(u64::MAX).max(1);
        (0..count).map(|_| Self::After(Duration::from_micros(random.roll() % micros))).collect()
    }

    /// `count` kills at some of these points, passed up to `times_max` times, the same for the same seed.
    #[must_use]
    pub fn at_random_points(seed: u64, count: usize, points: &[&'static str], times_max: u32) -> Vec<Self> {
        let mut random = SeededRandom::new(seed);
        let mut below = |max: usize| usize::try_from(random.roll() % max.max(1) as u64).unwrap_or_default();
        let mut at = || {
            let point = points.get(below(points.len()))?;
            Some(Self::At(point, 1 + u32::try_from(below(times_max as usize)).unwrap_or_default()))
        };
        (0..count).filter_map(|_| at()).collect()
    }
}

/// How a life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// As planned.
    Killed(Kill),
    /// By a signal that the explorer did not send; see [`Explorer::own_deaths_max`].
    ByItself(i32),
}

/// The lives of a child until it ended with 0.
#[derive(Debug, Clone, Default)]
pub struct Course {
    /// How often it was started.
    pub starts: u32,
    /// How each life but the last one ended.
    pub deaths: Vec<Death>,
    /// The kills that were not reached, because the child ended by itself before.
    pub unused: Vec<Kill>,
}

impl Course {
    /// How often it died at this point.
    #[must_use]
    pub fn deaths_at(&self, point: &str) -> usize {
        let is_there = |death: &&Death| matches!(death, Death::Killed(Kill::At(at, _)) if *at == point);
        self.deaths.iter().filter(is_there).count()
    }

    /// How often it was killed from outside.
    #[must_use]
    pub fn deaths_from_outside(&self) -> usize {
        self.deaths.iter().filter(|death| matches!(death, Death::Killed(Kill::After(_)))).count()
    }
}

/// Why a child never ended with 0.
#[derive(Debug)]
pub struct Failed {
    /// What happened until then.
    pub course: Course,
    /// What it did instead.
    pub what: String,
    /// Its stderr in its last life.
    pub stderr: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { course, what, stderr } = self;
        write!(f, "start {} {what}, after {:?}; it said:\n{stderr}", course.starts, course.deaths)
    }
}

impl std::error::Error for Failed {}

/// Starts a child until it ends by itself. Defaults: a life lasts at most a minute, and only the explorer's
/// signals may end it.
#[derive(Debug)]
pub struct Explorer<F> {
    child: F,
    patience: Duration,
    own_deaths_max: usize,
}

impl<F: Fn() -> Command> Explorer<F> {
    /// An explorer of the child that this function makes.
    pub const fn new(child: F) -> Self {
        Self { child, patience: PATIENCE, own_deaths_max: 0 }
    }

    /// The time limit of a life.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How often the child may be ended by a signal of its own, such as that of an abort.
    #[must_use]
    pub const fn own_deaths_max(mut self, max: usize) -> Self {
        self.own_deaths_max = max;
        self
    }

    /// Starts the child with one kill after the other, then without any, until it exits with 0.
    ///
    /// # Errors
    /// If it exits with another code, lasts too long, or dies of a signal that the explorer did not send.
    pub fn run(&self, kills: impl IntoIterator<Item = Kill>) -> Result<Course, Box<Failed>> {
        let mut kills = kills.into_iter();
        let mut course = Course::default();
        let mut own_deaths = 0;
        loop {
            let kill = kills.next();
            course.starts += 1;
            let failed = |course: &Course, what: String, stderr: String| {
                Box::new(Failed { course: course.clone(), what, stderr })
            };
            let life = self.live(kill).map_err(|what| failed(&course, what, String::new()))?;
            let death = match (life.status, kill) {
                (Some(status), _) if status.success() => {
                    course.unused = kill.into_iter().chain(kills).collect();
                    return Ok(course);
                }
                (Some(status), Some(kill)) if status.signal() == Some(SIGKILL) => Death::Killed(kill),
                (Some(status), _) if own_deaths < self.own_deaths_max && status.signal().is_some() => {
                    own_deaths += 1;
                    Death::ByItself(status.signal().unwrap_or_default())
                }
                (Some(status), _) => return Err(failed(&course, format!("ended: {status}"), life.stderr)),
                (None, _) => {
                    let what = format!("did not end in {:?}", self.patience);
                    return Err(failed(&course, what, life.stderr));
                }
            };
            course.deaths.push(death);
        }
    }

    fn live(&self, kill: Option<Kill>) -> Result<Life, String> {
        let mut command = (self.child)();
        if let Some(Kill::At(point, times)) = kill {
            command.env("REDRIVE_CRASH_AT", format!("{point}:{times}"));
        }
        let cannot = |error: std::io::Error| format!("could not be made: {error}");
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(cannot)?;
        let words = listen(&mut child);
        let patience = match kill {
            Some(Kill::After(time)) => time,
            _ => self.patience,
        };
        // Its stderr ends when it does, so there is no need to poll whether it lives.
        match words.recv_timeout(patience) {
            Ok(stderr) => Ok(Life { status: Some(child.wait().map_err(cannot)?), stderr }),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                child.kill().map_err(cannot)?;
                let status = child.wait().map_err(cannot)?;
                let was_told = matches!(kill, Some(Kill::After(_)));
                Ok(Life { status: was_told.then_some(status), stderr: words.recv().unwrap_or_default() })
            }
        }
    }
}

/// One life of a child.
struct Life {
    /// `None` if it lasted too long.
    status: Option<ExitStatus>,
    stderr: String,
}

/// Reads a child's stderr, delivered when it ends.
fn listen(child: &mut Child) -> Receiver<String> {
    let (tell, told) = mpsc::channel();
    let stderr = child.stderr.take();
    std::thread::spawn(move || {
        let mut words = Vec::new();
        if let Some(mut stderr) = stderr {
            // Output read before an error is still worth showing.
            let _ = stderr.read_to_end(&mut words);
        }
        let _ = tell.send(String::from_utf8_lossy(&words).into_owned());
    });
    told
}

/// The command that runs one test of this test's own binary, and nothing else.
///
/// # Panics
/// If the system does not name the running program.
#[must_use]
pub fn this_test(name: &str) -> Command {
    let Ok(program) = std::env::current_exe() else {
        panic!("the system does not say which program this is")
    };
    let mut command = Command::new(program);
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command
}
