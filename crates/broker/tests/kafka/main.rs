//! Kafka keeps the promises of a broker: on two versions, with retry tiers and with retries in place.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![cfg(all(feature = "kafka", unix))]

mod faults;
mod subject;

/// Makes a subject of one version and one way to retry, with every promise as a test.
macro_rules! kafka {
    ($name:ident, $version:literal, $tiers:literal) => {
        mod $name {
            use super::subject::{Setup, Subject};

            pub(super) struct Way;

            impl Setup for Way {
                const VERSION: &'static str = $version;
                const TIERS: bool = $tiers;
            }

            redrive_testkit::broker_tests!(Subject<Way>);
        }
    };
}

kafka!(tiers_on_4_3, "4.3.1", true);
kafka!(in_place_on_4_3, "4.3.1", false);
kafka!(tiers_on_3_9, "3.9.2", true);
kafka!(in_place_on_3_9, "3.9.2", false);
