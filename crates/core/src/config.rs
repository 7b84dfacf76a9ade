//! Forms in configuration: durations as `"250ms"`, `"10s"`, `"1h 30m"`, and the budget that is not there as
//! `"none"`.
//!
//! [`duration`] and [`optional`] are for `#[serde(with = "…")]` of other settings too, so that those of a program are
//! written alike.

/// A duration.
pub mod duration {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};
    use std::{fmt, time::Duration};

    /// Writes it.
    ///
    /// # Errors
    /// Where the format cannot.
    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*duration))
    }

    /// Reads it.
    ///
    /// # Errors
    /// Where it is none, with how to write one.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
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

/// A duration that may be left out; the field wants `#[serde(default)]`.
pub mod optional {
    use super::Written;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Duration;

    /// Writes it.
    ///
    /// # Errors
    /// Where the format cannot.
    #[allow(clippy::ref_option, reason = "the signature that serde asks for")]
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        duration.map(Written).serialize(to)
    }

    /// Reads it.
    ///
    /// # Errors
    /// Where it is none, with how to write one.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Written>::deserialize(from)?.map(|Written(duration)| duration))
    }
}

/// A budget or `"none"`. What is left out is the default budget and not every format has a null, so none has
/// a word.
pub(crate) mod budget {
    use crate::budget::BudgetSettings;
    use serde::de::value::MapAccessDeserializer;
    use serde::de::{Error, MapAccess, Unexpected, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::fmt;

    const NONE: &str = "none";

    #[allow(clippy::ref_option, reason = "the signature that serde asks for")]
    pub(crate) fn serialize<S: Serializer>(
        budget: &Option<BudgetSettings>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match budget {
            Some(settings) => settings.serialize(to),
            None => to.serialize_str(NONE),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<BudgetSettings>, D::Error> {
        from.deserialize_any(SettingsOrNone)
    }

    struct SettingsOrNone;

    impl<'de> Visitor<'de> for SettingsOrNone {
        type Value = Option<BudgetSettings>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a budget of `share`, `floor` and `window`, or \"none\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            if text == NONE { Ok(None) } else { Err(E::invalid_value(Unexpected::Str(text), &self)) }
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            BudgetSettings::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }
}
