//! Replies that are rendered anew instead of being stored: of secret data, only its location is kept.

use std::pin::Pin;
use std::sync::Arc;

use http::Response;

use crate::idempotent::body::Body;

/// The input for rendering a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenderRequest {
    /// The tenant.
    pub tenant: String,
    /// The status of the first answer, which the new one has as well.
    pub status: u16,
    /// The created resource, if the handler named it.
    pub resource: Option<String>,
    /// The resource's location, if the first reply had one.
    pub location: Option<String>,
}

type Rendering = Pin<Box<dyn Future<Output = Option<Response<Body>>> + Send>>;

/// Makes an answer anew.
#[derive(Clone)]
pub(in crate::idempotent) struct Render(Arc<dyn Fn(RenderRequest) -> Rendering + Send + Sync>);

impl Render {
    pub(in crate::idempotent) fn new<F, P>(render: F) -> Self
    where
        F: Fn(RenderRequest) -> P + Send + Sync + 'static,
        P: Future<Output = Option<Response<Body>>> + Send + 'static,
    {
        Self(Arc::new(move |pointer| Box::pin(render(pointer))))
    }

    pub(in crate::idempotent) fn render(&self, pointer: RenderRequest) -> Rendering {
        (self.0)(pointer)
    }
}
