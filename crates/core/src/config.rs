//! Durations in configuration: `"250ms"`, `"10s"`, `"1h 30m"`.

pub(crate) mod duration {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};
    use std::{fmt, time::Duration};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        from.deserialize_str(Text)
    }

    /// Expects text. Whoever writes a bare number is told the form as well.
    struct Text;

    impl Visitor<'_> for Text {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration; write it as \"250ms\" or \"10s\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            humantime::parse_duration(text).map_err(|error| {
                E::custom(format!("`{text}` is no duration ({error}); write it as \"250ms\" or \"10s\""))
            })
        }
    }
}

/// The one type that the list and optional forms are made of.
#[derive(serde::Serialize, serde::Deserialize)]
struct Written(#[serde(with = "duration")] std::time::Duration);

pub(crate) mod durations {
    use super::Written;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::{sync::Arc, time::Duration};

    pub(crate) fn serialize<S: Serializer>(list: &Arc<[Duration]>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().copied().map(Written))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<[Duration]>, D::Error> {
        Ok(Vec::<Written>::deserialize(from)?.into_iter().map(|Written(duration)| duration).collect())
    }
}

pub(crate) mod optional {
    use super::Written;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Duration;

    #[allow(clippy::ref_option, reason = "the signature that serde asks for")]
    pub(crate) fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        duration.map(Written).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Written>::deserialize(from)?.map(|Written(duration)| duration))
    }
}
