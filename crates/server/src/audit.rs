//! Lines of the audit about what is the server's own, and no event's: secrets, the configuration, copies of the store.

use redrive::StoreError;
use redrive::desk::Desk;

/// Does something, with a line in the audit. The line is written first: there is no change without one. Of what then
/// was not done there is a second line, with nothing counted. What was set or read is in neither.
///
/// # Errors
/// Where the line cannot be written, and then nothing is done; or as what is to be done.
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
        let _ = desk.note(verb, target, 0, "it was not done").await;
    }
    done
}
