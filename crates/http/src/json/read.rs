//! Reading JSON, letter by letter.

use super::{Json, JsonError};

/// How deep arrays and objects may be nested.
pub(super) const DEPTH_MAX: usize = 128;

/// Reads a text that is one value, and nothing else.
pub(super) fn whole(text: &str) -> Result<Json, JsonError> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    reader.space();
    let json = reader.value()?;
    reader.space();
    if reader.at < text.len() { Err(reader.wrong("something after the end")) } else { Ok(json) }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    const fn wrong(&self, what: &'static str) -> JsonError {
        JsonError::Syntax { at: self.at, what }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
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
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::list),
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

    fn nested(&mut self, read: fn(&mut Self) -> Result<Json, JsonError>) -> Result<Json, JsonError> {
        if self.depth == DEPTH_MAX {
            return Err(self.wrong("nested too deep"));
        }
        self.depth += 1;
        self.at += 1;
        self.space();
        let json = read(self)?;
        self.depth -= 1;
        Ok(json)
    }

    fn list(&mut self) -> Result<Json, JsonError> {
        let mut items = Vec::new();
        if self.eat(b']') {
            return Ok(Json::List(items));
        }
        loop {
            items.push(self.value()?);
            self.space();
            if self.eat(b']') {
                return Ok(Json::List(items));
            }
            if !self.eat(b',') {
                return Err(self.wrong("a comma or the end of the list is missing"));
            }
            self.space();
        }
    }

    fn object(&mut self) -> Result<Json, JsonError> {
        let mut members: Vec<(String, Json)> = Vec::new();
        let mut names = std::collections::HashSet::new();
        if self.eat(b'}') {
            return Ok(Json::Object(members));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.wrong("a name is missing"));
            }
            let name = self.string()?;
            if !names.insert(name.clone()) {
                return Err(JsonError::Twice { name });
            }
            self.space();
            if !self.eat(b':') {
                return Err(self.wrong("a colon is missing"));
            }
            self.space();
            let json = self.value()?;
            members.push((name, json));
            self.space();
            if self.eat(b'}') {
                return Ok(Json::Object(members));
            }
            if !self.eat(b',') {
                return Err(self.wrong("a comma or the end of the object is missing"));
            }
            self.space();
        }
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
                return Err(self.wrong("a string does not end"));
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
                _ => return Err(self.wrong("a control character stands in a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        let letter = self.peek().ok_or_else(|| self.wrong("a string does not end"))?;
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
                letter.ok_or_else(|| self.wrong("half of a surrogate pair"))?
            }
            _ => return Err(self.wrong("no such escape")),
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
