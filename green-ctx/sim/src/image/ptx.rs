//! Kernel declarations in PTX text.
//!
//! The grammar follows NVIDIA's PTX manual. Instructions are skipped, so errors in instructions are not
//! found.

use std::collections::HashMap;

use super::tokens::{Tokens, is_name, number};
use super::{KernelInfo, Param};

/// The contents of PTX text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ptx {
    /// The PTX version as one number, such as 83 for 8.3.
    pub(super) version: u32,
    pub(super) target: PtxTarget,
    pub(super) kernels: Vec<KernelInfo>,
}

/// The target architecture of PTX text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PtxTarget {
    /// The number after `sm_` or `compute_`. The compiler treats `sm_` and `compute_` alike (recorded on hardware).
    number: u32,
    /// The suffix: `a` restricts the text to this architecture, and `f` restricts the text to the
    /// architecture's family.
    suffix: Option<char>,
}

/// The PTX targets, with the PTX version that introduced each. Text with any other target, or with an older
/// PTX version, is invalid. A few targets were recorded. The other targets are those that ptxas 13.0
/// accepts, and 101, which is in the `.target` table of the PTX manual.
const TARGETS: &[(u32, u32)] = &[
    (20, 23),
    (30, 30),
    (32, 40),
    (35, 31),
    (37, 41),
    (50, 40),
    (52, 41),
    (53, 42),
    (60, 50),
    (61, 50),
    (62, 50),
    (70, 60),
    (72, 61),
    (75, 63),
    (80, 70),
    (86, 71),
    (87, 74),
    (88, 73),
    (89, 78),
    (90, 78),
    (100, 86),
    (101, 86),
    (103, 88),
    (110, 90),
    (120, 87),
    (121, 88),
];

/// The PTX versions that introduced architecture-specific (`sm_90a`) and family-specific (`sm_100f`)
/// targets.
const EXACT_SINCE: u32 = 80;
const FAMILY_SINCE: u32 = 88;

/// The maximum size of a kernel's parameters, in bytes, on any architecture.
const MAX_PARAM_BYTES: usize = 32_764;

impl PtxTarget {
    /// Parses the word after `.target`, in PTX text of the version `version`.
    fn parse(word: &str, version: u32) -> Option<PtxTarget> {
        let word = word.strip_prefix("sm_").or_else(|| word.strip_prefix("compute_"))?;
        let suffix = word.chars().last().filter(|last| matches!(last, 'a' | 'f'));
        let number = word.strip_suffix(['a', 'f']).unwrap_or(word).parse().ok()?;
        let (_, since) = TARGETS.iter().find(|(known, _)| *known == number)?;
        let since_suffix = match suffix {
            None => 0,
            Some('a') => EXACT_SINCE,
            Some(_) => FAMILY_SINCE,
        };
        (version >= *since.max(&since_suffix)).then_some(PtxTarget { number, suffix })
    }

    /// Returns whether a device can run code for this target.
    pub(super) fn runs_on(self, architecture: u32) -> bool {
        match self.suffix {
            Some('a') => self.number == architecture,
            Some(_) => self.number / 10 == architecture / 10 && self.number <= architecture,
            None => self.number <= architecture,
        }
    }
}

/// Parses PTX text; `None` if it is invalid.
pub(super) fn parse(text: &str) -> Option<Ptx> {
    let mut tokens = Tokens::new(text);
    tokens.expect(".version")?;
    let (major, minor) = tokens.next()?.split_once('.')?;
    let version = major.parse::<u32>().ok()?.checked_mul(10)?.checked_add(minor.parse().ok()?)?;
    tokens.expect(".target")?;
    let target = PtxTarget::parse(tokens.next()?, version)?;
    while tokens.eat(",") {
        tokens.next()?;
    }
    let mut module = Module { virtual_architecture: target.number, ..Module::default() };
    while let Some(word) = tokens.next() {
        module.statement(word, &mut tokens)?;
    }
    let Module { mut kernels, constant_bytes, announced, .. } = module;
    // A declared kernel must also be defined, unless it is external.
    if announced.iter().any(|name| !kernels.iter().any(|kernel| *kernel.name == **name)) {
        return None;
    }
    for kernel in &mut kernels {
        kernel.constant_bytes = constant_bytes;
    }
    Some(Ptx { version, target, kernels })
}

#[derive(Default)]
struct Module<'a> {
    virtual_architecture: u32,
    kernels: Vec<KernelInfo>,
    /// The names of kernels that were declared before their definition.
    announced: Vec<&'a str>,
    constant_bytes: u32,
    /// Shared variables declared outside kernels, with their sizes.
    shared: HashMap<&'a str, usize>,
    /// Whether the next declaration is external (`.extern`).
    is_extern: bool,
}

impl<'a> Module<'a> {
    /// Parses one statement outside kernels, whose first word is `word`.
    fn statement(&mut self, word: &'a str, tokens: &mut Tokens<'a>) -> Option<()> {
        match word {
            ".extern" => self.is_extern = true,
            ".entry" => self.entry(tokens)?,
            ".func" => function(tokens)?,
            ".global" | ".const" | ".shared" => self.variables(word, tokens)?,
            ".file" | ".loc" => {
                // The statement ends with its line, which tokens do not show. It consists of numbers,
                // commas and a string.
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
            // Linkage directives such as `.visible`, and directives without information for the simulator.
            _ if word.starts_with('.') || word.starts_with("@@") => {}
            ";" => self.is_extern = false,
            _ => return None,
        }
        Some(())
    }

    /// Parses a kernel, starting after the word `.entry`.
    fn entry(&mut self, tokens: &mut Tokens<'a>) -> Option<()> {
        let name = tokens.next().filter(|name| is_name(name))?;
        // A kernel's definition must be its last occurrence.
        if self.kernels.iter().any(|known| *known.name == *name) {
            return None;
        }
        let mut kernel = KernelInfo::named(name)?;
        kernel.virtual_architecture = self.virtual_architecture;
        if tokens.eat("(") {
            kernel.params = params(tokens)?;
        }
        loop {
            match tokens.next()? {
                "{" => break,
                ";" => {
                    if !self.is_extern {
                        self.announced.push(name);
                    }
                    self.is_extern = false;
                    return Some(());
                }
                ".maxntid" => kernel.bound_block(sides(tokens)?),
                ".reqntid" => kernel.required_block = Some(sides(tokens)?),
                ".reqnctapercluster" => kernel.required_cluster = Some(sides(tokens)?),
                ".explicitcluster" => kernel.explicit_cluster = true,
                ".pragma" => while tokens.next()? != ";" {},
                // Other directives and their numbers.
                word if word.starts_with('.') || word == "," || number(word).is_some() => {}
                _ => return None,
            }
        }
        self.body(&mut kernel, tokens)?;
        self.kernels.push(kernel);
        Some(())
    }

    /// Parses the declarations in a kernel's body, after the opening brace.
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

    /// Parses a declaration of variables, starting after the word for their state space.
    fn variables(&mut self, space: &str, tokens: &mut Tokens<'a>) -> Option<()> {
        for declaration in declarations(tokens)? {
            let Declaration { name, size, align, .. } = declaration;
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
        }
        self.is_extern = false;
        Some(())
    }
}

/// Skips a device function, starting after the word `.func`.
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

/// Parses parameters up to the closing parenthesis.
fn params(tokens: &mut Tokens<'_>) -> Option<Vec<Param>> {
    let mut params = Vec::new();
    let mut offset: usize = 0;
    while !tokens.eat(")") {
        if !params.is_empty() {
            tokens.expect(",")?;
        }
        tokens.expect(".param")?;
        let (kind, name) = specifiers(tokens)?;
        let Declaration { size, align, dimensions, .. } = declarator(kind, name, tokens)?;
        // The compiler accepts neither vectors nor arrays of arrays here.
        if kind.lanes > 1 || dimensions > 1 {
            return None;
        }
        offset = offset.checked_next_multiple_of(align)?;
        params.push(Param { offset, size });
        offset = offset.checked_add(size).filter(|&end| end <= MAX_PARAM_BYTES)?;
    }
    Some(params)
}

/// Parses up to three sides of a block or cluster. A missing side is 1.
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

/// Places the variables of a declaration after `end`, and advances `end` to the end of these variables.
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
    /// The number of array dimensions.
    dimensions: usize,
    /// The size of an element, in bytes.
    element: usize,
}

/// The properties that all variables of one declaration share.
#[derive(Clone, Copy)]
struct Specifiers {
    /// The size of an element, in bytes.
    element: usize,
    lanes: usize,
    align: usize,
}

/// Parses the declarations of one state space, up to the semicolon.
fn declarations<'a>(tokens: &mut Tokens<'a>) -> Option<Vec<Declaration<'a>>> {
    let mut all = Vec::new();
    let (kind, mut name) = specifiers(tokens)?;
    loop {
        let mut one = declarator(kind, name, tokens)?;
        if tokens.eat("=") {
            let values = count_values(tokens)? * one.element;
            // An array without a size gets the size of its values.
            if one.size == 0 {
                one.size = values;
            }
            if values > one.size {
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

/// Parses the specifiers before the name, and the name.
fn specifiers<'a>(tokens: &mut Tokens<'a>) -> Option<(Specifiers, &'a str)> {
    let (mut element, mut align, mut lanes) = (None, None, 1);
    let name = loop {
        match tokens.next()? {
            ".align" => align = Some(tokens.number()? as usize),
            ".ptr" => {
                // These words describe the memory that the pointer refers to.
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
            word if word.starts_with('.') => element = element.or_else(|| element_bytes(word)),
            word if is_name(word) => break word,
            _ => return None,
        }
    };
    let element = element?;
    let align = align.unwrap_or(element * lanes);
    align.is_power_of_two().then_some((Specifiers { element, lanes, align }, name))
}

/// Parses the array dimensions after the name.
fn declarator<'a>(
    Specifiers { element, lanes, align }: Specifiers,
    name: &'a str,
    tokens: &mut Tokens<'a>,
) -> Option<Declaration<'a>> {
    let (mut size, mut dimensions) = (element * lanes, 0);
    while tokens.eat("[") {
        dimensions += 1;
        if tokens.eat("]") {
            size = 0;
        } else {
            size = size.checked_mul(tokens.number()? as usize)?;
            tokens.expect("]")?;
        }
    }
    Some(Declaration { name, size, align, dimensions, element })
}

/// Counts the initial values of a variable.
fn count_values(tokens: &mut Tokens<'_>) -> Option<usize> {
    let (mut values, mut depth) = (0, 0_usize);
    if matches!(tokens.peek()?, "," | ";") {
        return None;
    }
    loop {
        match tokens.peek()? {
            "{" => depth += 1,
            "}" => depth = depth.checked_sub(1)?,
            "," | ";" if depth == 0 => return Some(values),
            "," => {}
            _ => {
                values += 1;
                // A value may be an expression, such as `generic(name) + 4`.
                while !matches!(tokens.peek()?, "," | "}" | ";") {
                    tokens.next();
                }
                continue;
            }
        }
        tokens.next();
    }
}

/// Returns the size of an element of a type, in bytes.
fn element_bytes(word: &str) -> Option<usize> {
    let word = word.strip_prefix('.')?;
    if matches!(word, "texref" | "samplerref" | "surfref") {
        return Some(8);
    }
    let bits = word.strip_prefix("bf").or_else(|| word.strip_prefix(['u', 's', 'b', 'f']))?;
    Some(match bits {
        "8" => 1,
        "16" => 2,
        "32" | "16x2" => 4,
        "64" => 8,
        "128" => 16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
