//! A document in one of its many spellings.

use redrive_http::json::Json;

/// What is spelt how.
pub(crate) struct RandomSource(pub(crate) u64);

impl RandomSource {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn space(&mut self) -> &'static str {
        ["", "", "", " ", "\n", "\t ", "\r\n"][usize::try_from(self.below(7)).unwrap()]
    }
}

/// The same value, spelt as the dice fall: white space, the order of members, escapes, and numbers.
pub(crate) fn spelt(json: &Json, random: &mut RandomSource) -> String {
    let inner = match json {
        Json::Null => "null".to_owned(),
        Json::Bool(truth) => truth.to_string(),
        Json::Number(text) => number(text, random),
        Json::Text(letters) => text(letters, random),
        Json::List(items) => {
            let items: Vec<_> = items.iter().map(|item| spelt(item, random)).collect();
            format!("[{}{}]", random.space(), items.join(","))
        }
        Json::Object(members) => {
            let mut left: Vec<_> = members.iter().collect();
            let mut parts = Vec::new();
            while !left.is_empty() {
                let at = usize::try_from(random.below(left.len() as u64)).unwrap();
                let (name, value) = left.swap_remove(at);
                parts.push(format!(
                    "{}{}{}:{}",
                    random.space(),
                    text(name, random),
                    random.space(),
                    spelt(value, random)
                ));
            }
            format!("{{{}{}}}", random.space(), parts.join(","))
        }
    };
    format!("{}{inner}{}", random.space(), random.space())
}

/// `12`, `12.0`, `1200e-2`, `0.12E+2`: the digits moved over the point, the exponent set right.
fn number(text: &str, random: &mut RandomSource) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i64 = exponent.parse().unwrap();
    let zeros = i64::try_from(random.below(3)).unwrap();
    let padding = "0".repeat(usize::try_from(zeros).unwrap());
    let e = if random.below(2) == 0 { 'e' } else { 'E' };
    match random.below(3) {
        0 => text.to_owned(),
        // Zeros behind the point.
        1 if digits.contains('.') => format!("{digits}{padding}{e}{exponent}"),
        1 => format!("{digits}.0{padding}{e}{exponent}"),
        // No number begins with two.
        _ if digits.trim_start_matches('-') == "0" => format!("{digits}{e}{exponent:+}"),
        // Zeros before it.
        _ if digits.contains('.') => format!("{digits}{padding}{e}{exponent:+}"),
        _ => format!("{digits}{padding}{e}{:+}", exponent - zeros),
    }
}

fn text(letters: &str, random: &mut RandomSource) -> String {
    let mut out = "\"".to_owned();
    for letter in letters.chars() {
        let must = letter < ' ' || letter == '"' || letter == '\\';
        let short = match letter {
            '"' | '\\' | '/' => Some(letter),
            '\u{8}' => Some('b'),
            '\u{c}' => Some('f'),
            '\n' => Some('n'),
            '\r' => Some('r'),
            '\t' => Some('t'),
            _ => None,
        };
        match (short, random.below(3)) {
            (Some(short), 0 | 1) => out.extend(['\\', short]),
            (_, 2) | (None, _) if must || random.below(4) == 0 => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    let upper = random.below(2) == 0;
                    out += &if upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") };
                }
            }
            _ => out.push(letter),
        }
    }
    out + "\""
}
