//! Reads a C header of `bpf/include` and declares the same in Rust.
//!
//! It reads declarations that begin in the first column, in the form that clang-format produces:
//!
//! - `#define USHER_NAME 12`: a `u32` constant without the prefix.
//! - `struct usher_name { ... };`: a structure without the prefix. Each needs its
//!   `_Static_assert(sizeof(struct usher_name) == N, ...)`, and its fields must fill it: so neither
//!   side has padding, and each field has the same offset on both. A structure with only `__u64`
//!   fields and a name in `counters` becomes counters with names.
//! - `typedef __u64 usher_name;`: a Rust type around the number.
//! - `enum usher_name { ... };`: constants. If the last member is `USHER_NAMES`, the number of the others,
//!   a Rust enumeration with names: `USHER_NAME_SOME_WORD` is `SomeWord`, "some_word".
//!
//! Comments on structures, fields and members become their documentation. Everything else is
//! skipped.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Lines;

use crate::Failure;

/// The attributes of types that are read and written as their bytes.
const BYTES: &str = "\
    #[derive(usher_bpf::zerocopy::FromBytes, usher_bpf::zerocopy::IntoBytes)]\n\
    #[derive(usher_bpf::zerocopy::Immutable)]\n\
    #[zerocopy(crate = \"usher_bpf::zerocopy\")]\n";

/// The declarations of all headers read so far.
#[derive(Debug, Default)]
pub struct Declarations {
    constants: BTreeMap<String, u64>,
    /// Sizes of structures.
    structures: BTreeMap<String, usize>,
    /// Structures declared as their bytes.
    bytes: Vec<&'static str>,
}

struct Field {
    kind: String,
    name: String,
    dimensions: Vec<String>,
    comment: String,
}

impl Declarations {
    /// Declares these structures as arrays of their bytes.
    #[must_use]
    pub fn with_bytes(structures: &[&'static str]) -> Self {
        Self {
            bytes: structures.to_vec(),
            ..Self::default()
        }
    }

    /// The Rust declarations of a header.
    ///
    /// # Errors
    /// A declaration that Rust cannot have.
    pub fn read(&mut self, header: &str) -> Result<String, Failure> {
        let mut out = String::from("// Generated from a header of bpf/include.\n");
        let mut comment = String::new();
        let mut lines = header.lines().peekable();
        while let Some(line) = lines.next() {
            if line.starts_with("/*") {
                comment = comment_from(line, &mut lines);
                continue;
            }
            if let Some(rest) = line.strip_prefix("#define USHER_") {
                if let Some((name, value)) = rest.split_once([' ', '\t'])
                    && let Some(value) = parse_number(value)
                {
                    self.constants.insert(name.into(), value);
                    if let Ok(value) = u32::try_from(value) {
                        documented(&mut out, "", &comment);
                        writeln!(out, "pub const {name}: u32 = {value};")?;
                    }
                }
            } else if let Some((kind, name)) = defined_type(line) {
                self.defined(&mut out, kind, name, &comment)?;
            } else if let Some(name) = line.strip_prefix("struct usher_").and_then(opening) {
                let fields = fields(&mut lines);
                self.structure(&mut out, header, name, &comment, &fields)?;
            } else if let Some(name) = line.strip_prefix("enum usher_").and_then(opening) {
                self.enumeration(&mut out, name, &comment, &mut lines)?;
            }
            if !line.is_empty() {
                comment.clear();
            }
        }
        Ok(out)
    }

    /// Declares a Rust type around a number.
    fn defined(
        &mut self,
        out: &mut String,
        kind: &str,
        name: &str,
        comment: &str,
    ) -> Result<(), Failure> {
        let (kind, size) = self.kind(kind)?;
        self.structures.insert(name.into(), size);
        documented(out, "", comment);
        let derived = "Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord";
        writeln!(
            out,
            "#[derive({derived})]\n{BYTES}#[repr(transparent)]\npub struct {}(pub {kind});",
            camel(name)
        )?;
        Ok(())
    }

    fn structure(
        &mut self,
        out: &mut String,
        header: &str,
        name: &str,
        comment: &str,
        fields: &[Field],
    ) -> Result<(), Failure> {
        let assertion = format!("_Static_assert(sizeof(struct usher_{name}) == ");
        let size = header
            .split_once(&assertion)
            .and_then(|(_, rest)| rest.split_once(','))
            .and_then(|(size, _)| self.value(size).ok())
            .ok_or_else(|| format!("no {assertion}N"))?;
        let size = usize::try_from(size)?;
        self.structures.insert(name.into(), size);
        let camel = camel(name);
        documented(out, "", comment);
        if self.bytes.contains(&name) {
            writeln!(out, "pub type {camel} = [u8; {size}];")?;
            return Ok(());
        }
        let counts = name.ends_with("counters") && fields.iter().all(|field| field.kind == "__u64");
        let more = if counts { ", Debug, Default" } else { "" };
        writeln!(
            out,
            "#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord{more})]\n{BYTES}\
             #[repr(C)]\npub struct {camel} {{"
        )?;
        let mut filled = 0;
        for field in fields {
            let (mut kind, mut bytes) = self.kind(&field.kind)?;
            for dimension in field.dimensions.iter().rev() {
                let count = self.value(dimension)?;
                kind = format!("[{kind}; {count}]");
                bytes *= usize::try_from(count)?;
            }
            filled += bytes;
            documented(out, "    ", &field.comment);
            writeln!(out, "    pub {}: {kind},", field.name)?;
        }
        if filled != size {
            return Err(format!("struct usher_{name}: {filled} of {size} bytes are fields").into());
        }
        writeln!(
            out,
            "}}\nconst _: () = assert!(size_of::<{camel}>() == {size});"
        )?;
        if counts {
            writeln!(out, "impl usher_bpf::Counted for {camel} {{")?;
            writeln!(out, "    const NAMES: &'static [&'static str] = &[")?;
            for field in fields {
                writeln!(out, "        \"{}\",", field.name)?;
            }
            writeln!(out, "    ];\n}}")?;
        }
        Ok(())
    }

    fn enumeration(
        &mut self,
        out: &mut String,
        name: &str,
        comment: &str,
        lines: &mut Peekable<Lines<'_>>,
    ) -> Result<(), Failure> {
        let own = format!("{}_", name.to_uppercase());
        let plural = format!("{}S", name.to_uppercase());
        let mut members = Vec::new();
        let mut next = 0;
        for field in fields(lines) {
            let member = field.name.strip_prefix("USHER_");
            let member = member.ok_or_else(|| format!("enum usher_{name}: {}", field.name))?;
            if let Some(value) = field.dimensions.first() {
                next = self.value(value)?;
            }
            self.constants.insert(member.into(), next);
            members.push((member.to_owned(), next, field.comment));
            next += 1;
        }
        if members.last().is_none_or(|(last, ..)| *last != plural) {
            for (member, value, comment) in members {
                documented(out, "", &comment);
                writeln!(out, "pub const {member}: u32 = {value};")?;
            }
            return Ok(());
        }
        members.pop();
        for (member, ..) in &mut members {
            *member = member.trim_start_matches(&own).to_lowercase();
        }
        let camel_name = camel(name);
        documented(out, "", comment);
        writeln!(
            out,
            "#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]\n#[repr(u32)]\npub enum {camel_name} {{"
        )?;
        for (member, value, comment) in &members {
            documented(out, "    ", comment);
            writeln!(out, "    {} = {value},", camel(member))?;
        }
        writeln!(out, "}}\n\nimpl {camel_name} {{")?;
        writeln!(
            out,
            "    /// All, in the order of their numbers, with their names."
        )?;
        writeln!(
            out,
            "    pub const ALL: [(Self, &'static str); {}] = [",
            members.len()
        )?;
        for (member, ..) in &members {
            writeln!(out, "        (Self::{}, \"{member}\"),", camel(member))?;
        }
        writeln!(out, "    ];\n}}")?;
        Ok(())
    }

    /// The Rust type of a C type, and its size.
    fn kind(&self, kind: &str) -> Result<(String, usize), Failure> {
        Ok(match kind {
            "__u8" | "char" => ("u8".into(), 1),
            "__u16" => ("u16".into(), 2),
            // Most significant byte first, unlike any Rust number.
            "__be16" => ("[u8; 2]".into(), 2),
            "__u32" | "struct bpf_spin_lock" => ("u32".into(), 4),
            "__u64" => ("u64".into(), 8),
            other => {
                let name = other.strip_prefix("struct ").unwrap_or(other);
                let name = name.strip_prefix("usher_").unwrap_or(name);
                let size = self.structures.get(name);
                let size = size.ok_or_else(|| format!("the type {other} is not known"))?;
                (camel(name), *size)
            }
        })
    }

    fn value(&self, text: &str) -> Result<u64, Failure> {
        if let Some((left, right)) = text.split_once(" + ") {
            return Ok(self.value(left)? + self.value(right)?);
        }
        let known = |name| self.constants.get(name).copied();
        let found =
            parse_number(text).or_else(|| text.trim().strip_prefix("USHER_").and_then(known));
        found.ok_or_else(|| format!("the number {text} is not known").into())
    }
}

/// Type and name of `typedef __u64 usher_name;`.
fn defined_type(line: &str) -> Option<(&str, &str)> {
    let (kind, name) = line.strip_prefix("typedef ")?.split_once(" usher_")?;
    Some((kind, name.strip_suffix(';')?))
}

/// The name in `name {`.
fn opening(rest: &str) -> Option<&str> {
    rest.strip_suffix(" {")
}

/// A decimal or hexadecimal number; suffixes (`U`, `L`) are ignored.
fn parse_number(text: &str) -> Option<u64> {
    let text = text.split("/*").next()?.trim().trim_end_matches(['U', 'L']);
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The fields of a structure or members of an enumeration, up to its closing brace. The value of a member is
/// in `dimensions`.
fn fields(lines: &mut Peekable<Lines<'_>>) -> Vec<Field> {
    let mut found: Vec<Field> = Vec::new();
    let mut before = String::new();
    while let Some(line) = lines.next() {
        let text = line.trim();
        if text.starts_with('}') {
            break;
        }
        if text.starts_with("/*") {
            before = comment_from(text, lines);
            continue;
        }
        let (declaration, behind) = match text.find("/*") {
            Some(at) => (&text[..at], comment_from(&text[at..], lines)),
            None => (text, String::new()),
        };
        let mut comment = std::mem::take(&mut before);
        if !behind.is_empty() {
            comment = behind;
        }
        let declaration = declaration.trim().trim_end_matches([';', ',']);
        if declaration.is_empty() {
            continue;
        }
        let (named, value) = declaration.split_once(" = ").unwrap_or((declaration, ""));
        let mut parts = named.split('[');
        let named = parts.next().unwrap_or_default();
        let (kind, name) = named.rsplit_once(' ').unwrap_or(("", named));
        let dimensions = parts.map(|part| part.trim_end_matches(']'));
        let values = Some(value).filter(|value| !value.is_empty());
        let field = Field {
            kind: kind.into(),
            name: name.into(),
            dimensions: dimensions.chain(values).map(Into::into).collect(),
            comment,
        };
        found.push(field);
    }
    found
}

/// The text of a comment that begins in `line`.
fn comment_from(line: &str, lines: &mut Peekable<Lines<'_>>) -> String {
    let mut text = line.trim_start_matches("/*").to_owned();
    while !text.contains("*/") {
        let Some(line) = lines.next() else { break };
        text.push(' ');
        text.push_str(line.trim().strip_prefix("* ").unwrap_or(line.trim()));
    }
    text.split("*/")
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn documented(out: &mut String, indent: &str, comment: &str) {
    if !comment.is_empty() {
        let text = comment.replace('[', "\\[").replace(']', "\\]");
        let _ = writeln!(out, "{indent}/// {text}");
    }
}

fn camel(name: &str) -> String {
    let mut out = String::new();
    for word in name.split('_') {
        let mut letters = word.chars();
        out.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        out.push_str(letters.as_str());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(header: &str) -> Result<String, Failure> {
        Declarations::with_bytes(&["ends"]).read(header)
    }

    #[test]
    fn a_structure_has_the_same_fields() {
        let rust = read(
            "#define USHER_SIZE 0x10U\n\
             struct usher_ends {\n\t__u8 bytes[4];\n};\n\
             /* One. */\n\
             struct usher_one_thing {\n\
             \t__u64 first; /* of\n\t\t* two */\n\
             \t__be16 port;\n\
             \t__u8 rest[2][3];\n\
             \tstruct usher_ends ends;\n\
             \tchar name[USHER_SIZE]; /* padded */\n\
             \t__u32 last;\n\
             };\n\
             _Static_assert(sizeof(struct usher_ends) == 4, \"\");\n\
             _Static_assert(sizeof(struct usher_one_thing) == 40, \"\");\n",
        )
        .unwrap();
        for line in [
            "pub const SIZE: u32 = 16;",
            "pub type Ends = [u8; 4];",
            "#[repr(C)]\npub struct OneThing {",
            "/// One.\n#[derive(Clone",
            "    /// of two\n    pub first: u64,",
            "    pub port: [u8; 2],",
            "    pub rest: [[u8; 3]; 2],",
            "    pub ends: Ends,",
            "    pub name: [u8; 16],",
            "const _: () = assert!(size_of::<OneThing>() == 40);",
        ] {
            assert!(rust.contains(line), "{line}\n{rust}");
        }
    }

    #[test]
    fn a_number_may_have_a_type_of_its_own() {
        let rust = read(
            "/* A set. */\ntypedef __u64 usher_set;\n\
             struct usher_now {\n\tusher_set all;\n\tusher_set by_name[2];\n};\n\
             _Static_assert(sizeof(struct usher_now) == 24, \"\");\n",
        )
        .unwrap();
        for line in [
            "/// A set.\n#[derive(Clone",
            "#[repr(transparent)]\npub struct Set(pub u64);",
            "    pub all: Set,\n    pub by_name: [Set; 2],",
        ] {
            assert!(rust.contains(line), "{line}\n{rust}");
        }
        let error = read("typedef long usher_set;\n").unwrap_err().to_string();
        assert_eq!(error, "the type long is not known");
    }

    #[test]
    fn padding_is_refused() {
        let header = |size| {
            format!(
                "struct usher_gap {{\n\t__u32 a;\n\t__u64 b;\n}};\n\
                 _Static_assert(sizeof(struct usher_gap) == {size}, \"\");\n"
            )
        };
        let error = read(&header(16)).unwrap_err().to_string();
        assert_eq!(error, "struct usher_gap: 12 of 16 bytes are fields");
        read(&header(12)).unwrap();
    }

    #[test]
    fn a_size_that_nothing_asserts_is_refused() {
        let error = read("struct usher_one {\n\t__u32 a;\n};\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("usher_one"), "{error}");
    }

    #[test]
    fn an_unknown_type_is_refused() {
        let header = "struct usher_one {\n\tlong a;\n};\n\
                      _Static_assert(sizeof(struct usher_one) == 8, \"\");\n";
        assert_eq!(
            read(header).unwrap_err().to_string(),
            "the type long is not known"
        );
    }

    #[test]
    fn counters_and_enumerations_are_named() {
        let rust = read(
            "struct usher_counters {\n\t__u64 seen; /* Packets. */\n};\n\
             _Static_assert(sizeof(struct usher_counters) == 8, \"\");\n\
             enum usher_reason {\n\
             \t/* No room. */\n\tUSHER_REASON_NO_ROOM,\n\
             \tUSHER_REASON_OTHER, /* Another. */\n\
             \tUSHER_REASONS,\n};\n\
             enum usher_state {\n\tUSHER_NEW = 3,\n\tUSHER_OLD,\n};\n",
        )
        .unwrap();
        for line in [
            "    /// Packets.\n    pub seen: u64,",
            "        \"seen\",",
            "    /// No room.\n    NoRoom = 0,\n    /// Another.\n    Other = 1,",
            "        (Self::NoRoom, \"no_room\"),",
            "pub const NEW: u32 = 3;\npub const OLD: u32 = 4;",
        ] {
            assert!(rust.contains(line), "{line}\n{rust}");
        }
    }
}
