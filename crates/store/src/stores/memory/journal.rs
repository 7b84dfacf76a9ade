//! A map that remembers its old entries until its changes are committed, so that a commit is all or nothing.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

/// A map with a journal of its previous entries.
#[derive(Debug, Clone)]
pub(super) struct Map<K, V> {
    now: BTreeMap<K, V>,
    before: Vec<(K, Option<V>)>,
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self { now: BTreeMap::new(), before: Vec::new() }
    }
}

impl<K: Ord + Clone, V: Clone> Map<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.now.get(key)
    }

    pub(super) fn len(&self) -> usize {
        self.now.len()
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.now.contains_key(key)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.now.iter()
    }

    pub(super) fn range(&self, range: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.now.range(range)
    }

    pub(super) fn put(&mut self, key: K, value: V) {
        let old = self.now.insert(key.clone(), value);
        self.before.push((key, old));
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Some(old) = self.now.remove(key) {
            self.before.push((key.clone(), Some(old)));
        }
    }

    /// The entry, for changes in place.
    pub(super) fn alter(&mut self, key: &K) -> Option<&mut V> {
        let value = self.now.get_mut(key)?;
        self.before.push((key.clone(), Some(value.clone())));
        Some(value)
    }
}

/// Commit and rollback of everything that has a journal.
pub(super) trait Journal {
    /// Whether something was changed since the last commit.
    fn is_changed(&self) -> bool;
    /// Commits the changes.
    fn keep(&mut self);
    /// Rolls the changes back.
    fn undo(&mut self);
}

impl<K: Ord + Clone, V: Clone> Journal for Map<K, V> {
    fn is_changed(&self) -> bool {
        !self.before.is_empty()
    }

    fn keep(&mut self) {
        self.before.clear();
    }

    fn undo(&mut self) {
        while let Some((key, old)) = self.before.pop() {
            match old {
                Some(value) => self.now.insert(key, value),
                None => self.now.remove(&key),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undone_changes_leave_no_trace_and_kept_ones_stay() {
        let mut map = Map::default();
        map.put(1, "one");
        map.put(2, "two");
        map.keep();
        map.put(1, "other");
        map.remove(&2);
        map.put(3, "three");
        *map.alter(&1).unwrap() = "another";
        assert!(map.is_changed());
        map.undo();
        assert!(!map.is_changed());
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&1, &"one"), (&2, &"two")]);
    }
}
