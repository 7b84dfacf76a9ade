//! The archive's contents, and how to read them: two schemas, and records that fit neither.

use std::time::Duration;

use redrive::Failure;
use serde_json::{Value, json};

/// The amount of data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Stations, each with a poller.
    pub(crate) stations: u32,
    /// Pages of each station.
    pub(crate) pages: u32,
    /// How long the archive is down.
    pub(crate) outage: Duration,
}

/// Records on each page.
const RECORDS: u32 = 4;
/// From this page on the archive writes another schema.
const NEW_SCHEMA_FROM: u32 = 6;
/// One in this many records is unreadable.
const POISON: u32 = 97;

impl Size {
    /// A hundred pollers, and an outage of half a minute at a twentieth of its length.
    pub(crate) const FULL: Self = Self { stations: 100, pages: 10, outage: Duration::from_millis(1_500) };
    /// A fifth of that.
    pub(crate) const SMALL: Self = Self { stations: 20, outage: Duration::from_millis(300), ..Self::FULL };

    /// Records in all.
    const fn records(self) -> u32 {
        self.stations * self.pages * RECORDS
    }

    /// Records that cannot be read.
    pub(crate) const fn poison(self) -> u32 {
        self.records().div_ceil(POISON)
    }

    /// Records that can.
    pub(crate) const fn observations(self) -> u32 {
        self.records() - self.poison()
    }

    /// Each page has a mean.
    pub(crate) const fn means(self) -> u32 {
        self.stations * self.pages
    }

    /// The total number of deliveries expected.
    pub(crate) const fn events(self) -> u32 {
        self.observations() + self.means()
    }
}

/// A page as the archive writes it. The same every time.
pub(crate) fn page(station: u32, page: u32) -> String {
    let records = (0..RECORDS).map(|n| {
        let number = (station * Size::FULL.pages + page) * RECORDS + n;
        let (id, celsius) = (format!("observation-{number}"), f64::from(number % 300) / 10.0);
        match page {
            _ if number.is_multiple_of(POISON) => json!({ "id": id, "celsius": "warm" }),
            NEW_SCHEMA_FROM.. => json!({ "id": id, "reading": { "value": celsius, "unit": "C" } }),
            _ => json!({ "id": id, "celsius": celsius }),
        }
    });
    Value::from(records.collect::<Vec<_>>()).to_string()
}

/// The id of a record, whatever else is in it.
pub(crate) fn id(record: &Value) -> Result<&str, Failure> {
    record["id"].as_str().ok_or_else(|| Failure::permanent_text("a record without an id"))
}

/// Degrees, in either schema. What fits neither will not read better tomorrow.
pub(crate) fn celsius(record: &Value) -> Result<f64, Failure> {
    let new = || record["reading"]["value"].as_f64().filter(|_| record["reading"]["unit"] == "C");
    let celsius = record["celsius"].as_f64().or_else(new);
    celsius.ok_or_else(|| Failure::permanent_text(format!("no temperature in {record}")).kind("schema"))
}
