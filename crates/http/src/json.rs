//! Canonical JSON (RFC 8785), so that two spellings of the same value compare equal.
//!
//! Parsed by hand rather than with serde, because a fingerprint needs three things: a duplicate name in an object is
//! an error; a number keeps its exact text, because two different amounts may be the same double; and the depth is
//! bounded.

use std::fmt::Write as _;

mod parse;
#[cfg(feature = "server")]
pub(crate) mod spans;

/// A JSON text, as it was written.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A number, as written.
    Number(String),
    /// A string, its escapes resolved.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// Members, in the order in which they stood; no name twice.
    Object(Vec<(String, Json)>),
}

/// How numbers are spelt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberFormat {
    /// As doubles, which is what RFC 8785 wants.
    Doubles,
    /// As doubles if that is exact, otherwise digit for digit: 9007199254740993 differs from 9007199254740992.
    Exact,
}

/// Why a text is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// It is not JSON.
    #[error("invalid JSON at byte {at}: {what}")]
    Syntax {
        /// Where.
        at: usize,
        /// The error.
        what: &'static str,
    },
    /// A name occurs twice in one object, and parsers differ in which value counts.
    #[error("the name `{name}` occurs twice in one object")]
    Twice {
        /// The name.
        name: String,
    },
    /// A number has no double.
    #[error("the number {number} is too large")]
    TooLarge {
        /// The number.
        number: String,
    },
}

impl Json {
    /// Reads a text.
    ///
    /// # Errors
    /// If it is not JSON, or is ambiguous.
    pub fn parse(bytes: &[u8]) -> Result<Self, JsonError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| JsonError::Syntax { at: error.valid_up_to(), what: "not UTF-8" })?;
        parse::whole(text)
    }

    /// Writes it in the one spelling.
    ///
    /// # Errors
    /// [`JsonError::TooLarge`] for a number that has no double, where numbers are doubles.
    pub fn canonical(&self, numbers: NumberFormat) -> Result<String, JsonError> {
        let mut text = String::new();
        self.write(numbers, &mut text)?;
        Ok(text)
    }

    /// The value at a JSON pointer (RFC 6901).
    #[must_use]
    pub fn at(&self, pointer: &str) -> Option<&Self> {
        if pointer.is_empty() {
            return Some(self);
        }
        let mut here = self;
        for step in pointer.strip_prefix('/')?.split('/') {
            let step = step.replace("~1", "/").replace("~0", "~");
            here = match here {
                Self::Object(members) => &members.iter().find(|(name, _)| *name == step)?.1,
                Self::List(items) => items.get(step.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        Some(here)
    }

    /// Removes the value at a JSON pointer, if present. A list item becomes null, so that the others keep their
    /// index.
    pub fn remove(&mut self, pointer: &str) {
        let Some(path) = pointer.strip_prefix('/') else { return };
        let (parent, last) = path.rsplit_once('/').unwrap_or(("", path));
        let last = last.replace("~1", "/").replace("~0", "~");
        let mut here = self;
        for step in parent.split('/').filter(|_| !parent.is_empty()) {
            let step = step.replace("~1", "/").replace("~0", "~");
            let next = match here {
                Self::Object(members) => {
                    members.iter_mut().find(|(name, _)| *name == step).map(|(_, json)| json)
                }
                Self::List(items) => step.parse::<usize>().ok().and_then(|at| items.get_mut(at)),
                _ => None,
            };
            match next {
                Some(next) => here = next,
                None => return,
            }
        }
        match here {
            Self::Object(members) => members.retain(|(name, _)| *name != last),
            Self::List(items) => {
                if let Some(item) = last.parse::<usize>().ok().and_then(|at| items.get_mut(at)) {
                    *item = Self::Null;
                }
            }
            _ => {}
        }
    }

    fn write(&self, numbers: NumberFormat, to: &mut String) -> Result<(), JsonError> {
        match self {
            Self::Null => to.push_str("null"),
            Self::Bool(truth) => to.push_str(if *truth { "true" } else { "false" }),
            Self::Number(number) if is_plain(number) => to.push_str(number),
            Self::Number(number) => to.push_str(&spelt(number, numbers)?),
            Self::Text(text) => write_text(text, to),
            Self::List(items) => {
                to.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        to.push(',');
                    }
                    item.write(numbers, to)?;
                }
                to.push(']');
            }
            Self::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                // Sorted by UTF-16 units, as the RFC requires, not by code point.
                members.sort_by(|(a, _), (b, _)| match a.is_ascii() && b.is_ascii() {
                    true => a.cmp(b),
                    false => a.encode_utf16().cmp(b.encode_utf16()),
                });
                to.push('{');
                for (at, (name, json)) in members.into_iter().enumerate() {
                    if at > 0 {
                        to.push(',');
                    }
                    write_text(name, to);
                    to.push(':');
                    json.write(numbers, to)?;
                }
                to.push('}');
            }
        }
        Ok(())
    }
}

fn write_text(text: &str, to: &mut String) {
    to.push('"');
    let mut rest = text;
    // Everything that is escaped is ASCII, so the text can be cut there.
    while let Some(at) = rest.bytes().position(|byte| byte < b' ' || matches!(byte, b'"' | b'\\')) {
        to.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => to.push_str("\\\""),
            b'\\' => to.push_str("\\\\"),
            0x08 => to.push_str("\\b"),
            b'\t' => to.push_str("\\t"),
            b'\n' => to.push_str("\\n"),
            0x0c => to.push_str("\\f"),
            b'\r' => to.push_str("\\r"),
            control => {
                let _ = write!(to, "\\u{control:04x}");
            }
        }
        rest = &rest[at + 1..];
    }
    to.push_str(rest);
    to.push('"');
}

/// Whether a number is already canonical: whole, unsigned, and small enough to be exact as a double.
fn is_plain(number: &str) -> bool {
    number.len() <= 15 && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn spelt(number: &str, numbers: NumberFormat) -> Result<String, JsonError> {
    let too_large = || JsonError::TooLarge { number: number.to_owned() };
    let double: f64 = number.parse().map_err(|_| too_large())?;
    let exact = || {
        let (negative, digits, exponent) = decimal(number);
        format!("{}{digits}e{exponent}", if negative { "-" } else { "" })
    };
    if !double.is_finite() {
        return if numbers == NumberFormat::Exact { Ok(exact()) } else { Err(too_large()) };
    }
    let short = ryu_js::Buffer::new().format_finite(double).to_owned();
    let is_exact = decimal(&short) == decimal(number);
    Ok(if numbers == NumberFormat::Doubles || is_exact { short } else { exact() })
}

/// A number as digits without zeros at either end, times a power of ten. Zero has no digits and no sign.
fn decimal(number: &str) -> (bool, String, i64) {
    let (negative, number) = number.strip_prefix('-').map_or((false, number), |rest| (true, rest));
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    // An exponent of more than eighteen digits occurs in no real number; it only must stay distinct.
    let exponent: i64 =
        exponent.parse().unwrap_or(if exponent.starts_with('-') { i64::MIN / 2 } else { i64::MAX / 2 });
    let places = i64::try_from(part.len()).unwrap_or(i64::MAX / 4);
    let digits = format!("{whole}{part}");
    let trimmed = digits.trim_end_matches('0');
    let zeros = i64::try_from(digits.len() - trimmed.len()).unwrap_or_default();
    let digits = trimmed.trim_start_matches('0').to_owned();
    if digits.is_empty() {
        return (false, digits, 0);
    }
    (negative, digits, exponent.saturating_sub(places).saturating_add(zeros))
}

#[cfg(test)]
mod tests {
    use super::parse::DEPTH_MAX;
    use super::*;

    fn canonical(text: &str) -> String {
        Json::parse(text.as_bytes()).expect(text).canonical(NumberFormat::Doubles).expect(text)
    }

    #[test]
    fn the_examples_of_the_rfc_come_out_as_it_says() {
        let text = r#"{
          "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
          "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
          "literals": [null, true, false]
        }"#;
        let wanted = r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#;
        assert_eq!(canonical(text), wanted);
        let names = r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#;
        let wanted = "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}";
        assert_eq!(canonical(names), wanted);
    }

    /// The table of the RFC's appendix B: doubles by their bits.
    #[test]
    fn numbers_are_spelt_as_the_rfc_says() {
        for (bits, wanted) in [
            (0x0000_0000_0000_0000, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0x41b3_de43_5555_5556, "333333333.3333334"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            let written = format!("{:e}", f64::from_bits(bits));
            assert_eq!(canonical(&written), wanted, "{bits:016x}");
        }
        let too_large = Json::parse(b"1e400").expect("it is JSON").canonical(NumberFormat::Doubles);
        assert_eq!(too_large, Err(JsonError::TooLarge { number: "1e400".to_owned() }));
    }

    #[test]
    fn exact_numbers_stay_apart_and_spellings_do_not_count() {
        let exact = |text: &str| {
            Json::parse(text.as_bytes()).expect(text).canonical(NumberFormat::Exact).expect(text)
        };
        for same in
            [&["1", "1.0", "1e0", "10e-1", "0.1E1"][..], &["0", "-0", "0.0", "0e9"], &["1e400", "10e399"]]
        {
            assert!(same.iter().all(|text| exact(text) == exact(same[0])), "{same:?}");
        }
        for (a, b) in
            [("9007199254740993", "9007199254740992"), ("0.1", "0.10000000000000001"), ("1e400", "1e401")]
        {
            assert_ne!(exact(a), exact(b));
        }
    }

    #[test]
    fn what_is_no_json_or_means_two_things_is_refused() {
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "01",
            "1.",
            ".5",
            "+1",
            "nul",
            "'a'",
            "\"\\x\"",
            "\"\\ud800\"",
            "\"\\udc00x\"",
            "\"\n\"",
            "[1 2]",
            "1 1",
            "{a:1}",
            "\u{feff}1",
            "\"\\u12\"",
            "-",
            "1e",
            "NaN",
        ] {
            assert!(Json::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(
            matches!(Json::parse(br#"{"a":1,"\u0061":2}"#), Err(JsonError::Twice { name }) if name == "a")
        );
        assert!(Json::parse(&[b'[', 0xff, b']']).is_err());
        let deep = format!("{}{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
        assert!(Json::parse(deep.as_bytes()).is_ok());
        assert!(Json::parse(format!("[{deep}]").as_bytes()).is_err());
        assert!(Json::parse("[".repeat(1 << 20).as_bytes()).is_err());
    }

    #[test]
    fn a_name_that_stands_twice_is_found_however_many_there_are() {
        for members in [2, 16, 17, 18, 40] {
            for (first, second) in [(0, members - 1), ((members - 1) / 2, members - 1), (0, 1)] {
                let name = |at: usize| if at == second { first } else { at };
                let text: Vec<_> = (0..members).map(|at| format!("\"n{}\":1", name(at))).collect();
                let text = format!("{{{}}}", text.join(","));
                assert!(matches!(Json::parse(text.as_bytes()), Err(JsonError::Twice { .. })), "{text}");
            }
            let text: Vec<_> = (0..members).map(|at| format!("\"n{at}\":1")).collect();
            assert!(Json::parse(format!("{{{}}}", text.join(",")).as_bytes()).is_ok(), "{members}");
        }
    }

    #[test]
    fn pointers_find_and_take_away() {
        let mut json = Json::parse(br#"{"a":{"b/c":[1,{"~":2}]},"d":3}"#).expect("JSON");
        assert_eq!(json.at("/a/b~1c/1/~0"), Some(&Json::Number("2".to_owned())));
        assert_eq!(json.at("/a/x"), None);
        json.remove("/a/b~1c/0");
        json.remove("/d");
        json.remove("/nothing/here");
        assert_eq!(json.canonical(NumberFormat::Exact).expect("small"), r#"{"a":{"b/c":[null,{"~":2}]}}"#);
    }
}
