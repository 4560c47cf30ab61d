//! `green-ctx run`: runs a program on a number of SMs.

use std::ffi::OsString;

use green_ctx_reserve::Amount;

pub(crate) const HELP: &str = "\
Examples:
  green-ctx run --sms 32 -- python serve.py
  green-ctx run -v --sms 25% --device 1 -- make test
  green-ctx run --reserve 32 -- python serve.py    32 SMs for the program's own partitions

Without --device, each visible device is limited. --device also sets CUDA_VISIBLE_DEVICES, so that
the program sees only this device. A limit under another one must not be larger, and replaces it.

What escapes:
  programs of another user (sudo, su), containers, programs that a daemon starts, an environment
  that is emptied (env -i), programs that are linked statically or with musl

Exit status: that of the program, or
  2    bad usage: an invalid amount, more SMs than there are, a folder that others can write
  3    no usable driver, or a driver older than CUDA 12.5
  126  the program cannot be run
  127  the program is not found";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    amounts: Amounts,
    /// Prints the devices and the number of SMs that the program gets to standard error.
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// The amount of the program, or that of the reserve.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Amounts {
    /// The program gets at most this number of SMs of each device, rounded down to whole units.
    #[arg(long, value_name = "N|N%", value_parser = amount, allow_hyphen_values = true)]
    sms: Option<Amount>,
    /// At least this number of SMs of each device is only for the partitions that the program makes with green-ctx, as
    /// with GREEN_CTX_RESERVE. All other work of the program runs on the other SMs.
    #[arg(long, value_name = "N|N%", value_parser = amount, allow_hyphen_values = true)]
    reserve: Option<Amount>,
}

fn amount(text: &str) -> Result<Amount, String> {
    let words = "an amount is a number of SMs from 1, such as 32, or from 1% to 100%, such as 25%";
    Amount::parse(text).map_err(|_| words.to_owned())
}

/// The variable that makes devices visible to a program.
#[cfg(target_os = "linux")]
pub(crate) const DEVICES: &str = "CUDA_VISIBLE_DEVICES";

#[cfg(target_os = "linux")]
pub(crate) use self::linux::{load, obeys, open, run, visible};

#[cfg(not(target_os = "linux"))]
pub(crate) fn run(
    _: &crate::Options,
    _: &Arguments,
) -> Result<crate::output::Outcome, crate::failure::Failure> {
    Err(crate::failure::Failure::Request("green-ctx run needs Linux".to_owned()))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::OsStr;
    use std::io::{self, Write};
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::Command;

    use green_ctx::resource::{Granularity, UnitSizes};
    use green_ctx::{Device, Driver, Error, Version};
    use green_ctx_reserve::{Amount, program};

    use super::{Amounts, Arguments, DEVICES};
    use crate::driver::WITH_A_LIBRARY;
    use crate::failure::Failure;
    use crate::output::Outcome;
    use crate::{DriverChoice, Options};

    /// The oldest CUDA version whose driver has all functions that a limit needs.
    const NEEDS: Version = Version::new(12, 5);

    pub(crate) fn run(options: &Options, arguments: &Arguments) -> Result<Outcome, Failure> {
        let Some((file, rest)) = arguments.program.split_first() else {
            return Err(Failure::Request("the program is missing".to_owned()));
        };
        let mut command = Command::new(file);
        command.args(rest);
        obeys(file)?;
        let limit = Limit::of(options, &arguments.amounts)?;
        command.envs(limit.of_program.variables.iter().map(|(name, value)| (name, value)));
        if let (Some(_), [only]) = (options.device, &*limit.devices) {
            command.env(DEVICES, visible(only)?);
        }
        // It does not matter if standard error is closed.
        if !limit.of_program.for_all {
            let _ = writeln!(
                io::stderr(),
                "note: a program that gives up root's rights loses this limit; set XDG_CACHE_HOME or TMPDIR to a \
                 folder that other users can search"
            );
        }
        if arguments.verbose {
            let _ = io::stderr().write_all(limit.text()?.as_bytes());
        }
        // It returns only if the program does not start.
        Err(Failure::Program { program: file.into(), source: command.exec() })
    }

    /// Returns an error if the loader would ignore a limit for a program.
    pub(crate) fn obeys(program: &OsStr) -> Result<(), Failure> {
        if program::is_privileged(program) {
            let name = program.display();
            return Err(Failure::Request(format!(
                "{name} runs with the rights of another user or with capabilities, so the loader would ignore the limit; \
                 run green-ctx with these rights instead, as in sudo green-ctx run or su -c 'green-ctx run …'"
            )));
        }
        Ok(())
    }

    /// Returns the name of a device for the variable that makes devices visible.
    pub(crate) fn visible(device: &Device) -> Result<String, Failure> {
        let uuid = device.uuid()?.to_string();
        // An instance of MIG has a UUID of its own, with this prefix (MIG User Guide).
        let is_instance = device.name()?.contains(" MIG ");
        Ok(if is_instance { uuid.replacen("GPU", "MIG", 1) } else { uuid })
    }

    /// A limit, and the devices that it holds for.
    struct Limit {
        devices: Vec<Device>,
        of_program: program::Limit,
        /// The number of SMs of each visible device that the program gets.
        sms: Vec<u32>,
    }

    impl Limit {
        fn of(options: &Options, amounts: &Amounts) -> Result<Limit, Failure> {
            let (path, driver) = load(&options.driver)?;
            let devices = match options.device {
                Some(ordinal) => vec![driver.device(ordinal)?],
                None => driver.devices().collect(),
            };
            let sms = amounts.sms.map(|amount| ("--sms", Amount { of_rest: true, ..amount }));
            let chosen = sms.or(amounts.reserve.map(|amount| ("--reserve", amount)));
            let missing = || Failure::Request("the amount is missing".to_owned());
            let (option, mut amount) = chosen.ok_or_else(missing)?;
            // An outer limit has devices of its own, whose units are not those of the limit that replaces it.
            let whole = open(&program::behind(path)?)?;
            let units = |device: &Device| {
                let sms = whole.device(device.ordinal())?.resources().sm()?;
                sms.unit_sizes(Granularity::default())
            };
            let numbers = devices.iter().map(|device| number(device, units(device)?, amount));
            let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
            if let Some(outer) = program::outer() {
                let refused =
                    |why| Err(Failure::Request(format!("{why} under green-ctx run {outer}")));
                if !amount.of_rest {
                    return refused("a reserve cannot be made for a program");
                }
                if numbers.iter().max() != numbers.iter().min() {
                    return refused("a percentage is not the same number of SMs on all devices");
                }
                // The library knows only whole devices, and not those that this process sees.
                (amount.number, amount.percent) = (numbers[0], false);
            }
            let percent = if amount.percent { "%" } else { "" };
            let text = format!("{option} {}{percent}", amount.number);
            let of_program = program::limit(path, amount, &text)?;
            // To see that the library works here, and what it tells a program.
            let front = open(&of_program.front)?;
            let sms = front.devices().map(|device| device.sm_count()).collect::<Result<_, _>>()?;
            Ok(Limit { devices, of_program, sms })
        }

        /// Returns a line for each device.
        fn text(&self) -> Result<String, Failure> {
            let line = |device: &Device| {
                let (ordinal, whole) = (device.ordinal(), device.sm_count()?);
                let sms = self.sms.get(ordinal as usize).copied().unwrap_or(0);
                let words = format!("green-ctx run: {sms} of {whole} SMs of device {ordinal}");
                Ok(format!("{words}, {}, {}\n", device.name()?, device.uuid()?))
            };
            self.devices.iter().map(line).collect()
        }
    }

    /// Loads the installed driver, or the one at the chosen path. Returns its path or name, too. The variable
    /// `GREEN_CTX_RESERVE` is the program's, and reserves nothing here.
    pub(crate) fn load(choice: &DriverChoice) -> Result<(&Path, Driver), Failure> {
        let path = match choice {
            DriverChoice::Library(path) => path,
            #[cfg(feature = "sim")]
            DriverChoice::Simulated(_) => {
                let words = "the simulated driver of this command cannot be given to a program";
                return Err(Failure::Request(format!("{words}; {WITH_A_LIBRARY}")));
            }
            _ => Path::new("libcuda.so.1"),
        };
        let driver = open(path).map_err(|failure| match (choice, failure) {
            (DriverChoice::Auto, Failure::Library(error)) => {
                Failure::NoDriver(error, WITH_A_LIBRARY)
            }
            (_, failure) => failure,
        })?;
        if driver.version() < NEEDS {
            let (call, found) = ("a limit for a program", driver.version());
            return Err(Error::Unsupported { call, needs: NEEDS, found }.into());
        }
        Ok((path, driver))
    }

    #[allow(unsafe_code, reason = "opens the installed driver, or the library that the user names")]
    pub(crate) fn open(path: &Path) -> Result<Driver, Failure> {
        // SAFETY: the system's library of this name is the CUDA driver, as is the library in front of it for its
        // callers. If the user names another library, the user vouches that it is a CUDA driver.
        Ok(unsafe { Driver::load_from(path) }?)
    }

    /// Returns the number of SMs that an amount is of those that work outside of partitions has on a device with these
    /// units, if the library can give this number.
    fn number(device: &Device, units: UnitSizes, amount: Amount) -> Result<u32, Failure> {
        let reserved = device.reserved_sm_count()?;
        let sms = device.sm_count()? - reserved;
        let outside = if reserved == 0 { "" } else { " outside of the reserve" };
        let part = u64::from(sms) * u64::from(amount.number);
        let number = match amount {
            Amount { percent: false, number, .. } => number,
            Amount { of_rest: true, .. } => (part / 100) as u32,
            Amount { of_rest: false, .. } => part.div_ceil(100) as u32,
        };
        let smallest = if units.odd == 0 { units.unit } else { units.unit.min(units.odd) };
        let name = format!("device {}, {}", device.ordinal(), device.name()?);
        let (rest, of_what) = match amount.of_rest {
            true => (number, ""),
            false => (sms.saturating_sub(number), " for work outside of partitions"),
        };
        let words = if number > sms {
            format!("{name}, has {sms} SMs{outside}, and not {number}")
        } else if rest < smallest {
            let asked = match amount {
                Amount { percent: true, of_rest: true, number } => format!("{number}%"),
                _ => rest.to_string(),
            };
            format!(
                "{asked} of {sms} SMs{outside}{of_what} is too few: {name}, gives at least {smallest}"
            )
        } else {
            return Ok(number);
        };
        Err(Failure::Request(words))
    }
}
