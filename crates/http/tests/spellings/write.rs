//! A document in one of its many spellings.

use redrive_http::json::Json;

/// What is spelt how.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn space(&mut self) -> &'static str {
        ["", "", "", " ", "\n", "\t ", "\r\n"][usize::try_from(self.below(7)).unwrap()]
    }
}

/// The same value, spelt as the dice fall: white space, the order of members, escapes, and numbers.
pub(crate) fn spelt(json: &Json, dice: &mut Dice) -> String {
    let inner = match json {
        Json::Null => "null".to_owned(),
        Json::Bool(truth) => truth.to_string(),
        Json::Number(text) => number(text, dice),
        Json::Text(letters) => text(letters, dice),
        Json::List(items) => {
            let items: Vec<_> = items.iter().map(|item| spelt(item, dice)).collect();
            format!("[{}{}]", dice.space(), items.join(","))
        }
        Json::Object(members) => {
            let mut left: Vec<_> = members.iter().collect();
            let mut parts = Vec::new();
            while !left.is_empty() {
                let at = usize::try_from(dice.below(left.len() as u64)).unwrap();
                let (name, value) = left.swap_remove(at);
                parts.push(format!(
                    "{}{}{}:{}",
                    dice.space(),
                    text(name, dice),
                    dice.space(),
                    spelt(value, dice)
                ));
            }
            format!("{{{}{}}}", dice.space(), parts.join(","))
        }
    };
    format!("{}{inner}{}", dice.space(), dice.space())
}

/// `12`, `12.0`, `1200e-2`, `0.12E+2`: the digits moved over the point, the exponent set right.
fn number(text: &str, dice: &mut Dice) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i64 = exponent.parse().unwrap();
    let zeros = i64::try_from(dice.below(3)).unwrap();
    let padding = "0".repeat(usize::try_from(zeros).unwrap());
    let e = if dice.below(2) == 0 { 'e' } else { 'E' };
    match dice.below(3) {
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

fn text(letters: &str, dice: &mut Dice) -> String {
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
        match (short, dice.below(3)) {
            (Some(short), 0 | 1) => out.extend(['\\', short]),
            (_, 2) | (None, _) if must || dice.below(4) == 0 => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    let upper = dice.below(2) == 0;
                    out += &if upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") };
                }
            }
            _ => out.push(letter),
        }
    }
    out + "\""
}
