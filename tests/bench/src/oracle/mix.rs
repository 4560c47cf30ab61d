//! Jobs that are measured together.

use std::fmt;
use std::str::FromStr;

use green_ctx_cli::jobs::Spec;

use crate::setup::Result;

/// Two or three jobs, as they are written: `NAME[:SIZE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    jobs: Vec<String>,
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Mix, String> {
        let jobs: Vec<String> = text.split(',').map(str::to_owned).collect();
        if !(2..=3).contains(&jobs.len()) {
            return Err("two or three jobs are measured, such as gemm:4096,copy:256".to_owned());
        }
        // The names of files are made of them.
        let is_plain = |text: &str| {
            let mut letters = text.chars();
            !text.is_empty()
                && letters.all(|letter| letter.is_ascii_alphanumeric() || "_.-".contains(letter))
        };
        let is_job = |job: &String| match job.split_once(':') {
            Some((name, size)) => is_plain(name) && is_plain(size),
            None => is_plain(job),
        };
        match jobs.iter().find(|job| !is_job(job)) {
            Some(job) => Err(format!("{job:?} is no job; write NAME or NAME:SIZE")),
            None => Ok(Mix { jobs }),
        }
    }
}

impl Mix {
    /// How many jobs there are.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// The jobs, as they are written.
    pub(super) fn jobs(&self) -> &[String] {
        &self.jobs
    }

    /// The jobs' names, which have no colon and are all different.
    pub(super) fn names(&self) -> Vec<String> {
        let plain = |job: &String| job.replace(':', "");
        let name = |(place, job): (usize, &String)| {
            let alike = self.jobs[..place].iter().filter(|other| plain(other) == plain(job));
            match alike.count() {
                0 => plain(job),
                count => format!("{}-{}", plain(job), count + 1),
            }
        };
        self.jobs.iter().enumerate().map(name).collect()
    }

    /// The built-in jobs that these are.
    pub(super) fn specs(&self) -> Result<Vec<Spec>> {
        let spec = |job: &String| job.parse::<Spec>();
        Ok(self.jobs.iter().map(spec).collect::<std::result::Result<_, _>>()?)
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join("-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_read_and_named() {
        let mix: Mix = "gemm:4096,copy".parse().expect("a mix");
        assert_eq!((mix.to_string().as_str(), mix.len()), ("gemm4096-copy", 2));
        let alike: Mix = "gemm,gemm,gemm".parse().expect("a mix");
        assert_eq!(alike.names(), ["gemm", "gemm-2", "gemm-3"]);
        for wrong in ["gemm", "gemm,", "a,b,c,d", "../gemm,copy", "gemm,copy:", "a:1:2,b"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_some_names_are_built_in() {
        let specs = |text: &str| text.parse::<Mix>().expect(text).specs();
        assert_eq!(specs("gemm:4096,copy").expect("built-in jobs").len(), 2);
        for other in ["gemm,copies", "gemm:1,copy"] {
            assert!(specs(other).is_err(), "{other}");
        }
    }
}
