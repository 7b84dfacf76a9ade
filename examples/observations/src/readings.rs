//! What the archive holds, and how to read it: two schemas, and records that fit neither.

use redrive::Failure;
use serde_json::{Value, json};

/// Stations, each with a poller.
pub(crate) const STATIONS: u32 = 100;
/// Pages of each station.
pub(crate) const PAGES: u32 = 10;
/// Records on each page.
const RECORDS: u32 = 4;
/// From this page on the archive writes another schema.
const NEW_SCHEMA_FROM: u32 = 6;
/// Which records cannot be read: one of so many.
const POISON: u32 = 97;

/// Records in all.
pub(crate) const fn records() -> u32 {
    STATIONS * PAGES * RECORDS
}

/// Records that cannot be read.
pub(crate) const fn poison() -> u32 {
    records().div_ceil(POISON)
}

/// A page as the archive writes it. The same each time that it is asked for.
pub(crate) fn page(station: u32, page: u32) -> String {
    let records = (0..RECORDS).map(|n| {
        let number = (station * PAGES + page) * RECORDS + n;
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
