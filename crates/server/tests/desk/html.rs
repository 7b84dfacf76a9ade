//! A reader of the desk's own pages: elements, attributes and texts, and the selectors that tests need.
//!
//! It reads what a browser would read from markup that is well formed, and refuses markup that is not: an element that is
//! not closed, or a bare `<`, is an error, because a browser would guess.

/// An element of a page.
#[derive(Debug, Clone)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) attributes: Vec<(String, String)>,
    /// Its text, with that of its descendants.
    pub(crate) text: String,
    /// The elements around it, outermost first.
    around: Vec<usize>,
}

/// A page.
#[derive(Debug, Default)]
pub(crate) struct Document {
    pub(crate) elements: Vec<Element>,
    pub(crate) errors: Vec<String>,
}

const VOID: [&str; 7] = ["meta", "link", "input", "br", "hr", "img", "use"];
/// Elements whose content is text to their end.
const RAW: [&str; 4] = ["script", "style", "title", "textarea"];

impl Element {
    pub(crate) fn attr(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The text with single spaces.
    pub(crate) fn words(&self) -> String {
        self.text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn is(&self, simple: &str) -> bool {
        let mut rest = simple;
        let name_end = rest.find(['.', '#', '[']).unwrap_or(rest.len());
        if name_end > 0 && rest[..name_end] != *self.name {
            return false;
        }
        rest = &rest[name_end..];
        while let Some(kind) = rest.chars().next() {
            let end = match kind {
                '[' => rest.find(']').expect("a closed bracket") + 1,
                _ => rest[1..].find(['.', '#', '[']).map_or(rest.len(), |at| at + 1),
            };
            let (part, more) = rest.split_at(end);
            let fits = match kind {
                '.' => self.attr("class").is_some_and(|all| all.split(' ').any(|class| *class == part[1..])),
                '#' => self.attr("id") == Some(&part[1..]),
                _ => match part[1..part.len() - 1].split_once('=') {
                    Some((name, value)) => self.attr(name) == Some(value),
                    None => self.attr(&part[1..part.len() - 1]).is_some(),
                },
            };
            if !fits {
                return false;
            }
            rest = more;
        }
        true
    }
}

impl Document {
    /// Reads a page.
    pub(crate) fn parse(html: &str) -> Self {
        let mut document = Self::default();
        let mut open: Vec<usize> = Vec::new();
        let mut rest = html;
        while let Some(at) = rest.find('<') {
            document.write(&open, &rest[..at]);
            rest = &rest[at..];
            if let Some(comment) = rest.strip_prefix("<!") {
                rest = comment.split_once('>').map_or("", |(_, rest)| rest);
            } else if let Some(end) = rest.strip_prefix("</") {
                let (name, after) = end.split_once('>').unwrap_or((end, ""));
                match open.pop() {
                    Some(last) if document.elements[last].name == name => {}
                    last => document.errors.push(format!("</{name}> closes {last:?}")),
                }
                rest = after;
            } else {
                rest = document.open(&mut open, &rest[1..]);
            }
        }
        document.write(&open, rest);
        if !open.is_empty() {
            document.errors.push(format!("{} elements are not closed", open.len()));
        }
        document
    }

    fn write(&mut self, open: &[usize], text: &str) {
        if text.contains('>') {
            self.errors.push(format!("a bare > in {text:?}"));
        }
        let text = decoded(text);
        open.iter().for_each(|at| self.elements[*at].text.push_str(&text));
    }

    /// Reads a tag, from after its `<`; returns what follows.
    fn open<'a>(&mut self, open: &mut Vec<usize>, tag: &'a str) -> &'a str {
        let name_end = tag.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(tag.len());
        let (name, mut rest) = tag.split_at(name_end);
        if name.is_empty() {
            self.errors.push(format!("a bare < before {:?}", tag.chars().take(20).collect::<String>()));
            return rest;
        }
        let mut attributes: Vec<(String, String)> = Vec::new();
        let is_closed = loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix("/>") {
                rest = after;
                break true;
            }
            if let Some(after) = rest.strip_prefix('>') {
                rest = after;
                break false;
            }
            let end = rest.find(['=', '>', ' ', '\n', '/']).unwrap_or(rest.len());
            let (attribute, after) = rest.split_at(end);
            if attribute.is_empty() || attributes.iter().any(|(known, _)| known == attribute) {
                self.errors.push(format!("<{name}> has a strange or repeated attribute {attribute:?}"));
                return after.get(1..).unwrap_or_default();
            }
            if let Some(quoted) = after.strip_prefix("=\"") {
                let (value, after) = quoted.split_once('"').unwrap_or((quoted, ""));
                if value.contains('<') {
                    self.errors.push(format!("a bare < in {attribute}={value:?}"));
                }
                attributes.push((attribute.to_owned(), decoded(value)));
                rest = after;
            } else {
                if after.starts_with('=') {
                    self.errors.push(format!("<{name} {attribute}> is not quoted"));
                    return after;
                }
                attributes.push((attribute.to_owned(), String::new()));
                rest = after;
            }
        };
        let element =
            Element { name: name.to_owned(), attributes, text: String::new(), around: open.clone() };
        self.elements.push(element);
        let at = self.elements.len() - 1;
        if RAW.contains(&name) && !is_closed {
            let end = format!("</{name}>");
            let (text, after) = rest.split_once(end.as_str()).unwrap_or((rest, ""));
            // A browser drops a line end right after `<textarea>`.
            self.elements[at].text = decoded(text.strip_prefix('\n').unwrap_or(text));
            return after;
        }
        if !is_closed && !VOID.contains(&name) {
            open.push(at);
        }
        rest
    }

    /// The elements that a selector names: `tag.class#id[attr=value]`, with spaces for descendants and commas.
    pub(crate) fn select(&self, selector: &str) -> Vec<&Element> {
        let all: Vec<Vec<&str>> = selector.split(',').map(|one| one.split_whitespace().collect()).collect();
        self.elements.iter().filter(|element| all.iter().any(|path| self.fits(element, path))).collect()
    }

    fn fits(&self, element: &Element, path: &[&str]) -> bool {
        let Some((last, before)) = path.split_last() else { return false };
        if !element.is(last) {
            return false;
        }
        let mut wanted = before.iter().rev().peekable();
        for at in element.around.iter().rev() {
            if wanted.peek().is_some_and(|simple| self.elements[*at].is(simple)) {
                wanted.next();
            }
        }
        wanted.peek().is_none()
    }

    /// The elements within a form.
    pub(crate) fn within<'a>(
        &'a self,
        outer: &'a Element,
        name: &'a str,
    ) -> impl Iterator<Item = &'a Element> {
        let place = self.elements.iter().position(|element| std::ptr::eq(element, outer));
        self.elements.iter().filter(move |element| {
            element.name == name && place.is_some_and(|place| element.around.contains(&place))
        })
    }
}

/// A text without its entities. Any other `&` stays, as in a browser.
fn decoded(text: &str) -> String {
    let parts = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    parts.into_iter().fold(text.to_owned(), |text, (entity, letter)| text.replace(entity, letter))
}

#[test]
fn well_formed_markup_is_read_and_other_markup_refused() {
    let page = Document::parse(
        "<!doctype html><main id=\"m\"><a class=\"x id\" href=\"/a?b\">one &amp; <b>two</b></a><input name=\"n\" hidden></main>",
    );
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    assert_eq!(page.select("main a.id")[0].words(), "one & two");
    assert_eq!(page.select("input[name=n]").len(), 1);
    assert!(page.select("#m b").len() == 1 && page.select("a input").is_empty());
    for bad in
        ["<p>a < b</p>", "<p title=\"a<b\">", "<p", "<b><i></b></i>", "<a href=x>", "<p a=\"1\" a=\"2\"></p>"]
    {
        assert!(!Document::parse(bad).errors.is_empty(), "{bad}");
    }
}
