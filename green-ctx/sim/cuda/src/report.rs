//! The output at exit: the report, which lists races, the SMs of launches, calls and live objects, and the summary of
//! launches.
//! Both are for programs that only link the library.

use std::fs;
use std::io::{self, Write as _};

use green_ctx_sim::Sim;

use crate::launches;
use crate::machine::sim;

/// The environment variable that sets the path of the report.
const REPORT: &str = "GREEN_CTX_SIM_REPORT";
/// The environment variable that requests the summary of launches.
const LAUNCHES: &str = "GREEN_CTX_SIM_LAUNCHES";

/// Registers an exit handler that writes what the environment requests.
pub(crate) fn at_exit() {
    extern "C" fn write() {
        // A panic in an exit handler would abort the process, as `eprint` would if standard error were closed.
        let Some(sim) = sim() else { return };
        if std::env::var_os(LAUNCHES).is_some_and(|value| value == "1") {
            let _ = io::stderr().write_all(launches::summary().as_bytes());
        }
        let Some(path) = std::env::var_os(REPORT) else { return };
        if let Err(error) = fs::write(&path, text(sim)) {
            let _ = writeln!(
                io::stderr(),
                "libcuda.so.1 (simulated): {REPORT}={}: the report could not be written: {error}",
                path.display()
            );
        }
    }
    if [REPORT, LAUNCHES].iter().any(|name| std::env::var_os(name).is_some()) {
        // SAFETY: the handler is a function of this library, which is never unloaded (`build.rs`), and it
        // does not unwind. If `atexit` cannot register the handler, nothing is written.
        unsafe { libc::atexit(write) };
    }
}

/// Returns the report. Each race, each function that is not simulated, and each context with launches has its own line.
fn text(sim: &Sim) -> String {
    let races: String = sim.races().iter().map(|race| format!("race: {race}\n")).collect();
    let refused = sim.unsimulated_calls();
    let refused: String = refused.keys().map(|name| format!("not simulated: {name}\n")).collect();
    let ran = launches::placement();
    format!("{}\n{races}{refused}{ran}{:#?}\n{:#?}\n", sim.spec(), sim.live(), sim.calls())
}
