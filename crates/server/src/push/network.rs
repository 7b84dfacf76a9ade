//! Address classification: only globally reachable addresses are public.
//!
//! The tables are IANA's special-purpose registries, and the metadata addresses of clouds. For IPv6, only `2000::/3`
//! can be public: the rest is not allocated.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Why an address is not public; `None` if it is.
#[must_use]
pub fn kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => kind_v6(address),
    }
}

/// Network, prefix length, description. The first match wins.
const V4: &[([u8; 4], u8, &str)] = &[
    ([169, 254, 169, 254], 32, "a metadata address"),
    ([169, 254, 170, 2], 32, "a metadata address"),
    ([100, 100, 100, 200], 32, "a metadata address"),
    ([192, 0, 0, 192], 32, "a metadata address"),
    // Public by its number, and within Azure the machine's own.
    ([168, 63, 129, 16], 32, "a metadata address"),
    ([0, 0, 0, 0], 8, "unspecified"),
    ([10, 0, 0, 0], 8, "private"),
    ([100, 64, 0, 0], 10, "a carrier-grade NAT address"),
    ([127, 0, 0, 0], 8, "loopback"),
    ([169, 254, 0, 0], 16, "link-local"),
    ([172, 16, 0, 0], 12, "private"),
    ([192, 0, 0, 0], 24, "reserved"),
    ([192, 0, 2, 0], 24, "for documentation"),
    ([192, 88, 99, 0], 24, "a 6to4 relay"),
    ([192, 168, 0, 0], 16, "private"),
    ([198, 18, 0, 0], 15, "for benchmarks"),
    ([198, 51, 100, 0], 24, "for documentation"),
    ([203, 0, 113, 0], 24, "for documentation"),
    ([224, 0, 0, 0], 4, "multicast"),
    ([240, 0, 0, 0], 4, "reserved"),
];

/// IPv6 networks that contain no IPv4 address.
const V6: &[(&str, &str)] = &[
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("fd00:ec2::254/128", "a metadata address"),
    ("fd20:ce::254/128", "a metadata address"),
    ("::/96", "an IPv4-compatible address"),
    ("64:ff9b:1::/48", "a NAT64 address of a local network"),
    ("100::/64", "for discarding"),
    ("fc00::/7", "unique-local"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
    ("2001::/32", "a Teredo address"),
    ("2001::/23", "reserved"),
    ("2001:db8::/32", "for documentation"),
    ("2002::/16", "a 6to4 address"),
    ("3fff::/20", "for documentation"),
];

fn kind_v4(address: Ipv4Addr) -> Option<&'static str> {
    let fits = |(network, length, _): &&([u8; 4], u8, &str)| {
        Network { address: Ipv4Addr::from(*network).into(), length: *length }.contains(address.into())
    };
    V4.iter().find(fits).map(|(_, _, kind)| *kind)
}

fn kind_v6(address: Ipv6Addr) -> Option<&'static str> {
    if let Some(inner) = address.to_ipv4_mapped() {
        return kind_v4(inner);
    }
    // NAT64: in a network without IPv4 every public address looks so, and private ones do as well.
    if let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = address.segments() {
        let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
        return kind_v4(Ipv4Addr::new(a, b, c, d));
    }
    let fits = |(network, _): &&(&str, &str)| {
        network.parse::<Network>().is_ok_and(|network| network.contains(address.into()))
    };
    let known = V6.iter().find(fits).map(|(_, kind)| *kind);
    known.or_else(|| (address.segments()[0] & 0xe000 != 0x2000).then_some("reserved"))
}

/// A network, or one address: `10.0.0.0/8`, `fd00::1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    length: u8,
}

impl Network {
    /// Whether it contains this address. An IPv4-mapped IPv6 address counts as its IPv4 address.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, true),
            IpAddr::V6(address) => (address.to_bits(), false),
        };
        let (own, own_v4) = bits(self.address);
        let (other, other_v4) = bits(address.to_canonical());
        let mask = u128::MAX.checked_shl(128 - u32::from(self.length)).unwrap_or(0);
        own_v4 == other_v4 && own & mask == other & mask
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let no = || {
            format!("`{text}` is neither a network nor an address; write 10.0.0.0/8, 10.1.2.3 or fd00::/8")
        };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| no())?;
        if let IpAddr::V6(inner) = address
            && inner.to_ipv4_mapped().is_some()
        {
            return Err(format!("`{text}`: write an IPv4 network as one, as in 10.0.0.0/8"));
        }
        let most = if address.is_ipv4() { 32 } else { 128 };
        let digits = |length: &&str| !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        let length = match length {
            None => most,
            Some(length) => {
                let length = Some(length).filter(digits).and_then(|length| length.parse().ok());
                length.filter(|length| *length <= most).ok_or_else(no)?
            }
        };
        Ok(Self { address, length })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edges_of_every_network_are_known() {
        // Just outside, first, last, just outside.
        for edges in [
            "1.0.0.0 0.0.0.0 0.255.255.255 1.0.0.0",
            "9.255.255.255 10.0.0.0 10.255.255.255 11.0.0.0",
            "100.63.255.255 100.64.0.0 100.127.255.255 100.128.0.0",
            "126.255.255.255 127.0.0.0 127.255.255.255 128.0.0.0",
            "169.253.255.255 169.254.0.0 169.254.255.255 169.255.0.0",
            "172.15.255.255 172.16.0.0 172.31.255.255 172.32.0.0",
            "191.255.255.255 192.0.0.0 192.0.0.255 192.0.1.0",
            "192.0.1.255 192.0.2.0 192.0.2.255 192.0.3.0",
            "192.167.255.255 192.168.0.0 192.168.255.255 192.169.0.0",
            "198.17.255.255 198.18.0.0 198.19.255.255 198.20.0.0",
            "223.255.255.255 224.0.0.0 255.255.255.255 223.255.255.255",
            "2620::1 fc00:: fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 2620::1",
            "2000:ffff:: 2001:: 2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff 2001:200::",
            "2001:db7:ffff:: 2001:db8:: 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff 2001:db9::",
            "2001:ffff:: 2002:: 2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff 2003::",
            "3ffe:ffff:: 3fff:: 3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff 3fff:1000::",
            "2000:: 1fff:ffff:: 4000:: 3ffe::",
            "64:ff9b::808:808 64:ff9b::a00:1 64:ff9b::7f00:1 64:ff9b::101:101",
        ] {
            let kinds: Vec<bool> = edges
                .split(' ')
                .map(|address| kind(address.parse().expect("an address")).is_none())
                .collect();
            assert_eq!(kinds, [true, false, false, true], "{edges}");
        }
    }

    #[test]
    fn a_network_has_its_own_addresses_and_no_others() {
        let has = |network: &str, address: &str| {
            let network: Network = network.parse().expect("a network");
            network.contains(address.parse().expect("an address"))
        };
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.0"));
        assert!(has("10.0.0.0/8", "::ffff:10.0.0.1") && !has("10.0.0.0/8", "::a00:1"));
        assert!(has("10.1.2.3", "10.1.2.3") && !has("10.1.2.3", "10.1.2.2"));
        assert!(has("0.0.0.0/0", "1.2.3.4") && !has("0.0.0.0/0", "fd00::1"));
        assert!(has("::/0", "fd00::1") && !has("::/0", "1.2.3.4"));
        assert!(has("fd00::/8", "fdff::1") && !has("fd00::/8", "fc00::1"));
        for wrong in
            ["", "10", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "::/129", "host", "::ffff:10.0.0.0/104"]
        {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
