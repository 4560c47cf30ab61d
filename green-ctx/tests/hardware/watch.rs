//! A watch finds the work that runs outside its partition.

use green_ctx::{
    Error, Graph, Kernel, LaunchConfig, Stream,
    context::Context,
    graph::CaptureMode,
    watch::{EscapeKind, Watch},
};

use crate::common::{Outcome, device, kernels, partition, stream};

fn launch(stream: &Stream, kernel: &Kernel) -> green_ctx::Result<()> {
    // SAFETY: the kernel has no parameters and touches no memory.
    unsafe { stream.launch(kernel, LaunchConfig::new(8, 32), ()) }
}

fn captured(stream: &Stream, kernel: &Kernel) -> green_ctx::Result<Graph> {
    stream.capture(CaptureMode::default(), || launch(stream, kernel))
}

/// A program uses a partition's streams and graphs, and four that belong elsewhere. The watch names exactly
/// those four.
#[test]
fn four_planted_escapes_are_named_and_nothing_else() -> Outcome {
    let device = device()?;
    let (ours, other) = (partition(&device, 16)?, partition(&device, 32)?);
    let primary = device.primary_context()?;
    let kernel = kernels::plain(&device, "step")?;
    let inside = [stream(&ours)?, stream(&ours)?];
    let (pooled, others) = (stream(&primary)?, stream(&other)?);
    let graph = captured(&inside[0], &kernel)?;
    let elsewhere = captured(&pooled, &kernel)?;

    let watch = Watch::new(&ours);
    assert!(watch.context("the partition", &ours)?);
    assert!(watch.stream("attention", &inside[0])?);
    assert!(!watch.stream("sampling", &pooled)?);
    assert!(watch.stream("projection", &inside[1])?);
    assert!(!watch.stream("prefetch", &others)?);
    assert!(watch.graph("decode step", &graph)?);
    assert!(!watch.graph("warm-up step", &elsewhere)?);
    // A library that runs on "the default stream" gets this token.
    let null = green_ctx::stream::DefaultStream::Null.as_raw();
    {
        let _current = primary.make_current()?;
        // SAFETY: null denotes the default stream, which always exists.
        assert!(!unsafe { watch.raw_stream("a library", null) }?);
    }
    {
        // While the partition is current, the token denotes the partition's default stream.
        let _current = ours.make_current()?;
        // SAFETY: as above.
        assert!(unsafe { watch.raw_stream("a careful library", null) }?);
    }
    assert!(watch.graph("moved step", &elsewhere.retarget(&ours)?)?);

    let escapes = watch.escapes();
    let named: Vec<_> = escapes.iter().map(|escape| escape.name.as_str()).collect();
    assert_eq!(named, ["sampling", "prefetch", "warm-up step", "a library"]);
    let all = device.sm_count()?;
    let counts: Vec<_> = escapes.iter().flat_map(|e| &e.location).map(|p| p.sm_count).collect();
    assert_eq!(counts, [all, 32, all, all]);
    assert_eq!(escapes[0].kind, EscapeKind::PrimaryStream);
    assert_eq!(escapes[1].kind, EscapeKind::OtherStream);
    let EscapeKind::Graph { nodes } = &escapes[2].kind else { return Err("a graph".into()) };
    assert_eq!(nodes.len(), 1);
    assert_eq!(escapes[3].kind, EscapeKind::DefaultStream);
    Ok(())
}

#[test]
fn a_section_s_launches_are_watched() -> Outcome {
    let device = device()?;
    let (ours, other) = (partition(&device, 16)?, partition(&device, 32)?);
    let kernel = kernels::plain(&device, "step")?;
    let (inside, outside) = (stream(&ours)?, stream(&other)?);
    let exec = captured(&outside, &kernel)?.instantiate()?;
    let watch = Watch::new(&ours);
    {
        let _watching = watch.launches();
        launch(&inside, &kernel)?;
        launch(&outside, &kernel)?;
        // SAFETY: the graph's kernel has no parameters and touches no memory.
        unsafe { inside.launch_graph(&exec) }?;
        // Launches of other threads are outside the section.
        std::thread::scope(|scope| scope.spawn(|| launch(&outside, &kernel)).join())
            .map_err(|_| "a thread panicked")??;
    }
    launch(&outside, &kernel)?;
    let said: Vec<_> = watch.escapes().iter().map(ToString::to_string).collect();
    let (ours, other) = (name(&ours)?, name(&other)?);
    assert_eq!(
        said,
        [
            format!(
                "step escapes {ours}: a stream of another partition, 32 SMs of {other} (device 0)"
            ),
            format!(
                "a graph escapes {ours}: a graph with nodes elsewhere, 32 SMs of {other} (device 0)"
            ),
        ]
    );
    device.primary_context()?.synchronize()?;
    Ok(())
}

fn name(context: &Context) -> Result<String, Box<dyn std::error::Error>> {
    Ok(context.group().ok_or("a partition")?.name().to_owned())
}

#[test]
fn checked_launches_are_refused_outside_of_partitions() -> Outcome {
    let device = device()?;
    let driver = device.driver().clone();
    let (ours, other) = (partition(&device, 16)?, partition(&device, 32)?);
    let kernel = kernels::plain(&device, "step")?;
    let (inside, pooled) = (stream(&ours)?, stream(&device.primary_context()?)?);
    let exec = captured(&stream(&other)?, &kernel)?.instantiate()?;
    driver.check_launches(true);
    let checked = || -> Outcome {
        launch(&inside, &kernel)?;
        let error = launch(&pooled, &kernel).expect_err("all SMs");
        assert!(matches!(&error, Error::Escapes(_)), "{error}");
        assert!(error.to_string().starts_with("step escapes every partition"), "{error}");
        // SAFETY: the graph's kernel has no parameters and touches no memory.
        let error = unsafe { inside.launch_graph(&exec) }.expect_err("another partition's");
        assert!(matches!(&error, Error::Escapes(escape) if escape.kind == EscapeKind::GraphLaunch));
        Ok(())
    };
    let outcome = checked();
    driver.check_launches(false);
    outcome?;
    launch(&pooled, &kernel)?;
    device.primary_context()?.synchronize()?;
    Ok(())
}

/// The procedure of the manual: capture on any stream, move the graph, and launch it in the partition.
#[test]
fn a_captured_launch_is_checked_when_the_graph_is_launched() -> Outcome {
    let device = device()?;
    let driver = device.driver().clone();
    let ours = partition(&device, 16)?;
    let kernel = kernels::plain(&device, "step")?;
    let (inside, pooled) = (stream(&ours)?, stream(&device.primary_context()?)?);
    let watch = Watch::new(&ours);
    driver.check_launches(true);
    let checked = || -> Outcome {
        let _watching = watch.launches();
        let graph = captured(&pooled, &kernel)?;
        assert_eq!(watch.escapes(), []);
        let (moved, exec) = (graph.retarget(&ours)?.instantiate()?, graph.instantiate()?);
        // SAFETY: the graph's kernel has no parameters and touches no memory.
        unsafe { inside.launch_graph(&moved) }?;
        assert_eq!(watch.escapes(), []);
        // SAFETY: as above.
        let error = unsafe { inside.launch_graph(&exec) }.expect_err("all SMs");
        assert!(matches!(&error, Error::Escapes(escape) if escape.kind == EscapeKind::GraphLaunch));
        assert_eq!(watch.escapes().len(), 1);
        Ok(())
    };
    let outcome = checked();
    driver.check_launches(false);
    outcome?;
    device.primary_context()?.synchronize()?;
    Ok(())
}
