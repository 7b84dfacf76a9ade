//! Rust source, read without a parser: which bytes are code, which are strings, and what only tests see.
//!
//! A parser would be exact, and one more thing to build ahead of everything else. Here comments and strings
//! are blanked with spaces, byte for byte, so that an offset into the code is one into the text.

use std::ops::Range;

/// A file taken apart.
pub(super) struct Source<'a> {
    pub(super) text: &'a str,
    /// The text with comments and the insides of strings blanked.
    pub(super) code: String,
    /// Where the insides of strings are.
    pub(super) strings: Vec<Range<usize>>,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let bytes = text.as_bytes();
        let mut code = bytes.to_vec();
        let mut strings = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if let Some(length) = comment(rest) {
                blank(&mut code, at..at + length);
                at += length;
            } else if let Some((inside, length)) = string(rest) {
                let inside = at + inside.start..at + inside.end;
                blank(&mut code, inside.clone());
                strings.push(inside);
                at += length;
            } else if let Some(length) = character(&text[at..]) {
                blank(&mut code, at..at + length);
                at += length;
            } else {
                // To the next character, so that a slice of the text never starts inside one.
                at += 1 + rest[1..].iter().take_while(|byte| **byte & 0xc0 == 0x80).count();
            }
        }
        Self { text, code: String::from_utf8_lossy(&code).into_owned(), strings }
    }

    /// Also blanks every item under `#[cfg(test)]` or `#[cfg(all(test, …))]`.
    pub(super) fn without_tests(mut self) -> Self {
        let mut code = self.code.clone().into_bytes();
        for gate in ["#[cfg(test)]", "#[cfg(all(test,"] {
            for (start, _) in self.code.match_indices(gate) {
                let Some(open) = self.code[start..].find(['{', ';']) else {
                    continue;
                };
                blank(&mut code, start..closing(&self.code, start + open));
            }
        }
        self.code = String::from_utf8_lossy(&code).into_owned();
        self
    }

    /// The line of an offset, from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.text[..offset].matches('\n').count() + 1
    }
}

/// The end of the bracketed part that opens at an offset; of a single character if it opens none.
pub(super) fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' | b'[' | b'(' => depth += 1,
            b'}' | b']' | b')' => depth -= 1,
            _ => {}
        }
        if depth <= 0 {
            return at + 1;
        }
    }
    code.len()
}

/// Whether a byte can be part of a name.
pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn blank(code: &mut [u8], range: Range<usize>) {
    code[range].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

/// The length of the comment that starts here.
fn comment(rest: &[u8]) -> Option<usize> {
    if rest.starts_with(b"//") {
        return Some(rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()));
    }
    if !rest.starts_with(b"/*") {
        return None;
    }
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let step = match rest.get(at..at + 2) {
            Some(b"/*") => 1,
            Some(b"*/") => -1,
            _ => 0,
        };
        depth += step;
        at += if step == 0 { 1 } else { 2 };
        if depth == 0 {
            break;
        }
    }
    Some(at)
}

/// The inside and the length of the string that starts here: plain, byte, C or raw.
fn string(rest: &[u8]) -> Option<(Range<usize>, usize)> {
    let prefix = rest.iter().take(2).take_while(|byte| matches!(byte, b'b' | b'c' | b'r')).count();
    let hashes = rest[prefix..].iter().take_while(|byte| **byte == b'#').count();
    let raw = rest[..prefix].contains(&b'r');
    let start = prefix + hashes + 1;
    if rest.get(start - 1) != Some(&b'"') || (hashes > 0 && !raw) {
        return None;
    }
    let end_mark = [b"\"".as_slice(), &rest[prefix..prefix + hashes]].concat();
    let mut at = start;
    while at < rest.len() && !rest[at..].starts_with(&end_mark) {
        at += if rest[at] == b'\\' && !raw { 2 } else { 1 };
    }
    let end = at.min(rest.len());
    Some((start..end, (end + end_mark.len()).min(rest.len())))
}

/// The length of the character literal that starts here, which may be a quote or a brace. A lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('\'')?;
    let escaped = inside.starts_with('\\');
    let first = if escaped { 2 } else { inside.chars().next()?.len_utf8() };
    let end = inside.get(first..)?.find('\'')?;
    (escaped || end == 0).then_some(1 + first + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("x // y") g"#, r#"f("      ") g"#),
            (r#"f("\"x") g"#, r#"f("   ") g"#),
            (r##"f(r#"a "b" c"#) g"##, r##"f(r#"       "#) g"##),
            (r#"f(b"x") g"#, r#"f(b" ") g"#),
            (r#"['"', '\'', '{'] x"#, r#"[   ,     ,    ] x"#),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("'é' \"é\" é", "     \"  \" é"),
        ];
        for (text, expected) in cases {
            let source = Source::new(text);
            assert_eq!(source.code, expected, "{text}");
            assert_eq!(source.code.len(), text.len(), "{text}");
        }
    }

    #[test]
    fn strings_are_found_where_they_stand() {
        let source = Source::new("// \"no\"\nconst A: &str = \"yes\"; const B: &str = r\"raw\";");
        let found: Vec<_> =
            source.strings.iter().map(|at| (&source.text[at.clone()], source.line(at.start))).collect();
        assert_eq!(found, [("yes", 2), ("raw", 2)]);
    }

    #[test]
    fn items_for_tests_are_blanked() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { {} } }\nfn c() {}\n#[cfg(all(test, x))]\nuse d;\nfn e() {}";
        let left = Source::new(text).without_tests().code;
        for (name, expected) in
            [("a()", true), ("b()", false), ("c()", true), ("use d", false), ("e()", true)]
        {
            assert_eq!(left.contains(name), expected, "{name}");
        }
    }
}
