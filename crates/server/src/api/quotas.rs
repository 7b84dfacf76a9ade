//! How much each tenant published lately.

use std::collections::HashMap;
use std::time::Duration;

use redrive::rate::RateSettings;
use redrive::{Moment, Rate};

/// Maximum number of tenants with a rate in memory. Beyond, the half that published least recently starts anew, with
/// a full bucket, so that no tenant is delayed by it.
const TENANTS_MAX: usize = 10_000;

/// The rates of tenants, each with when it was last asked for.
#[derive(Debug, Default)]
pub(crate) struct Quotas(HashMap<String, (Rate, Moment)>);

impl Quotas {
    /// All begin anew.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes permits for all tenants or for none. A tenant's events are taken as a whole if there is room for one: a
    /// batch may exceed any burst, and the next one waits for it.
    ///
    /// # Errors
    /// With a tenant that has no room, and the moment at which it has.
    pub(crate) fn take<'a>(
        &mut self,
        tenants: &[(&'a str, u32)],
        limit: impl Fn(&str) -> Option<RateSettings>,
        now: Moment,
    ) -> Result<(), (&'a str, Moment)> {
        let mut taking = Vec::new();
        for (tenant, events) in tenants {
            let Some(settings) = limit(tenant) else { continue };
            // Settings were checked. An invalid rate refuses everything.
            let rate = self.rate(tenant, settings, now).ok_or((*tenant, now + Duration::from_secs(1)))?;
            // Nothing is taken where the moment is not accepted.
            if let Err(free) = rate.reserve(now, |_| false)
                && free > now
            {
                return Err((tenant, free));
            }
            taking.push((rate, *events));
        }
        for (rate, events) in taking {
            for _ in 0..events {
                let _ = rate.reserve(now, |_| true);
            }
        }
        Ok(())
    }

    fn rate(&mut self, tenant: &str, settings: RateSettings, now: Moment) -> Option<Rate> {
        if let Some((rate, last)) = self.0.get_mut(tenant) {
            *last = now;
            return Some(rate.clone());
        }
        if self.0.len() >= TENANTS_MAX {
            self.forget_half();
        }
        let rate = Rate::from_settings(settings).ok()?;
        self.0.insert(tenant.to_owned(), (rate.clone(), now));
        Some(rate)
    }

    fn forget_half(&mut self) {
        let mut times: Vec<(Moment, String)> =
            self.0.iter().map(|(tenant, (_, last))| (*last, tenant.clone())).collect();
        let half = times.len() / 2;
        times.select_nth_unstable(half);
        for (_, tenant) in &times[..half] {
            self.0.remove(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_a_minute(_: &str) -> Option<RateSettings> {
        Some(RateSettings { per_second: 1.0 / 60.0, burst: 1 })
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 60) + Duration::from_millis(seconds)
    }

    #[test]
    fn where_one_tenant_is_refused_nothing_is_taken_of_the_others() {
        let mut rates = Quotas::default();
        rates.take(&[("b", 1)], one_a_minute, at(0)).expect("a burst");
        let refused = rates.take(&[("a", 1), ("b", 1)], one_a_minute, at(0));
        assert_eq!(refused, Err(("b", at(0) + Duration::from_secs(60))));
        rates.take(&[("a", 1)], one_a_minute, at(0)).expect("its own was not touched");
        assert!(rates.take(&[("a", 1)], one_a_minute, at(0)).is_err());
    }

    #[test]
    fn a_rate_that_is_none_is_no_freedom() {
        let none = |_: &str| Some(RateSettings { per_second: 0.0, burst: 0 });
        assert!(Quotas::default().take(&[("a", 1)], none, at(0)).is_err());
        assert!(Quotas::default().take(&[("a", 1)], |_| None, at(0)).is_ok());
    }

    #[test]
    fn those_that_published_lately_are_not_forgotten() {
        let mut rates = Quotas::default();
        for tenant in 0..=TENANTS_MAX {
            let now = at(u64::try_from(tenant).expect("a small number"));
            rates.take(&[(&tenant.to_string(), 1)], one_a_minute, now).expect("a burst");
        }
        assert!(rates.0.len() <= TENANTS_MAX);
        let now = at(TENANTS_MAX as u64);
        let late = (TENANTS_MAX - 1).to_string();
        assert!(rates.take(&[(&late, 1)], one_a_minute, now).is_err(), "it is still known");
        assert!(rates.take(&[("0", 1)], one_a_minute, now).is_ok(), "it began anew");
    }
}
