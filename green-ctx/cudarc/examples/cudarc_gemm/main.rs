//! Runs a matrix product through cuBLAS in one partition while a memory-bound addition runs in another. Both use
//! cudarc. Needs a GPU and libcublas.
//!
//! ```text
//! cargo run --release -p green-ctx-cudarc --example cudarc_gemm -- --sms 104
//! ```
//!
//! The example makes three checks. A probe kernel reports the SMs of each partition. A product waits while a kernel
//! occupies the SMs of the product's partition, but not while a kernel occupies the SMs of the other partition;
//! this shows that cuBLAS uses only the SMs of its partition. The results equal those computed on the host.

mod measure;
mod work;

use std::collections::BTreeSet;
use std::process::ExitCode;

use cudarc::driver::{CudaContext, sys::CUdevice_attribute as Attribute};
use cudarc::nvrtc::Ptx;
use green_ctx::verify::{self, PartitionReport, Report};
use green_ctx::{Driver, SplitRequest, StreamOptions, context::Context, error::ErrorKind};
use green_ctx_cudarc::{CudarcStream, device_of};
use serde_json::{Value, json};

use crate::measure::{Confinement, Lane, Times};
use crate::work::{Addition, Hold, Product, Result};

const USAGE: &str = "\
Runs a matrix product in one partition while an addition runs in another.

  --sms N      the SMs of the product (default: three quarters); the addition gets the rest
  --size N     the rows and columns of the matrices (default: 4096)
  --device N   the device (default: 0)
  --json       print one JSON object instead of text

Exit status:
  0  all results are right, and all work ran on its own SMs
  1  a result was wrong, or work ran on SMs of the other partition
  2  wrong usage
  3  the driver, the device or libcublas is missing or failed";

/// The command line.
struct Options {
    sms: Option<u32>,
    size: usize,
    device: u32,
    json: bool,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("error: {wrong}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let findings = match prepare(&options).and_then(|driver| run(&driver, &options)) {
        Ok(findings) => findings,
        Err(error) => {
            let status = status(&*error);
            match options.json {
                true => println!("{}", json!({ "error": error.to_string(), "status": status })),
                false => eprintln!("error: {error}"),
            }
            return ExitCode::from(status);
        }
    };
    match options.json {
        true => println!("{}", findings.to_json()),
        false => findings.print(),
    }
    ExitCode::from(u8::from(!findings.ok()))
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>> {
    let mut options = Options { sms: None, size: 4096, device: 0, json: false };
    while let Some(argument) = arguments.next() {
        let mut number = |range: std::ops::RangeInclusive<u32>| -> Result<u32> {
            let text = arguments.next().ok_or_else(|| format!("{argument} needs a number"))?;
            let number = text.parse().ok().filter(|number| range.contains(number));
            number.ok_or_else(|| {
                let (from, to) = range.into_inner();
                format!("{argument} needs a number from {from} to {to}, not {text}").into()
            })
        };
        match argument.as_str() {
            "--sms" => options.sms = Some(number(1..=10_000)?),
            // Sums of up to 16384 products of small integers are exact in f32.
            "--size" => options.size = number(64..=16_384)?.next_multiple_of(8) as usize,
            "--device" => options.device = number(0..=1000)?,
            "--json" => options.json = true,
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("unknown argument {argument}").into()),
        }
    }
    Ok(Some(options))
}

/// Returns the exit status for an error: 2 if different arguments can help, otherwise 3.
fn status(error: &(dyn std::error::Error + Send + Sync + 'static)) -> u8 {
    match error.downcast_ref::<green_ctx::Error>().map(green_ctx::Error::kind) {
        Some(ErrorKind::InvalidRequest | ErrorKind::Unavailable) => 2,
        _ => 3,
    }
}

/// Checks that the driver and the libraries exist. cudarc panics if a library is missing, so this check must come
/// before every other use of cudarc.
fn prepare(options: &Options) -> Result<Driver> {
    let driver = Driver::load().map_err(|error| match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    })?;
    driver.device(options.device)?;
    // SAFETY: loading the driver library runs only the library's own initialisation code.
    let found = unsafe { cudarc::driver::sys::is_culib_present() };
    if !found {
        return Err("cudarc cannot find libcuda.so; add its folder to LD_LIBRARY_PATH".into());
    }
    // SAFETY: loading cuBLAS runs only the library's own initialisation code.
    let found = unsafe { cudarc::cublas::sys::is_culib_present() };
    if !found {
        return Err("libcublas.so of CUDA 12 or 13 is not on the library path; add its folder to \
                    LD_LIBRARY_PATH. In NVIDIA's Python packages the folder is \
                    site-packages/nvidia/cublas/lib or site-packages/nvidia/cu13/lib"
            .into());
    }
    Ok(driver)
}

/// The results of the example.
struct Findings {
    report: Report,
    size: usize,
    /// The floating-point operations of one product, and the bytes that one addition reads and writes.
    amounts: (f64, f64),
    /// The times in partitions: each kind of work alone, then both at the same time.
    apart: (Times, Times),
    /// The times on two streams that share all SMs: each kind of work alone, then both at the same time.
    shared: (Times, Times),
    addition_sms: BTreeSet<u32>,
    confinement: Confinement,
    product_is_right: bool,
    addition_is_right: bool,
}

fn run(driver: &Driver, options: &Options) -> Result<Findings> {
    let cuda = CudaContext::new(options.device as usize)?;
    let device = device_of(driver, &cuda)?;
    let sms = device.sm_count()?;
    let product_sms = options.sms.unwrap_or(sms / 4 * 3);
    let request = SplitRequest::new().group("product", product_sms).rest("addition");
    let split = device.resources().sm()?.split(request)?;
    let contexts: Vec<Context> = split
        .groups
        .into_iter()
        .chain(split.remainder)
        .map(|group| device.create_context(group))
        .collect::<std::result::Result<_, _>>()?;
    let [products, additions] = contexts.as_slice() else {
        let all = format!("a product on {product_sms} SMs leaves none of {sms}; lower --sms");
        return Err(green_ctx::Error::InvalidRequest(all).into());
    };
    let report = verify::contexts(&contexts, verify::DEFAULT_STAY)?;

    let lane = |context: &Context| -> Result<(CudarcStream, Lane)> {
        let stream = CudarcStream::new(&context.create_stream(StreamOptions::default())?, &cuda)?;
        let lane = Lane { stream: stream.cudarc(), sm_count: context.sm_count()? };
        Ok((stream, lane))
    };
    // The first stream of each partition runs its work. The second one runs the kernel that holds SMs.
    let ((_first, product_lane), (_second, addition_lane)) = (lane(products)?, lane(additions)?);
    let ((_third, product_side), (_fourth, addition_side)) = (lane(products)?, lane(additions)?);

    let module = cuda.load_module(Ptx::from_src(work::PTX))?;
    let mut product = Product::new(&product_lane.stream, options.size)?;
    let mut addition = Addition::new(&addition_lane.stream, &module)?;
    let threads = cuda
        .attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)
        .map(|threads| threads.unsigned_abs())?;
    let mut hold = Hold::new(&addition_side.stream, &module, threads)?;

    let blas = work::blas(&product_lane.stream, Some(product_lane.sm_count))?;
    let apart =
        measure::both((&mut product, &blas, &product_lane), (&mut addition, &addition_lane))?;
    let mut product_is_right = product.take(&product_lane.stream)?;
    let addition_sms = addition.take_sms(&addition_lane.stream)?;
    let confinement = measure::confinement(
        (&mut product, &blas, &product_lane),
        apart.0.product,
        &mut hold,
        (&product_side, &addition_side),
    )?;
    product_is_right &= product.take(&product_lane.stream)?;

    // The same without partitions, on cudarc's own streams.
    let whole = || -> Result<Lane> { Ok(Lane { stream: cuda.new_stream()?, sm_count: sms }) };
    let (product_lane, addition_lane) = (whole()?, whole()?);
    let blas = work::blas(&product_lane.stream, None)?;
    let shared =
        measure::both((&mut product, &blas, &product_lane), (&mut addition, &addition_lane))?;
    product_is_right &= product.take(&product_lane.stream)?;
    Ok(Findings {
        report,
        size: options.size,
        amounts: (product.operations(), addition.bytes()),
        apart,
        shared,
        addition_sms,
        confinement,
        product_is_right,
        addition_is_right: addition.is_right(&addition_lane.stream)?,
    })
}

impl Findings {
    /// Returns whether the addition's own kernel ran on exactly the SMs that the probe found in its partition.
    fn addition_is_confined(&self) -> bool {
        self.report.partitions.get(1).map(PartitionReport::observed_sms).as_ref()
            == Some(&self.addition_sms)
    }

    fn ok(&self) -> bool {
        self.report.ok()
            && self.addition_is_confined()
            && self.confinement.holds()
            && self.product_is_right
            && self.addition_is_right
    }

    fn print(&self) {
        let Findings { report, size, confinement, .. } = self;
        let yes = |yes: bool| if yes { "yes" } else { "NO" };
        println!("{}, {}", report.device_name, report.driver);
        for partition in &report.partitions {
            let seen = ranges(&partition.observed_sms());
            println!("{:<9} {:>4} SMs: {seen}", partition.name, partition.sm_count);
        }
        println!("partitions disjoint and complete (probe)     {}", yes(report.ok()));
        println!(
            "addition on its SMs only (its own kernel)    {}",
            yes(self.addition_is_confined())
        );
        println!(
            "product waits for its SMs only               {}: {:.1} ms while its own were held for \
             {:.0} ms, {:.1} ms while the others were",
            yes(confinement.holds()),
            confinement.own,
            confinement.hold,
            confinement.other
        );
        println!("product equals the host's (a sample, exact)  {}", yes(self.product_is_right));
        println!("addition equals the host's (all, exact)      {}", yes(self.addition_is_right));
        println!();
        println!("{:<44}{:>28}{:>28}", "", "alone", "with the other");
        let sms = |index: usize| report.partitions.get(index).map_or(0, |part| part.sm_count);
        for (name, product_sms, addition_sms, times) in [
            ("partitions", sms(0), sms(1), self.apart),
            ("all SMs shared", report.sm_count, report.sm_count, self.shared),
        ] {
            let (alone, beside) = times;
            let work = format!("{name}: product {size}², {product_sms} SMs");
            let rate = self.amounts.0 / 1e9;
            println!("{work:<44}{}", row(alone.product, beside.product, rate, "TFLOP/s"));
            let work = format!("{name}: addition, {addition_sms} SMs");
            let rate = self.amounts.1 / 1e6;
            println!("{work:<44}{}", row(alone.addition, beside.addition, rate, "GB/s"));
        }
    }

    fn to_json(&self) -> Value {
        let times = |(alone, beside): (Times, Times)| {
            json!({
                "product": { "alone_ms": alone.product, "beside_ms": beside.product },
                "addition": { "alone_ms": alone.addition, "beside_ms": beside.addition },
            })
        };
        let partition = |partition: &PartitionReport| {
            json!({
                "name": partition.name,
                "sm_count": partition.sm_count,
                "sms": partition.observed_sms(),
            })
        };
        let partitions: Vec<Value> = self.report.partitions.iter().map(partition).collect();
        json!({
            "ok": self.ok(),
            "driver": self.report.driver.to_string(),
            "device": self.report.device_name,
            "sm_count": self.report.sm_count,
            "partitions": partitions,
            "disjoint": self.report.disjoint(),
            "addition_sms": self.addition_sms,
            "confinement": {
                "ok": self.confinement.holds(),
                "hold_ms": self.confinement.hold,
                "own_ms": self.confinement.own,
                "other_ms": self.confinement.other,
            },
            "results": { "product": self.product_is_right, "addition": self.addition_is_right },
            "size": self.size,
            "operations_per_product": self.amounts.0,
            "bytes_per_addition": self.amounts.1,
            "partitioned": times(self.apart),
            "shared": times(self.shared),
        })
    }
}

/// Formats two times in milliseconds, each with its rate. `rate` is the rate, in `unit`, of work that takes one
/// millisecond.
fn row(alone: f64, beside: f64, rate: f64, unit: &str) -> String {
    let cell = |ms: f64| format!("{ms:8.3} ms {:7.0} {unit:<7}", rate / ms);
    format!("{:>28}{:>28}", cell(alone), cell(beside))
}

/// Formats SM ids as ranges.
fn ranges(sms: &BTreeSet<u32>) -> String {
    let starts = sms.iter().filter(|&&sm| sm == 0 || !sms.contains(&(sm - 1)));
    let range = |&start: &u32| match (start..).find(|sm| !sms.contains(&(sm + 1))) {
        Some(end) if end > start => format!("{start}-{end}"),
        _ => start.to_string(),
    };
    starts.map(range).collect::<Vec<_>>().join(", ")
}
