//! gRPC: the code, what tonic knows beside it, and the server's push-back.

use std::error::Error;
use std::time::Duration;

use redrive_core::names::header;
use redrive_core::{Disposition, Executed, Fault};
use tonic::{Code, ConnectError, Status};

/// Knows the gRPC status codes. For a whole [`Status`], which says more, see [`grpc`].
///
/// | code | means |
/// |---|---|
/// | `Unavailable`, `DeadlineExceeded` | retry, unknown |
/// | `ResourceExhausted` | overload, unknown: retried out of a budget, and without one not at all |
/// | `Aborted`: the server rolled back, as after a conflict | retry, not executed |
/// | `InvalidArgument`, `NotFound`, `AlreadyExists`, `PermissionDenied`, `Unauthenticated` | permanent, unknown |
/// | `FailedPrecondition`, `OutOfRange`, `Unimplemented`, `DataLoss` | permanent, unknown |
/// | `Cancelled`: the caller gave up | permanent, unknown |
/// | `Internal`: an invariant is broken, and stays broken | permanent, unknown |
/// | `Unknown`, `Ok` | not known |
///
/// # Why so
///
/// - A code says how the other side ended, not what it did before. A handler that charged a card and then relayed a
///   downstream `NotFound` looks like one that refused at once, so the effect is unknown. A message beyond the size
///   limit of this side arrives as `OutOfRange` or `ResourceExhausted` after the server has done its work.
/// - `Aborted` is the exception: by gRPC's definition it means rolled back. It asks to repeat the whole
///   read-modify-write, so that must be the attempt, not only its last call.
/// - Servers return `Unknown` without further information. It stays unclassified: permanent, and counted as such.
///
/// ```
/// use redrive_core::Fault;
/// use redrive_retry::classify;
/// use tonic::Code;
///
/// assert_eq!(classify::grpc_code(Code::Unavailable), Some(Fault::transient()));
/// assert_eq!(classify::grpc_code(Code::Unknown), None);
/// ```
#[must_use]
pub fn grpc_code(code: Code) -> Option<Fault> {
    match code {
        Code::Unavailable | Code::DeadlineExceeded => Some(Fault::transient()),
        Code::ResourceExhausted => Some(Fault::overload().executed(Executed::Unknown)),
        Code::Aborted => Some(Fault::transient().not_executed()),
        Code::Cancelled
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss => Some(Fault::permanent()),
        Code::Unknown | Code::Ok => None,
    }
}

/// Classifies [`tonic::Status`]: its code, its cause if that lies on this side, and the server's push-back.
///
/// | status | means |
/// |---|---|
/// | `Unavailable` because tonic could not connect | retry, not executed |
/// | `Cancelled` by tonic itself: its own time-out, or a connection that went away | retry, unknown |
/// | any other | what [`grpc_code`] says of its code |
///
/// Then the metadata `grpc-retry-pushback-ms` applies, as
/// [gRPC's retry design](https://github.com/grpc/proposal/blob/master/A6-client-retries.md#pushback) has it:
///
/// | push-back | means |
/// |---|---|
/// | one number, zero or more | where the status may be retried: not before that many milliseconds have passed |
/// | a negative number, not a number, or several | permanent, whatever the status says |
///
/// ```
/// use redrive_core::Fault;
/// use redrive_retry::classify;
/// use std::time::Duration;
/// use tonic::Status;
///
/// let mut busy = Status::unavailable("in maintenance");
/// busy.metadata_mut().insert("grpc-retry-pushback-ms", "1500".parse()?);
/// let wait = Duration::from_millis(1500);
/// assert_eq!(classify::grpc(&busy), Some(Fault::transient().not_before(wait)));
/// # Ok::<(), tonic::metadata::errors::InvalidMetadataValue>(())
/// ```
#[must_use]
pub fn grpc(status: &Status) -> Option<Fault> {
    let fault = by_cause(status).or_else(|| grpc_code(status.code()));
    match Pushback::of(status) {
        Pushback::Unsaid => fault,
        Pushback::After(wait) => fault.map(|fault| fault.not_before(wait)),
        Pushback::Never => Some(Fault::permanent().executed(executed(fault))),
    }
}

/// What tonic itself says went wrong. A status that came over the wire has no cause.
fn by_cause(status: &Status) -> Option<Fault> {
    let causes = || std::iter::successors(status.source(), |&cause| cause.source());
    match status.code() {
        Code::Unavailable if causes().any(|cause| cause.is::<ConnectError>()) => {
            Some(Fault::transient().not_executed())
        }
        // An error that wraps another status only passes on what came over the wire.
        Code::Cancelled if status.source().is_some() && !causes().any(|cause| cause.is::<Status>()) => {
            Some(Fault::transient())
        }
        _ => None,
    }
}

fn executed(fault: Option<Fault>) -> Executed {
    match fault.map(Disposition::from) {
        Some(Disposition::Retry(again)) => again.executed,
        Some(Disposition::Permanent(executed)) => executed,
        _ => Executed::Unknown,
    }
}

/// The server's push-back.
enum Pushback {
    Unsaid,
    After(Duration),
    Never,
}

impl Pushback {
    fn of(status: &Status) -> Self {
        let mut values = status.metadata().get_all(header::GRPC_PUSHBACK).iter();
        let Some(value) = values.next() else {
            return Self::Unsaid;
        };
        let millis = value.to_str().ok().and_then(|text| text.parse::<i32>().ok());
        match millis.and_then(|millis| u64::try_from(millis).ok()) {
            Some(millis) if values.next().is_none() => Self::After(Duration::from_millis(millis)),
            _ => Self::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tonic::TimeoutExpired;

    use super::*;

    #[test]
    fn the_codes_of_the_table_mean_what_it_says() {
        let permanent = Some(Fault::permanent());
        for (code, want) in [
            (Code::Ok, None),
            (Code::Cancelled, permanent),
            (Code::Unknown, None),
            (Code::InvalidArgument, permanent),
            (Code::DeadlineExceeded, Some(Fault::transient())),
            (Code::NotFound, permanent),
            (Code::AlreadyExists, permanent),
            (Code::PermissionDenied, permanent),
            (Code::ResourceExhausted, Some(Fault::overload().executed(Executed::Unknown))),
            (Code::FailedPrecondition, permanent),
            (Code::Aborted, Some(Fault::transient().not_executed())),
            (Code::OutOfRange, permanent),
            (Code::Unimplemented, permanent),
            (Code::Internal, permanent),
            (Code::Unavailable, Some(Fault::transient())),
            (Code::DataLoss, permanent),
            (Code::Unauthenticated, permanent),
        ] {
            assert_eq!(grpc_code(code), want, "{code:?}");
            assert_eq!(grpc(&Status::new(code, "said")), want, "{code:?}");
        }
    }

    #[test]
    fn a_server_that_was_never_reached_has_executed_nothing() {
        let refused = ConnectError(Box::new(io::Error::from(io::ErrorKind::ConnectionRefused)));
        let status = Status::from_error(Box::new(refused));
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(grpc(&status), Some(Fault::transient().not_executed()));
    }

    #[test]
    fn the_clients_own_time_out_is_tried_again_although_it_is_called_cancelled() {
        let status = Status::from_error(Box::new(TimeoutExpired(())));
        assert_eq!(status.code(), Code::Cancelled);
        assert_eq!(grpc(&status), Some(Fault::transient()));
    }

    #[test]
    fn a_cancelled_that_is_only_handed_on_stays_permanent() {
        let mut status = Status::cancelled("outer");
        status.set_source(Arc::new(Status::cancelled("from the wire")));
        assert_eq!(grpc(&status), Some(Fault::permanent()));
    }

    fn pushed_back(code: Code, values: &[&str]) -> Option<Fault> {
        let mut status = Status::new(code, "later");
        for value in values {
            status.metadata_mut().append(header::GRPC_PUSHBACK, value.parse().unwrap());
        }
        grpc(&status)
    }

    #[test]
    fn push_back_sets_the_wait_of_what_may_be_retried() {
        for (code, want) in [
            (Code::Unavailable, Fault::transient()),
            (Code::Aborted, Fault::transient().not_executed()),
            (Code::ResourceExhausted, Fault::overload().executed(Executed::Unknown)),
        ] {
            let wait = Duration::from_millis(250);
            assert_eq!(pushed_back(code, &["250"]), Some(want.not_before(wait)), "{code:?}");
            assert_eq!(pushed_back(code, &["0"]), Some(want.not_before(Duration::ZERO)), "{code:?}");
        }
        assert_eq!(pushed_back(Code::NotFound, &["250"]), Some(Fault::permanent()));
        assert_eq!(pushed_back(Code::Unknown, &["250"]), None);
    }

    #[test]
    fn push_back_that_names_no_wait_forbids_the_retry() {
        for values in [&["-1"] as &[_], &["soon"], &[""], &["1.5"], &["2147483648"], &["10", "20"]] {
            assert_eq!(pushed_back(Code::Unavailable, values), Some(Fault::permanent()), "{values:?}");
            assert_eq!(pushed_back(Code::Unknown, values), Some(Fault::permanent()), "{values:?}");
            let rolled_back = Some(Fault::permanent().not_executed());
            assert_eq!(pushed_back(Code::Aborted, values), rolled_back, "{values:?}");
        }
    }
}
