//! An external renderer: outside the file, so that a job may reach it more than once.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redrive::{Delivery, Failure};

/// A renderer. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Renderer {
    has_template: Arc<AtomicBool>,
    pictures: Arc<Mutex<BTreeMap<String, u64>>>,
}

/// An unexpected error.
#[derive(Debug)]
struct Odd;

impl std::fmt::Display for Odd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the picture looks odd")
    }
}

impl std::error::Error for Odd {}

impl Renderer {
    /// Renders a picture, or says why not.
    pub(crate) fn render(&self, job: &Delivery) -> Result<(), Failure> {
        match job.payload() {
            b"busy" if job.attempt() < 3 => {
                let busy = io::Error::from(io::ErrorKind::ConnectionRefused);
                return Err(Failure::transient(busy).code("503").not_executed());
            }
            b"missing" if !self.has_template.load(Ordering::Relaxed) => {
                let text = format!("no template for {}", job.id());
                return Err(Failure::permanent_text(text).kind("Render").code("404").not_executed());
            }
            // `?` makes it an unclassified failure.
            b"odd" => Err(Odd)?,
            _ => {}
        }
        let mut pictures = self.pictures.lock().unwrap_or_else(PoisonError::into_inner);
        *pictures.entry(job.idempotency_key()).or_default() += 1;
        Ok(())
    }

    /// The fix.
    pub(crate) fn add_template(&self) {
        self.has_template.store(true, Ordering::Relaxed);
    }

    pub(crate) fn rendered(&self) -> u64 {
        self.pictures.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    pub(crate) fn rendered_twice(&self) -> u64 {
        let pictures = self.pictures.lock().unwrap_or_else(PoisonError::into_inner);
        pictures.values().filter(|times| **times > 1).count() as u64
    }
}
