//! What keeps retries from hurting: the budget, the breaker, limits of concurrency and of rate.

pub mod breaker;
pub mod budget;
pub mod limit;
pub mod rate;
