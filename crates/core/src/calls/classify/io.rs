//! Classifies `std::io` errors by their kind; it does no I/O.

use std::io::{Error, ErrorKind};

use crate::disposition::Fault;

/// Knows the [`std::io::Error`] kinds that concern the connection, the clock or the caller's request.
///
/// | kind | means |
/// |---|---|
/// | connection refused, host or network unreachable, network down, address not available | retry, not executed |
/// | connection reset or aborted, not connected, broken pipe, unexpected end, timed out | retry, unknown |
/// | interrupted, would block, resource busy, deadlock, stale network file | retry, not executed |
/// | not found, permission, exists, invalid input or data, unsupported, storage full, … | permanent |
/// | any other | not known |
///
/// ```
/// use redrive_core::{Fault, classify};
/// use std::io::ErrorKind;
///
/// assert_eq!(classify::io(&ErrorKind::ConnectionRefused.into()), Some(Fault::transient().not_executed()));
/// assert_eq!(classify::io(&ErrorKind::TimedOut.into()), Some(Fault::transient()));
/// ```
#[must_use]
pub fn io(error: &Error) -> Option<Fault> {
    use ErrorKind as Kind;
    match error.kind() {
        Kind::ConnectionRefused
        | Kind::HostUnreachable
        | Kind::NetworkUnreachable
        | Kind::NetworkDown
        | Kind::AddrNotAvailable
        | Kind::Interrupted
        | Kind::WouldBlock
        | Kind::ResourceBusy
        | Kind::Deadlock
        | Kind::StaleNetworkFileHandle => Some(Fault::transient().not_executed()),
        Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::NotConnected
        | Kind::BrokenPipe
        | Kind::UnexpectedEof
        | Kind::TimedOut => Some(Fault::transient()),
        Kind::NotFound
        | Kind::PermissionDenied
        | Kind::AlreadyExists
        | Kind::InvalidInput
        | Kind::InvalidData
        | Kind::Unsupported
        | Kind::ReadOnlyFilesystem
        | Kind::StorageFull
        | Kind::QuotaExceeded
        | Kind::FileTooLarge
        | Kind::NotADirectory
        | Kind::IsADirectory
        | Kind::DirectoryNotEmpty
        | Kind::AddrInUse
        | Kind::ArgumentListTooLong
        | Kind::OutOfMemory => Some(Fault::permanent()),
        _ => None,
    }
}
