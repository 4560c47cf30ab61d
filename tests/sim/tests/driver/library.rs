//! Libraries, modules and functions: who belongs to whom, and what can be set on them.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};

use green_ctx_sys::*;

use crate::machine::*;

const NOT_FOUND: CUresult = CUresult::CUDA_ERROR_NOT_FOUND;

/// Images that were compiled from `kernels.ptx` and from green-ctx's probe.
const FAT: &[u8] = include_bytes!("../../images/kernels.zstd.fatbin");
const CUBIN: &[u8] = include_bytes!("../../images/probe.sm_90.cubin");
const OTHER_CUBIN: &[u8] = include_bytes!("../../images/probe.sm_80.cubin");

const TEXT: &CStr = c"
    .version 8.0
    .target sm_90
    .visible .global .align 16 .b8 table[48];
    .global .u32 hidden = 7;
    .visible .entry nothing() { ret; }
    .visible .entry bounded(.param .u64 p, .param .u8 q) .maxntid 64 { .shared .b8 s[256]; ret; }
    .visible .entry exact() .reqntid 32, 2 { ret; }
    .visible .entry clustered() .explicitcluster .reqnctapercluster 2 { ret; }
    .visible .entry open() .explicitcluster { ret; }
";

fn load(machine: &Machine, image: *const c_void) -> (CUresult, CUlibrary) {
    ask!(
        machine,
        null_mut(),
        cuLibraryLoadData(; image, null_mut(), null_mut(), 0, null_mut(), null_mut(), 0)
    )
}

fn library(machine: &Machine) -> CUlibrary {
    let (status, library) = load(machine, TEXT.as_ptr().cast());
    ok(status);
    library
}

fn kernel(machine: &Machine, library: CUlibrary, name: &CStr) -> CUkernel {
    let (status, kernel) = ask!(machine, null_mut(), cuLibraryGetKernel(; library, name.as_ptr()));
    ok(status);
    kernel
}

/// The function of a kernel of `TEXT` in the current context.
fn function(machine: &Machine, name: &CStr) -> CUfunction {
    let kernel = kernel(machine, library(machine), name);
    let (status, function) = ask!(machine, null_mut(), cuKernelGetFunction(; kernel));
    ok(status);
    function
}

fn attribute(machine: &Machine, function: CUfunction, number: u32) -> (CUresult, i32) {
    ask!(machine, -9, cuFuncGetAttribute(; CUfunction_attribute(number), function))
}

fn set(machine: &Machine, function: CUfunction, number: u32, value: i32) -> CUresult {
    call!(machine, cuFuncSetAttribute(function, CUfunction_attribute(number), value))
}

fn launch(machine: &Machine, function: CUfunction, grid: u32, block: u32, shared: u32) -> CUresult {
    let (mut p, mut q) = (0_u64, 0_u8);
    let mut params: [*mut c_void; 2] = [(&raw mut p).cast(), (&raw mut q).cast()];
    call!(
        machine,
        cuLaunchKernel(
            function,
            grid,
            1,
            1,
            block,
            1,
            1,
            shared,
            null_mut(),
            params.as_mut_ptr(),
            null_mut()
        )
    )
}

#[test]
fn a_library_has_one_module_a_device() {
    let (machine, _) = Machine::with_primary();
    let library = library(&machine);
    let (status, module) = ask!(machine, null_mut(), cuLibraryGetModule(; library));
    ok(status);
    assert_eq!(ask!(machine, null_mut(), cuLibraryGetModule(; library)), (OK, module));
    let first = kernel(&machine, library, c"nothing");
    assert_eq!(ask!(machine, null_mut(), cuKernelGetLibrary(; first)), (OK, library));
    let (status, function) = ask!(machine, null_mut(), cuKernelGetFunction(; first));
    ok(status);
    assert_eq!(ask!(machine, null_mut(), cuFuncGetModule(; function)), (OK, module));
    let named = ask!(machine, null_mut(), cuModuleGetFunction(; module, c"nothing".as_ptr()));
    assert_eq!(named, (OK, function));
    assert_eq!(machine.sim.live().modules, 0);
    let unload = call!(machine, cuModuleUnload(module));
    assert_eq!(unload, CUresult::CUDA_ERROR_NOT_PERMITTED);

    // Everything of a library goes with it.
    ok(call!(machine, cuLibraryUnload(library)));
    assert_eq!(launch(&machine, function, 1, 1, 0), INVALID_HANDLE);
    assert_eq!(ask!(machine, null_mut(), cuFuncGetModule(; function)).0, INVALID_HANDLE);
    assert_eq!(ask!(machine, 0, cuModuleGetFunctionCount(; module)).0, INVALID_HANDLE);
    assert_eq!(ask!(machine, null_mut(), cuKernelGetLibrary(; first)).0, INVALID_HANDLE);
    let live = machine.sim.live();
    assert_eq!((live.libraries, live.modules, live.allocations), (0, 0, 0));
}

#[test]
fn a_library_is_loaded_again_after_a_reset() {
    let (machine, _) = Machine::with_primary();
    let library = library(&machine);
    let first = kernel(&machine, library, c"nothing");
    let (_, before) = ask!(machine, null_mut(), cuKernelGetFunction(; first));
    ok(call!(machine, cuDevicePrimaryCtxReset(0)));
    ok(machine.push(machine.retain()));
    let (status, after) = ask!(machine, null_mut(), cuKernelGetFunction(; first));
    ok(status);
    assert_ne!(before, after);
    assert_eq!(launch(&machine, before, 1, 1, 0), INVALID_HANDLE);
    ok(launch(&machine, after, 1, 1, 0));
}

#[test]
fn kernels_and_functions_are_enumerated() {
    let (machine, _) = Machine::with_primary();
    let library = library(&machine);
    assert_eq!(ask!(machine, 0, cuLibraryGetKernelCount(; library)), (OK, 5));
    let mut kernels = [null_mut(); 6];
    ok(call!(machine, cuLibraryEnumerateKernels(kernels.as_mut_ptr(), 6, library)));
    // The last of the image comes first.
    assert_eq!(kernels[3], kernel(&machine, library, c"bounded"));
    assert!(kernels[5].is_null() && !kernels[4].is_null());
    let (_, module) = ask!(machine, null_mut(), cuLibraryGetModule(; library));
    let mut functions = [null_mut(); 5];
    ok(call!(machine, cuModuleEnumerateFunctions(functions.as_mut_ptr(), 2, module)));
    assert!(functions[2].is_null() && !functions[1].is_null());
    let (status, name) = ask!(machine, null::<c_char>(), cuFuncGetName(; functions[1]));
    ok(status);
    // SAFETY: the driver's text ends with a null byte and lives as long as the function.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"bounded");
    assert_eq!(call!(machine, cuModuleEnumerateFunctions(null_mut(), 2, module)), INVALID_VALUE);
    // Null handles have an error of their own.
    let name = ask!(machine, null::<c_char>(), cuFuncGetName(; null_mut())).0;
    assert_eq!(name, INVALID_VALUE);
    assert_eq!(ask!(machine, null_mut(), cuFuncGetModule(; null_mut())).0, INVALID_VALUE);
    let mut offset = 0;
    let param = call!(machine, cuFuncGetParamInfo(null_mut(), 0, &mut offset, null_mut()));
    assert_eq!(param, INVALID_VALUE);
}

#[test]
fn functions_that_were_only_enumerated_are_not_loaded() {
    let (machine, _) = Machine::with_primary();
    let (status, module) = ask!(machine, null_mut(), cuModuleLoadData(; TEXT.as_ptr().cast()));
    ok(status);
    let mode = ask!(machine, CUmoduleLoadingMode(0), cuModuleGetLoadingMode(;));
    assert_eq!(mode, (OK, CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING));
    let mut functions = [null_mut(); 3];
    ok(call!(machine, cuModuleEnumerateFunctions(functions.as_mut_ptr(), 3, module)));
    let is_loaded = |function| {
        let (status, state) = ask!(machine, CUfunctionLoadingState(9), cuFuncIsLoaded(; function));
        ok(status);
        state == CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED
    };
    assert_eq!(functions.map(is_loaded), [false; 3]);
    let not_loaded = CUresult::CUDA_ERROR_FUNCTION_NOT_LOADED;
    assert_eq!(attribute(&machine, functions[0], 0).0, not_loaded);
    assert_eq!(attribute(&machine, functions[1], 1), (OK, 256));
    ok(call!(machine, cuFuncLoad(functions[0])));
    assert_eq!(attribute(&machine, functions[0], 0), (OK, 1024));
    ok(launch(&machine, functions[1], 1, 1, 0));
    let (_, named) = ask!(machine, null_mut(), cuModuleGetFunction(; module, c"exact".as_ptr()));
    assert_eq!(named, functions[2]);
    assert_eq!(functions.map(is_loaded), [true; 3]);
}

#[test]
fn variables_are_memory_of_the_module() {
    let (machine, _) = Machine::with_primary();
    let library = library(&machine);
    let global = |name: &CStr| {
        let mut bytes = 0;
        let (status, address) =
            ask!(machine, 0, cuLibraryGetGlobal(; &mut bytes, library, name.as_ptr()));
        (status, address, bytes)
    };
    let (status, table, bytes) = global(c"table");
    assert_eq!((status, bytes), (OK, 48));
    assert_eq!(global(c"other").0, NOT_FOUND);
    // What has the name and is no variable.
    assert_eq!([c"nothing", c""].map(|name| global(name).0), [INVALID_VALUE; 2]);
    let (_, hidden, _) = global(c"hidden");
    let mut read = [0_u8; 4];
    ok(call!(machine, cuMemcpyDtoH(read.as_mut_ptr().cast(), hidden, 4)));
    assert_eq!(read, [7, 0, 0, 0]);
    ok(call!(machine, cuMemcpyHtoD(table, [1_u8; 48].as_ptr().cast(), 48)));
    let beyond = call!(machine, cuMemcpyHtoD(table, [1_u8; 49].as_ptr().cast(), 49));
    assert_eq!(beyond, INVALID_VALUE);
    // It is nobody's to free, and in no account.
    assert_eq!(call!(machine, cuMemFree(table)), INVALID_VALUE);
    assert_eq!((machine.sim.live().allocations, machine.sim.live().allocated_bytes), (0, 0));
    // A module that a program loads has variables of its own.
    let (_, module) = ask!(machine, null_mut(), cuModuleLoadData(; TEXT.as_ptr().cast()));
    let (status, own) =
        ask!(machine, 0, cuModuleGetGlobal(; null_mut(), module, c"table".as_ptr()));
    assert_eq!((status, own != table), (OK, true));
    let neither =
        call!(machine, cuModuleGetGlobal(null_mut(), null_mut(), module, c"table".as_ptr()));
    assert_eq!(neither, INVALID_VALUE);
    ok(call!(machine, cuModuleUnload(module)));
    assert_eq!(call!(machine, cuMemcpyDtoH(read.as_mut_ptr().cast(), own, 4)), INVALID_VALUE);
    ok(call!(machine, cuLibraryUnload(library)));
    assert_eq!(call!(machine, cuMemcpyDtoH(read.as_mut_ptr().cast(), table, 4)), INVALID_VALUE);
}

#[test]
fn a_variable_that_does_not_fit_is_out_of_memory() {
    let (machine, _) = Machine::with_primary();
    let text =
        c".version 8.0 .target sm_90 .global .b8 one[8]; .global .b8 huge[1048576][1048576];";
    let module = ask!(machine, null_mut(), cuModuleLoadData(; text.as_ptr().cast()));
    assert_eq!(module, (CUresult::CUDA_ERROR_OUT_OF_MEMORY, null_mut()));
}

#[test]
fn binaries_run_their_kernels() {
    let (machine, _) = Machine::with_primary();
    let (status, library) = load(&machine, CUBIN.as_ptr().cast());
    ok(status);
    let probe = kernel(&machine, library, c"green_ctx_probe");
    let (status, memory) = ask!(machine, 0, cuMemAlloc(; 24 * 132));
    ok(status);
    ok(machine.launch(probe, 132, null_mut(), &[memory, 1000]));
    ok(call!(machine, cuCtxSynchronize()));
    let mut record = [0_u8; 4];
    ok(call!(machine, cuMemcpyDtoH(record.as_mut_ptr().cast(), memory + 24 * 131, 4)));
    assert_eq!(u32::from_ne_bytes(record), 131);

    let other = ask!(machine, null_mut(), cuModuleLoadData(; OTHER_CUBIN.as_ptr().cast())).0;
    assert_eq!(other, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    let (status, other) = load(&machine, OTHER_CUBIN.as_ptr().cast());
    ok(status);
    let name = c"green_ctx_probe".as_ptr();
    let kernel = ask!(machine, null_mut(), cuLibraryGetKernel(; other, name)).0;
    assert_eq!(kernel, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
}

#[test]
fn fat_binaries_come_plain_and_wrapped() {
    let (machine, _) = Machine::with_primary();
    let wrapper = [0x0000_0001_4662_43b1_usize, FAT.as_ptr().addr(), 0];
    let (plain, wrapped) = (FAT.as_ptr().cast::<c_void>(), wrapper.as_ptr().cast::<c_void>());
    for image in [plain, wrapped] {
        let (status, library) = load(&machine, image);
        ok(status);
        let first = kernel(&machine, library, c"first");
        let (mut offset, mut size) = (0, 0);
        ok(call!(machine, cuKernelGetParamInfo(first, 2, &mut offset, &mut size)));
        assert_eq!((offset, size), (16, 24));
    }
    // Only libraries know the wrapper.
    let invalid = CUresult::CUDA_ERROR_INVALID_IMAGE;
    for (image, expected) in [(plain, OK), (wrapped, invalid)] {
        assert_eq!(ask!(machine, null_mut(), cuModuleLoadFatBinary(; image)).0, expected);
        assert_eq!(ask!(machine, null_mut(), cuModuleLoadData(; image)).0, expected);
    }
    let empty = [wrapper[0], 0, 0];
    assert_eq!(load(&machine, empty.as_ptr().cast()).0, INVALID_VALUE);
    // What cannot be copied for want of a length is refused at once, other damage when it is used.
    let damaged = |at: usize, with| {
        let mut image = CUBIN.to_vec();
        image[at] = with;
        let (status, library) = load(&machine, image.as_ptr().cast());
        let name = c"green_ctx_probe".as_ptr();
        (status, ask!(machine, null_mut(), cuLibraryGetKernel(; library, name)).0)
    };
    assert_eq!(damaged(60, 0).0, invalid);
    assert_eq!(damaged(18, 62), (OK, invalid));
}

#[test]
fn images_come_from_files() {
    let (machine, _) = Machine::with_primary();
    let path = std::env::temp_dir().join(format!("green-ctx-sim-{}.cubin", std::process::id()));
    std::fs::write(&path, CUBIN).expect("a temporary file");
    let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a name");
    ok(ask!(machine, null_mut(), cuModuleLoad(; name.as_ptr())).0);
    let from_file = |name: *const c_char| {
        ask!(
            machine,
            null_mut(),
            cuLibraryLoadFromFile(; name, null_mut(), null_mut(), 0, null_mut(), null_mut(), 0)
        )
    };
    let (status, library) = from_file(name.as_ptr());
    ok(status);
    kernel(&machine, library, c"green_ctx_probe");
    std::fs::write(&path, b"").expect("a temporary file");
    assert_eq!(from_file(name.as_ptr()).0, CUresult::CUDA_ERROR_INVALID_IMAGE);
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(from_file(c"/".as_ptr()).0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(from_file(c"".as_ptr()).0, INVALID_VALUE);
    let missing = CUresult::CUDA_ERROR_FILE_NOT_FOUND;
    assert_eq!(from_file(name.as_ptr()).0, missing);
    assert_eq!(ask!(machine, null_mut(), cuModuleLoad(; c"/dev/zero".as_ptr())).0, missing);
    assert_eq!(from_file(null()).0, INVALID_VALUE);
}

#[test]
fn the_compilers_options_are_answered() {
    let (machine, _) = Machine::with_primary();
    let mut log = [9_u8; 8];
    let mut options = [
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
    ];
    let number = std::ptr::without_provenance_mut::<c_void>;
    let mut values = [log.as_mut_ptr().cast(), number(8), number(0)];
    let mut load = |count| {
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        let text = TEXT.as_ptr().cast();
        ask!(machine, null_mut(), cuModuleLoadDataEx(; text, count, options, values)).0
    };
    ok(load(3));
    assert_eq!((log[0], log[1], values[1].addr(), values[2].addr()), (0, 9, 0, 0));
    options[0] = CUjit_option(9999);
    let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
    let text = TEXT.as_ptr().cast();
    let load = |options, values| {
        ask!(machine, null_mut(), cuModuleLoadDataEx(; text, 1, options, values)).0
    };
    assert_eq!(load(options, values), INVALID_VALUE);
    assert_eq!(load(null_mut(), values), INVALID_VALUE);
}

#[test]
fn what_is_set_on_a_function_goes_over_what_is_set_on_its_kernel() {
    let machine = Machine::with_devices("h200", 2);
    ok(machine.push(machine.retain()));
    let kernel = kernel(&machine, library(&machine), c"bounded");
    let (_, function) = ask!(machine, null_mut(), cuKernelGetFunction(; kernel));
    let shared = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let of_kernel = |device| ask!(machine, -9, cuKernelGetAttribute(; shared, kernel, device)).1;
    let all = || (attribute(&machine, function, 8).1, of_kernel(0), of_kernel(1));
    assert_eq!(all(), (48_896, 48_896, 48_896));
    ok(call!(machine, cuKernelSetAttribute(shared, 60_000, kernel, 0)));
    assert_eq!(all(), (60_000, 60_000, 48_896));
    ok(set(&machine, function, 8, 70_000));
    ok(call!(machine, cuKernelSetAttribute(shared, 80_000, kernel, 0)));
    assert_eq!(all(), (70_000, 80_000, 48_896));
    let no_device = call!(machine, cuKernelSetAttribute(shared, 1, kernel, 2));
    assert_eq!(no_device, CUresult::CUDA_ERROR_INVALID_DEVICE);
}

#[test]
fn attributes_have_bounds() {
    let (machine, _) = Machine::with_primary();
    let bounded = function(&machine, c"bounded");
    // Attribute, values that are taken, values that are not.
    for (number, taken, refused) in [
        (8, &[0, 49_153, 232_192][..], &[-1, 232_193][..]),
        (9, &[-1, 0, 100], &[-2, 101]),
        (11, &[0, 3, 17], &[-1]),
        (14, &[0, 1], &[]),
        (15, &[0, 2], &[-1, 3]),
        (0, &[], &[1]),
        (10, &[], &[1]),
        (16, &[], &[1]),
        (17, &[], &[1]),
        (999, &[], &[0]),
    ] {
        for &value in taken {
            ok(set(&machine, bounded, number, value));
            assert_eq!(attribute(&machine, bounded, number), (OK, value), "{number}");
        }
        for &value in refused {
            assert_eq!(set(&machine, bounded, number, value), INVALID_VALUE, "{number}, {value}");
        }
    }
    let clustered = function(&machine, c"clustered");
    assert_eq!([10, 11, 12, 13].map(|it| attribute(&machine, clustered, it).1), [1, 2, 1, 1]);
    // What the image requires can only be set to what it is.
    assert_eq!([1, 2].map(|side| set(&machine, clustered, 11, side)), [INVALID_VALUE, OK]);
    // Whether clusters may be larger is any number, of which a function says only whether it is 0.
    let kernel = kernel(&machine, library(&machine), c"nothing");
    let (_, function) = ask!(machine, null_mut(), cuKernelGetFunction(; kernel));
    let beyond = CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
    for value in [-1, 2] {
        ok(call!(machine, cuKernelSetAttribute(beyond, value, kernel, 0)));
        assert_eq!(ask!(machine, -9, cuKernelGetAttribute(; beyond, kernel, 0)), (OK, value));
        assert_eq!(attribute(&machine, function, 14), (OK, 1));
    }
    // Attributes that the driver does not know yet.
    assert_eq!([16, 17].map(|it| attribute(&machine, clustered, it)), [(INVALID_VALUE, -9); 2]);
}

#[test]
fn launches_keep_within_what_a_kernel_declares_and_is_allowed() {
    let (machine, _) = Machine::with_primary();
    let bounded = function(&machine, c"bounded");
    assert_eq!([64, 65].map(|block| launch(&machine, bounded, 1, block, 0)), [OK, INVALID_VALUE]);
    let with = |shared| launch(&machine, bounded, 1, 1, shared);
    assert_eq!([48_896, 48_897].map(with), [OK, INVALID_VALUE]);
    ok(set(&machine, bounded, 8, 200_000));
    assert_eq!([200_000, 200_001].map(with), [OK, INVALID_VALUE]);
    let exact = function(&machine, c"exact");
    assert_eq!(launch(&machine, exact, 1, 64, 0), INVALID_VALUE);
    let cluster = CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE;
    let clustered = function(&machine, c"clustered");
    assert_eq!([1, 2].map(|grid| launch(&machine, clustered, grid, 1, 0)), [cluster, OK]);
    assert_eq!(launch(&machine, function(&machine, c"open"), 2, 1, 0), cluster);
    let nothing = function(&machine, c"nothing");
    for number in [11, 12, 13] {
        ok(set(&machine, nothing, number, 2));
    }
    assert_eq!(launch(&machine, nothing, 8, 1, 0), cluster);
}
