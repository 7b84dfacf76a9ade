//! How settings are written in configuration: durations as `"250ms"`, `"10s"` or `"1h 30m"`, and an absent
//! budget as `"none"`.
//!
//! Other crates can use [`duration`], [`optional`] and [`budget`] with `#[serde(with = "…")]` too, so that
//! all settings of a program are written alike.

/// A duration.
pub mod duration {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};
    use std::{fmt, time::Duration};

    /// Serialises the duration.
    ///
    /// # Errors
    /// If the format cannot serialise it.
    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*duration))
    }

    /// Deserialises the duration.
    ///
    /// # Errors
    /// If the text is not a duration; the error shows how to write one.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        from.deserialize_str(Text)
    }

    /// Expects text. A bare number gets an error that shows the form too.
    struct Text;

    impl Visitor<'_> for Text {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration; write it as \"250ms\" or \"10s\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            humantime::parse_duration(text).map_err(|error| {
                E::custom(format!("`{text}` is not a duration ({error}); write it as \"250ms\" or \"10s\""))
            })
        }
    }
}

/// The element type of the list and optional forms.
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

/// A duration that may be absent; the field needs `#[serde(default)]`.
pub mod optional {
    use super::Written;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Duration;

    /// Serialises the duration.
    ///
    /// # Errors
    /// If the format cannot serialise it.
    #[allow(clippy::ref_option, reason = "the signature that serde asks for")]
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        duration.map(Written).serialize(to)
    }

    /// Deserialises the duration.
    ///
    /// # Errors
    /// If the text is not a duration; the error shows how to write one.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Written>::deserialize(from)?.map(|Written(duration)| duration))
    }
}

/// A budget or `"none"`. A field that is left out means the default budget, and not every format has a null,
/// so "no budget" needs a word of its own.
pub mod budget {
    use crate::budget::BudgetSettings;
    use serde::de::value::MapAccessDeserializer;
    use serde::de::{Error, MapAccess, Unexpected, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::fmt;

    const NONE: &str = "none";

    /// Serialises the budget.
    ///
    /// # Errors
    /// If the format cannot serialise it.
    #[allow(clippy::ref_option, reason = "the signature that serde asks for")]
    pub fn serialize<S: Serializer>(budget: &Option<BudgetSettings>, to: S) -> Result<S::Ok, S::Error> {
        match budget {
            Some(settings) => settings.serialize(to),
            None => to.serialize_str(NONE),
        }
    }

    /// Deserialises the budget.
    ///
    /// # Errors
    /// If the value is neither a budget nor `"none"`.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BudgetSettings>, D::Error> {
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
