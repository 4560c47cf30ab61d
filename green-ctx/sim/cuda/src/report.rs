//! The report at exit, which lists races, calls and live objects. The report is for tests of programs
//! that only link the library.

use std::fs;

use green_ctx_sim::Sim;

use crate::machine::sim;

/// The environment variable that sets the path of the report.
const REPORT: &str = "GREEN_CTX_SIM_REPORT";

/// Registers an exit handler that writes the report, if the environment requests a report.
pub(crate) fn at_exit() {
    extern "C" fn write() {
        // A panic in an exit handler would abort the process.
        let Some(path) = std::env::var_os(REPORT) else { return };
        let Some(sim) = sim() else { return };
        if let Err(error) = fs::write(&path, text(sim)) {
            eprintln!(
                "libcuda.so.1 (simulated): {REPORT}={}: the report could not be written: {error}",
                path.display()
            );
        }
    }
    if std::env::var_os(REPORT).is_some() {
        // SAFETY: the handler is a function of this library, which is never unloaded (`build.rs`), and it
        // does not unwind. If `atexit` cannot register the handler, no report is written.
        unsafe { libc::atexit(write) };
    }
}

/// Returns the report. Each race and each function that is not simulated has its own line.
fn text(sim: &Sim) -> String {
    let races: String = sim.races().iter().map(|race| format!("race: {race}\n")).collect();
    let refused = sim.unsimulated_calls();
    let refused: String = refused.keys().map(|name| format!("not simulated: {name}\n")).collect();
    format!("{}\n{races}{refused}{:#?}\n{:#?}\n", sim.spec(), sim.live(), sim.calls())
}
