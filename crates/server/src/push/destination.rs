//! A queue's destination, ready to use.

use std::collections::BTreeMap;
use std::fmt;

use http::{HeaderMap, StatusCode};
use redrive::http::StatusMap;
use redrive::{Disposition, Fault};
use url::Url;

use super::header_names;
use crate::config::{HeaderSource, PushFormat, PushTo, StatusWord};

/// A queue's destination. Its headers and URL may contain credentials, so `Debug` shows neither.
pub struct Destination {
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) statuses: StatusMap,
    /// The name of the signing secret.
    pub(super) secret: Option<String>,
    pub(super) format: PushFormat,
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.url.host_str().unwrap_or_default();
        f.debug_struct("Destination")
            .field("host", &host)
            .field("secret", &self.secret)
            .finish_non_exhaustive()
    }
}

impl Destination {
    /// The destination of these settings.
    ///
    /// # Errors
    /// With the invalid setting. Neither the URL nor a header's value is in it.
    pub fn new(settings: &PushTo) -> Result<Self, String> {
        Self::with_headers(settings, HeaderSource::value)
    }

    /// The same without the values that are in files and variables: a configuration is also read by users who may not
    /// see them.
    ///
    /// # Errors
    /// With the invalid setting.
    pub fn without_credentials(settings: &PushTo) -> Result<Self, String> {
        Self::with_headers(settings, |source| match source {
            HeaderSource::Text(value) => Ok(value.clone()),
            HeaderSource::Elsewhere(_) => Ok(String::new()),
        })
    }

    fn with_headers(
        settings: &PushTo,
        read: impl Fn(&HeaderSource) -> Result<String, String>,
    ) -> Result<Self, String> {
        let PushTo { url, secret, headers, statuses, format } = settings;
        let url = parse(url)?;
        if let Some(secret) = secret {
            crate::secrets::check_name(secret)?;
        }
        let mut map = HeaderMap::new();
        for (name, source) in headers {
            let value = read(source).map_err(|error| format!("headers.{name}: {error}"))?;
            let (name, value) = header_names::check_of_destination(name, &value)?;
            map.insert(name, value);
        }
        let (statuses, secret) = (status_map(statuses)?, secret.clone());
        Ok(Self { url, headers: map, statuses, secret, format: *format })
    }

    /// Its address.
    #[must_use]
    pub const fn url(&self) -> &Url {
        &self.url
    }
}

fn parse(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("the url is not valid ({error})"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("the url must begin with http:// or https://".to_owned());
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("the url has no host".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the url must not contain credentials; put them into headers.authorization".to_owned());
    }
    if url.port() == Some(0) {
        return Err("the url must not have port 0".to_owned());
    }
    Ok(url)
}

/// What statuses mean here: classes first, so that single ones have the last word.
fn status_map(words: &BTreeMap<String, StatusWord>) -> Result<StatusMap, String> {
    let usual = StatusMap::default();
    let (mut classes, mut ones) = (Vec::new(), Vec::new());
    for (text, word) in words {
        let class = text.strip_suffix("xx").and_then(|class| class.parse::<u16>().ok());
        let one = text.parse::<u16>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        match (class, one) {
            (Some(class @ 2..=5), _) if text.len() == 3 => {
                classes.extend((class * 100..class * 100 + 100).map(|status| (status, *word)));
            }
            (_, Some(status @ 200..=599)) => ones.push((status, *word)),
            _ => return Err(format!("statuses: `{text}` is not a status; write \"404\" or \"5xx\"")),
        }
    }
    let statuses = classes.into_iter().chain(ones).filter_map(|(status, word)| {
        let status = StatusCode::from_u16(status).ok()?;
        Some((status, means(word, usual.disposition(status))))
    });
    Ok(statuses.fold(StatusMap::default(), |map, (status, means)| map.set(status, means)))
}

fn means(word: StatusWord, usual: Disposition) -> Disposition {
    match (word, usual) {
        (StatusWord::Ok, _) => Disposition::Ok,
        (StatusWord::Drop, _) => Disposition::Drop,
        (StatusWord::Permanent, _) => Fault::permanent().into(),
        // A retried status keeps its class: an overload is paid for by the budget.
        (StatusWord::Retry, Disposition::Retry(again)) => Disposition::Retry(again),
        (StatusWord::Retry, _) => Fault::transient().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> PushTo {
        PushTo {
            url: url.to_owned(),
            secret: None,
            headers: BTreeMap::new(),
            statuses: BTreeMap::new(),
            format: PushFormat::Binary,
        }
    }

    #[test]
    fn a_url_that_cannot_be_called_is_refused_and_not_repeated() {
        for url in [
            "",
            "shop",
            "ftp://shop.example/",
            "file:///etc/passwd",
            "https://user:geheim@shop.example/",
            "https://geheim@shop.example/",
            "http://shop.example:0/",
            "http://",
            "http://[fe80::1%25eth0]/",
            "http://a b/",
        ] {
            let told = Destination::new(&settings(url)).unwrap_err();
            assert!(!told.contains("geheim") && !told.is_empty(), "{url}: {told}");
        }
        assert!(Destination::new(&settings("https://shop.example:8443/hooks?x=1")).is_ok());
    }

    #[test]
    fn single_statuses_go_before_classes_and_both_before_the_table() {
        let words = [
            ("4xx", StatusWord::Drop),
            ("404", StatusWord::Ok),
            ("408", StatusWord::Retry),
            ("5xx", StatusWord::Retry),
            ("501", StatusWord::Permanent),
        ];
        let words = words.into_iter().map(|(text, word)| (text.to_owned(), word)).collect();
        let map = status_map(&words).expect("statuses");
        let means = |status| map.disposition(StatusCode::from_u16(status).expect("a status"));
        assert_eq!(
            (means(404), means(400), means(200)),
            (Disposition::Ok, Disposition::Drop, Disposition::Ok)
        );
        assert!(
            matches!(means(408), Disposition::Retry(_)) && matches!(means(501), Disposition::Permanent(_))
        );
        assert_eq!(means(503), StatusMap::default().disposition(StatusCode::SERVICE_UNAVAILABLE));
        assert!(matches!(means(302), Disposition::Permanent(_)));
        for wrong in ["", "xx", "0xx", "1xx", "6xx", "40", "4040", "+404", "199", "600", "4x", "404 "] {
            let words = BTreeMap::from([(wrong.to_owned(), StatusWord::Ok)]);
            assert!(status_map(&words).is_err(), "{wrong}");
        }
    }
}
