//! The result that a handler or classifier reports for an attempt.
//!
//! A [`Disposition`] has four variants: the attempt worked, another attempt may help, another attempt will
//! not help, or the event is not needed any more. A [`Fault`] is one of the two failures. A classifier that
//! returns only faults cannot drop, and the type of the call's result shows it (see
//! [`classify`](crate::classify)).

use std::time::Duration;

/// Whether a failed attempt had its effect. A successful attempt always had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Executed {
    /// The effect certainly did not happen: the connection was refused, the transaction was rolled back.
    No,
    /// The effect may have happened: a time-out, a connection cut before the reply. This is the default,
    /// because a caller has to claim certainty.
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

/// Why another attempt may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RetryClass {
    /// A temporary fault: a cut connection, a deadlock, a 502.
    Transient,
    /// The downstream reports overload: 429, 503, resource exhausted. Retries add to the load, so they are
    /// made only out of a [`Budget`](crate::Budget), and not at all without one.
    Overload,
}

impl RetryClass {
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
pub struct RetryAdvice {
    /// Why another attempt may help.
    pub class: RetryClass,
    /// How long the downstream asked the caller to wait (`Retry-After`, gRPC push-back).
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
    Retry(RetryAdvice),
    /// Another attempt will not help.
    Permanent(Executed),
}

impl Fault {
    /// A temporary fault whose effect is unknown.
    #[must_use]
    pub const fn transient() -> Self {
        Self::Retry(RetryAdvice {
            class: RetryClass::Transient,
            not_before: None,
            executed: Executed::Unknown,
        })
    }

    /// The downstream is overloaded. It refused the call, so the call was not executed.
    #[must_use]
    pub const fn overload() -> Self {
        Self::Retry(RetryAdvice { class: RetryClass::Overload, not_before: None, executed: Executed::No })
    }

    /// Another attempt will not help. Whether the failed attempt had its effect is unknown.
    #[must_use]
    pub const fn permanent() -> Self {
        Self::Permanent(Executed::Unknown)
    }

    /// The same fault, with no effect.
    #[must_use]
    pub const fn not_executed(self) -> Self {
        self.executed(Executed::No)
    }

    /// The same fault, with this knowledge about its effect.
    #[must_use]
    pub const fn executed(self, executed: Executed) -> Self {
        match self {
            Self::Retry(again) => Self::Retry(RetryAdvice { executed, ..again }),
            Self::Permanent(_) => Self::Permanent(executed),
        }
    }

    /// The same fault, with a retry no earlier than after `wait`. A permanent fault is returned unchanged.
    #[must_use]
    pub const fn not_before(self, wait: Duration) -> Self {
        match self {
            Self::Retry(again) => Self::Retry(RetryAdvice { not_before: Some(wait), ..again }),
            Self::Permanent(_) => self,
        }
    }

    /// Whether another attempt may help.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Retry(_))
    }
}

/// What a handler, or a classifier on its behalf, reports about an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// It worked.
    Ok,
    /// It failed, and another attempt may help.
    Retry(RetryAdvice),
    /// It failed, and another attempt will not help.
    Permanent(Executed),
    /// The event is not needed any more: a success without a value, not an error.
    Drop,
}

impl From<Fault> for Disposition {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Retry(again) => Self::Retry(again),
            Fault::Permanent(executed) => Self::Permanent(executed),
        }
    }
}
