//! `cargo xtask sim-lib --torch`: PyTorch on the simulated driver.
//!
//! torch's wheel is linked with NVIDIA's libraries. One library replaces all of them, under a link with the name of
//! each: the runtime (`green-ctx/sim/cudart`), and a stub for every other function that torch imports.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;

use super::{compiled, link_to};
use crate::clients::module::{self, Environment};
use crate::clients::succeed;
use crate::{Failure, workspace_root};

/// The package with the runtime.
const RUNTIME: &str = "green-ctx-sim-cudart";

/// The versions that `tests/python` lists packages for. The first is the default.
pub(crate) const VERSIONS: [&str; 2] = ["2.11.0", "2.15.0"];

/// The file that replaces NVIDIA's libraries.
const LIBRARY: &str = "libcudart.so.13";

/// Functions of NVIDIA's libraries, and the names of these libraries. The driver is not among them.
const FUNCTION: &str =
    "^(__)?cuda|^cu(blas|dnn|fft|File|pti|rand|solver|sparse)|^(nccl|nvrtc|nvshmem)";
const NEEDED: &str = r"NEEDED +(lib(?:cu(?:blas|dart|dnn|f|pti|rand|s)|nccl|nvrtc|nvshmem)\S+)";

/// Creates the environment with this version of torch, if it does not exist, and installs the module into it.
pub(crate) fn install(version: &str) -> Result<(), Failure> {
    let (folder, list) = (folder(version), format!("tests/python/torch-{version}.txt"));
    if !workspace_root().join(&folder).exists() {
        println!("installing torch {version} into {folder}: half a gigabyte is downloaded");
        module::install(&folder, &["--no-deps", "--requirement", &list])?;
    }
    let environment = environment(version).map_err(Failure::new)?;
    println!("building the module green_ctx_torch");
    environment.install(&workspace_root().join(module::PROJECT))
}

/// Returns the folder of the environment, relative to the workspace.
pub(crate) fn folder(version: &str) -> String {
    format!("target/torch-{version}")
}

/// Returns the environment with this version of torch, or why it cannot be used.
pub(crate) fn environment(version: &str) -> Result<Environment, String> {
    let (folder, environment) = (folder(version), Environment::at(&folder(version)));
    // torch itself cannot be imported without the library.
    let needed = "import importlib.util, jinja2, maturin, numpy, sympy; assert importlib.util.find_spec('torch')";
    if !environment.can_run(needed) {
        return Err(format!(
            "{folder} does not exist or lacks a package; delete it and run `cargo xtask sim-lib --torch {version}`"
        ));
    }
    if environment.can_run("import nvidia") {
        return Err(format!(
            "{folder} has NVIDIA's libraries, in which torch's own libraries look first (DT_RPATH, before \
             LD_LIBRARY_PATH), so torch would not use the simulated runtime; delete the folder and run \
             `cargo xtask sim-lib --torch {version}`"
        ));
    }
    Ok(environment)
}

/// Writes the library for this version of torch, and returns the value for `LD_LIBRARY_PATH`.
pub(crate) fn build(version: &str, driver: &Path) -> Result<OsString, Failure> {
    let site = environment(version).map_err(Failure::new)?.site_packages()?;
    let libraries = torch_libraries(&site)?;
    let archive = compiled(RUNTIME, "staticlib")?;
    let ours = defined(&archive)?;
    let imports = imports(&libraries)?;

    let folder = workspace_root().join(folder(version)).join("cuda");
    fs::create_dir_all(&folder).map_err(|error| Failure::io("creating", &folder, error))?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| Failure::io("writing", &path, error))?;
        Ok::<_, Failure>(path)
    };
    let absent = imports.keys().filter(|name| !ours.contains(*name));
    let stubs = write("stubs.c", stubs(absent)?)?;
    let script = write("versions", versions(&imports))?;
    let mut link = Command::new("cc");
    link.args(["-shared", "-fPIC", "-O1", "-w", "-o"]).arg(folder.join(LIBRARY)).arg(stubs);
    link.arg("-Wl,--whole-archive")
        .arg(archive)
        .args(["-Wl,--no-whole-archive", "-Wl,--gc-sections"]);
    link.arg(format!("-Wl,-soname,{LIBRARY},-z,nodelete,--version-script={}", script.display()));
    link.arg(driver).args(["-lpthread", "-ldl", "-lm"]);
    succeed(&mut link)?;
    for name in needed(&libraries)?.iter().filter(|name| *name != LIBRARY) {
        link_to(LIBRARY, &folder.join(name))?;
    }
    std::env::join_paths([&*folder, driver.parent().unwrap_or(driver)])
        .map_err(Failure::from_display)
}

/// Returns the paths of torch's libraries.
fn torch_libraries(site: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for folder in ["torch", "torch/lib"] {
        let folder = site.join(folder);
        let entries =
            fs::read_dir(&folder).map_err(|error| Failure::io("listing", &folder, error))?;
        found.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    found.retain(|path| path.to_string_lossy().contains(".so"));
    Ok(found)
}

/// Returns the output of a program of binutils, which every C compiler needs.
fn binutils(program: &str, arguments: &[&str], files: &[PathBuf]) -> Result<String, Failure> {
    let output = Command::new(program).args(arguments).args(files).output().map_err(|error| {
        Failure::new(format!(
            "{program} could not be run ({error}); install a C compiler and binutils"
        ))
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(Failure::new(format!(
            "{program} failed: {}",
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}

/// Returns the functions of NVIDIA's libraries that torch imports, with their versions. Some have none.
fn imports(libraries: &[PathBuf]) -> Result<BTreeMap<String, String>, Failure> {
    let text = binutils("nm", &["-D", "--undefined-only", "--with-symbol-versions"], libraries)?;
    let function = Regex::new(FUNCTION).map_err(Failure::from_display)?;
    let mut found = BTreeMap::new();
    for name in text.lines().filter_map(|line| line.trim().strip_prefix("U ")) {
        let (name, version) = name.split_once('@').unwrap_or((name, ""));
        // One library may import a function with its version, and another without.
        if function.is_match(name) && (!version.is_empty() || !found.contains_key(name)) {
            found.insert(name.to_owned(), version.to_owned());
        }
    }
    Ok(found)
}

/// Returns the names of NVIDIA's libraries that torch's libraries need.
fn needed(libraries: &[PathBuf]) -> Result<BTreeSet<String>, Failure> {
    let needed = Regex::new(NEEDED).map_err(Failure::from_display)?;
    let text = binutils("objdump", &["-p"], libraries)?;
    Ok(needed.captures_iter(&text).map(|found| found[1].to_owned()).collect())
}

/// Returns the functions that the archive defines.
fn defined(archive: &Path) -> Result<BTreeSet<String>, Failure> {
    let text = binutils("nm", &["--defined-only", "--extern-only"], &[archive.to_owned()])?;
    Ok(text.lines().filter_map(|line| Some(line.split_once(" T ")?.1.to_owned())).collect())
}

/// Functions of cuBLAS that only configure it and return success, and all that do not compute.
const CONFIGURES: &str =
    "(Create|Destroy|SetAttribute|SetMathMode|SetPointerMode_v2|SetSmCountTarget|SetWorkspace_v2)$";
const COMPUTES_NOT: &str = "^cublas(Lt|Get|Set)";

/// Returns the C code of the functions. A function of cuBLAS that would compute has the handle as its first argument.
fn stubs<'a>(names: impl Iterator<Item = &'a String>) -> Result<String, Failure> {
    let regex = |pattern| Regex::new(pattern).map_err(Failure::from_display);
    let texts = regex("(ErrorString|LastError|StatusString|StatusName)$")?;
    let (configures, computes_not) = (regex(CONFIGURES)?, regex(COMPUTES_NOT)?);
    let mut code = "long greenCtxNotSimulated(const char *);\nint greenCtxSimulatedBlas(void *, const char *);\n".to_owned();
    for name in names {
        let is_blas = name.starts_with("cublas");
        let line = if texts.is_match(name) {
            format!("const char *{name}(void) {{ return \"not simulated\"; }}")
        } else if is_blas && configures.is_match(name) {
            format!("int {name}(void) {{ return 0; }}")
        } else if is_blas && !computes_not.is_match(name) {
            format!(
                "int {name}(void *handle) {{ return greenCtxSimulatedBlas(handle, \"{name}\"); }}"
            )
        } else {
            format!("long {name}(void) {{ return greenCtxNotSimulated(\"{name}\"); }}")
        };
        code += &format!("{line}\n");
    }
    Ok(code)
}

/// Returns the linker script that exports the functions under the versions that torch's libraries look up.
fn versions(imports: &BTreeMap<String, String>) -> String {
    let mut nodes: BTreeMap<&str, String> = BTreeMap::new();
    for (name, version) in imports {
        let node =
            nodes.entry(if version.is_empty() { "GREEN_CTX_SIM" } else { version }).or_default();
        let _ = write!(node, " {name};");
    }
    let first = nodes.keys().next().copied();
    let node = |(version, names): (&&str, &String)| {
        let local = if Some(*version) == first { " local: *;" } else { "" };
        format!("{version} {{ global:{names}{local} }};\n")
    };
    nodes.iter().map(node).collect()
}
