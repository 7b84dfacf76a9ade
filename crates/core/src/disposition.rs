//! What an attempt says of itself.
//!
//! A [`Disposition`] has four variants and each is honest: it worked, trying again may help, trying again
//! will not help, or nobody needs it any more. A [`Fault`] is the two that mean failure; a classifier that
//! can only say those cannot discard, and the type of the result shows it (see
//! [`classify`](crate::classify)).

use std::time::Duration;

/// What is known of a failed attempt's effect. Success is not asked: it was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Executed {
    /// It did not happen, and that is certain: the connection was refused, the transaction was rolled back.
    No,
    /// It may have happened: a time-out, a connection cut while waiting for the answer. The default, because
    /// certainty has to be claimed.
    #[default]
    Unknown,
}

impl Executed {
    /// The word used in logs and records.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// Why trying again may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// A passing fault: a cut connection, a deadlock, a 502.
    Transient,
    /// The other side says that it has too much to do: 429, 503, resource exhausted. Retrying adds to it, so
    /// it is done only out of a [`Budget`](crate::Budget), and without one not at all.
    Overload,
}

impl Class {
    /// The word used in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Overload => "overload",
        }
    }
}

/// A failure after which another attempt may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Again {
    /// Why it may help.
    pub class: Class,
    /// How long the other side asked to be left alone (`Retry-After`, gRPC push-back).
    pub not_before: Option<Duration>,
    /// Whether the failed attempt had its effect.
    pub executed: Executed,
}

/// A failed attempt, classified.
///
/// ```
/// use redrive_core::Fault;
/// use std::time::Duration;
///
/// let _busy = Fault::overload().not_before(Duration::from_secs(2));
/// let _refused = Fault::transient().not_executed();
/// let _malformed = Fault::permanent();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Another attempt may help.
    Retry(Again),
    /// Another attempt will not help.
    Permanent(Executed),
}

impl Fault {
    /// A passing fault whose effect is unknown.
    #[must_use]
    pub const fn transient() -> Self {
        Self::Retry(Again { class: Class::Transient, not_before: None, executed: Executed::Unknown })
    }

    /// The other side has too much to do. It refused, so nothing was executed.
    #[must_use]
    pub const fn overload() -> Self {
        Self::Retry(Again { class: Class::Overload, not_before: None, executed: Executed::No })
    }

    /// Trying again will not help. Whether anything was executed is unknown.
    #[must_use]
    pub const fn permanent() -> Self {
        Self::Permanent(Executed::Unknown)
    }

    /// The same fault, with nothing executed.
    #[must_use]
    pub const fn not_executed(self) -> Self {
        self.executed(Executed::No)
    }

    /// The same fault, with this knowledge of its effect.
    #[must_use]
    pub const fn executed(self, executed: Executed) -> Self {
        match self {
            Self::Retry(again) => Self::Retry(Again { executed, ..again }),
            Self::Permanent(_) => Self::Permanent(executed),
        }
    }

    /// The same fault, not to be retried before `wait` has passed. Says nothing of a permanent one.
    #[must_use]
    pub const fn not_before(self, wait: Duration) -> Self {
        match self {
            Self::Retry(again) => Self::Retry(Again { not_before: Some(wait), ..again }),
            Self::Permanent(_) => self,
        }
    }

    /// Whether another attempt may help.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Retry(_))
    }
}

/// What a handler, or a classifier in its name, says of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// It worked.
    Ok,
    /// It failed, and another attempt may help.
    Retry(Again),
    /// It failed, and another attempt will not help.
    Permanent(Executed),
    /// It is not needed any more: success without a value, not an error.
    Discard,
}

impl From<Fault> for Disposition {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Retry(again) => Self::Retry(again),
            Fault::Permanent(executed) => Self::Permanent(executed),
        }
    }
}
