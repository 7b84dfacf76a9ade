//! Windows keep every guarantee, wherever their ids are.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod memory {
    use redrive_store::window::{DedupeWindow, WindowSettings};

    fn open(settings: WindowSettings) -> (DedupeWindow, ()) {
        (DedupeWindow::memory(settings).unwrap(), ())
    }

    redrive_testkit::window_tests!(open);
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use redrive_store::window::{DedupeWindow, WindowSettings};
    use redrive_testkit::window::start;
    use tempfile::TempDir;

    fn open(settings: WindowSettings) -> (DedupeWindow, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        (DedupeWindow::open(folder.path().join("seen.db"), settings, start()).unwrap(), folder)
    }

    redrive_testkit::window_tests!(open);
}
