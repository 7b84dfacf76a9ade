//! What an answer means.
//!
//! Its status decides, with `Retry-After` and `redrive-no-retry`. The body is for people and for whoever publishes
//! the same identity again: it is read up to one bound and kept up to another, and one that is slow, endless or cut
//! off changes nothing. The receiver has spoken by then.

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
pub(super) struct Bounds {
    pub(super) read: usize,
    pub(super) kept: usize,
}

/// What was kept of a body.
struct Kept {
    bytes: Vec<u8>,
    whole: bool,
}

pub(super) async fn judge(
    mut response: Response,
    statuses: &StatusMap,
    bounds: Bounds,
    left: Option<Duration>,
) -> Result<Reply, Failure> {
    let status = response.status();
    let said = statuses.answer(status, response.headers());
    let mut kept = Kept { bytes: Vec::new(), whole: false };
    let time = left.map_or(BODY_TIME, |left| BODY_TIME.min(left / 2));
    let _ = tokio::time::timeout(time, read(&mut response, bounds, &mut kept)).await;
    let fault = match said {
        // Half a result is worse than none.
        Disposition::Ok if kept.whole && !kept.bytes.is_empty() => return Ok(Reply::with_result(kept.bytes)),
        Disposition::Ok => return Ok(Reply::ok()),
        Disposition::Discard => return Ok(Reply::discard()),
        Disposition::Retry(again) => Fault::Retry(again),
        Disposition::Permanent(executed) => Fault::Permanent(executed),
    };
    Err(Failure::new(fault, cause(status, &kept)))
}

async fn read(response: &mut Response, bounds: Bounds, kept: &mut Kept) {
    let mut read = 0;
    while let Ok(chunk) = response.chunk().await {
        let Some(chunk) = chunk else {
            kept.whole = read <= bounds.kept;
            return;
        };
        read += chunk.len();
        let room = bounds.kept.saturating_sub(kept.bytes.len());
        kept.bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        // What is left unread costs the connection, which is closed.
        if read >= bounds.read {
            return;
        }
    }
}

fn cause(status: StatusCode, kept: &Kept) -> Cause {
    let text = String::from_utf8_lossy(&kept.bytes);
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let reason = status.canonical_reason().unwrap_or("an unknown status");
    let message = match text.trim() {
        "" => format!("answered {} {reason}", status.as_u16()),
        text => format!("answered {} {reason}: {text}", status.as_u16()),
    };
    Cause::new("http", message).code(status.as_str())
}
