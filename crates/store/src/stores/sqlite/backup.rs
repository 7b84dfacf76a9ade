//! Backups of the file: [`copy`] writes one while the store is in use, [`restore`] makes a store of one.

pub(super) mod copy;

pub(super) mod restore;
