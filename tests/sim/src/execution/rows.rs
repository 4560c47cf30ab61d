//! How the bytes of a copy or a fill lie in memory.

use std::ops::Range;

/// Rows of one width, one `pitch` after the other, in slices, one `slice` after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// The bytes of a row.
    pub(crate) width: usize,
    /// The rows of a slice.
    pub(crate) height: usize,
    /// The slices.
    pub(crate) depth: usize,
    /// From one row to the next in bytes.
    pub(crate) pitch: usize,
    /// From one slice to the next in bytes.
    pub(crate) slice: usize,
}

impl Rows {
    /// Bytes that follow each other.
    pub(crate) fn line(len: usize) -> Rows {
        Rows { width: len, height: 1, depth: 1, pitch: len, slice: len }
    }

    /// The number of bytes. That it is a number was checked with [`extent`](Rows::extent).
    pub(crate) fn len(self) -> usize {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }

    /// From the first byte to behind the last; `None` where that is no number.
    pub(crate) fn extent(self) -> Option<usize> {
        let Rows { width, height, depth, pitch, slice } = self;
        if width == 0 || height == 0 || depth == 0 {
            return Some(0);
        }
        let slices = slice.checked_mul(depth - 1)?;
        let rows = pitch.checked_mul(height - 1)?;
        slices.checked_add(rows)?.checked_add(width)
    }

    /// The same bytes in as few rows as there can be.
    fn joined(self) -> Rows {
        let Rows { width, height, depth, pitch, slice } = self;
        if pitch != width && height != 1 {
            return self;
        }
        let width = width * height;
        if slice != width && depth != 1 {
            return Rows { width, height: depth, depth: 1, pitch: slice, slice: slice * depth };
        }
        Rows::line(width * depth)
    }

    /// Where each row is, the first of them beginning here.
    pub(crate) fn at(self, start: u64) -> impl Iterator<Item = Range<u64>> {
        let Rows { width, height, depth, pitch, slice } = self.joined();
        let rows = if width == 0 { 0 } else { height * depth };
        (0..rows).map(move |row| {
            let start = start + (row / height * slice + row % height * pitch) as u64;
            start..start + width as u64
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_where_their_pitches_say() {
        let rows = Rows { width: 3, height: 2, depth: 2, pitch: 4, slice: 10 };
        let at: Vec<_> = rows.at(100).collect();
        assert_eq!(at, [100..103, 104..107, 110..113, 114..117]);
        assert_eq!((rows.len(), rows.extent()), (12, Some(17)));
    }

    #[test]
    fn rows_without_gaps_are_one() {
        let range = |start: u64, end: u64| start..end;
        let at = |width, height, depth, pitch, slice| {
            Rows { width, height, depth, pitch, slice }.at(0).collect::<Vec<_>>()
        };
        assert_eq!(at(3, 2, 2, 3, 6), vec![range(0, 12)]);
        assert_eq!(at(3, 2, 2, 3, 8), [0..6, 8..14]);
        assert_eq!(at(3, 1, 2, 9, 3), vec![range(0, 6)]);
        assert_eq!(at(3, 2, 1, 3, 99), vec![range(0, 6)]);
        assert_eq!(at(3, 2, 1, 5, 5), [0..3, 5..8]);
        assert_eq!(Rows::line(7).at(1).collect::<Vec<_>>(), vec![range(1, 8)]);
    }

    #[test]
    fn nothing_is_no_row() {
        for rows in [
            Rows::line(0),
            Rows { width: 0, height: 2, depth: 2, pitch: 4, slice: 8 },
            Rows { width: 2, height: 0, depth: 2, pitch: 4, slice: 8 },
            Rows { width: 2, height: 2, depth: 0, pitch: 4, slice: 8 },
        ] {
            assert_eq!((rows.at(0).count(), rows.len(), rows.extent()), (0, 0, Some(0)));
        }
        let endless = Rows { width: 1, height: 2, depth: 2, pitch: usize::MAX, slice: usize::MAX };
        assert_eq!(endless.extent(), None);
    }
}
