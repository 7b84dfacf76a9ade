//! A guest's request.

use serde::{Deserialize, Serialize};

/// A berth in a cabin. A cabin is one guest's; that guest may have more than one berth in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct BookingRequest {
    pub(crate) guest: String,
    pub(crate) cabin: String,
}
