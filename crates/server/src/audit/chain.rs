//! The chain that makes the audit log tamper-evident.
//!
//! Every node with a key seals the log again and again: a line of its own says which lines it covers, and has an HMAC over
//! them and over the node's seal before. A covered line that is changed, added or removed breaks the chain of every node
//! that covered it. What follows the last seal is not covered yet, and a log that was cut at its end still fits: for that
//! the head is logged every hour, and [`verify`] finds out whether it is still there.
//!
//! Lines are covered as the API tells them, so a log can be verified from an export.

use std::collections::BTreeMap;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::api::wire::AuditLineJson;

/// The verb of a seal.
pub(crate) const SEAL: &str = "seal-audit";

/// The key of a chain. It is derived from the key of the secrets, and shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ChainKey(pub(crate) [u8; 32]);

impl std::fmt::Debug for ChainKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ChainKey(…)")
    }
}

impl ChainKey {
    /// The key for chains that belongs to a key of secrets.
    pub(crate) fn derived_from(bytes: &[u8]) -> Self {
        Self(mac(bytes, |mac| mac.update(b"redrive audit chain")))
    }
}

/// Where a chain ends: the last line that it covers, and its HMAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Head {
    pub(crate) to: u64,
    mac: [u8; 32],
}

impl Head {
    /// The head that covers these lines as well; they follow it in ascending order.
    pub(crate) fn over(self, key: &ChainKey, node: &str, lines: &[AuditLineJson]) -> Self {
        let to = lines.last().map_or(self.to, |line| line.number);
        let mac = mac(&key.0, |mac| {
            mac.update(&self.mac);
            put(mac, node);
            mac.update(&self.to.to_be_bytes());
            mac.update(&to.to_be_bytes());
            for line in lines {
                let AuditLineJson { number, at, who, from, verb, target, count, note } = line;
                mac.update(&number.to_be_bytes());
                [at, who, from, verb, target, note].into_iter().for_each(|text| put(mac, text));
                mac.update(&count.to_be_bytes());
            }
        });
        Self { to, mac }
    }

    /// As it is written into a seal, and logged.
    pub(crate) fn text(&self) -> String {
        let hex: String = self.mac.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}:{hex}", self.to)
    }

    /// The head that a seal has.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (to, hex) = text.split_once(':')?;
        let mut mac = [0; 32];
        if hex.len() != 64 || !hex.is_ascii() {
            return None;
        }
        for (at, byte) in mac.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self { to: to.parse().ok()?, mac })
    }
}

fn mac(key: &[u8], over: impl FnOnce(&mut Hmac<Sha256>)) -> [u8; 32] {
    // Any length of key will do, so there is no other case.
    Hmac::<Sha256>::new_from_slice(key).map_or([0; 32], |mut mac| {
        over(&mut mac);
        mac.finalize().into_bytes().into()
    })
}

/// A text with its length before it, so that no two lists of texts look alike.
fn put(mac: &mut Hmac<Sha256>, text: &str) {
    mac.update(&(text.len() as u64).to_be_bytes());
    mac.update(text.as_bytes());
}

/// What the chains of a log say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verified {
    /// The head of each node's chain.
    pub(crate) heads: BTreeMap<String, String>,
    /// What does not fit.
    pub(crate) broken: Vec<String>,
    /// Lines that no seal covers yet.
    pub(crate) unsealed: u64,
    /// Every head that there was.
    seals: Vec<String>,
}

impl Verified {
    /// Whether the log still has a head that was logged.
    pub(crate) fn has(&self, head: &str) -> bool {
        self.seals.iter().any(|seal| seal == head)
    }
}

/// Verifies a whole log, its lines in ascending order. Each seal may be of any of the keys.
pub(crate) fn verify(lines: &[AuditLineJson], keys: &[ChainKey]) -> Verified {
    let mut chains: BTreeMap<&str, Head> = BTreeMap::new();
    let mut verified = Verified::default();
    for seal in lines.iter().filter(|line| line.verb == SEAL) {
        let before = chains.get(seal.target.as_str()).copied().unwrap_or_default();
        let Some(said) = Head::parse(&seal.note) else {
            verified.broken.push(format!("line {} is a seal that cannot be read", seal.number));
            continue;
        };
        let first = lines.partition_point(|line| line.number <= before.to);
        let last = lines.partition_point(|line| line.number <= said.to);
        let covered = lines.get(first..last).unwrap_or_default();
        if !keys.iter().any(|key| before.over(key, &seal.target, covered) == said) {
            verified.broken.push(format!(
                "line {}, a seal of {}, does not match lines {} to {}: one was changed, added or removed, or the key is a different one",
                seal.number,
                seal.target,
                before.to + 1,
                said.to
            ));
        }
        verified.seals.push(said.text());
        chains.insert(&seal.target, said);
    }
    let covered = chains.values().map(|head| head.to).max().unwrap_or_default();
    let open = lines.iter().filter(|line| line.number > covered && line.verb != SEAL);
    verified.unsealed = open.count() as u64;
    verified.heads = chains.into_iter().map(|(node, head)| (node.to_owned(), head.text())).collect();
    verified
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: u64, verb: &str, target: &str, note: &str) -> AuditLineJson {
        let text = str::to_owned;
        AuditLineJson {
            number,
            at: text("2026-01-31T12:00:00.000Z"),
            who: text("ada"),
            from: text("::1"),
            verb: text(verb),
            target: text(target),
            count: 1,
            note: text(note),
        }
    }

    /// A log of two nodes with two seals each.
    fn sealed(key: &ChainKey) -> Vec<AuditLineJson> {
        let mut lines: Vec<AuditLineJson> = Vec::new();
        let mut heads: BTreeMap<&str, Head> = BTreeMap::new();
        for (at, what) in ["", "", "a", "b", "", "a", "b", ""].into_iter().enumerate() {
            let number = at as u64 + 1;
            if what.is_empty() {
                lines.push(line(number, "redrive", "orders/17", ""));
                continue;
            }
            let head = heads.entry(what).or_default();
            let first = lines.partition_point(|line| line.number <= head.to);
            *head = head.over(key, what, &lines[first..]);
            lines.push(line(number, SEAL, what, &head.text()));
        }
        lines
    }

    #[test]
    fn whatever_is_done_to_a_sealed_line_is_found() {
        let key = ChainKey::derived_from(b"key");
        let lines = sealed(&key);
        let verified = verify(&lines, std::slice::from_ref(&key));
        assert_eq!(
            (verified.broken.len(), verified.unsealed, verified.heads.len()),
            (0, 1, 2),
            "{verified:?}"
        );
        assert!(verified.has(&lines[2].note) && !verified.has("2:00"));
        for at in 0..6 {
            let mut changed = lines.clone();
            changed[at].who = "eve".to_owned();
            assert!(!verify(&changed, std::slice::from_ref(&key)).broken.is_empty(), "line {at} changed");
            let mut removed = lines.clone();
            removed.remove(at);
            assert!(!verify(&removed, std::slice::from_ref(&key)).broken.is_empty(), "line {at} removed");
        }
        let mut added = lines.clone();
        added.insert(1, line(1, "redrive", "orders/18", ""));
        assert!(!verify(&added, std::slice::from_ref(&key)).broken.is_empty());
        assert!(!verify(&lines, &[ChainKey::derived_from(b"other")]).broken.is_empty());
        // A log that was cut at its end fits, and lacks the head that was logged.
        let cut = verify(&lines[..4], std::slice::from_ref(&key));
        assert!(cut.broken.is_empty() && !cut.has(&lines[5].note));
    }
}
