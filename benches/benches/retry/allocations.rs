//! Counting allocations.
//!
//! The counting allocator replaces the global one in every binary that names its crate, and counts per thread. So
//! it is named here and not in the library: the engine's contenders allocate as they do in production. While the
//! clock runs it is told not to count, so that a side that allocates pays for its allocation and not for our
//! counting.

use redrive_benches::measure::Allocations;

/// By the counting allocator.
pub(crate) const COUNTED: Allocations = Allocations { during, uncounted };

fn during(work: &mut dyn FnMut()) -> u64 {
    allocation_counter::measure(work).count_total
}

fn uncounted(work: &mut dyn FnMut()) {
    allocation_counter::opt_out(work);
}
