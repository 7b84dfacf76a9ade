//! Counting allocations.
//!
//! The counting allocator replaces the global one in every binary that links this crate, and counts per
//! thread. While the clock runs it is told not to count, so that a side that allocates pays for its
//! allocation and not for our counting.

/// How many allocations this thread makes in here.
pub fn during(work: impl FnOnce()) -> u64 {
    allocation_counter::measure(work).count_total
}

/// Runs without counting.
pub fn uncounted<R>(work: impl FnOnce() -> R) -> R {
    let mut given = None;
    allocation_counter::opt_out(|| given = Some(work()));
    match given {
        Some(given) => given,
        None => unreachable!("opt_out runs what it is given"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn a_box_is_one_allocation_and_uncounted_it_is_none() {
        let boxed = || drop(black_box(Box::new(black_box(1))));
        assert_eq!(during(boxed), 1);
        assert_eq!(during(|| uncounted(boxed)), 0);
        assert_eq!(during(|| {}), 0);
    }
}
