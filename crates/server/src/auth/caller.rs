//! A caller: its rights, and the tenant and the queues that they are limited to.

use std::sync::Arc;

use http::StatusCode;

use crate::api::ApiProblem;
use crate::config::{Config, Right, TokenSettings};
use crate::notify;

/// A caller.
#[derive(Debug, Clone, PartialEq)]
pub struct Caller {
    /// The token's name, for the audit.
    pub name: Arc<str>,
    /// The only tenant it may access.
    pub tenant: Option<Arc<str>>,
    /// The only queues it may access.
    queues: Option<Arc<[String]>>,
    rights: Arc<[Right]>,
}

impl Caller {
    /// The caller with a token of these settings.
    pub(super) fn new(name: &str, token: &TokenSettings) -> Self {
        Self {
            name: name.into(),
            tenant: token.tenant.as_deref().map(Into::into),
            queues: token.queues.as_deref().map(Into::into),
            rights: token.rights.as_slice().into(),
        }
    }

    /// A local caller, with all rights.
    #[must_use]
    pub fn local(name: &str) -> Self {
        Self { name: name.into(), tenant: None, queues: None, rights: Right::ALL.into() }
    }

    /// Whether the caller has a right.
    ///
    /// # Errors
    /// 403 without it.
    pub fn may(&self, right: Right) -> Result<(), ApiProblem> {
        if self.rights.contains(&right) { Ok(()) } else { Err(ApiProblem::forbidden(right)) }
    }

    /// Whether the caller has a right on a queue.
    ///
    /// # Errors
    /// 403 without the right, and for a queue that the token is not for.
    pub fn may_in(&self, right: Right, queue: &str) -> Result<(), ApiProblem> {
        self.may(right)?;
        self.queue(queue)
    }

    /// Whether the caller may bring events to the destination of a queue: by importing them, or by sending those of
    /// another queue there. The server's own queue of notifications takes none. A caller without limits may name a
    /// queue that is not configured here, to move dead letters between stores.
    ///
    /// # Errors
    /// 403 without the right to publish, and for a queue that the token is not for; 404 for an unknown queue.
    pub fn may_send_to(&self, queue: &str, config: &Config) -> Result<(), ApiProblem> {
        self.may_in(Right::Publish, queue)?;
        let limited = self.tenant.is_some() || self.queues.is_some();
        let known = config.queues.contains_key(queue) || (!limited && queue != notify::QUEUE);
        if known { Ok(()) } else { Err(ApiProblem::no_queue(queue)) }
    }

    /// Whether the token is for a queue.
    ///
    /// # Errors
    /// 403 for another queue.
    pub fn queue(&self, queue: &str) -> Result<(), ApiProblem> {
        if self.sees(queue) { Ok(()) } else { Err(ApiProblem::other_queue(queue)) }
    }

    /// Whether the token is for a queue; for lists, which leave out all others.
    #[must_use]
    pub fn sees(&self, queue: &str) -> bool {
        self.queues.as_deref().is_none_or(|own| own.iter().any(|own| own == queue))
    }

    /// Whether the token is for some queues only.
    #[must_use]
    pub const fn is_for_some_queues(&self) -> bool {
        self.queues.is_some()
    }

    /// The queues that the token is for; `None` for all.
    pub(crate) fn own_queues(&self) -> Option<&[String]> {
        self.queues.as_deref()
    }

    /// The queue of a filter: the requested one, or the only one of the token; `None` for all queues.
    ///
    /// # Errors
    /// 403 for another queue, and for all queues where the token is for some.
    pub fn queue_of_filter(&self, asked: Option<String>) -> Result<Option<String>, ApiProblem> {
        match (self.queues.as_deref(), asked) {
            (_, Some(asked)) => self.queue(&asked).map(|()| Some(asked)),
            (None, None) => Ok(None),
            (Some([only]), None) => Ok(Some(only.clone())),
            (Some(own), None) => {
                let detail = format!("this token is for some queues only; name one of {}", own.join(", "));
                Err(ApiProblem::new(StatusCode::FORBIDDEN, "other-queue", detail))
            }
        }
    }

    /// The tenant of a request: the caller's own, or the requested one.
    ///
    /// # Errors
    /// 403 for another tenant.
    pub fn tenant<'a>(&'a self, asked: Option<&'a str>) -> Result<Option<&'a str>, ApiProblem> {
        match (self.tenant.as_deref(), asked) {
            (Some(own), Some(asked)) if own != asked => Err(ApiProblem::other_tenant(asked)),
            (Some(own), _) => Ok(Some(own)),
            (None, asked) => Ok(asked),
        }
    }

    /// Refuses an action on all tenants to a token of one tenant.
    ///
    /// # Errors
    /// 403, with what the action covers.
    pub fn for_all_tenants(&self, what: &str) -> Result<(), ApiProblem> {
        let Some(own) = &self.tenant else { return Ok(()) };
        let detail = format!("{what} covers more than the tenant `{own}`, which this token is limited to");
        Err(ApiProblem::new(StatusCode::FORBIDDEN, "not-one-tenant", detail))
    }

    /// Refuses an action on all queues to a token of some queues.
    ///
    /// # Errors
    /// 403, with what the action covers.
    pub fn for_all_queues(&self, what: &str) -> Result<(), ApiProblem> {
        let Some(own) = &self.queues else { return Ok(()) };
        let own = own.join(", ");
        let detail = format!("{what} covers more than the queues {own}, which this token is limited to");
        Err(ApiProblem::new(StatusCode::FORBIDDEN, "not-one-queue", detail))
    }

    /// Refuses an action on the whole server to a token of one tenant or of some queues.
    ///
    /// # Errors
    /// 403, with what the action covers.
    pub fn for_everything(&self, what: &str) -> Result<(), ApiProblem> {
        self.for_all_tenants(what)?;
        self.for_all_queues(what)
    }
}
