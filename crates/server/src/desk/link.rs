//! Addresses of pages, and of the API's resources.
//!
//! Everything that came from outside is percent-encoded, so an address is plain ASCII whatever an id contains.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// Names and values of an address, in order.
pub(crate) type Pairs = Vec<(String, String)>;

/// Percent-encodes a text.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A path with parameters. Empty values are left out.
pub(crate) fn address<'a>(path: &str, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let query = query(pairs);
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// Parameters alone.
pub(crate) fn query<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let pairs = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    pairs.join("&")
}

/// The same for owned pairs.
pub(crate) fn address_of(path: &str, pairs: &Pairs) -> String {
    address(path, pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

/// Reads parameters, of an address or of a form; empty ones are left out.
pub(crate) fn parse(query: &str) -> Pairs {
    let pairs = url::form_urlencoded::parse(query.as_bytes());
    pairs.filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.into(), value.into())).collect()
}

/// The page of an event.
pub(crate) fn event(queue: &str, tenant: &str, id: &str) -> String {
    address("/desk/event", [("queue", queue), ("tenant", tenant), ("id", id)])
}

/// The page of an ordering key.
pub(crate) fn key(queue: &str, tenant: &str, key: &str) -> String {
    address("/desk/keys", [("queue", queue), ("tenant", tenant), ("key", key)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_ascii_and_comes_back() {
        let id = "a/..?&=%\"'<>\u{202e}\0 +ö";
        let address = event("q", "", id);
        assert!(address.is_ascii() && !address.contains("tenant"), "{address}");
        let (_, query) = address.split_once('?').expect("a query");
        assert_eq!(parse(query), [("queue".to_owned(), "q".to_owned()), ("id".to_owned(), id.to_owned())]);
    }
}
