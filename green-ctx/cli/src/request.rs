//! The request on the command line: the groups, their shares, and the granularity of the split.

use std::time::Duration;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use green_ctx::{Share, SplitRequest, resource::Granularity};

use crate::failure::Failure;

/// The name of the partition that `verify` adds for SMs that belong to no group.
pub(crate) const REMAINDER: &str = "remainder";

/// The explanation of shares in the help of split and verify.
pub(crate) const SHARES: &str = "Shares:
  A floor is the SMs that no other group may use. A ceiling is the maximum number of SMs of a group.
  Between the two, a group shares SMs with every group whose ceiling reaches them.
    16       floor 16, ceiling 16: exclusive
    32..     floor 32, no ceiling: every SM outside the floors of other groups
    16..48   floor 16, ceiling 48; also written 16..=48
    ..100    no floor, ceiling 100; also written ..=100
    ..       no floor, no ceiling
    25%      25 % of the SMs, exclusive; 25%.., ..75% and 16..50% work too
    rest     all remaining SMs, exclusive
    all      all SMs that can be scheduled together, exclusive

Examples:
  green-ctx split --counts 16,24
  green-ctx split --counts 32..,16..48
  green-ctx verify --group decode=32.. --group prefill=..100 --svg shares.svg";

/// The options that split and verify have in common.
#[derive(clap::Args)]
pub(crate) struct Request {
    #[command(flatten)]
    groups: Groups,
    /// Uses the smallest units of SMs that the driver can make. Thread-block clusters may not fit into such small
    /// units.
    #[arg(long, conflicts_with = "largest_clusters")]
    fine: bool,
    /// Uses units of SMs in which the largest thread-block clusters of the device fit. On an H200, these units are the
    /// same as the default units.
    #[arg(long, conflicts_with = "fine")]
    largest_clusters: bool,
    /// The number of SMs of a group that are scheduled together: one number for all groups, or one number per group.
    /// With this option, shares must be counts, percentages, rest or all, and percentages require one number for all
    /// groups. This option needs CUDA 13.1. Under a reserve, it is refused, as are --fine, --largest-clusters and
    /// --backfill.
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = count)]
    coscheduled: Vec<u32>,
    /// Fills groups up with SMs that are not scheduled together. This option needs CUDA 13.1.
    #[arg(long)]
    backfill: bool,
}

/// The groups, given either with `--counts` or with `--group`.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Groups {
    /// One share per group, for example 16,24 or 32..,..100.
    ///
    /// The groups are named p0, p1, and so on. A floor is rounded up to whole units of SMs, and a ceiling down. A
    /// percentage is rounded up or down, and is at least one unit.
    #[arg(
        long,
        value_name = "SHARE,…",
        value_delimiter = ',',
        value_parser = share,
        // Without this, clap would report -3 as an unknown option instead of an invalid share.
        allow_hyphen_values = true
    )]
    counts: Vec<Share>,
    /// The name and the share of one group, for example decode=16 or decode=32.. (a floor without a ceiling). Repeat
    /// the option for each group.
    #[arg(long, value_name = "NAME=SHARE", value_parser = named, allow_hyphen_values = true)]
    group: Vec<Named>,
}

/// A group with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    name: String,
    share: Share,
}

impl Request {
    /// Returns whether `--fine` would give smaller units.
    pub(crate) fn is_coarse(&self) -> bool {
        !self.fine && !self.largest_clusters && self.coscheduled.is_empty() && !self.backfill
    }

    /// Converts the options to a split request of the library.
    pub(crate) fn to_split(&self) -> Result<SplitRequest, Failure> {
        let groups = self.groups();
        let mut names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let reason = format!("two groups are named {}; give each a different name", pair[0]);
            return Err(Failure::Request(reason));
        }
        let granularity = match (self.fine, self.largest_clusters) {
            (true, _) => Granularity::Fine,
            (false, true) => Granularity::LargestClusters,
            (false, false) => Granularity::Coarse,
        };
        let request = SplitRequest::new().granularity(granularity);
        let mut request = groups
            .into_iter()
            .fold(request, |request, group| request.group(group.name, group.share));
        match self.coscheduled.as_slice() {
            [] => {}
            [one] => request = request.coscheduled(*one),
            each => request = request.coscheduled(each.to_vec()),
        }
        Ok(if self.backfill { request.backfill(true) } else { request })
    }

    /// Returns the split request, with an additional group for the remaining SMs if any SMs can remain.
    pub(crate) fn with_remainder(&self) -> Result<SplitRequest, Failure> {
        let request = self.to_split()?;
        let has_rest = self.rest_name().is_some();
        let leaves_none = |share: Share| share.is_unbounded();
        let is_taken = has_rest || self.groups().iter().any(|group| leaves_none(group.share));
        Ok(if is_taken { request } else { request.rest(REMAINDER) })
    }

    /// Returns the name of the group whose share is `rest`, if there is one.
    pub(crate) fn rest_name(&self) -> Option<String> {
        let rest = self.groups().into_iter().find(|group| group.share == Share::REST);
        rest.map(|group| group.name)
    }

    /// Returns the groups in the order in which the command line lists them.
    fn groups(&self) -> Vec<Named> {
        let Groups { counts, group } = &self.groups;
        let numbered = counts.iter().enumerate();
        let numbered =
            numbered.map(|(number, share)| Named { name: format!("p{number}"), share: *share });
        numbered.chain(group.iter().cloned()).collect()
    }
}

/// Reads `decode=32..`.
fn named(text: &str) -> Result<Named, String> {
    let Some((name, share)) = text.split_once('=') else {
        return Err("a group is NAME=SHARE, as in decode=32..".to_owned());
    };
    let name = name.trim();
    // The first `=` of `..=100` belongs to the share.
    if name.is_empty() || name.ends_with("..") {
        return Err(format!(
            "the group's name is missing; write NAME={}",
            text.trim_start_matches('=')
        ));
    }
    let share: Share =
        share.parse().map_err(|error: green_ctx::resource::ShareError| error.to_string())?;
    if name == REMAINDER && share != Share::REST {
        return Err(format!(
            "{REMAINDER} is reserved for the SMs that no group takes; choose another name, or use \
             {REMAINDER}=rest"
        ));
    }
    Ok(Named { name: name.to_owned(), share })
}

/// Adds a hint on how to write several values, if the error is an unexpected argument after an option that accepts
/// several values.
pub(crate) fn explained(error: clap::Error, arguments: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(extra)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    if error.kind() != ErrorKind::UnknownArgument || extra.starts_with('-') {
        return error;
    }
    let texts: Vec<_> = arguments.iter().map(|text| text.to_string_lossy()).collect();
    let place = texts.iter().position(|text| text == extra).unwrap_or(0);
    let option = texts[..place].iter().rev().find(|text| text.starts_with("--"));
    let option = option.map_or("", |text| text.split('=').next().unwrap_or(text));
    let how = match option {
        "--counts" | "--coscheduled" | "--sms" => {
            "separate values with commas, as in 16,24".to_owned()
        }
        "--group" | "--job" | "--arrival" | "--floor" | "--leave-out" => {
            format!("give {option} once for each value")
        }
        _ => return error,
    };
    let text = format!("unexpected argument '{extra}' found; {how}\n");
    clap::Error::raw(ErrorKind::UnknownArgument, text)
}

fn share(text: &str) -> Result<Share, String> {
    text.parse().map_err(|error: green_ctx::resource::ShareError| {
        match text.split_whitespace().nth(1) {
            Some(_) => {
                format!("{text:?} is not one share; separate shares with commas, as in 16,24")
            }
            None => error.to_string(),
        }
    })
}

/// Reads a duration in seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse().ok().and_then(|it| Duration::try_from_secs_f64(it).ok());
    seconds.ok_or_else(|| "a duration must be a number of seconds, such as 10".to_owned())
}

/// Reads the longest time of a run in seconds.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err("a timeout must be longer than 0 s".to_owned()),
        time => Ok(time),
    }
}

pub(crate) fn count(text: &str) -> Result<u32, String> {
    let text = text.trim();
    match text.parse() {
        Ok(0) => Err("a count must be at least 1 SM".to_owned()),
        Ok(count) => Ok(count),
        Err(_) if text.is_empty() => {
            Err("a count is missing; write counts separated by commas, as in 8,16"
                .to_owned())
        }
        Err(_) => Err(
            "a count must be a whole number of SMs, 1 or more; separate several with commas, as in 8,16"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use green_ctx::{Share, SplitRequest};

    use super::{Named, Request, count, named};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        request: Request,
    }

    fn read(arguments: &[&str]) -> Request {
        let line = [&["test"], arguments].concat();
        Line::try_parse_from(line).unwrap_or_else(|error| panic!("{error}")).request
    }

    #[test]
    fn both_forms_ask_for_the_same() {
        let counts = read(&["--counts", "32..,16..48,..=100"]);
        let shares = [Share::from(32..), Share::from(16..=48), Share::from(..=100)];
        assert_eq!(counts.to_split().expect("valid"), SplitRequest::from(shares));
        let groups = read(&["--group", "p0=32..", "--group", "p1=16..=48", "--group", "p2=..100"]);
        assert_eq!(groups.to_split().expect("valid"), SplitRequest::from(shares));
    }

    #[test]
    fn the_remainder_is_added_where_there_can_be_one() {
        let adds = |shares: &str| {
            let request = read(&["--counts", shares]);
            let (with, without) = (request.with_remainder(), request.to_split());
            with.expect("valid") != without.expect("valid")
        };
        assert!(["16,24", "16..48", "..100", "all", "16,..=132"].into_iter().all(adds));
        assert!(!["32..", "..", "16,32..", "16,rest"].into_iter().any(adds));
        assert_eq!(read(&["--group", "others=rest"]).rest_name().as_deref(), Some("others"));
    }

    #[test]
    fn groups_have_a_name_and_a_share() {
        let group = |name: &str, share: Share| Ok(Named { name: name.to_owned(), share });
        assert_eq!(named("decode=32.."), group("decode", Share::from(32..)));
        assert_eq!(named(" prefill = ..=100"), group("prefill", Share::from(..=100)));
        assert_eq!(named("remainder=rest"), group("remainder", Share::REST));
        for (text, part) in [
            ("decode", "NAME=SHARE"),
            ("32..", "NAME=SHARE"),
            ("-3", "NAME=SHARE"),
            ("", "NAME=SHARE"),
            ("=16", "write NAME=16"),
            (" =16", "the group's name is missing"),
            ("..=100", "write NAME=..=100"),
            ("16..=48", "write NAME=16..=48"),
            ("decode=", "a share is missing"),
            ("decode=-3", "\"-3\" is not a share"),
            ("decode=48..16", "ask for 16..=48"),
            ("remainder=16", "choose another"),
        ] {
            let error = named(text).expect_err(text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_name_given_twice_is_refused() {
        let request = read(&["--group", "a=8", "--group", "b=8", "--group", "a=16"]);
        let error = request.to_split().expect_err("two of one name").to_string();
        assert!(error.starts_with("two groups are named a;"), "{error}");
    }

    #[test]
    fn counts_are_whole_numbers_from_one_on() {
        assert_eq!([count("1"), count("132"), count(" 8")], [Ok(1), Ok(132), Ok(8)]);
        for wrong in ["", " ", "0", "-3", "abc", "1.5", "8..16", "4294967296"] {
            assert!(count(wrong).is_err(), "{wrong:?}");
        }
    }
}
