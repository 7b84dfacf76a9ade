//! Numbers as databases store them: signed, 64 bits.

use std::time::Duration;

use redrive_core::Moment;
use redrive_core::queue_entry::{Seq, StreamId};

/// Bits of a seq that count within a stream: enough for a million events a second over twelve days, or a
/// thousand a second over thirty-four years, of one tenant in one queue.
pub(in crate::stores) const COUNT_BITS: u32 = 40;
/// How many events a stream may ever have.
pub(in crate::stores) const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
/// How many streams there may be: the rest of a positive number of 64 bits.
#[cfg(feature = "sqlite")]
pub(in crate::stores) const STREAMS_MAX: u32 = (1 << (63 - COUNT_BITS)) - 1;

/// The seq of the `count`th event of a stream.
pub(in crate::stores) fn seq(stream: StreamId, count: u64) -> Seq {
    Seq(u64::from(stream.0) << COUNT_BITS | count)
}

/// The stream of a seq.
pub(in crate::stores) const fn stream_of(seq: Seq) -> StreamId {
    StreamId((seq.0 >> COUNT_BITS) as u32)
}

/// The first and the last seq that a stream can have, as columns.
pub(in crate::stores) fn span(stream: StreamId) -> (i64, i64) {
    (column(seq(stream, 0).0), column(seq(stream, COUNT_MAX).0))
}

/// A number as a column, saturating.
pub(in crate::stores) fn column(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A moment as a column. A later moment is [`Moment::FAR`].
pub(in crate::stores) fn from_moment(moment: Moment) -> i64 {
    column(moment.as_nanos())
}

/// A column as a moment.
pub(in crate::stores) fn to_moment(column: i64) -> Moment {
    match u64::try_from(column) {
        Ok(nanos) if column < i64::MAX => Moment::from_nanos(nanos),
        Ok(_) => Moment::FAR,
        Err(_) => Moment::from_nanos(0),
    }
}

/// A duration in nanoseconds.
pub(in crate::stores) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A column as a duration.
pub(in crate::stores) fn to_duration(column: i64) -> Duration {
    match u64::try_from(column) {
        Ok(_) if column == i64::MAX => Duration::MAX,
        Ok(nanos) => Duration::from_nanos(nanos),
        Err(_) => Duration::ZERO,
    }
}

/// Bits that a database stores as a signed number.
pub(in crate::stores) const fn bits(column: i64) -> u64 {
    u64::from_ne_bytes(column.to_ne_bytes())
}

/// The same the other way round.
pub(in crate::stores) const fn signed(bits: u64) -> i64 {
    i64::from_ne_bytes(bits.to_ne_bytes())
}
