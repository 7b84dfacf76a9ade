//! A page of the docs as a shell script with the same line numbers.
//!
//! - ```` ```sh ```` is run.
//! - ```` ```sh no-run: WHY ```` is not.
//! - A comment `<!-- sh`, up to its `-->`, is run and not shown: what a reader of the page has already.
//! - A block of another language whose first line is a comment with a file's name, `# redrive.toml`, is written to it.

/// A page, read.
pub(crate) struct Page {
    /// Its path in the repository.
    pub(crate) name: String,
    /// The script: its line numbers are those of the page.
    pub(crate) script: String,
    pub(crate) not_run: Vec<NotRun>,
    /// What is not written as it should be, by line.
    pub(crate) wrong: Vec<(usize, &'static str)>,
    has_blocks: bool,
}

/// A shell block that is not run.
pub(crate) struct NotRun {
    pub(crate) line: usize,
    pub(crate) why: String,
}

/// Where a line is.
enum Within {
    Prose,
    /// In a block, whose lines are indented by that many blanks.
    Block {
        indent: usize,
        kind: Kind,
    },
    /// In a hidden comment.
    Hidden,
}

enum Kind {
    Run,
    /// A language that may name a file in its first line.
    Unknown,
    File,
    Shown,
}

/// Ends a file within the script.
const END: &str = "END_OF_THE_FILE";
const NO_REASON: &str = "a shell block that is not run says why: `sh no-run: WHY`";
const OTHER_NAME: &str = "fence shell commands as `sh`, so that they are run";
const NOT_FENCED: &str = "a command in an indented block is not run; fence it as `sh`";
const OPEN: &str = "this block is not closed";

impl Page {
    pub(crate) fn parse(name: &str, text: &str) -> Self {
        let mut page = Self {
            name: name.to_owned(),
            script: String::new(),
            not_run: Vec::new(),
            wrong: Vec::new(),
            has_blocks: false,
        };
        let mut within = Within::Prose;
        for (index, text) in text.lines().enumerate() {
            let (next, line) = page.read(within, index + 1, text);
            within = next;
            page.script.push_str(&line);
            page.script.push('\n');
        }
        if !matches!(within, Within::Prose) {
            page.wrong.push((page.script.lines().count(), OPEN));
        }
        page
    }

    /// Whether it has a block to run.
    pub(crate) fn runs(&self) -> bool {
        self.has_blocks
    }

    /// One line: where the next one is, and what the script has here.
    fn read(&mut self, within: Within, line: usize, text: &str) -> (Within, String) {
        let none = String::new();
        match within {
            Within::Prose if text.trim() == "<!-- sh" => (Within::Hidden, none),
            Within::Prose => match text.trim_start().strip_prefix("```") {
                Some(info) => {
                    let kind = self.open(line, info.trim());
                    (Within::Block { indent: text.len() - text.trim_start().len(), kind }, none)
                }
                None => {
                    let commands = ["    redrive ", "    curl ", "    $ "];
                    if commands.iter().any(|command| text.starts_with(command)) {
                        self.wrong.push((line, NOT_FENCED));
                    }
                    (Within::Prose, none)
                }
            },
            Within::Hidden if text.trim() == "-->" => (Within::Prose, none),
            Within::Hidden => (Within::Hidden, text.to_owned()),
            Within::Block { kind, .. } if text.trim() == "```" => {
                let end = if matches!(kind, Kind::File) { END.to_owned() } else { none };
                (Within::Prose, end)
            }
            Within::Block { indent, kind: Kind::Unknown } => match file_name(text) {
                Some(name) => (Within::Block { indent, kind: Kind::File }, format!("cat >{name} <<'{END}'")),
                None => (Within::Block { indent, kind: Kind::Shown }, none),
            },
            Within::Block { indent, kind } => {
                let shown = text.get(indent..).unwrap_or_default().to_owned();
                let line = if matches!(kind, Kind::Shown) { none } else { shown };
                (Within::Block { indent, kind }, line)
            }
        }
    }

    fn open(&mut self, line: usize, info: &str) -> Kind {
        let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
        match (language, rest.trim()) {
            ("sh", "") => {
                self.has_blocks = true;
                Kind::Run
            }
            ("sh", rest) => {
                match rest.strip_prefix("no-run:").map(str::trim).filter(|why| !why.is_empty()) {
                    Some(why) => self.not_run.push(NotRun { line, why: why.to_owned() }),
                    None => self.wrong.push((line, NO_REASON)),
                }
                Kind::Shown
            }
            ("bash" | "shell" | "console", _) => {
                self.wrong.push((line, OTHER_NAME));
                Kind::Shown
            }
            _ => Kind::Unknown,
        }
    }
}

/// The file that a first line names: `# redrive.toml`, `-- tables.sql`, `// main.js`.
fn file_name(text: &str) -> Option<&str> {
    let (mark, name) = text.trim().split_once(' ')?;
    let is_name =
        name.contains('.') && name.chars().all(|it| it.is_ascii_alphanumeric() || "._-".contains(it));
    (["#", "--", "//"].contains(&mark) && is_name).then_some(name)
}

#[test]
fn a_page_becomes_a_script_line_by_line() {
    let cases: &[(&str, &[&str])] = &[
        ("a\n```sh\nls\n```\nb", &["", "", "ls", "", ""]),
        ("```sh no-run: no root here\nls\n```", &["", "", ""]),
        ("- a\n  ```sh\n  ls \\\n    -l\n  ```", &["", "", "ls \\", "  -l", ""]),
        ("<!-- sh\nls\n-->\n```text\nls\n```", &["", "ls", "", "", "", ""]),
        ("```toml\n# redrive.toml\n[a]\n```", &["", "cat >redrive.toml <<'END_OF_THE_FILE'", "[a]", END]),
        ("```toml\n# the network.\n[a]\n```", &["", "", "", ""]),
        ("```toml\n[a]\n# redrive.toml\n```", &["", "", "", ""]),
    ];
    for (text, expected) in cases {
        let page = Page::parse("a.md", text);
        assert_eq!(page.script.lines().collect::<Vec<_>>(), *expected, "{text}");
        assert!(page.wrong.is_empty(), "{text}");
    }
}

#[test]
fn what_would_silently_not_run_is_wrong() {
    for (text, line, what) in [
        ("```sh no-run\nls\n```", 1, NO_REASON),
        ("```sh ignore\nls\n```", 1, NO_REASON),
        ("a\n```console\n$ ls\n```", 2, OTHER_NAME),
        ("a\n\n    redrive dead ls\n", 3, NOT_FENCED),
        ("```sh\nls\n", 2, OPEN),
    ] {
        assert_eq!(Page::parse("a.md", text).wrong, [(line, what)], "{text}");
    }
}
