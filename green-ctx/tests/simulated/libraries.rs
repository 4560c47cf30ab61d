//! Kernel libraries: what is accepted as PTX, and how long a library stays loaded.

use std::sync::mpsc;
use std::thread;

use green_ctx::{
    LaunchConfig, Library, StreamOptions,
    error::ErrorKind,
    graph::{CaptureMode, GraphCache},
};

use crate::common::{Outcome, partition};
use crate::{LONG, Machine, each_composing_driver, each_driver, kernels};

/// Inputs that are not PTX. The driver would take some of them for a binary format, and follow offsets past the
/// end of the text.
const OTHERS: [&str; 12] = [
    // A cubin whose header places its sections far past the end of the text.
    "\x7fELF\x02\x01\x01aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "\x7fELF",
    // CUDA Tile IR, once the text is NUL-terminated.
    "\x7fTileIR",
    "!<arch>\n.version 7.0",
    "; ModuleID = '.version 7.0'",
    "x .version 7.0 .target sm_52",
    "\u{feff}.version 7.0 .target sm_52",
    ".target sm_52 .version 7.0",
    "// .version 7.0",
    "/* .version 7.0",
    "not PTX",
    "",
];

#[test]
fn only_ptx_text_reaches_the_driver() -> Outcome {
    each_driver(|machine| {
        // Retains the primary context first, which the first library would do otherwise.
        let _primary = machine.device.primary_context()?;
        for text in OTHERS {
            let refused = machine.without_calls(|| Library::from_ptx(&machine.device, text));
            let error = refused.expect_err("it is not PTX");
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{text:?}");
            let expected = "the text is not PTX: a PTX module begins with `.version`";
            assert!(error.to_string().starts_with(expected), "{error}");
        }
        Ok(())
    })
}

#[test]
fn a_kernel_that_is_not_there_is_named() -> Outcome {
    each_driver(|machine| {
        let error = machine.kernel(LONG)?.library().kernel("attentoin").expect_err("misspelt");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        let words = "the library has no kernel named \"attentoin\"; C++ names are mangled";
        assert_eq!(error.to_string(), words);
        Ok(())
    })
}

#[test]
fn comments_and_white_space_come_before_the_version() -> Outcome {
    each_driver(|machine| {
        for before in ["", "\n", " \t\r\n", "//\n// text\r\n", "/* .entry\n **/ /**/\n//\n"] {
            let library =
                Library::from_ptx(&machine.device, &format!("{before}{}", kernels::text("work")))?;
            library.kernel("work")?;
        }
        Ok(())
    })
}

/// A graph, and everything made from it, holds references to the libraries of its kernels.
#[test]
fn a_library_stays_loaded_while_a_graph_has_its_kernels() -> Outcome {
    for cooperative in [false, true] {
        each_composing_driver(|machine| {
            let Machine { sim, device } = machine;
            let loaded = || sim.live().libraries;
            let (small, large) = (partition(device, 16)?, partition(device, 64)?);
            let stream = small.create_stream(StreamOptions::default())?;
            let kernel = kernels::plain(device, "work")?;
            let config = LaunchConfig::new(1, 32).cooperative(cooperative);
            // SAFETY: the kernel has no parameters and touches no memory.
            let launch = || unsafe { stream.launch(&kernel, config, ()) };
            let graph = stream.capture(CaptureMode::default(), launch)?;
            drop(kernel);
            assert_eq!(loaded(), 1, "the graph's library was unloaded");
            let audit = graph.audit()?;
            assert!(audit.nodes.iter().any(|node| node.kernel.as_deref() == Some("work")));
            let moved = graph.retarget(&large)?;
            let cache = GraphCache::new();
            let exec = cache.get(&graph, &large)?;
            drop((graph, cache));
            // SAFETY: the graph's kernel touches no memory.
            unsafe { stream.launch_graph(&exec) }?;
            assert_eq!(loaded(), 1);
            stream.synchronize()?;
            drop(exec);
            assert_eq!(loaded(), 1, "the copy's library was unloaded");
            drop(moved);
            assert_eq!(loaded(), 0, "the library is still loaded");
            Ok(())
        })
        .map_err(|error| format!("cooperative: {cooperative}: {error}"))?;
    }
    Ok(())
}

/// Another thread begins a capture after the launch has asked whether its stream is being captured, and before the
/// driver receives the kernel.
#[test]
fn a_capture_that_begins_during_a_launch_keeps_the_library() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let stream = partition(device, 16)?.create_stream(StreamOptions::default())?;
        // The process has captured before, as the first capture switches the notes of launches on.
        drop(stream.capture(CaptureMode::Relaxed, || Ok::<(), green_ctx::Error>(()))?);
        let kernel = kernels::plain(device, "work")?;
        let (begun, begins) = mpsc::channel();
        let (launched, launches) = mpsc::channel();
        let (captured, (ended, ends)) = (stream.clone(), mpsc::channel());
        let capture = move || {
            let graph = captured.capture(CaptureMode::Relaxed, || {
                begun.send(()).expect("the launch waits");
                launches.recv().expect("the test launches");
                Ok::<(), green_ctx::Error>(())
            });
            drop(captured);
            ended.send(graph).expect("the test waits");
        };
        sim.run_before("cuLaunchKernel", 1, move || {
            thread::spawn(capture);
            begins.recv().expect("the capture begins");
        })?;
        // SAFETY: the kernel has no parameters and touches no memory.
        unsafe { stream.launch(&kernel, LaunchConfig::new(1, 32), ()) }?;
        drop(kernel);
        launched.send(())?;
        let graph = ends.recv()??;
        assert_eq!(graph.node_count()?, 1, "the launch was captured");
        assert_eq!(sim.live().libraries, 1, "the graph's library was unloaded");
        Ok(())
    })
}

/// The driver compiles the PTX only when a kernel is looked up (recorded on an H200).
#[test]
fn text_that_is_wrong_after_its_version_is_refused() -> Outcome {
    each_driver(|machine| {
        let wrong = Library::from_ptx(&machine.device, ".version not PTX");
        let error = wrong.and_then(|library| library.kernel("any")).expect_err("not PTX");
        assert_eq!(error.kind(), ErrorKind::Driver, "{error}");
        let nul = Library::from_ptx(&machine.device, ".version 7.0\0").expect_err("a NUL");
        assert_eq!(nul.kind(), ErrorKind::InvalidRequest, "{nul}");
        Ok(())
    })
}
