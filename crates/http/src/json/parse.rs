//! The JSON parser.

use super::{Json, JsonError};

/// Up to this many members, names are compared one by one.
const FEW: usize = 16;

/// How deep arrays and objects may be nested.
pub(super) const DEPTH_MAX: usize = 128;

/// Parses a text that is a single value.
pub(super) fn whole(text: &str) -> Result<Json, JsonError> {
    let mut reader = Reader::new(text);
    reader.space();
    let json = reader.value()?;
    reader.end()?;
    Ok(json)
}

/// A place in a text.
pub(super) struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    #[cfg(feature = "server")]
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// Nothing comes any more.
    pub(super) fn end(&mut self) -> Result<(), JsonError> {
        self.space();
        if self.at < self.text.len() {
            Err(self.wrong("unexpected characters after the end"))
        } else {
            Ok(())
        }
    }

    const fn wrong(&self, what: &'static str) -> JsonError {
        JsonError::Syntax { at: self.at, what }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub(super) fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is = self.peek() == Some(byte);
        self.at += usize::from(is);
        is
    }

    fn value(&mut self) -> Result<Json, JsonError> {
        match self.peek() {
            Some(b'{') => self.object(),
            Some(b'[') => self.list(),
            Some(b'"') => self.string().map(Json::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                for (word, json) in
                    [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))]
                {
                    if self.text[self.at..].starts_with(word) {
                        self.at += word.len();
                        return Ok(json);
                    }
                }
                Err(self.wrong("a value is missing"))
            }
        }
    }

    /// Goes past a value.
    #[cfg(feature = "server")]
    pub(super) fn skip(&mut self) -> Result<(), JsonError> {
        self.value().map(drop)
    }

    /// Goes into a list or an object, and out again.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, JsonError>) -> Result<T, JsonError> {
        if self.depth == DEPTH_MAX {
            return Err(self.wrong("nested too deep"));
        }
        self.depth += 1;
        self.at += 1;
        self.space();
        let got = read(self)?;
        self.depth -= 1;
        Ok(got)
    }

    fn list(&mut self) -> Result<Json, JsonError> {
        let mut items = Vec::new();
        self.items(|reader, _| {
            items.push(reader.value()?);
            Ok(())
        })?;
        Ok(Json::List(items))
    }

    fn object(&mut self) -> Result<Json, JsonError> {
        let mut members: Vec<(String, Json)> = Vec::new();
        let mut names = std::collections::HashSet::new();
        self.members(|reader, name| {
            // Most objects are small, and to look through a few names is cheaper than to hash them.
            let twice = if members.len() < FEW {
                members.iter().any(|(known, _)| known == name)
            } else {
                if names.is_empty() {
                    names.extend(members.iter().map(|(known, _)| known.clone()));
                }
                !names.insert(name.clone())
            };
            if twice {
                return Err(JsonError::Twice { name: name.clone() });
            }
            members.push((name.clone(), reader.value()?));
            Ok(())
        })?;
        Ok(Json::Object(members))
    }

    /// Has each item of a list read, by its place.
    pub(super) fn items(
        &mut self,
        mut item: impl FnMut(&mut Self, usize) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        self.nested(|reader| {
            if reader.eat(b']') {
                return Ok(());
            }
            for place in 0.. {
                item(reader, place)?;
                reader.space();
                if reader.eat(b']') {
                    break;
                }
                if !reader.eat(b',') {
                    return Err(reader.wrong("a comma or the end of the list is missing"));
                }
                reader.space();
            }
            Ok(())
        })
    }

    /// Has each member of an object read, by its name.
    pub(super) fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, &String) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        self.nested(|reader| {
            if reader.eat(b'}') {
                return Ok(());
            }
            loop {
                if reader.peek() != Some(b'"') {
                    return Err(reader.wrong("a name is missing"));
                }
                let name = reader.string()?;
                reader.space();
                if !reader.eat(b':') {
                    return Err(reader.wrong("a colon is missing"));
                }
                reader.space();
                member(reader, &name)?;
                reader.space();
                if reader.eat(b'}') {
                    return Ok(());
                }
                if !reader.eat(b',') {
                    return Err(reader.wrong("a comma or the end of the object is missing"));
                }
                reader.space();
            }
        })
    }

    fn number(&mut self) -> Result<Json, JsonError> {
        let start = self.at;
        let digits = |reader: &mut Self| {
            let from = reader.at;
            while matches!(reader.peek(), Some(b'0'..=b'9')) {
                reader.at += 1;
            }
            if reader.at == from { Err(reader.wrong("a digit is missing")) } else { Ok(()) }
        };
        self.eat(b'-');
        if !self.eat(b'0') {
            digits(self)?;
        }
        if self.eat(b'.') {
            digits(self)?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _ = self.eat(b'+') || self.eat(b'-');
            digits(self)?;
        }
        Ok(Json::Number(self.text[start..self.at].to_owned()))
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let rest = &self.text[self.at..];
            let Some(end) = rest.find(|letter: char| letter == '"' || letter == '\\' || letter < ' ') else {
                return Err(self.wrong("a string is not terminated"));
            };
            text.push_str(&rest[..end]);
            self.at += end;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => {
                    self.at += 1;
                    text.push(self.escape()?);
                }
                _ => return Err(self.wrong("a string contains a control character")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        let letter = self.peek().ok_or_else(|| self.wrong("a string is not terminated"))?;
        self.at += 1;
        Ok(match letter {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.unit()?;
                let pair = if (0xd800..0xdc00).contains(&first) && self.eat(b'\\') && self.eat(b'u') {
                    vec![first, self.unit()?]
                } else {
                    vec![first]
                };
                let letter = String::from_utf16(&pair).ok().and_then(|text| text.chars().next());
                letter.ok_or_else(|| self.wrong("unpaired surrogate"))?
            }
            _ => return Err(self.wrong("unknown escape")),
        })
    }

    fn unit(&mut self) -> Result<u16, JsonError> {
        let digits =
            self.text.get(self.at..self.at + 4).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        let unit = digits.and_then(|text| u16::from_str_radix(text, 16).ok());
        let unit = unit.ok_or_else(|| self.wrong("four hexadecimal digits are missing"))?;
        self.at += 4;
        Ok(unit)
    }
}
