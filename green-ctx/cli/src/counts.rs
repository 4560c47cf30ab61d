//! Numbers of SMs as people write them: requests in, ids out.

use std::collections::BTreeSet;

use green_ctx::{Granularity, SplitRequest};

/// What split and verify have in common.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// The SMs of each group, for example 16,24.
    ///
    /// A group gets as many, or the next count that the device can give.
    #[arg(
        long,
        value_name = "N,…",
        required = true,
        value_delimiter = ',',
        value_parser = count,
        // So that -3 is refused as a count, not as an unknown option.
        allow_hyphen_values = true
    )]
    counts: Vec<u32>,
    /// Cuts the device as finely as the driver can, where clusters of blocks may not fit.
    #[arg(long, conflicts_with = "largest_clusters")]
    fine: bool,
    /// Cuts the device for the largest clusters of blocks, where the driver makes a difference.
    #[arg(long)]
    largest_clusters: bool,
    /// The SMs of a group that are scheduled together: one count for all, or one for each group.
    /// Needs CUDA 13.1.
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = count)]
    coscheduled: Vec<u32>,
    /// Fills groups up with SMs that are not scheduled together. Needs CUDA 13.1.
    #[arg(long)]
    backfill: bool,
}

impl Request {
    /// The request, with the groups named `p0`, `p1`, …
    pub(crate) fn to_split(&self) -> SplitRequest {
        let granularity = match (self.fine, self.largest_clusters) {
            (true, _) => Granularity::Fine,
            (false, true) => Granularity::LargestClusters,
            (false, false) => Granularity::Coarse,
        };
        let mut request = SplitRequest::from(&self.counts).granularity(granularity);
        match self.coscheduled.as_slice() {
            [] => {}
            [one] => request = request.coscheduled(*one),
            each => request = request.coscheduled(each.to_vec()),
        }
        if self.backfill { request.backfill(true) } else { request }
    }
}

fn count(text: &str) -> Result<u32, String> {
    let text = text.trim();
    match text.parse() {
        Ok(0) => Err("a group needs at least 1 SM".to_owned()),
        Ok(count) => Ok(count),
        Err(_) if text.is_empty() => {
            Err("a count is missing; counts are numbers with commas between them, as in 16,24"
                .to_owned())
        }
        Err(_) => Err("a count is a whole number of SMs from 1 on, as in 16,24".to_owned()),
    }
}

/// Ids with runs drawn together: `0-3,16,18-19`.
pub(crate) fn ranges(ids: &BTreeSet<u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &id in ids {
        match runs.last_mut() {
            Some((_, last)) if id - *last == 1 => *last = id,
            _ => runs.push((id, id)),
        }
    }
    let text = |&(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::{count, ranges};

    #[test]
    fn runs_of_ids_are_drawn_together() {
        let text = |ids: &[u32]| ranges(&ids.iter().copied().collect());
        assert_eq!(text(&[]), "");
        assert_eq!(text(&[7]), "7");
        assert_eq!(text(&[0, 1, 16, 17, 32, 33]), "0-1,16-17,32-33");
        assert_eq!(text(&[3, 0, 2, 1, 5, 131]), "0-3,5,131");
        assert_eq!(text(&[u32::MAX - 1, u32::MAX]), "4294967294-4294967295");
    }

    #[test]
    fn counts_are_whole_numbers_from_one_on() {
        assert_eq!([count("1"), count("132"), count(" 8")], [Ok(1), Ok(132), Ok(8)]);
        for wrong in ["", " ", "0", "-3", "abc", "1.5", "4294967296"] {
            assert!(count(wrong).is_err(), "{wrong:?}");
        }
    }
}
