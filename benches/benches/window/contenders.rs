//! The sides: a window through its door without async, and `BTreeSet` + `VecDeque` as people write them.
//!
//! The plain side is given every advantage: it is bounded by count alone and reads no clock, it has no lock, it marks in
//! the same step in which it answers, and what it forgets it has at hand. The window has all of that to pay for, and
//! two steps for every new id.

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use redrive::window::WindowSettings;
use redrive::window::blocking::{Claim, Window};
use redrive_benches::turn::{self, value};

pub(crate) const OURS: &str = "redrive";
pub(crate) const PLAIN: &str = "BTreeSet + VecDeque";

/// In which order ids come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// As from dice: UUIDv4, hashes.
    Random,
    /// As from a clock: ULID, UUIDv7. The best that can happen to a tree.
    Ascending,
}

impl Order {
    pub(crate) const ALL: [Self; 2] = [Self::Random, Self::Ascending];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Ascending => "ascending",
        }
    }

    /// The id with this number, 36 bytes as a UUID has.
    fn id(self, number: u64) -> String {
        match self {
            Self::Ascending => turn::id(number),
            Self::Random => {
                let (a, b) = (mix(number), mix(!number));
                format!(
                    "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
                    a >> 32,
                    a >> 16 & 0xffff,
                    a & 0xfff,
                    b >> 48,
                    b & 0xffff_ffff_ffff
                )
            }
        }
    }
}

/// Spreads numbers (splitmix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Something that knows whether an id came before, and remembers it.
trait Remember {
    /// Whether this is the first time. If so, it is remembered.
    fn first_time(&mut self, id: &str) -> bool;
}

struct Plain {
    seen: BTreeSet<String>,
    order: VecDeque<String>,
    count: usize,
}

impl Remember for Plain {
    fn first_time(&mut self, id: &str) -> bool {
        if self.seen.contains(id) {
            return false;
        }
        if self.order.len() == self.count
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        self.seen.insert(id.to_owned());
        self.order.push_back(id.to_owned());
        true
    }
}

impl Remember for Window {
    fn first_time(&mut self, id: &str) -> bool {
        match self.claim(id) {
            Ok(Claim::First(ticket)) => ticket.commit().is_ok(),
            _ => false,
        }
    }
}

/// Runs as a contender until the pipe closes.
pub(crate) fn serve(side: &str) -> Result<(), String> {
    let args: Vec<String> = std::env::args().collect();
    let count = value(&args, "--ids")?.parse().map_err(|error| format!("--ids: {error}"))?;
    let order = value(&args, "--order")?;
    let order = Order::ALL.into_iter().find(|it| it.name() == order).ok_or("no such order")?;
    if side == OURS {
        let day = Duration::from_secs(24 * 60 * 60);
        let settings = WindowSettings { time: day, count, claim: Duration::from_secs(300) };
        let window = Window::open("memory:", settings).map_err(|error| error.to_string())?;
        answer(window, order, count)
    } else {
        answer(Plain { seen: BTreeSet::new(), order: VecDeque::new(), count }, order, count)
    }
}

fn answer(mut side: impl Remember, order: Order, count: usize) -> Result<(), String> {
    let mut next = 0_u64;
    let mut random = 1_u64;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let (what, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let number: u64 = number.parse().map_err(|error| format!("{line}: {error}"))?;
        let answer = match what {
            "bytes" => resident()?,
            "new" | "seen" => {
                let is_new = what == "new";
                // Made beforehand: what is measured is the check.
                let ids: Vec<String> = (0..number)
                    .map(|_| {
                        random = mix(random);
                        let known =
                            next.saturating_sub(count as u64) + random % (count as u64).min(next.max(1));
                        next += u64::from(is_new);
                        order.id(if is_new { next - 1 } else { known })
                    })
                    .collect();
                let start = Instant::now();
                let firsts = ids.iter().filter(|id| side.first_time(id)).count();
                let took = start.elapsed();
                if firsts != if is_new { ids.len() } else { 0 } {
                    return Err(format!("{firsts} of {} {what} ids were the first", ids.len()));
                }
                took.as_secs_f64() * 1e9
            }
            _ => return Err(format!("what is {what}?")),
        };
        println!("{answer}");
        std::io::stdout().flush().map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Bytes of memory that this process has, as the system counts.
fn resident() -> Result<f64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kib: u32 =
        line.trim().trim_end_matches("kB").trim().parse().map_err(|error| format!("{line}: {error}"))?;
    Ok(f64::from(kib) * 1024.0)
}
