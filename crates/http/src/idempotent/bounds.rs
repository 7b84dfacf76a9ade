//! What makes no sense in an endpoint, and the bounds of its numbers.

use std::time::Duration;

use redrive_core::ledger::{Effects, OnUnknown};

use super::endpoint::{Endpoint, Settings, Tenant};

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const DAY: Duration = Duration::from_secs(86_400);
pub(super) const MIB: usize = 1 << 20;

/// What can still be a label of a metric, and a column of an index.
const OPERATION_MAX: usize = 255;

/// As far apart as the clocks of two processes may be before one follows: less would be no time at all.
const SETTLING_MIN: Duration = SECOND;

impl Endpoint<Tenant, Effects> {
    /// Whether it makes sense. A layer that is made of it asks by itself.
    ///
    /// # Errors
    /// With what does not.
    pub fn check(&self) -> Result<(), EndpointError> {
        let Settings { operation, retention, lease, .. } = &self.settings;
        let settings = &self.settings;
        if operation.is_empty() || operation.len() > OPERATION_MAX {
            return Err(EndpointError::Bound {
                what: "length of the operation's name",
                least: 1,
                most: OPERATION_MAX as u128,
                unit: "bytes",
            });
        }
        if *retention < settings.horizon {
            return Err(EndpointError::Horizon { retention: *retention, horizon: settings.horizon });
        }
        if settings.stay_open && self.effects == Effects::Transactional {
            return Err(EndpointError::Bypass);
        }
        let probes = matches!(self.effects, Effects::Opaque(OnUnknown::Probe { .. }));
        if probes != settings.probe.is_some() {
            return Err(EndpointError::Probe);
        }
        let settling = match self.effects {
            Effects::Opaque(OnUnknown::Probe { settling }) => settling,
            _ => SETTLING_MIN,
        };
        let times = [
            ("settling", settling, SETTLING_MIN, DAY),
            ("retention", *retention, MINUTE, 366 * DAY),
            ("lease", *lease, SECOND, HOUR),
            ("max_run", settings.max_run, *lease, DAY),
            ("wait_max", settings.wait_max, Duration::ZERO, 5 * MINUTE),
            ("skew", settings.skew, Duration::ZERO, DAY),
            ("patience", settings.patience, Duration::ZERO, MINUTE),
            ("backoff_max", settings.backoff_max, Duration::ZERO, *retention),
        ];
        for (what, time, least, most) in times {
            if time < least || time > most {
                let (least, most) = (least.as_millis(), most.as_millis());
                return Err(EndpointError::Bound { what, least, most, unit: "ms" });
            }
        }
        let counts = [
            ("body_max", settings.body_max, 0, 64 * MIB, "bytes"),
            ("reply_max", settings.reply_max, 0, 16 * MIB, "bytes"),
            ("concurrency", settings.concurrency, 1, 1_000_000, "requests"),
        ];
        for (what, count, least, most, unit) in counts {
            if count < least || count > most {
                return Err(EndpointError::Bound { what, least: least as u128, most: most as u128, unit });
            }
        }
        Ok(())
    }
}

/// Why there is no such endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// An answer would be forgotten while its request may still be repeated.
    #[error(
        "answers are kept for {retention:?}, but clients may repeat a request for {horizon:?}; keep them for that long"
    )]
    Horizon {
        /// How long answers are kept.
        retention: Duration,
        /// How long clients repeat.
        horizon: Duration,
    },
    /// A transactional endpoint without its ledger has no transaction.
    #[error("a transactional endpoint cannot stay open while the ledger is down; leave `stay_open` out")]
    Bypass,
    /// There is a probe that is never asked, or none to ask.
    #[error("a probe belongs to effects that are probed; give `probe(…)` to those, and to no others")]
    Probe,
    /// A number is out of its bounds.
    #[error("{what} is between {least} and {most} {unit}")]
    Bound {
        /// Which.
        what: &'static str,
        /// The least.
        least: u128,
        /// The most.
        most: u128,
        /// Of what.
        unit: &'static str,
    },
}
