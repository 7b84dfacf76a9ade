//! Validation of an endpoint, and the bounds of its numbers.

use std::time::Duration;

use redrive_core::ledger::{Effects, OnUnknown};

use crate::idempotent::endpoint::{Endpoint, Settings, Tenant};

pub(in crate::idempotent) const SECOND: Duration = Duration::from_secs(1);
pub(in crate::idempotent) const MINUTE: Duration = Duration::from_secs(60);
pub(in crate::idempotent) const HOUR: Duration = Duration::from_secs(3600);
pub(in crate::idempotent) const DAY: Duration = Duration::from_secs(86_400);
pub(in crate::idempotent) const MIB: usize = 1 << 20;

/// The longest name usable as a metric label and an index column.
const OPERATION_MAX: usize = 255;

/// The tolerated clock difference between two processes.
const SETTLING_MIN: Duration = SECOND;

impl Endpoint<Tenant, Effects> {
    /// Validates the endpoint. [`Idempotent::new`](super::super::Idempotent::new) calls it too.
    ///
    /// # Errors
    /// With the first invalid property.
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
            ("wait", settings.wait, Duration::ZERO, settings.wait_max),
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

/// Why an endpoint is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// A reply would expire while its request may still be repeated.
    #[error(
        "replies are kept for {retention:?}, but clients may repeat a request for {horizon:?}; raise the retention to that"
    )]
    Horizon {
        /// How long answers are kept.
        retention: Duration,
        /// How long clients repeat.
        horizon: Duration,
    },
    /// A transactional endpoint without its ledger has no transaction.
    #[error("a transactional endpoint cannot stay open while the ledger is down; remove `stay_open`")]
    Bypass,
    /// A probe without `OnUnknown::Probe`, or the reverse.
    #[error("`probe(…)` and `OnUnknown::Probe` go together; set both or neither")]
    Probe,
    /// A number is out of its bounds.
    #[error("{what} must be between {least} and {most} {unit}")]
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
