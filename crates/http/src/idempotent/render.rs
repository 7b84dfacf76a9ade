//! Answers that are made anew instead of being kept: of what is secret, only where it is found is remembered.

use std::pin::Pin;
use std::sync::Arc;

use http::Response;

use super::body::Body;

/// Where an answer is to be made from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pointer {
    /// Whose.
    pub tenant: String,
    /// The status of the first answer, which the new one has as well.
    pub status: u16,
    /// What was made, where the handler named it.
    pub resource: Option<String>,
    /// Where that is, where the first answer said so.
    pub location: Option<String>,
}

type Rendering = Pin<Box<dyn Future<Output = Option<Response<Body>>> + Send>>;

/// Makes an answer anew.
#[derive(Clone)]
pub(super) struct Render(Arc<dyn Fn(Pointer) -> Rendering + Send + Sync>);

impl Render {
    pub(super) fn new<F, P>(render: F) -> Self
    where
        F: Fn(Pointer) -> P + Send + Sync + 'static,
        P: Future<Output = Option<Response<Body>>> + Send + 'static,
    {
        Self(Arc::new(move |pointer| Box::pin(render(pointer))))
    }

    pub(super) fn render(&self, pointer: Pointer) -> Rendering {
        (self.0)(pointer)
    }
}
