//! The dead letters: of which queues, tenants and causes they are.

use redrive::Event;
use redrive::event::Cause;
use redrive_benches::turn;

/// Their queues.
pub(crate) const QUEUES: [&str; 4] = ["mail", "charge", "ship", "search"];

/// How many tenants each queue has.
pub(crate) const TENANTS: u64 = 25;

/// How many causes there are, beside the rare one.
const CAUSES: u64 = 40;

/// One in so many died of something else.
const RARE: u64 = 100_000;

/// What the rare ones died of.
const RARE_KIND: &str = "Eclipse";

/// A dead letter, by its number.
#[derive(Clone, Copy)]
pub(crate) struct Letter(pub(crate) u64);

impl Letter {
    pub(crate) fn queue(self) -> &'static str {
        QUEUES[usize::from(self.mixed().to_le_bytes()[0]) % QUEUES.len()]
    }

    pub(crate) fn tenant(self) -> String {
        format!("tenant-{}", (self.mixed() >> 8) % TENANTS)
    }

    /// As it was published.
    pub(crate) fn event(self) -> Event {
        let Self(number) = self;
        Event::new(self.queue(), turn::id(number)).tenant(self.tenant()).payload(turn::payload(number))
    }

    /// What it died of: a few causes have most letters, as it is in life.
    pub(crate) fn cause(self) -> Cause {
        let (one, two) = ((self.mixed() >> 20) % CAUSES, (self.mixed() >> 40) % CAUSES);
        if self.0 % RARE == RARE - 1 {
            return Cause::new(RARE_KIND, format!("no light for {} s", self.0 % 600));
        }
        let at = one * two / CAUSES;
        let word: String = [at / 6, at % 6]
            .iter()
            .filter_map(|at| char::from_digit(10 + u32::try_from(*at).ok()?, 36))
            .collect();
        Cause::new("Http", format!("host {word}: order {} not found", self.0)).code("404")
    }

    /// Whether it is one of the rare ones.
    pub(crate) fn is_rare(title: &str) -> bool {
        title.starts_with(RARE_KIND)
    }

    /// Its number, spread over all bits: what differs from one to the next is in the upper ones.
    fn mixed(self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
    }
}
