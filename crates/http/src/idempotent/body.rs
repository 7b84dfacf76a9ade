//! Bodies: read whole up to a bound, or passed on.
//!
//! A request body is read before any decision, because it is part of the fingerprint. A response body is read to be
//! stored; if it exceeds the limit, the bytes read so far are put back in front of the rest and nothing more is
//! buffered.

use std::collections::VecDeque;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

/// Why a body broke off.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A body, whole or still on its way.
#[derive(Debug)]
pub struct Body(Inner);

#[derive(Debug)]
enum Inner {
    Whole(Option<Bytes>),
    Stream { before: VecDeque<Bytes>, rest: UnsyncBoxBody<Bytes, BoxError> },
}

impl Body {
    /// Nothing.
    #[must_use]
    pub const fn empty() -> Self {
        Self(Inner::Whole(None))
    }

    /// Streams another body.
    pub fn stream<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self::begun(VecDeque::new(), body)
    }

    fn begun<B>(before: VecDeque<Bytes>, rest: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Inner::Stream { before, rest: rest.map_err(Into::into).boxed_unsync() })
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(Inner::Whole((!bytes.is_empty()).then_some(bytes)))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Inner::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Inner::Stream { before, rest } => match before.pop_front() {
                Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                None => Poll::Ready(ready!(Pin::new(rest).poll_frame(cx))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Whole(bytes) => bytes.is_none(),
            Inner::Stream { before, rest } => before.is_empty() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Whole(bytes) => SizeHint::with_exact(length(bytes.as_ref().map_or(0, Bytes::len))),
            Inner::Stream { before, rest } => {
                let read = length(before.iter().map(Bytes::len).sum());
                let hint = rest.size_hint();
                let mut all = SizeHint::new();
                all.set_lower(hint.lower().saturating_add(read));
                if let Some(upper) = hint.upper() {
                    all.set_upper(upper.saturating_add(read));
                }
                all
            }
        }
    }
}

fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// A body that was read.
pub(super) enum Read {
    /// All of it.
    Whole(Bytes),
    /// The body exceeds the limit.
    Larger(Body),
    /// It broke off.
    Broken,
}

/// Reads a body up to `max` bytes.
pub(super) async fn read<B>(body: B, max: usize) -> Read
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    if body.size_hint().lower() > length(max) {
        return Read::Larger(Body::stream(body));
    }
    if body.is_end_stream() {
        return Read::Whole(Bytes::new());
    }
    let mut body = Box::pin(body);
    let mut chunks = VecDeque::new();
    let mut size: usize = 0;
    while let Some(frame) = body.frame().await {
        let data = match frame.map(Frame::into_data) {
            Ok(Ok(data)) => data,
            // Trailers are not kept: few clients send or read them.
            Ok(Err(_)) => continue,
            Err(_) => return Read::Broken,
        };
        size = size.saturating_add(data.len());
        if size > max {
            chunks.push_back(data);
            return Read::Larger(Body::begun(chunks, body));
        }
        if chunks.is_empty() && body.is_end_stream() {
            return Read::Whole(data);
        }
        chunks.push_back(data);
    }
    Read::Whole(joined(chunks, size))
}

/// No copy for a single chunk, the common case of small bodies.
fn joined(mut chunks: VecDeque<Bytes>, size: usize) -> Bytes {
    if chunks.len() <= 1 {
        return chunks.pop_front().unwrap_or_default();
    }
    let mut whole = BytesMut::with_capacity(size);
    chunks.iter().for_each(|chunk| whole.extend_from_slice(chunk));
    whole.freeze()
}
