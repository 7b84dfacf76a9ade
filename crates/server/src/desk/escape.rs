//! How every text gets into a page: HTML is escaped, and characters that would be invisible, or would turn the text
//! around, are shown as their code.
//!
//! Templates use it for every expression, without being asked (`askama.toml`), and `|safe` is refused by
//! `cargo xtask tidy`. Values that have to come back as they were do not go through a page as text: they are
//! percent-encoded in addresses and hidden fields.

use std::fmt::{self, Write};

use askama::filters::Escaper;

use crate::desk::printing::is_harmless;

/// Escapes for HTML, and shows what is invisible. Line ends and tabs stay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visible;

impl Escaper for Visible {
    fn write_escaped_str<W: Write>(&self, mut dest: W, string: &str) -> fmt::Result {
        let mut written = 0;
        for (at, c) in string.char_indices() {
            let entity = match c {
                '<' => "&lt;",
                '>' => "&gt;",
                '&' => "&amp;",
                '"' => "&quot;",
                '\'' => "&#39;",
                '\n' | '\t' => continue,
                c if is_harmless(c) => continue,
                _ => "",
            };
            dest.write_str(&string[written..at])?;
            if entity.is_empty() {
                write!(dest, "{}", c.escape_default())?;
            } else {
                dest.write_str(entity)?;
            }
            written = at + c.len_utf8();
        }
        dest.write_str(&string[written..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_text_and_what_is_invisible_is_shown() {
        let cases = [
            ("<b a='1' c=\"2\">&", "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;"),
            ("a\u{202e}b\0c\u{1b}[1m", "a\\u{202e}b\\u{0}c\\u{1b}[1m"),
            ("two\nlines\tö 日本 👩", "two\nlines\tö 日本 👩"),
            ("\r\u{feff}", "\\r\\u{feff}"),
        ];
        for (text, told) in cases {
            let mut written = String::new();
            Visible.write_escaped_str(&mut written, text).expect("a string takes everything");
            assert_eq!(written, told);
        }
    }
}
