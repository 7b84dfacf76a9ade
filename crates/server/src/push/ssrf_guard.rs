//! The SSRF guard: destinations that are not public are refused, unless allowed.
//!
//! It checks the addresses to which a connection is made: a name is resolved once, the result is checked, and only
//! addresses that pass reach the client. A name that resolves differently the second time (DNS rebinding) gains
//! nothing. A host that is an address never reaches a resolver, so it is checked before.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use super::network::{self, Network};

/// Resolves a name.
pub type Resolved = Pin<Box<dyn Future<Output = std::io::Result<Vec<IpAddr>>> + Send>>;

/// How names are resolved.
pub type Resolver = Arc<dyn Fn(String) -> Resolved + Send + Sync>;

/// Allows public addresses, and the configured ones; denies what is configured so, whatever else is allowed.
#[derive(Clone)]
pub struct SsrfGuard {
    allow: Arc<[Network]>,
    deny: Arc<[Network]>,
    resolver: Resolver,
}

impl fmt::Debug for SsrfGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SsrfGuard");
        shown.field("allow", &self.allow).field("deny", &self.deny).finish_non_exhaustive()
    }
}

/// The kind of an address in a denied network.
const DENIED: &str = "denied";

/// A destination that may not be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockedAddress {
    /// The blocked address.
    pub address: IpAddr,
    /// Its kind.
    pub kind: &'static str,
}

impl fmt::Display for BlockedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, kind } = self;
        match *kind {
            DENIED => write!(f, "destination refused: {address} is in push.deny"),
            kind => write!(f, "destination refused: {address} is {kind}; allow it with push.allow"),
        }
    }
}

impl Error for BlockedAddress {}

impl SsrfGuard {
    /// A guard that lets these networks pass as well, and asks the system for names.
    #[must_use]
    pub fn new(allow: Vec<Network>) -> Self {
        Self::with_resolver(allow, Arc::new(|name| Box::pin(system(name))))
    }

    /// A guard with another resolver.
    #[must_use]
    pub fn with_resolver(allow: Vec<Network>, resolver: Resolver) -> Self {
        Self { allow: allow.into(), deny: Arc::default(), resolver }
    }

    /// The same guard, which lets none of these networks pass.
    #[must_use]
    pub fn deny(self, deny: Vec<Network>) -> Self {
        Self { deny: deny.into(), ..self }
    }

    /// Whether an address may be called.
    ///
    /// # Errors
    /// With its kind, if it is blocked.
    pub fn check(&self, address: IpAddr) -> Result<(), BlockedAddress> {
        if self.deny.iter().any(|network| network.contains(address)) {
            return Err(BlockedAddress { address, kind: DENIED });
        }
        match network::kind(address) {
            Some(kind) if !self.allow.iter().any(|network| network.contains(address)) => {
                Err(BlockedAddress { address, kind })
            }
            _ => Ok(()),
        }
    }

    /// Checks a destination's host if it is an address. Names are checked when they are resolved.
    ///
    /// # Errors
    /// With its kind, if it is blocked.
    pub fn check_host(&self, url: &Url) -> Result<(), BlockedAddress> {
        match url.host() {
            Some(Host::Ipv4(address)) => self.check(address.into()),
            Some(Host::Ipv6(address)) => self.check(address.into()),
            Some(Host::Domain(_)) | None => Ok(()),
        }
    }
}

/// The system's resolver.
async fn system(name: String) -> std::io::Result<Vec<IpAddr>> {
    Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
}

impl Resolve for SsrfGuard {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_denied_is_not_called_whatever_is_allowed() {
        let networks =
            |all: &[&str]| all.iter().map(|text| text.parse().expect("a network")).collect::<Vec<_>>();
        let guard =
            SsrfGuard::new(networks(&["10.0.0.0/8"])).deny(networks(&["10.1.0.0/16", "93.184.0.0/16"]));
        let passes = |address: &str| guard.check(address.parse().expect("an address")).is_ok();
        assert!(passes("10.2.0.1") && passes("1.1.1.1"));
        for denied in ["10.1.2.3", "93.184.216.34", "::ffff:93.184.216.34"] {
            assert!(!passes(denied), "{denied}");
        }
        let told = guard.check("10.1.2.3".parse().expect("an address")).unwrap_err().to_string();
        assert_eq!(told, "destination refused: 10.1.2.3 is in push.deny");
    }
}
