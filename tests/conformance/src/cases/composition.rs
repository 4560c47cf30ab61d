//! Contexts of several units, nested splits, and the SMs that a kernel really runs on.

use green_ctx_sys::CUdevResource;
use serde_json::Value;

use super::Case;
use crate::answer::{Answer, Failure, Outcome};
use crate::gpu::{DEFAULT_STREAM, Gpu, SM, Split, bytes, sm};

/// The number of units that a split of a whole H200 gives: 15 of 8 SMs, or 66 of 2.
const COARSE: usize = 15;
const FINE: usize = 66;

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = (0..COARSE).map(|unit| of_units(&[unit])).collect();
    cases.push(built("composition/remainder-12", |gpu| Ok(vec![coarse(gpu)?.remainder])));
    cases.push(of_units(&[0, 1, 2]));
    cases.push(of_units(&[0, 7, 14]));
    cases.push(of_units(&[2, 1, 0]));
    cases.push(built("composition/units-3-to-14-and-remainder", |gpu| {
        let split = coarse(gpu)?;
        let mut resources = split.groups[3..].to_vec();
        resources.push(split.remainder);
        Ok(resources)
    }));
    cases.push(built("composition/all-units-and-remainder", |gpu| {
        let mut split = coarse(gpu)?;
        split.groups.push(split.remainder);
        Ok(split.groups)
    }));
    cases.push(built("composition/direct-24", |gpu| Ok(pair(gpu, 24)?.groups)));
    cases.push(built("composition/direct-remainder-108", |gpu| Ok(vec![pair(gpu, 24)?.remainder])));
    cases.push(built("composition/whole-device", |gpu| Ok(vec![gpu.device_resource()?])));
    cases.extend((1..=16).map(|units| direct(units * 8)));
    cases.push(direct(132));
    cases.extend([1, 4].map(|groups| direct_of(0, groups, 8)));
    for min in [16, 24, 32, 40, 48] {
        // The case above has the maximum number of groups.
        let most = 132 / min;
        cases.extend((1..most).map(|groups| direct_of(0, groups, min)));
    }
    for (min, groups) in [(2, 1), (2, 4), (4, 1), (4, 2), (8, 1), (8, 2), (16, 1), (16, 2), (64, 1)]
    {
        cases.push(direct_of(1, groups, min));
    }
    for (parent, min) in [(16, 8), (48, 8), (64, 8), (64, 16), (64, 32), (104, 24), (132, 8)] {
        cases.push(nested_in(parent, min));
    }
    cases.extend((0..FINE).map(|unit| of_fine_units(&[unit])));
    cases.push(of_fine_units(&[0, 1, 2]));
    cases.push(of_fine_units(&[0, 4, 8, 12, 16, 20, 24, 28]));
    cases.push(of_fine_units(&[0, 8, 16, 24, 31, 32, 40, 65]));
    cases.extend([4, 6, 8, 12, 16, 32, 64].map(direct_fine));
    cases.extend(mixed());
    cases.extend(nested());
    cases
}

/// Cases with combinations that overlap, mix granularities or come from several splits.
fn mixed() -> Vec<Case> {
    vec![
        built("composition/fine-0-and-unit-5", |gpu| {
            Ok(vec![fine(gpu)?.groups[0], coarse(gpu)?.groups[5]])
        }),
        built("composition/fine-0-and-unit-0", |gpu| {
            Ok(vec![fine(gpu)?.groups[0], coarse(gpu)?.groups[0]])
        }),
        built("composition/same-unit-twice", |gpu| Ok(vec![coarse(gpu)?.groups[0]; 2])),
        built("composition/same-unit-of-two-splits", |gpu| {
            Ok(vec![coarse(gpu)?.groups[0], coarse(gpu)?.groups[0]])
        }),
        built("composition/units-of-two-equal-splits", |gpu| {
            Ok(vec![coarse(gpu)?.groups[0], coarse(gpu)?.groups[1]])
        }),
        built("composition/overlap-of-two-splits", |gpu| {
            Ok(vec![coarse(gpu)?.groups[0], two_of_16(gpu)?.groups[0]])
        }),
        built("composition/disjoint-of-two-splits", |gpu| {
            Ok(vec![coarse(gpu)?.groups[0], two_of_16(gpu)?.groups[1]])
        }),
        built("composition/unit-3-and-second-16", |gpu| {
            Ok(vec![coarse(gpu)?.groups[3], gpu.split_device(0, 16)?.groups[1]])
        }),
        built("composition/two-siblings-of-32", |gpu| {
            Ok(gpu.split(&gpu.device_resource()?, 0, 2, 32)?.must()?.groups)
        }),
        built("composition/32-and-its-remainder-68", |gpu| {
            let split = gpu.split(&gpu.device_resource()?, 0, 2, 32)?.must()?;
            Ok(vec![split.groups[0], split.remainder])
        }),
        Case::new("composition/two-contexts-of-one-group", |gpu, answer| {
            let unit = coarse(gpu)?.groups[3];
            let (first, second) = (gpu.green(&[unit])?, gpu.green(&[unit])?);
            answer.add("first", gpu.sms_of(gpu.stream_of(first)?)?);
            answer.add("second", gpu.sms_of(gpu.stream_of(second)?)?);
            Ok(())
        }),
        Case::new("composition/group-64-and-remainder-68", |gpu, answer| {
            let split = pair(gpu, 64)?;
            let group = gpu.sms_of(gpu.stream_of(gpu.green(&split.groups)?)?)?;
            let rest = gpu.sms_of(gpu.stream_of(gpu.green(&[split.remainder])?)?)?;
            answer.add("group", group.len());
            answer.add("remainder", rest.len());
            answer.add("shared", group.iter().filter(|id| rest.contains(id)).count());
            answer.add("primary", gpu.sms_of(gpu.stream()?)?.len());
            Ok(())
        }),
    ]
}

/// Cases with splits of a green context's resource, and combinations of their groups.
fn nested() -> Vec<Case> {
    vec![
        Case::new("composition/nested-in-48", |gpu, answer| {
            let split = nested_in_48(gpu)?;
            answer.add("groups", split.count);
            answer.add("each", split.each());
            answer.add("remainder", split.rest());
            Ok(())
        }),
        built("composition/nested-in-48-child-0", |gpu| Ok(vec![nested_in_48(gpu)?.groups[0]])),
        built("composition/nested-in-48-child-1", |gpu| Ok(vec![nested_in_48(gpu)?.groups[1]])),
        built("composition/nested-in-48-remainder", |gpu| Ok(vec![nested_in_48(gpu)?.remainder])),
        built("composition/nested-in-48-both-children", |gpu| Ok(nested_in_48(gpu)?.groups)),
        built("composition/nested-child-and-device-unit", |gpu| {
            Ok(vec![nested_in_48(gpu)?.groups[0], coarse(gpu)?.groups[14]])
        }),
        built("composition/fine-in-unit-0-first", |gpu| Ok(vec![fine_in(gpu, 0)?.groups[0]])),
        built("composition/fine-in-unit-0-second", |gpu| Ok(vec![fine_in(gpu, 0)?.groups[1]])),
        built("composition/fine-in-unit-0-third", |gpu| Ok(vec![fine_in(gpu, 0)?.groups[2]])),
        built("composition/fine-in-unit-0-fourth", |gpu| Ok(vec![fine_in(gpu, 0)?.groups[3]])),
        built("composition/fine-in-unit-0-two", |gpu| Ok(fine_in(gpu, 0)?.groups[..2].to_vec())),
        built("composition/fine-of-two-parents", |gpu| {
            Ok(vec![fine_in(gpu, 0)?.groups[0], fine_in(gpu, 1)?.groups[0]])
        }),
        built("composition/fine-in-unit-0-and-unit-5", |gpu| {
            Ok(vec![fine_in(gpu, 0)?.groups[0], coarse(gpu)?.groups[5]])
        }),
        Case::new("composition/fine-in-units-0-and-1", |gpu, answer| {
            for unit in [0, 1] {
                let split = fine_in(gpu, unit)?;
                answer.add(format!("unit {unit} groups"), split.count);
                answer.add(format!("unit {unit} each"), split.each());
                answer.add(format!("unit {unit} remainder"), split.rest());
            }
            Ok(())
        }),
        built("composition/resource-of-a-green-context", |gpu| {
            let green = gpu.green(&coarse(gpu)?.groups[..3])?;
            Ok(vec![gpu.cuGreenCtxGetDevResource(green, SM)?.must()?])
        }),
        built("composition/resources-of-two-green-contexts", |gpu| {
            let split = coarse(gpu)?;
            let (a, b) = (gpu.green(&split.groups[..1])?, gpu.green(&split.groups[1..2])?);
            let of = |green| gpu.cuGreenCtxGetDevResource(green, SM)?.must();
            Ok(vec![of(a)?, of(b)?])
        }),
        built("composition/nested-child-of-two-equal-splits", |gpu| {
            let (first, second) = twice_in_48(gpu)?;
            Ok(vec![first.groups[0], second.groups[1]])
        }),
        Case::new("composition/nested-equal-splits", |gpu, answer| {
            let (first, second) = twice_in_48(gpu)?;
            let equal = first.groups.iter().zip(&second.groups).all(|(a, b)| bytes(a) == bytes(b));
            answer.add("equal", equal);
            Ok(())
        }),
        Case::new("composition/nested-in-composed-24", |gpu, answer| {
            let split = coarse(gpu)?;
            let units = [split.groups[0], split.groups[7], split.groups[14]];
            let parent = gpu.green(&units)?;
            let own = gpu.cuGreenCtxGetDevResource(parent, SM)?.must()?;
            let children = gpu.split(&own, 0, 3, 8)?;
            answer.add("split", children.status);
            answer.add("groups", children.count);
            answer.add("remainder", children.rest());
            run_groups(gpu, answer, &children.must()?)
        }),
    ]
}

/// A case with a context of units of 8 SMs.
fn of_units(units: &[usize]) -> Case {
    let units = units.to_vec();
    let name = units.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
    built_with(format!("composition/unit-{name}"), move |gpu| {
        let split = coarse(gpu)?;
        units.iter().map(|unit| pick(&split, *unit)).collect()
    })
}

/// A case with a context of units of 2 SMs.
fn of_fine_units(units: &[usize]) -> Case {
    let units = units.to_vec();
    let name = units.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
    built_with(format!("composition/fine-{name}"), move |gpu| {
        let split = fine(gpu)?;
        units.iter().map(|unit| pick(&split, *unit)).collect()
    })
}

/// A case with each group of a split of the device, and the remainder.
fn direct(min: u32) -> Case {
    Case::new(format!("composition/split-{min}"), move |gpu, answer| {
        run_groups(gpu, answer, &gpu.split_device(0, min)?)
    })
}

/// A case with fewer groups than possible: the number of requested groups determines which units go together.
fn direct_of(flags: u32, groups: u32, min: u32) -> Case {
    let fine = if flags == 1 { "fine-" } else { "" };
    Case::new(format!("composition/{fine}split-{groups}x{min}"), move |gpu, answer| {
        let split = gpu.split(&gpu.device_resource()?, flags, groups, min)?.must()?;
        run_groups(gpu, answer, &split)
    })
}

/// A case with each group of a split of a green context of `parent` SMs.
fn nested_in(parent: u32, min: u32) -> Case {
    Case::new(format!("composition/nested-{parent}-by-{min}"), move |gpu, answer| {
        let own = gpu.cuGreenCtxGetDevResource(gpu.green_with(parent)?, SM)?.must()?;
        run_groups(gpu, answer, &gpu.split(&own, 0, 64, min)?.must()?)
    })
}

/// Like [`direct`], in steps of 2 SMs.
fn direct_fine(min: u32) -> Case {
    Case::new(format!("composition/fine-split-{min}"), move |gpu, answer| {
        run_groups(gpu, answer, &gpu.split_device(1, min)?)
    })
}

fn built(
    name: &str,
    resources: impl Fn(&Gpu) -> Result<Vec<CUdevResource>, Failure> + 'static,
) -> Case {
    built_with(name.to_owned(), resources)
}

/// A case with a context of some resources: what it reports, where it runs, and how many clusters it holds.
fn built_with(
    name: String,
    resources: impl Fn(&Gpu) -> Result<Vec<CUdevResource>, Failure> + 'static,
) -> Case {
    Case::new(name, move |gpu, answer| {
        let mut resources = resources(gpu)?;
        let count = u32::try_from(resources.len()).unwrap_or(u32::MAX);
        let desc = gpu.cuDevResourceGenerateDesc(resources.as_mut_ptr(), count)?;
        answer.add("describe", desc);
        if !desc.is_ok() {
            return Ok(());
        }
        let green = gpu.cuGreenCtxCreate(desc.out, gpu.device, DEFAULT_STREAM)?;
        answer.add("create", green);
        let green = green.must()?;
        answer.add("reported", sm(&gpu.cuGreenCtxGetDevResource(green, SM)?.must()?).smCount);
        let stream = gpu.stream_of(green)?;
        let sms = gpu.sms_of(stream)?;
        answer.add("ran_on", sms.len());
        answer.add("sms", sms);
        let mut clusters: Vec<Value> = Vec::new();
        for size in [2, 4, 8] {
            clusters.push(gpu.clusters(gpu.probe()?, stream, size)?.1.into());
        }
        answer.add("clusters_of_2_4_8", clusters);
        gpu.cuStreamDestroy(stream)?.must()?;
        gpu.cuGreenCtxDestroy(green)?.must()
    })
}

/// Adds the SMs of each group and of the remainder.
fn run_groups(gpu: &Gpu, answer: &mut Answer<'_>, split: &Split) -> Outcome {
    let mut run = |name: String, resource: &CUdevResource| -> Outcome {
        let green = gpu.green(&[*resource])?;
        let stream = gpu.stream_of(green)?;
        answer.add(name, gpu.sms_of(stream)?);
        gpu.cuStreamDestroy(stream)?.must()?;
        gpu.cuGreenCtxDestroy(green)?.must()
    };
    for (index, group) in split.groups.iter().enumerate() {
        run(format!("group {index}"), group)?;
    }
    if split.remainder.type_ == SM {
        run("remainder".to_owned(), &split.remainder)?;
    }
    Ok(())
}

fn pick(split: &Split, unit: usize) -> Result<CUdevResource, Failure> {
    let group = split.groups.get(unit).copied();
    group.ok_or_else(|| Failure::Other(format!("the device has no unit {unit}")))
}

/// Splits the device into units of 8 SMs. The cases that name a unit need 15 of them.
fn coarse(gpu: &Gpu) -> Result<Split, Failure> {
    enough(gpu.split_device(0, 8)?, COARSE)
}

/// Splits the device into units of 2 SMs.
fn fine(gpu: &Gpu) -> Result<Split, Failure> {
    enough(gpu.split_device(1, 2)?, FINE)
}

/// Splits the device into one group of `min` SMs and the remainder.
fn pair(gpu: &Gpu, min: u32) -> Result<Split, Failure> {
    enough(gpu.split(&gpu.device_resource()?, 0, 1, min)?.must()?, 1)
}

/// Splits the device into two groups of 16 SMs and the remainder.
fn two_of_16(gpu: &Gpu) -> Result<Split, Failure> {
    enough(gpu.split(&gpu.device_resource()?, 0, 2, 16)?.must()?, 2)
}

/// Creates a green context of 48 SMs, and splits its resource into two groups of 16 SMs and the remainder.
fn nested_in_48(gpu: &Gpu) -> Result<Split, Failure> {
    let own = gpu.cuGreenCtxGetDevResource(gpu.green_with(48)?, SM)?.must()?;
    enough(gpu.split(&own, 0, 2, 16)?.must()?, 2)
}

/// Creates a green context of 48 SMs, and splits its resource twice in the same way.
fn twice_in_48(gpu: &Gpu) -> Result<(Split, Split), Failure> {
    let own = gpu.cuGreenCtxGetDevResource(gpu.green_with(48)?, SM)?.must()?;
    let split = || enough(gpu.split(&own, 0, 2, 16)?.must()?, 2);
    Ok((split()?, split()?))
}

/// Creates a green context of one unit of 8 SMs, and splits its resource into units of 2.
fn fine_in(gpu: &Gpu, unit: usize) -> Result<Split, Failure> {
    let parent = gpu.green(&[pick(&coarse(gpu)?, unit)?])?;
    let own = gpu.cuGreenCtxGetDevResource(parent, SM)?.must()?;
    enough(gpu.split(&own, 1, 8, 2)?.must()?, 4)
}

fn enough(split: Split, groups: usize) -> Result<Split, Failure> {
    if split.groups.len() >= groups {
        return Ok(split);
    }
    let found = split.groups.len();
    Err(Failure::Other(format!("the split gave {found} groups, the case needs {groups}")))
}
