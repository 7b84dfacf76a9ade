//! Chance in the waits, so that callers who failed together do not come back together.
//!
//! Two mistakes are common, and neither is made here. Adding jitter *on top* lets a wait pass its cap.
//! Clamping *after* the draw keeps the cap but kills the jitter: once the backoff has reached it, nearly
//! every wait is the cap itself, and the herd is back. Here the ceiling comes first and the draw happens
//! below it, so at the cap the waits are still spread.
//!
//! The same goes for decorrelated jitter. The textbook form is `min(cap, uniform(base, previous · 3))`: it
//! draws, then clamps, and piles up on the cap. This one is `uniform(initial, min(cap, previous · 3))`.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::dice::{Dice, uniform};

/// How the wait is drawn below the ceiling that the [`Backoff`] gives. The default is [`Full`](Jitter::Full).
///
/// ```
/// use redrive_core::{Backoff, Jitter, Seeded};
/// use std::time::Duration;
///
/// let (backoff, mut dice) = (Backoff::default(), Seeded::new(1));
/// let wait = Jitter::Full.draw(&backoff, 3, Duration::ZERO, &mut dice);
/// assert!(wait <= backoff.ceiling(3));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Jitter {
    /// The ceiling itself. Callers that fail together stay together: for tests, and for a caller who is
    /// alone.
    None,
    /// Anywhere from zero to the ceiling. Fewest calls in all under contention.
    #[default]
    Full,
    /// Half the ceiling, and anywhere in the other half. Keeps a least wait.
    Equal,
    /// Anywhere from the first wait to three times the previous one, at most the cap. Ignores the backoff's
    /// growth.
    Decorrelated,
}

impl Jitter {
    /// The wait before retry `n` (from 1), after `previous` was the wait before that.
    pub fn draw(self, backoff: &Backoff, n: u32, previous: Duration, dice: &mut impl Dice) -> Duration {
        match self {
            Self::None => backoff.ceiling(n),
            Self::Full => uniform(dice, Duration::ZERO, backoff.ceiling(n)),
            Self::Equal => {
                let ceiling = backoff.ceiling(n);
                uniform(dice, ceiling / 2, ceiling)
            }
            Self::Decorrelated => {
                let initial = backoff.ceiling(1);
                let previous = if n <= 1 { initial } else { previous.max(initial) };
                uniform(dice, initial, previous.saturating_mul(3).min(backoff.cap()))
            }
        }
    }

    /// The wait before retry `n` when the other side asked not to be called before `floor` has passed.
    ///
    /// Never shorter than the floor. Everybody was told the same floor, so the jitter goes upwards from it:
    /// over the ceiling of this retry or a tenth of the floor, whichever is longer. The floor may exceed the
    /// backoff's cap, because the cap bounds what we choose and not what the other side asks.
    pub fn draw_from(
        self,
        floor: Duration,
        backoff: &Backoff,
        n: u32,
        previous: Duration,
        dice: &mut impl Dice,
    ) -> Duration {
        let own = self.draw(backoff, n, previous, dice);
        if own >= floor {
            return own;
        }
        if self == Self::None {
            return floor;
        }
        let spread = backoff.ceiling(n).max(floor / 10);
        uniform(dice, floor, floor.saturating_add(spread))
    }
}
