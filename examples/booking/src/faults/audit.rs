//! What must hold, from the store and the files of all programs: one booking, one authorisation and one email for each intent that was
//! told that it is booked, and none of them for one that was refused.

use std::collections::BTreeMap;
use std::path::Path;

use super::shared::{Shared, Stored};
use crate::register::deeds;
use crate::wish::Wish;
use crate::{mailer, provider};

/// How many there are of each.
pub(crate) type Per = BTreeMap<Wish, u32>;

/// What all of them say.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) stored: Stored,
    /// Authorised and not voided.
    pub(crate) authorisations: Per,
    pub(crate) emails: Per,
}

/// Reads them.
pub(crate) async fn read(folder: &Path, shared: &Shared) -> anyhow::Result<Books> {
    let mut books = Books { stored: shared.read().await?, ..Books::default() };
    let mut standing: BTreeMap<String, Wish> = BTreeMap::new();
    for deed in deeds(&folder.join(provider::FILE))? {
        if deed.what == "voided" {
            standing.remove(&deed.key);
        } else {
            standing.insert(deed.key, Wish { guest: deed.guest, cabin: deed.cabin });
        }
    }
    standing.into_values().for_each(|wish| *books.authorisations.entry(wish).or_default() += 1);
    for deed in deeds(&folder.join(mailer::FILE))? {
        *books.emails.entry(Wish { guest: deed.guest, cabin: deed.cabin }).or_default() += 1;
    }
    Ok(books)
}

impl Books {
    /// What does not hold, given what the guests were told.
    pub(crate) fn violations(&self, booked: &Per, keys: u32) -> Vec<String> {
        let mut found = Vec::new();
        let parts = [
            ("bookings", &self.stored.bookings),
            ("standing authorisations", &self.authorisations),
            ("emails", &self.emails),
        ];
        for (what, seen) in parts {
            let wishes: std::collections::BTreeSet<&Wish> = booked.keys().chain(seen.keys()).collect();
            for wish in wishes {
                let of = |per: &Per| per.get(wish).copied().unwrap_or_default();
                if of(booked) != of(seen) {
                    let (Wish { guest, cabin }, booked, seen) = (wish, of(booked), of(seen));
                    found.push(format!(
                        "{booked} of {guest}'s intents for {cabin} are booked, and there are {seen} {what}"
                    ));
                }
            }
        }
        let mut guests: BTreeMap<&str, &str> = BTreeMap::new();
        for Wish { guest, cabin } in self.stored.bookings.keys() {
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
        let wish = |guest: &str| Wish { guest: guest.to_owned(), cabin: "17".to_owned() };
        counts.iter().map(|(guest, count)| (wish(guest), *count)).collect()
    }

    #[test]
    fn too_many_too_few_and_keys_in_flight_are_found() {
        let right = || Books {
            stored: Stored {
                bookings: per(&[("Ada", 2)]),
                keys: [("completed".to_owned(), 3)].into(),
                outbox: 0,
            },
            authorisations: per(&[("Ada", 2)]),
            emails: per(&[("Ada", 2)]),
        };
        let stored = |stored: Stored| Books { stored, ..right() };
        let found = |books: Books| books.violations(&per(&[("Ada", 2)]), 3).len();
        assert_eq!(found(right()), 0);
        assert_eq!(found(stored(Stored { bookings: per(&[("Ada", 3)]), ..right().stored })), 1);
        assert_eq!(found(Books { authorisations: per(&[("Ada", 2), ("Ben", 1)]), ..right() }), 1);
        assert_eq!(found(Books { emails: per(&[]), ..right() }), 1);
        let two = per(&[("Ada", 1), ("Ben", 1)]);
        let shared = Books {
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
