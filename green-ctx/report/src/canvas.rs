//! Writing SVG: elements, escaped text and colours. Independent of reports.

use std::fmt::{self, Write};

/// A buffer to which SVG markup is written.
#[derive(Default)]
pub struct Canvas {
    out: String,
}

impl Canvas {
    /// Adds markup without escaping it.
    pub fn put(&mut self, markup: fmt::Arguments<'_>) {
        // Writing to a string fails only if a `Display` implementation fails. Those used here do not.
        let _ = self.out.write_fmt(markup);
        self.out.push('\n');
    }

    /// Opens a group. The attributes apply to everything that is added before the matching
    /// [`close`](Canvas::close).
    pub fn group(&mut self, attributes: fmt::Arguments<'_>) {
        self.put(format_args!("<g {attributes}>"));
    }

    /// Closes the innermost group.
    pub fn close(&mut self) {
        self.put(format_args!("</g>"));
    }

    /// Adds a line of text. `attributes` may be empty.
    pub fn text(&mut self, x: f64, y: f64, attributes: &str, text: &str) {
        let (x, y, text) = (Number(x), Number(y), Escaped(text));
        self.put(format_args!(r#"<text x="{x}" y="{y}" {attributes}>{text}</text>"#));
    }

    /// Returns the complete picture: the markup on a white background of this size, with a title.
    pub fn into_page(self, (width, height): (f64, f64), title: &str, definitions: &str) -> String {
        let (width, height, title) = (Number(width), Number(height.ceil()), Escaped(title));
        let mut page = Canvas::default();
        page.put(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="'Helvetica Neue', Arial, sans-serif" role="img">"#
        ));
        page.put(format_args!("<title>{title}</title>"));
        if !definitions.is_empty() {
            page.put(format_args!("<defs>{definitions}</defs>"));
        }
        page.put(format_args!(
            r##"<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>"##
        ));
        let mut picture = page.into_string();
        picture.push_str(&self.into_string());
        picture.push_str("</svg>\n");
        picture
    }

    /// Returns the markup.
    pub fn into_string(self) -> String {
        self.out
    }
}

/// A coordinate, written with at most two decimal places.
pub struct Number(pub f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = (self.0 * 100.0).round() / 100.0;
        write!(f, "{hundredths}")
    }
}

/// Text escaped for an element or an attribute. Characters that XML cannot represent become U+FFFD.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\t' | '\n' | '\r' => f.write_char(' ')?,
                '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                character => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// Shortens a string to at most `most` characters. A shortened string ends in an ellipsis.
pub fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// A colour, written in SVG's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour(u8, u8, u8);

/// The palette of Okabe and Ito without black. Its colours are distinguishable with any kind of colour vision.
const HUES: [Colour; 7] = [
    Colour(0x00, 0x72, 0xb2),
    Colour(0xe6, 0x9f, 0x00),
    Colour(0x00, 0x9e, 0x73),
    Colour(0xcc, 0x79, 0xa7),
    Colour(0x56, 0xb4, 0xe9),
    Colour(0xd5, 0x5e, 0x00),
    Colour(0xf0, 0xe4, 0x42),
];

impl Colour {
    /// The number of different colours. Higher indices repeat them.
    pub const COUNT: usize = HUES.len() * 3;

    /// Returns the colour of the partition with this index. The first partitions get the colours of the
    /// palette, and the next ones get darker and then lighter variants.
    pub fn of(index: usize) -> Colour {
        let hue = HUES[index % HUES.len()];
        match index / HUES.len() % 3 {
            0 => hue,
            1 => hue.mixed(0, 0.45),
            _ => hue.mixed(255, 0.5),
        }
    }

    /// Returns black or white, whichever is readable on this colour.
    pub fn ink(self) -> &'static str {
        let Colour(red, green, blue) = self;
        // The luma weights of ITU-R BT.601.
        let light = 0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue);
        if light > 125.0 { "#1a1a1a" } else { "#ffffff" }
    }

    /// Returns a pale variant of the colour.
    pub fn tint(self) -> Colour {
        self.mixed(255, 0.75)
    }

    fn mixed(self, with: u8, share: f64) -> Colour {
        // The result lies between two bytes, so the conversion is exact up to rounding.
        let mix = |own: u8| (f64::from(own) * (1.0 - share) + f64::from(with) * share) as u8;
        Colour(mix(self.0), mix(self.1), mix(self.2))
    }
}

impl fmt::Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_markup_would_take_for_its_own_is_escaped() {
        let escaped = |text| Escaped(text).to_string();
        assert_eq!(escaped(r#"<a & "b">"#), "&lt;a &amp; &quot;b&quot;&gt;");
        assert_eq!(escaped("bell\x07 tab\t"), "bell\u{fffd} tab ");
    }

    #[test]
    fn numbers_are_short() {
        let number = |number| Number(number).to_string();
        assert_eq!([number(12.0), number(0.1 + 0.2), number(2.0 / 3.0)], ["12", "0.3", "0.67"]);
    }

    #[test]
    fn texts_are_cut_by_characters() {
        assert_eq!(shortened("decode", 6), "decode");
        assert_eq!(shortened("größere", 4), "grö…");
    }

    #[test]
    fn colours_repeat_only_after_all_were_used() {
        for first in 0..Colour::COUNT {
            for second in 0..first {
                assert_ne!(Colour::of(first), Colour::of(second), "{first} and {second}");
            }
        }
        assert_eq!(Colour::of(Colour::COUNT), Colour::of(0));
    }
}
