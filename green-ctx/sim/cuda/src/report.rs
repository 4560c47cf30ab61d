//! What the process left behind, what it did not put in order and what it called, for tests of
//! programs that only link the library.

use std::fs;

use green_ctx_sim::Sim;

use crate::machine::sim;

/// The variable that names the report's file.
const REPORT: &str = "GREEN_CTX_SIM_REPORT";

/// Writes the report when the process exits, if it was asked for.
pub(crate) fn at_exit() {
    extern "C" fn write() {
        // What unwinds out of an exit handler ends the process by abort.
        let Some(path) = std::env::var_os(REPORT) else { return };
        let Some(sim) = sim() else { return };
        if let Err(error) = fs::write(&path, text(sim)) {
            eprintln!("libcuda.so.1 (simulated): {REPORT}={}: {error}", path.display());
        }
    }
    if std::env::var_os(REPORT).is_some() {
        // SAFETY: the handler is a function of this library, which runs it before it is unloaded,
        // and does not unwind. Without room for a handler there is no report.
        unsafe { libc::atexit(write) };
    }
}

/// The report: a line a race, and a line a function that is not simulated, among others.
fn text(sim: &Sim) -> String {
    let races: String = sim.races().iter().map(|race| format!("race: {race}\n")).collect();
    let refused = sim.unsimulated_calls();
    let refused: String = refused.keys().map(|name| format!("not simulated: {name}\n")).collect();
    format!("{}\n{races}{refused}{:#?}\n{:#?}\n", sim.spec(), sim.live(), sim.calls())
}
