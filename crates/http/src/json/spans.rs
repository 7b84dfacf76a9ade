//! Byte ranges in a JSON text, so that values can be replaced without changing any other byte.

use std::ops::Range;

use super::JsonError;
use super::parse::Reader;

/// Whether a text is a JSON pointer (RFC 6901).
#[must_use]
pub(crate) fn is_pointer(text: &str) -> bool {
    let escapes_hold = text.split('~').skip(1).all(|after| after.starts_with(['0', '1']));
    (text.is_empty() || text.starts_with('/')) && escapes_hold
}

/// The ranges of the values at these pointers, each with the index of its pointer, in text order. The step `*`
/// matches every item of a list. A duplicate name matches twice.
///
/// # Errors
/// Where the text is no JSON.
pub(crate) fn of(bytes: &[u8], pointers: &[String]) -> Result<Vec<(usize, Range<usize>)>, JsonError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| JsonError::Syntax { at: error.valid_up_to(), what: "not UTF-8" })?;
    let steps: Vec<Vec<String>> = pointers.iter().map(|pointer| steps(pointer)).collect();
    let wanted = steps.iter().enumerate().map(|(at, steps)| (at, steps.as_slice())).collect();
    let mut found = Vec::new();
    let mut reader = Reader::new(text);
    reader.space();
    walk(&mut reader, wanted, &mut found)?;
    reader.end()?;
    Ok(found)
}

/// Replaces the ranges. Of two that overlap, the outer one counts.
pub(crate) fn replaced(bytes: &[u8], ranges: impl IntoIterator<Item = Range<usize>>, with: &[u8]) -> Vec<u8> {
    let mut ranges: Vec<_> = ranges.into_iter().collect();
    ranges.sort_by_key(|range| (range.start, std::cmp::Reverse(range.end)));
    let mut new = Vec::with_capacity(bytes.len());
    let mut at = 0;
    for range in ranges.into_iter() {
        if range.start >= at {
            new.extend(&bytes[at..range.start]);
            new.extend(with);
            at = range.end;
        }
    }
    new.extend(&bytes[at..]);
    new
}

fn steps(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")).collect()
}

/// The remaining steps of each pointer.
type Wanted<'a> = Vec<(usize, &'a [String])>;

fn walk(
    reader: &mut Reader<'_>,
    wanted: Wanted<'_>,
    found: &mut Vec<(usize, Range<usize>)>,
) -> Result<(), JsonError> {
    let (here, deeper): (Wanted<'_>, Wanted<'_>) =
        wanted.into_iter().partition(|(_, steps)| steps.is_empty());
    let (start, first) = (reader.at(), found.len());
    found.extend(here.iter().map(|(at, _)| (*at, start..start)));
    let until = found.len();
    match reader.peek() {
        Some(b'{') if !deeper.is_empty() => reader.members(|reader, name| {
            let below = deeper.iter().filter(|(_, steps)| steps[0] == *name);
            walk(reader, below.map(|(at, steps)| (*at, &steps[1..])).collect(), found)
        })?,
        Some(b'[') if !deeper.is_empty() => reader.items(|reader, place| {
            let is_meant = |step: &str| step == "*" || step.parse() == Ok(place);
            let below = deeper.iter().filter(|(_, steps)| is_meant(&steps[0]));
            walk(reader, below.map(|(at, steps)| (*at, &steps[1..])).collect(), found)
        })?,
        _ => reader.skip()?,
    }
    found[first..until].iter_mut().for_each(|(_, range)| range.end = reader.at());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(text: &str, pointers: &[&str]) -> String {
        let pointers: Vec<String> = pointers.iter().map(|&pointer| pointer.to_owned()).collect();
        let found = of(text.as_bytes(), &pointers).expect(text);
        let new = replaced(text.as_bytes(), found.into_iter().map(|(_, range)| range), b"null");
        String::from_utf8(new).expect("text")
    }

    #[test]
    fn what_is_pointed_to_is_replaced_and_all_else_stays_as_it_was() {
        for (text, pointers, wanted) in [
            (r#"{ "a" : 1.50, "b":2 }"#, &["/a"][..], r#"{ "a" : null, "b":2 }"#),
            (r#"{"a":{"b":[1, {"c":"x"} ]}}"#, &["/a/b/1/c"], r#"{"a":{"b":[1, {"c":null} ]}}"#),
            (r#"[{"n":1},{"n":2,"m":3},4]"#, &["/*/n"], r#"[{"n":null},{"n":null,"m":3},4]"#),
            (r#"{"a":{"b":1}}"#, &["/a/b", "/a"], r#"{"a":null}"#),
            (r#"{"a":{"b":1}}"#, &["/a", "/a/b"], r#"{"a":null}"#),
            (r#"{"\u0061":"x","a":"y"}"#, &["/a"], r#"{"\u0061":null,"a":null}"#),
            (r#"{"a/b":1,"~":2,"":3}"#, &["/a~1b", "/~0", "/"], r#"{"a/b":null,"~":null,"":null}"#),
            (r#"{"*":1,"b":2}"#, &["/*"], r#"{"*":null,"b":2}"#),
            (r#" "x" "#, &[""], " null "),
            (r#"{"a":1}"#, &["/b", "/a/b", "/0"], r#"{"a":1}"#),
            (r#"[[1,2],[3]]"#, &["/*/0"], "[[null,2],[null]]"),
        ] {
            assert_eq!(without(text, pointers), wanted, "{text} {pointers:?}");
        }
    }

    #[test]
    fn what_is_no_json_is_not_walked() {
        for text in ["", "{", "[1,]", r#"{"a":1"#, "x", r#"{"a":1} x"#, r#"{"a":1,}"#, r#"{"a" 1}"#, "[1 2]"]
        {
            assert!(of(text.as_bytes(), &["/a".to_owned()]).is_err(), "{text}");
        }
        let deep = format!("{}{}", "[".repeat(1 << 16), "]".repeat(1 << 16));
        assert!(of(deep.as_bytes(), &["/*".repeat(1 << 16)]).is_err());
        assert!(of(&[b'[', 0xff, b']'], &["/0".to_owned()]).is_err());
    }

    #[test]
    fn pointers_begin_with_a_slash_and_escape_two_letters() {
        for (text, is) in
            [("", true), ("/", true), ("/a~0~1", true), ("a", false), ("/~", false), ("/~2", false)]
        {
            assert_eq!(is_pointer(text), is, "{text}");
        }
    }
}
