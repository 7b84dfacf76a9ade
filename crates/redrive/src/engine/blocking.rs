//! The engine without async: the same words, each call waits.
