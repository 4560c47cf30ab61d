//! Kernel names and parameter layouts, read from PTX text.

use std::sync::Arc;

/// One parameter of a kernel: where it lies in the parameter buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// A kernel's name and parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelInfo {
    pub(crate) name: Arc<str>,
    pub(crate) params: Vec<Param>,
}

impl KernelInfo {
    /// The size of the parameter buffer in bytes.
    pub(crate) fn param_bytes(&self) -> usize {
        self.params.last().map_or(0, |param| param.offset + param.size)
    }
}

/// What a PTX text declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ptx {
    /// The number after `sm_` in `.target`.
    pub(crate) target: u32,
    pub(crate) kernels: Vec<KernelInfo>,
}

/// The targets that PTX has (the table of `.target` in its manual); another is an error of the text,
/// as recorded.
const TARGETS: &[u32] = &[
    20, 30, 32, 35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103,
    110, 120, 121,
];

/// Reads a PTX text; `None` where it is none.
pub(crate) fn parse(text: &str) -> Option<Ptx> {
    let text = without_comments(text);
    let version = directive(&text, ".version")?;
    version.split_once('.')?.0.parse::<u32>().ok()?;
    let target = directive(&text, ".target")?.strip_prefix("sm_")?;
    let target = target.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()?;

    if !TARGETS.contains(&target) {
        return None;
    }
    let mut kernels = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find(".entry") {
        rest = &rest[at + ".entry".len()..];
        let end = rest.find(['(', '{', ';']).unwrap_or(rest.len());
        let name = rest[..end].split_whitespace().next()?;
        let mut params = Vec::new();
        if rest[end..].starts_with('(') {
            let close = rest.find(')')?;
            let mut offset = 0;
            for declaration in
                rest[end + 1..close].split(',').filter(|text| !text.trim().is_empty())
            {
                let (size, align) = layout(declaration)?;
                offset = usize::next_multiple_of(offset, align);
                params.push(Param { offset, size });
                offset += size;
            }
        }
        kernels.push(KernelInfo { name: name.into(), params });
    }
    Some(Ptx { target, kernels })
}

fn directive<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let after = &text[text.find(name)? + name.len()..];
    after.split([',', '\n', ' ', '\t', '\r']).find(|word| !word.is_empty())
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        out.push_str(&rest[..at]);
        let comment = &rest[at..];
        let end = if comment.starts_with("//") {
            comment.find('\n')
        } else {
            comment.find("*/").map(|end| end + 2)
        };
        rest = end.map_or("", |end| &comment[end..]);
        out.push(' ');
    }
    out.push_str(rest);
    out
}

/// Size and alignment of a parameter such as `.param .align 8 .b8 name[24]`.
fn layout(declaration: &str) -> Option<(usize, usize)> {
    let (declaration, count) = match declaration.split_once('[') {
        Some((before, count)) => (before, count.split(']').next()?.trim().parse().ok()?),
        None => (declaration, 1),
    };
    let mut words = declaration.split_whitespace();
    let mut element = None;
    let mut align = None;
    while let Some(word) = words.next() {
        match word {
            // After `.ptr` an alignment is that of the memory pointed to.
            ".ptr" => break,
            ".align" => align = Some(words.next()?.parse::<usize>().ok()?),
            _ => element = element.or_else(|| size_of_type(word)),
        }
    }
    let element = element?;
    let align = align.unwrap_or(element);
    (align.is_power_of_two()).then_some((element * count, align))
}

fn size_of_type(word: &str) -> Option<usize> {
    let bits = word.strip_prefix('.')?.trim_start_matches(['u', 's', 'b', 'f']);
    match bits {
        "8" => Some(1),
        "16" => Some(2),
        "32" | "16x2" => Some(4),
        "64" => Some(8),
        "128" => Some(16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_layouts_are_read() {
        let text = "
            .version 7.0 // .entry not_this()
            .target sm_52, debug
            .address_size 64
            /* .entry nor_this() */
            .visible .entry first(
                .param .u64 out,
                .param .u32 count,
                .param .f64 scale,
                .param .align 16 .b8 block[24],
                .param .u8 flag
            ) { ret; }
            .entry none() { ret; }
            .visible .entry pointer(.param .u64 .ptr .global .align 1 p, .param .u64 q) .maxntid 128, 1, 1 { ret; }
        ";
        let ptx = parse(text).expect("it is PTX");
        assert_eq!(ptx.target, 52);
        let names: Vec<&str> = ptx.kernels.iter().map(|kernel| &*kernel.name).collect();
        assert_eq!(names, ["first", "none", "pointer"]);
        let offsets: Vec<_> = ptx.kernels[0].params.iter().map(|p| (p.offset, p.size)).collect();
        assert_eq!(offsets, [(0, 8), (8, 4), (16, 8), (32, 24), (56, 1)]);
        assert_eq!(ptx.kernels[0].param_bytes(), 57);
        assert_eq!(ptx.kernels[1].param_bytes(), 0);
        assert_eq!(
            ptx.kernels[2].params,
            [Param { offset: 0, size: 8 }, Param { offset: 8, size: 8 }]
        );
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "hello",
            ".version 7.0",
            ".version x\n.target sm_52",
            ".version 7.0\n.target gpu",
            ".version 7.0\n.target sm_1234",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
