//! Random waits, so that callers that failed together do not retry together.
//!
//! This module avoids two common mistakes. Adding jitter *on top* of the wait lets it exceed its cap.
//! Clamping *after* the draw keeps the cap but loses the jitter: once the backoff has reached the cap, nearly
//! every wait is the cap itself, and all callers retry together again. Here the ceiling comes first and the
//! draw happens below it, so the waits are still spread at the cap.
//!
//! The same holds for decorrelated jitter. The textbook form `min(cap, uniform(base, previous · 3))` draws,
//! then clamps, and piles up on the cap. This one is `uniform(initial, min(cap, previous · 3))`.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::random::{RandomSource, uniform};

/// How to draw the wait below the [`Backoff`]'s ceiling. The default is [`Full`](Jitter::Full).
///
/// ```
/// use redrive_core::{Backoff, Jitter, SeededRandom};
/// use std::time::Duration;
///
/// let (backoff, mut random) = (Backoff::default(), SeededRandom::new(1));
/// let wait = Jitter::Full.draw(&backoff, 3, Duration::ZERO, &mut random);
/// assert!(wait <= backoff.ceiling(3));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Jitter {
    /// The ceiling itself. Callers that fail together retry together: use it in tests, or for a single
    /// caller.
    None,
    /// Uniform from zero to the ceiling. It makes the fewest calls under contention.
    #[default]
    Full,
    /// Half the ceiling plus a uniform draw from the other half. It keeps a minimum wait.
    Equal,
    /// Uniform from the first wait to three times the previous one, up to the cap. It ignores the backoff's
    /// growth.
    Decorrelated,
}

impl Jitter {
    /// The wait before retry `n` (from 1); `previous` is the wait before the retry before it.
    pub fn draw(
        self,
        backoff: &Backoff,
        n: u32,
        previous: Duration,
        random: &mut impl RandomSource,
    ) -> Duration {
        match self {
            Self::None => backoff.ceiling(n),
            Self::Full => uniform(random, Duration::ZERO, backoff.ceiling(n)),
            Self::Equal => {
                let ceiling = backoff.ceiling(n);
                uniform(random, ceiling / 2, ceiling)
            }
            Self::Decorrelated => {
                let initial = backoff.ceiling(1);
                let previous = if n <= 1 { initial } else { previous.max(initial) };
                uniform(random, initial, previous.saturating_mul(3).min(backoff.cap()))
            }
        }
    }

    /// The wait before retry `n` when the downstream asked for no call before `floor` has passed.
    ///
    /// The wait is never shorter than the floor. All callers got the same floor, so the jitter goes upwards
    /// from it: over the ceiling of this retry or a tenth of the floor, whichever is longer. The floor may
    /// exceed the backoff's cap, because the cap limits our own choice and not the downstream's request.
    pub fn draw_from(
        self,
        floor: Duration,
        backoff: &Backoff,
        n: u32,
        previous: Duration,
        random: &mut impl RandomSource,
    ) -> Duration {
        let own = self.draw(backoff, n, previous, random);
        if own >= floor {
            return own;
        }
        if self == Self::None {
            return floor;
        }
        let spread = backoff.ceiling(n).max(floor / 10);
        uniform(random, floor, floor.saturating_add(spread))
    }
}
