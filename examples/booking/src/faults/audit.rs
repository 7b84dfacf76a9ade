//! The invariants, from the store and the files of all programs: one booking, one authorisation and one email for
//! each confirmed intent, and none for a refused one.

use std::collections::BTreeMap;
use std::path::Path;

use super::shared_store::{Shared, Stored};
use crate::booking_request::BookingRequest;
use crate::effect_log::deeds;
use crate::{mailer, provider};

/// The numbers of each.
pub(crate) type Per = BTreeMap<BookingRequest, u32>;

/// All records.
#[derive(Debug, Default)]
pub(crate) struct EffectRecords {
    pub(crate) stored: Stored,
    /// Authorised and not voided.
    pub(crate) authorisations: Per,
    pub(crate) emails: Per,
}

/// Reads them.
pub(crate) async fn read(folder: &Path, shared: &Shared) -> anyhow::Result<EffectRecords> {
    let mut books = EffectRecords { stored: shared.read().await?, ..EffectRecords::default() };
    let mut standing: BTreeMap<String, BookingRequest> = BTreeMap::new();
    for deed in deeds(&folder.join(provider::FILE))? {
        if deed.what == "voided" {
            standing.remove(&deed.key);
        } else {
            standing.insert(deed.key, BookingRequest { guest: deed.guest, cabin: deed.cabin });
        }
    }
    standing.into_values().for_each(|wish| *books.authorisations.entry(wish).or_default() += 1);
    for deed in deeds(&folder.join(mailer::FILE))? {
        *books.emails.entry(BookingRequest { guest: deed.guest, cabin: deed.cabin }).or_default() += 1;
    }
    Ok(books)
}

impl EffectRecords {
    /// Violations, given the clients' answers.
    pub(crate) fn violations(&self, booked: &Per, keys: u32) -> Vec<String> {
        let mut found = Vec::new();
        let parts = [
            ("bookings", &self.stored.bookings),
            ("standing authorisations", &self.authorisations),
            ("emails", &self.emails),
        ];
        for (what, seen) in parts {
            let wishes: std::collections::BTreeSet<&BookingRequest> =
                booked.keys().chain(seen.keys()).collect();
            for wish in wishes {
                let of = |per: &Per| per.get(wish).copied().unwrap_or_default();
                if of(booked) != of(seen) {
                    let (BookingRequest { guest, cabin }, booked, seen) = (wish, of(booked), of(seen));
                    found.push(format!(
                        "{booked} of {guest}'s intents for {cabin} are booked, and there are {seen} {what}"
                    ));
                }
            }
        }
        let mut guests: BTreeMap<&str, &str> = BTreeMap::new();
        for BookingRequest { guest, cabin } in self.stored.bookings.keys() {
            let other = guests.insert(cabin, guest);
            found.extend(other.map(|other| format!("{cabin} is {guest}'s and {other}'s")));
        }
        let completed = self.stored.keys.get("completed").copied().unwrap_or_default();
        if completed != keys || self.stored.keys.len() > 1 {
            found.push(format!("{keys} keys were used, and the ledger has {:?}", self.stored.keys));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per(counts: &[(&str, u32)]) -> Per {
        let wish = |guest: &str| BookingRequest { guest: guest.to_owned(), cabin: "17".to_owned() };
        counts.iter().map(|(guest, count)| (wish(guest), *count)).collect()
    }

    #[test]
    fn too_many_too_few_and_keys_in_flight_are_found() {
        let right = || EffectRecords {
            stored: Stored {
                bookings: per(&[("Ada", 2)]),
                keys: [("completed".to_owned(), 3)].into(),
                outbox: 0,
            },
            authorisations: per(&[("Ada", 2)]),
            emails: per(&[("Ada", 2)]),
        };
        let stored = |stored: Stored| EffectRecords { stored, ..right() };
        let found = |books: EffectRecords| books.violations(&per(&[("Ada", 2)]), 3).len();
        assert_eq!(found(right()), 0);
        assert_eq!(found(stored(Stored { bookings: per(&[("Ada", 3)]), ..right().stored })), 1);
        assert_eq!(found(EffectRecords { authorisations: per(&[("Ada", 2), ("Ben", 1)]), ..right() }), 1);
        assert_eq!(found(EffectRecords { emails: per(&[]), ..right() }), 1);
        let two = per(&[("Ada", 1), ("Ben", 1)]);
        let shared = EffectRecords {
            stored: Stored { bookings: two.clone(), ..right().stored },
            authorisations: two.clone(),
            emails: two.clone(),
        };
        assert_eq!(shared.violations(&two, 3), ["17 is Ben's and Ada's"]);
        let some = [("completed".into(), 2), ("in_flight".into(), 1)].into();
        assert_eq!(found(stored(Stored { keys: some, ..right().stored })), 1);
        let few = [("completed".into(), 2)].into();
        assert_eq!(found(stored(Stored { keys: few, ..right().stored })), 1);
    }
}
