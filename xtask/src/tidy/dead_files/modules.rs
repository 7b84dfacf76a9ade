//! The `mod name;` lines of a file.

use crate::tidy::source::{Source, closing, is_word};

/// A module whose code is in another file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Declaration {
    pub(super) name: String,
    /// The folders of the inline modules around it, outermost first.
    pub(super) within: Vec<String>,
    /// What `#[path = "…"]` says.
    pub(super) path: Option<String>,
}

/// All of them, whatever `cfg` stands above.
pub(super) fn declared(text: &str) -> Vec<Declaration> {
    let source = Source::new(text);
    let code = source.code.as_str();
    let mut declared = Vec::new();
    // For each open brace, the inline module it opens, if it opens one.
    let mut braces: Vec<Option<String>> = Vec::new();
    let mut path = None;
    let mut opens_module = None;
    let mut at = 0;
    while at < code.len() {
        let start = at;
        at += 1;
        match code.as_bytes()[start] {
            b'#' if code[at..].starts_with('[') => {
                at = closing(code, at);
                path = path_attribute(&source, start, at).or(path);
            }
            b'{' => braces.push(opens_module.take()),
            b'}' => {
                braces.pop();
            }
            byte if is_word(byte) => {
                at = start + word(&code[start..]).len();
                if &code[start..at] != "mod" {
                    continue;
                }
                let rest = code[at..].trim_start();
                let rest = rest.strip_prefix("r#").unwrap_or(rest);
                let name = word(rest).to_owned();
                match rest[name.len()..].trim_start().bytes().next() {
                    Some(b';') if !name.is_empty() => {
                        let within = braces.iter().flatten().cloned().collect();
                        declared.push(Declaration { name, within, path: path.take() });
                    }
                    // Of an inline module, `#[path]` names the folder.
                    Some(b'{') => opens_module = Some(path.take().unwrap_or(name)),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    declared
}

fn word(code: &str) -> &str {
    &code[..code.bytes().take_while(|byte| is_word(*byte)).count()]
}

/// The string of the attribute between two offsets, if that is `#[path = "…"]`.
fn path_attribute(source: &Source<'_>, start: usize, end: usize) -> Option<String> {
    let rest = source.code[start..end].strip_prefix("#[")?.trim_start().strip_prefix("path")?;
    rest.trim_start().strip_prefix('=')?;
    let string = source.strings.iter().find(|string| (start..end).contains(&string.start))?;
    Some(source.text[string.clone()].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_read_with_what_stands_around_them() {
        type Case<'a> = (&'a str, &'a [(&'a str, &'a [&'a str], Option<&'a str>)]);
        let cases: &[Case<'_>] = &[
            ("mod a;\npub(crate) mod b ;", &[("a", &[], None), ("b", &[], None)]),
            ("#[cfg(test)]\nmod a;", &[("a", &[], None)]),
            (
                "mod a { pub mod b { mod c; } mod d; } mod e;",
                &[("c", &["a", "b"], None), ("d", &["a"], None), ("e", &[], None)],
            ),
            (
                "#[path = \"x/y.rs\"]\n#[cfg(unix)]\nmod a; mod b;",
                &[("a", &[], Some("x/y.rs")), ("b", &[], None)],
            ),
            ("#[path = \"x\"] mod a { mod b; }", &[("b", &["x"], None)]),
            ("mod r#async;", &[("async", &[], None)]),
            ("mod é; fn é() {} mod a;", &[("a", &[], None)]),
            ("// mod a;\nlet s = \"mod b;\"; modest; mod c { fn f() {} }", &[]),
        ];
        for (text, expected) in cases {
            let expected: Vec<_> = expected
                .iter()
                .map(|(name, within, path)| Declaration {
                    name: (*name).to_owned(),
                    within: within.iter().map(|it| (*it).to_owned()).collect(),
                    path: path.map(str::to_owned),
                })
                .collect();
            assert_eq!(declared(text), expected, "{text}");
        }
    }
}
