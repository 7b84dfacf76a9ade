//! Drawings: pure functions from figures to positions. Colours come from classes, so one drawing serves both themes.

/// A part of a bar, in per mille of its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) class: &'static str,
    pub(crate) at: u64,
    pub(crate) long: u64,
}

/// A bar of a thousand, split by these counts. A part that is not empty is seen.
pub(crate) fn bar(parts: &[(&'static str, u64)], whole: u64) -> Vec<Segment> {
    let whole = whole.max(parts.iter().map(|(_, count)| count).sum()).max(1);
    let mut at = 0;
    let mut segments = Vec::new();
    for (class, count) in parts.iter().filter(|(_, count)| *count > 0) {
        let long = (count.saturating_mul(1000) / whole).max(4).min(1000_u64.saturating_sub(at));
        segments.push(Segment { class, at, long });
        at += long;
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_every_part_and_never_more_than_all() {
        let parts = bar(&[("done", 688), ("bad", 1), ("none", 0)], 1_000_000);
        assert_eq!(
            parts,
            [Segment { class: "done", at: 0, long: 4 }, Segment { class: "bad", at: 4, long: 4 }]
        );
        let full = bar(&[("done", 10), ("bad", 1)], 0);
        assert_eq!(full.iter().map(|part| part.long).sum::<u64>(), 999);
        assert!(bar(&[], 5).is_empty());
    }
}
