//! What a PTX text declares: its kernels and its variables.
//!
//! The grammar is that of NVIDIA's manual of PTX. The instructions of a kernel are passed over, so
//! a mistake in them is not seen.

use std::collections::HashMap;

use super::tokens::{Tokens, is_name, number};
use super::{KernelInfo, Param, Variable};

/// What a PTX text declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ptx {
    /// The version of the language, 83 for 8.3.
    pub(super) version: u32,
    pub(super) target: PtxTarget,
    pub(super) kernels: Vec<KernelInfo>,
    pub(super) variables: Vec<Variable>,
}

/// The architecture that a text is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PtxTarget {
    /// The number after `sm_`.
    number: u32,
    /// What follows it: `a` keeps the text to this architecture, `f` to its family.
    suffix: Option<char>,
}

/// The targets that PTX has (the table of `.target` in its manual); another is an error of the text,
/// as recorded.
const TARGETS: &[u32] = &[
    20, 30, 32, 35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103,
    110, 120, 121,
];

/// The most bytes of parameters that a kernel can have, on any architecture.
const MAX_PARAM_BYTES: usize = 32_764;

impl PtxTarget {
    fn parse(word: &str) -> Option<PtxTarget> {
        let word = word.strip_prefix("sm_")?;
        let suffix = word.chars().last().filter(|last| matches!(last, 'a' | 'f'));
        let number = word.strip_suffix(['a', 'f']).unwrap_or(word).parse().ok()?;
        TARGETS.contains(&number).then_some(PtxTarget { number, suffix })
    }

    /// Whether a device can run what is written for this target.
    pub(super) fn runs_on(self, architecture: u32) -> bool {
        match self.suffix {
            Some('a') => self.number == architecture,
            Some(_) => self.number / 10 == architecture / 10 && self.number <= architecture,
            None => self.number <= architecture,
        }
    }
}

/// Reads a PTX text; `None` where it is none.
pub(super) fn parse(text: &str) -> Option<Ptx> {
    let mut tokens = Tokens::new(text);
    tokens.expect(".version")?;
    let (major, minor) = tokens.next()?.split_once('.')?;
    let version = major.parse::<u32>().ok()?.checked_mul(10)?.checked_add(minor.parse().ok()?)?;
    tokens.expect(".target")?;
    let target = PtxTarget::parse(tokens.next()?)?;
    while tokens.eat(",") {
        tokens.next()?;
    }
    let mut module = Module { virtual_architecture: target.number, ..Module::default() };
    while let Some(word) = tokens.next() {
        module.statement(word, &mut tokens)?;
    }
    let Module { mut kernels, variables, constant_bytes, .. } = module;
    for kernel in &mut kernels {
        kernel.constant_bytes = constant_bytes;
    }
    Some(Ptx { version, target, kernels, variables })
}

#[derive(Default)]
struct Module<'a> {
    virtual_architecture: u32,
    kernels: Vec<KernelInfo>,
    variables: Vec<Variable>,
    constant_bytes: u32,
    /// Shared variables that are declared outside of kernels, with their sizes.
    shared: HashMap<&'a str, usize>,
    /// Whether what follows is defined elsewhere.
    is_extern: bool,
}

impl<'a> Module<'a> {
    /// Reads one statement outside of kernels, of which the first word was taken.
    fn statement(&mut self, word: &'a str, tokens: &mut Tokens<'a>) -> Option<()> {
        match word {
            ".extern" => self.is_extern = true,
            ".entry" => self.entry(tokens)?,
            ".func" => function(tokens)?,
            ".global" | ".const" | ".shared" => self.variables(word, tokens)?,
            ".file" | ".loc" => {
                // Up to the end of the line, which the words do not tell: numbers, marks, a string.
                while tokens.peek().is_some_and(|word| {
                    word == "," || word.starts_with('"') || number(word).is_some()
                }) {
                    tokens.next();
                }
            }
            ".section" => {
                while tokens.next()? != "{" {}
                tokens.skip_group("{", "}")?;
            }
            ".pragma" | ".alias" => while tokens.next()? != ";" {},
            ".address_size" => {
                tokens.number()?;
            }
            // `.visible` and the like, and directives that say nothing here.
            _ if word.starts_with('.') || word.starts_with("@@") => {}
            ";" => self.is_extern = false,
            _ => return None,
        }
        Some(())
    }

    /// Reads a kernel after `.entry`.
    fn entry(&mut self, tokens: &mut Tokens<'a>) -> Option<()> {
        let name = tokens.next().filter(|name| is_name(name))?;
        let mut kernel = KernelInfo::named(name)?;
        kernel.virtual_architecture = self.virtual_architecture;
        if tokens.eat("(") {
            kernel.params = params(tokens)?;
        }
        loop {
            match tokens.next()? {
                "{" => break,
                // Only announced.
                ";" => {
                    self.is_extern = false;
                    return Some(());
                }
                ".maxntid" => kernel.max_threads = Some(product(sides(tokens)?)),
                ".reqntid" => {
                    let sides = sides(tokens)?;
                    kernel.required_block = Some(sides);
                    kernel.max_threads = Some(product(sides));
                }
                ".reqnctapercluster" => kernel.required_cluster = Some(sides(tokens)?),
                ".explicitcluster" => kernel.explicit_cluster = true,
                ".pragma" => while tokens.next()? != ";" {},
                // Other directives, and their numbers.
                word if word.starts_with('.') || word == "," || number(word).is_some() => {}
                _ => return None,
            }
        }
        self.body(&mut kernel, tokens)?;
        self.kernels.push(kernel);
        Some(())
    }

    /// Reads the declarations in a kernel's body, whose opening brace was taken.
    fn body(&self, kernel: &mut KernelInfo, tokens: &mut Tokens<'a>) -> Option<()> {
        let mut depth = 1_usize;
        let (mut shared, mut local) = (0, 0);
        let mut used: Vec<&str> = Vec::new();
        while depth > 0 {
            match tokens.next()? {
                "{" => depth += 1,
                "}" => depth -= 1,
                ".shared" => place_all(&mut shared, tokens)?,
                ".local" => place_all(&mut local, tokens)?,
                word if self.shared.contains_key(word) && !used.contains(&word) => used.push(word),
                _ => {}
            }
        }
        for name in used {
            shared = usize::checked_add(shared, self.shared[name])?;
        }
        kernel.shared_bytes = shared.try_into().ok()?;
        kernel.local_bytes = local.try_into().ok()?;
        Some(())
    }

    /// Reads the variables after their state space.
    fn variables(&mut self, space: &str, tokens: &mut Tokens<'a>) -> Option<()> {
        for declaration in declarations(tokens)? {
            let Declaration { name, size, align, init, .. } = declaration;
            if space == ".shared" {
                self.shared.insert(name, size);
                continue;
            }
            if self.is_extern || size == 0 {
                continue;
            }
            if space == ".const" {
                let start =
                    usize::try_from(self.constant_bytes).ok()?.checked_next_multiple_of(align)?;
                self.constant_bytes = start.checked_add(size)?.try_into().ok()?;
            }
            self.variables.push(Variable { name: name.into(), size, init });
        }
        self.is_extern = false;
        Some(())
    }
}

/// Passes over a device function after `.func`.
fn function(tokens: &mut Tokens<'_>) -> Option<()> {
    loop {
        match tokens.next()? {
            ";" => return Some(()),
            "{" => return tokens.skip_group("{", "}"),
            "(" => tokens.skip_group("(", ")")?,
            _ => {}
        }
    }
}

/// Reads parameters up to the closing parenthesis.
fn params(tokens: &mut Tokens<'_>) -> Option<Vec<Param>> {
    let mut params = Vec::new();
    let mut offset: usize = 0;
    while !tokens.eat(")") {
        if !params.is_empty() {
            tokens.expect(",")?;
        }
        tokens.expect(".param")?;
        let Declaration { size, align, .. } = declaration(tokens)?;
        offset = offset.checked_next_multiple_of(align)?;
        params.push(Param { offset, size });
        offset = offset.checked_add(size).filter(|&end| end <= MAX_PARAM_BYTES)?;
    }
    Some(params)
}

/// Up to three sides, of which those that are not given are 1.
fn sides(tokens: &mut Tokens<'_>) -> Option<[u32; 3]> {
    let mut sides = [1; 3];
    sides[0] = tokens.number()?;
    for side in &mut sides[1..] {
        if !tokens.eat(",") {
            break;
        }
        *side = tokens.number()?;
    }
    Some(sides)
}

fn product(sides: [u32; 3]) -> u32 {
    sides.iter().fold(1, |product: u32, &side| product.saturating_mul(side))
}

/// Places the variables of a declaration behind `end`, which becomes their end.
fn place_all(end: &mut usize, tokens: &mut Tokens<'_>) -> Option<()> {
    for Declaration { size, align, .. } in declarations(tokens)? {
        *end = end.checked_next_multiple_of(align)?.checked_add(size)?;
    }
    Some(())
}

/// A declared variable or parameter, such as `.align 8 .b8 name[24]`.
struct Declaration<'a> {
    name: &'a str,
    size: usize,
    align: usize,
    element: Type,
    init: Vec<u8>,
}

/// What the variables of one declaration have in common.
#[derive(Clone, Copy)]
struct Specifiers {
    element: Type,
    lanes: usize,
    align: usize,
}

/// Declarations of one state space, up to the semicolon.
fn declarations<'a>(tokens: &mut Tokens<'a>) -> Option<Vec<Declaration<'a>>> {
    let mut all = Vec::new();
    let (kind, mut name) = specifiers(tokens)?;
    loop {
        let mut one = declarator(kind, name, tokens)?;
        if tokens.eat("=") {
            one.init = initializer(tokens, one.element)?;
            // An array without a size has that of its values.
            if one.size == 0 {
                one.size = one.init.len();
            }
            if one.init.len() > one.size {
                return None;
            }
        }
        all.push(one);
        match tokens.next()? {
            ";" => return Some(all),
            "," => name = tokens.next().filter(|name| is_name(name))?,
            _ => return None,
        }
    }
}

/// One declaration, without a value.
fn declaration<'a>(tokens: &mut Tokens<'a>) -> Option<Declaration<'a>> {
    let (kind, name) = specifiers(tokens)?;
    declarator(kind, name, tokens)
}

/// What stands before the name, and the name.
fn specifiers<'a>(tokens: &mut Tokens<'a>) -> Option<(Specifiers, &'a str)> {
    let (mut element, mut align, mut lanes) = (None, None, 1);
    let name = loop {
        match tokens.next()? {
            ".align" => align = Some(tokens.number()? as usize),
            ".ptr" => {
                // What follows is about the memory pointed to.
                while let Some(word) = tokens.peek().filter(|word| word.starts_with('.')) {
                    tokens.next();
                    if word == ".align" {
                        tokens.number()?;
                    }
                }
            }
            ".attribute" => {
                tokens.expect("(")?;
                tokens.skip_group("(", ")")?;
            }
            ".v2" => lanes = 2,
            ".v4" => lanes = 4,
            ".v8" => lanes = 8,
            word if word.starts_with('.') => element = element.or_else(|| Type::parse(word)),
            word if is_name(word) => break word,
            _ => return None,
        }
    };
    let element = element?;
    let align = align.unwrap_or(element.size * lanes);
    align.is_power_of_two().then_some((Specifiers { element, lanes, align }, name))
}

/// What stands behind the name, without a value.
fn declarator<'a>(
    Specifiers { element, lanes, align }: Specifiers,
    name: &'a str,
    tokens: &mut Tokens<'a>,
) -> Option<Declaration<'a>> {
    let mut size = element.size * lanes;
    while tokens.eat("[") {
        if tokens.eat("]") {
            size = 0;
        } else {
            size = size.checked_mul(tokens.number()? as usize)?;
            tokens.expect("]")?;
        }
    }
    Some(Declaration { name, size, align, element, init: Vec::new() })
}

/// Reads the values that a variable begins with. Addresses are not known here and are zeros.
fn initializer(tokens: &mut Tokens<'_>, element: Type) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    if !tokens.eat("{") {
        value(tokens, element, &mut bytes)?;
        return Some(bytes);
    }
    let mut depth = 1_usize;
    while depth > 0 {
        match tokens.peek()? {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," => {}
            _ => {
                value(tokens, element, &mut bytes)?;
                continue;
            }
        }
        tokens.next();
    }
    Some(bytes)
}

/// Reads one value, up to what separates it from the next.
fn value(tokens: &mut Tokens<'_>, element: Type, bytes: &mut Vec<u8>) -> Option<()> {
    let negative = tokens.eat("-");
    let mut encoded = element.encode(tokens.next()?, negative);
    while !matches!(tokens.peek()?, "," | "}" | ";") {
        // An expression of addresses, such as `generic(name) + 4`.
        encoded = None;
        tokens.next();
    }
    let value = encoded.unwrap_or_default().to_le_bytes();
    bytes.extend_from_slice(&value[..element.size]);
    Some(())
}

/// The type of one element.
#[derive(Clone, Copy)]
struct Type {
    size: usize,
    is_float: bool,
}

impl Type {
    fn parse(word: &str) -> Option<Type> {
        let word = word.strip_prefix('.')?;
        if matches!(word, "texref" | "samplerref" | "surfref") {
            return Some(Type { size: 8, is_float: false });
        }
        let is_float = word.starts_with('f');
        let bits = word.strip_prefix("bf").or_else(|| word.strip_prefix(['u', 's', 'b', 'f']))?;
        let size = match bits {
            "8" => 1,
            "16" => 2,
            "32" | "16x2" => 4,
            "64" => 8,
            "128" => 16,
            _ => return None,
        };
        Some(Type { size, is_float })
    }

    /// The bits of a number of this type; `None` for a word that is none.
    fn encode(self, word: &str, negative: bool) -> Option<u128> {
        // The bits of a float, in hexadecimal digits.
        for prefix in ["0f", "0F", "0d", "0D"] {
            if let Some(digits) = word.strip_prefix(prefix).filter(|_| self.is_float) {
                return u128::from_str_radix(digits, 16).ok();
            }
        }
        if !self.is_float {
            let value = u128::from(number(word)?);
            return Some(if negative { value.wrapping_neg() } else { value });
        }
        let value: f64 = word.parse().ok()?;
        let value = if negative { -value } else { value };
        Some(if self.size == 4 {
            u128::from((value as f32).to_bits())
        } else {
            u128::from(value.to_bits())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(statements: &str) -> Option<Ptx> {
        parse(&format!(".version 8.3\n.target sm_90\n.address_size 64\n{statements}"))
    }

    fn kernel(declaration: &str) -> KernelInfo {
        let mut kernels = body(declaration).expect("it is PTX").kernels;
        assert_eq!(kernels.len(), 1, "{declaration}");
        kernels.remove(0)
    }

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
            .entry bare { ret; }
            .visible .entry pointer(.param .u64 .ptr .global .align 1 p, .param .u64 q) .maxntid 128, 1, 1 { ret; }
        ";
        let ptx = parse(text).expect("it is PTX");
        assert_eq!((ptx.version, ptx.target), (70, PtxTarget { number: 52, suffix: None }));
        let names: Vec<&str> = ptx.kernels.iter().map(|kernel| &*kernel.name).collect();
        assert_eq!(names, ["first", "none", "bare", "pointer"]);
        let offsets: Vec<_> = ptx.kernels[0].params.iter().map(|p| (p.offset, p.size)).collect();
        assert_eq!(offsets, [(0, 8), (8, 4), (16, 8), (32, 24), (56, 1)]);
        assert_eq!(ptx.kernels[0].param_bytes(), 57);
        assert_eq!(ptx.kernels[1].param_bytes(), 0);
        let two = [Param { offset: 0, size: 8 }, Param { offset: 8, size: 8 }];
        assert_eq!(ptx.kernels[3].params, two);
    }

    #[test]
    fn parameters_have_their_own_alignment() {
        let kernel = kernel(
            ".entry x(.param .v2 .f32 pair, .param .b16 half, .param .u32 grid[3][2],
                .param .b128 wide, .param .texref image, .param .bf16 last) { ret; }",
        );
        let layout: Vec<_> = kernel.params.iter().map(|p| (p.offset, p.size)).collect();
        assert_eq!(layout, [(0, 8), (8, 2), (12, 24), (48, 16), (64, 8), (72, 2)]);
        for declaration in ["", ".param", ".param .u32", ".param x", ".param .align 3 .b8 x[4]"] {
            assert_eq!(body(&format!(".entry x({declaration},) {{ }}")), None, "{declaration}");
        }
        assert_eq!(body(".entry x(.param .b8 p[32765]) { }"), None);
        assert!(body(".entry x(.param .b8 p[32764]) { }").is_some());
    }

    #[test]
    fn what_a_kernel_asks_for_is_read() {
        let bounded = kernel(".entry x() .maxntid 8, 4 .minnctapersm 2 .maxnreg 64 { }");
        assert_eq!((bounded.max_threads, bounded.required_block), (Some(32), None));
        let exact = kernel(".entry x() .reqntid 64, 2, 1 .pragma \"nounroll\"; { }");
        assert_eq!((exact.max_threads, exact.required_block), (Some(128), Some([64, 2, 1])));
        let clustered = kernel(".entry x() .explicitcluster .reqnctapercluster 2, 2, 1 { }");
        assert_eq!(
            (clustered.required_cluster, clustered.explicit_cluster),
            (Some([2, 2, 1]), true)
        );
        assert!(kernel(".entry x() .explicitcluster .maxclusterrank 8 { }").explicit_cluster);
    }

    #[test]
    fn shared_and_local_memory_is_counted() {
        let kernel = kernel(
            ".shared .align 8 .b8 of_all[40];
             .shared .b8 unused[1000];
             .extern .shared .align 16 .b8 dynamic[];
             .entry x() {
                .shared .b8 a; .shared .align 16 .b8 b[32];
                { .local .f64 l[4]; .reg .b32 r; st.shared.u32 [of_all], r; ld.shared.u32 r, [of_all + 4]; }
                ld.shared.u32 r, [dynamic];
             }",
        );
        assert_eq!((kernel.shared_bytes, kernel.local_bytes), (88, 32));
    }

    #[test]
    fn variables_are_read() {
        let ptx = body(
            ".visible .global .align 4 .u32 one = 5, two;
             .extern .global .u32 elsewhere;
             .global .attribute(.managed) .s16 signed[4] = { -1, 0x10, 2 };
             .const .f64 factor = 0d3FF0000000000000;
             .global .f32 decimal = 1.5;
             .global .u64 address[2] = { generic(one) + 4, 7U };
             .global .u8 counted[] = { 1, 2, 3 };
             .const .u8 more;
             .entry x() { }",
        )
        .expect("it is PTX");
        let found: Vec<_> =
            ptx.variables.iter().map(|it| (&*it.name, it.size, it.init.clone())).collect();
        let bytes = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(
            found,
            [
                ("one", 4, vec![5, 0, 0, 0]),
                ("two", 4, vec![]),
                ("signed", 8, vec![255, 255, 16, 0, 2, 0]),
                ("factor", 8, 1_f64.to_le_bytes().to_vec()),
                ("decimal", 4, 1.5_f32.to_le_bytes().to_vec()),
                ("address", 16, bytes(&[0, 7])),
                ("counted", 3, vec![1, 2, 3]),
                ("more", 1, vec![]),
            ]
        );
        assert_eq!(ptx.kernels[0].constant_bytes, 9);
        assert_eq!(body(".global .u8 little[1] = { 1, 2 };"), None);
        assert_eq!(body(".global .b8 huge[4294967295][4294967295][4294967295];"), None);
    }

    #[test]
    fn the_rest_of_a_text_is_passed_over() {
        let ptx = body(
            ".file 1 \"some.cu\", 5, 7
             .func (.reg .u32 r) helper(.reg .u32 a) { { add.u32 r, a, 1; } ret; }
             .extern .func outside (.param .b64 p);
             .visible .entry announced(.param .u64 p);
             .section .debug_info { .b8 1 .b8 2 }
             .pragma \"nounroll\";
             .weak .entry x() { .loc 1 2 3 call helper; @%p bra L; L: ret; }",
        )
        .expect("it is PTX");
        let names: Vec<&str> = ptx.kernels.iter().map(|kernel| &*kernel.name).collect();
        assert_eq!(names, ["x"]);
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
            ".version 7.0\n.target sm_52\nhello",
            ".version 7.0\n.target sm_52\n.entry x( {",
            ".version 7.0\n.target sm_52\n.entry x() { ret;",
            ".version 7.0\n.target sm_52\n.entry x() hello { }",
            ".version 7.0\n.target sm_52\n.entry 1() { }",
            ".version 7.0\n.target sm_52\n.global .u32 x",
            ".version 7.0\n.target sm_52\n.global .u32 x = ;",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
