//! The guard before the network: destinations that are not public are refused, unless they are allowed.
//!
//! It is asked where a connection is made, and of the addresses that it is made to: a name is resolved once, what it
//! resolved to is checked, and only what passed is handed to the client. A name that answers otherwise the second
//! time gains nothing by it. A host that is an address never reaches a resolver, so it is checked before.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use super::address::{self, Network};

/// What a name resolves to.
pub type Resolved = Pin<Box<dyn Future<Output = std::io::Result<Vec<IpAddr>>> + Send>>;

/// How names are resolved.
pub type Resolver = Arc<dyn Fn(String) -> Resolved + Send + Sync>;

/// Lets public addresses pass, and those that are allowed.
#[derive(Clone)]
pub struct Guard {
    allow: Arc<[Network]>,
    resolver: Resolver,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("allow", &self.allow).finish_non_exhaustive()
    }
}

/// A destination that may not be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The address that is not public.
    pub address: IpAddr,
    /// What it is instead.
    pub kind: &'static str,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, kind } = self;
        write!(f, "destination refused: {address} is {kind}; allow it with push.allow")
    }
}

impl Error for Refused {}

impl Guard {
    /// A guard that lets these networks pass as well, and asks the system for names.
    #[must_use]
    pub fn new(allow: Vec<Network>) -> Self {
        Self::with_resolver(allow, Arc::new(|name| Box::pin(system(name))))
    }

    /// One that asks somebody else for names.
    #[must_use]
    pub fn with_resolver(allow: Vec<Network>, resolver: Resolver) -> Self {
        Self { allow: allow.into(), resolver }
    }

    /// Whether an address may be called.
    ///
    /// # Errors
    /// With what it is, where it may not.
    pub fn check(&self, address: IpAddr) -> Result<(), Refused> {
        match address::kind(address) {
            Some(kind) if !self.allow.iter().any(|network| network.contains(address)) => {
                Err(Refused { address, kind })
            }
            _ => Ok(()),
        }
    }

    /// Whether a destination's host may be called, where it is an address. What a name resolves to is checked when
    /// it is.
    ///
    /// # Errors
    /// With what it is, where it may not.
    pub fn check_host(&self, url: &Url) -> Result<(), Refused> {
        match url.host() {
            Some(Host::Ipv4(address)) => self.check(address.into()),
            Some(Host::Ipv6(address)) => self.check(address.into()),
            Some(Host::Domain(_)) | None => Ok(()),
        }
    }
}

/// What the system says.
async fn system(name: String) -> std::io::Result<Vec<IpAddr>> {
    Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        let resolving = (self.resolver)(name.as_str().to_owned());
        Box::pin(async move {
            let mut refused = None;
            let mut passed = Vec::new();
            for address in resolving.await? {
                match guard.check(address) {
                    Ok(()) => passed.push(SocketAddr::new(address, 0)),
                    Err(why) => refused = refused.or(Some(why)),
                }
            }
            match refused {
                Some(refused) if passed.is_empty() => Err(refused.into()),
                _ => Ok(Box::new(passed.into_iter()) as Addrs),
            }
        })
    }
}
