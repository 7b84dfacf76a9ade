//! Windows keep every promise, wherever their ids are.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod memory {
    use redrive_store::window::{Settings, Window};

    fn open(settings: Settings) -> (Window, ()) {
        (Window::memory(settings).unwrap(), ())
    }

    redrive_testkit::window_tests!(open);
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use redrive_store::window::{Settings, Window};
    use redrive_testkit::window::start;
    use tempfile::TempDir;

    fn open(settings: Settings) -> (Window, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        (Window::open(folder.path().join("seen.db"), settings, start()).unwrap(), folder)
    }

    redrive_testkit::window_tests!(open);
}
