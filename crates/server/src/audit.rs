//! Audit lines about the server itself: secrets, configuration, backups, failed sign-ins.

use redrive::StoreError;
use redrive::desk::Desk;

pub(crate) mod chain;
pub(crate) mod sealing;
mod sign_ins;

pub(crate) use sign_ins::FailedSignIns;

/// Runs a change with an audit line. The line is written first, so that there is no change without one. If the change
/// fails, a second line with a count of zero follows. Neither contains the value that was set or read.
///
/// # Errors
/// If the line cannot be written, in which case nothing is done; or with the error of the change.
pub async fn noted<T, E: From<StoreError>>(
    desk: &Desk,
    verb: &'static str,
    target: &str,
    change: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    desk.note(verb, target, 1, "").await?;
    let done = change.await;
    if done.is_err() {
        // Why the change failed is worth more to the caller than why this did.
        let _ = desk.note(verb, target, 0, "not performed").await;
    }
    done
}
