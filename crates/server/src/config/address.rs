//! Addresses to listen on: an IP address with a port, or a name with a port.

use std::net::{SocketAddr, ToSocketAddrs as _};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Reads an address. A name is resolved; of several addresses an IPv4 one is taken, if there is one.
pub(super) fn listen<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    resolve(&text).map_err(D::Error::custom)
}

fn resolve(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let wrong = |what: &str| {
        format!("`{text}` is not an address to listen on ({what}); write it as \"127.0.0.1:7070\"")
    };
    let Some((host, port)) = text.rsplit_once(':') else { return Err(wrong("it has no port")) };
    if host.is_empty() || port.parse::<u16>().is_err() {
        return Err(wrong(if host.is_empty() {
            "it has no host"
        } else {
            "its port is not a number up to 65535"
        }));
    }
    let addresses: Vec<SocketAddr> =
        text.to_socket_addrs().map_err(|error| wrong(&error.to_string()))?.collect();
    let address = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    address.copied().ok_or_else(|| wrong("the name has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_an_address_too() {
        for text in ["127.0.0.1:7070", "localhost:7070"] {
            assert_eq!(resolve(text), Ok(SocketAddr::from(([127, 0, 0, 1], 7070))), "{text}");
        }
        assert_eq!(resolve("[::1]:7070").map(|address| address.is_ipv6()), Ok(true));
    }

    #[test]
    fn what_is_no_address_is_told_with_how_to_write_one() {
        for (text, what) in [("here", "no port"), (":7070", "no host"), ("localhost:many", "its port")] {
            let told = resolve(text).expect_err(text);
            assert!(told.contains(what) && told.contains("write it as"), "{told}");
        }
    }
}
