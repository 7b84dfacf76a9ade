//! A map that remembers what it was until its changes are kept, so that a commit is whole or not at all.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

/// A map with a journal of what its entries were before.
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

    /// The entry, to be changed in place.
    pub(super) fn alter(&mut self, key: &K) -> Option<&mut V> {
        let value = self.now.get_mut(key)?;
        self.before.push((key.clone(), Some(value.clone())));
        Some(value)
    }
}

/// What a commit does with everything that has a journal.
pub(super) trait Journal {
    /// Whether something was changed since the last commit.
    fn is_changed(&self) -> bool;
    /// The changes stay.
    fn keep(&mut self);
    /// The changes go.
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
