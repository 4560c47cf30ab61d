//! The tokens of PTX text.

/// The words and punctuation marks of a text, without comments.
#[derive(Clone)]
pub(super) struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(text: &'a str) -> Tokens<'a> {
        Tokens { rest: text }
    }

    /// Returns the next token without consuming it.
    pub(super) fn peek(&self) -> Option<&'a str> {
        self.clone().next()
    }

    /// Consumes the next token if it is `word`.
    pub(super) fn eat(&mut self, word: &str) -> bool {
        let mut after = self.clone();
        let found = after.next() == Some(word);
        if found {
            *self = after;
        }
        found
    }

    /// Consumes the next token, which must be `word`.
    pub(super) fn expect(&mut self, word: &str) -> Option<()> {
        self.eat(word).then_some(())
    }

    /// Consumes a number.
    pub(super) fn number(&mut self) -> Option<u32> {
        number(self.next()?)?.try_into().ok()
    }

    /// Skips the rest of a group, up to and including the closing mark. The opening mark was already
    /// consumed.
    pub(super) fn skip_group(&mut self, open: &str, close: &str) -> Option<()> {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.next()? {
                word if word == open => depth += 1,
                word if word == close => depth -= 1,
                _ => {}
            }
        }
        Some(())
    }

    /// Skips white space and comments.
    fn skip_blanks(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            let end = if self.rest.starts_with("//") {
                self.rest.find('\n')
            } else if self.rest.starts_with("/*") {
                self.rest.find("*/").map(|end| end + 2)
            } else {
                return;
            };
            // An unterminated comment extends to the end of the text.
            self.rest = end.map_or("", |end| &self.rest[end..]);
        }
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.skip_blanks();
        let first = self.rest.chars().next()?;
        let len = if first == '"' {
            // A string with its quotes. It does not extend beyond the line.
            self.rest[1..].find(['"', '\n']).map_or(self.rest.len(), |end| end + 2)
        } else if is_of_word(first) {
            self.rest.find(|mark| !is_of_word(mark)).unwrap_or(self.rest.len())
        } else {
            first.len_utf8()
        };
        let (word, rest) = self.rest.split_at(len);
        self.rest = rest;
        Some(word)
    }
}

fn is_of_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '$' | '%' | '@')
}

/// Returns whether a token can be a name.
pub(super) fn is_name(word: &str) -> bool {
    let first = word.chars().next();
    first.is_some_and(|first| first.is_ascii_alphabetic() || matches!(first, '_' | '$' | '%'))
}

/// Parses an integer in PTX notation.
pub(super) fn number(word: &str) -> Option<u64> {
    let word = word.strip_suffix('U').unwrap_or(word);
    let lower = word.to_ascii_lowercase();
    if let Some(digits) = lower.strip_prefix("0x") {
        u64::from_str_radix(digits, 16).ok()
    } else if let Some(digits) = lower.strip_prefix("0b") {
        u64::from_str_radix(digits, 2).ok()
    } else if lower.len() > 1 && lower.starts_with('0') {
        u64::from_str_radix(&lower[1..], 8).ok()
    } else {
        lower.parse().ok()
    }
}
