//! The allocator of the `retry` bench counts what it should.

use std::hint::black_box;

#[path = "../benches/retry/allocations.rs"]
mod allocations;

use allocations::COUNTED;

#[test]
fn a_box_is_one_allocation_and_uncounted_it_is_none() {
    let mut boxed = || drop(black_box(Box::new(black_box(1))));
    assert_eq!((COUNTED.during)(&mut boxed), 1);
    assert_eq!((COUNTED.during)(&mut || (COUNTED.uncounted)(&mut boxed)), 0);
    assert_eq!((COUNTED.during)(&mut || {}), 0);
}
