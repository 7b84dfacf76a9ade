//! A panic as a failure of its seed: it is caught, and its message is kept.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Where the last panic of this thread was.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on the panics of this process print nothing, and a failure names the line of its panic.
///
/// For programs that run seeds and nothing else: panics outside of seeds print nothing either.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|place| format!("{}:{}", place.file(), place.line()));
        PLACE.with(|last| *last.borrow_mut() = place);
    }));
}

/// The result of `run`, or its panic as a sentence.
pub(super) fn catch<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    // The state of a run that panicked is not used again, except for its steps in words.
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let place = PLACE.with(|last| last.borrow_mut().take());
        let place = place.map(|place| format!(" at {place}")).unwrap_or_default();
        format!("panic{place}, {}", text(&*panic))
    })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
}

#[cfg(test)]
mod tests {
    use super::catch;

    #[test]
    fn a_panic_is_a_failure_with_its_text() {
        let panicked = catch(|| panic!("{} is not there", "e3")).unwrap_err();
        assert_eq!(panicked, "panic, e3 is not there");
        assert_eq!(catch(|| 3), Ok(3));
    }
}
