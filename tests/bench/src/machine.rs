//! What the system reports of the machine.

/// The version of the driver's part in the kernel, where the system reports it.
pub(crate) fn kernel_driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let is_version = |word: &&str| {
        word.contains('.') && word.chars().all(|letter| letter == '.' || letter.is_ascii_digit())
    };
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

/// The host's processor, where the system reports it.
pub(crate) fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}
