//! The owner of the file, and the running attempts of a previous owner that died.

pub(super) mod take;

pub(super) mod notes;
