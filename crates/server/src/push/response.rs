//! The disposition of a response.
//!
//! The status decides, with `Retry-After` and `redrive-no-retry`. The body is for operators, and is returned when the
//! same event is published again: it is read up to one limit and stored up to another, and a slow, endless or
//! truncated body changes nothing. The receiver has decided by then.

use std::time::Duration;

use http::StatusCode;
use redrive::event::Cause;
use redrive::http::StatusMap;
use redrive::{Disposition, Failure, Fault, Reply};
use reqwest::Response;

/// How long the body may take once the head is there; less where the attempt has less.
const BODY_TIME: Duration = Duration::from_secs(5);

/// How much of a body is read, and how much of it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BodyLimits {
    pub(super) read: usize,
    pub(super) kept: usize,
}

/// The stored part of a body.
struct StoredBody {
    bytes: Vec<u8>,
    whole: bool,
}

pub(super) async fn judge(
    mut response: Response,
    statuses: &StatusMap,
    bounds: BodyLimits,
    left: Option<Duration>,
) -> Result<Reply, Failure> {
    let status = response.status();
    let said = statuses.answer(status, response.headers());
    let mut kept = StoredBody { bytes: Vec::new(), whole: false };
    let time = left.map_or(BODY_TIME, |left| BODY_TIME.min(left / 2));
    let _ = tokio::time::timeout(time, read(&mut response, bounds, &mut kept)).await;
    let fault = match said {
        // Half a result is worse than none.
        Disposition::Ok if kept.whole && !kept.bytes.is_empty() => return Ok(Reply::with_result(kept.bytes)),
        Disposition::Ok => return Ok(Reply::ok()),
        Disposition::Drop => return Ok(Reply::drop()),
        Disposition::Retry(again) => Fault::Retry(again),
        Disposition::Permanent(executed) => Fault::Permanent(executed),
    };
    Err(Failure::new(fault, cause(status, &kept)))
}

async fn read(response: &mut Response, bounds: BodyLimits, kept: &mut StoredBody) {
    let mut read = 0;
    while let Ok(chunk) = response.chunk().await {
        let Some(chunk) = chunk else {
            kept.whole = read <= bounds.kept;
            return;
        };
        read += chunk.len();
        let room = bounds.kept.saturating_sub(kept.bytes.len());
        kept.bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        // An unread rest costs the connection, which is closed.
        if read >= bounds.read {
            return;
        }
    }
}

fn cause(status: StatusCode, kept: &StoredBody) -> Cause {
    let text = String::from_utf8_lossy(&kept.bytes);
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let reason = status.canonical_reason().unwrap_or("an unknown status");
    let message = match text.trim() {
        "" => format!("answered {} {reason}", status.as_u16()),
        text => format!("answered {} {reason}: {text}", status.as_u16()),
    };
    Cause::new("http", message).code(status.as_str())
}
