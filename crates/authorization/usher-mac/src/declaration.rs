//! The declaration in a module's object file, read before libbpf or the kernel gets anything of it.

use std::fmt::Display;

use object::Endianness;
use object::elf::{
    EM_BPF, ET_REL, FileHeader64, SHF_EXECINSTR, SHN_UNDEF, SHT_SYMTAB, STT_FUNC, STT_OBJECT,
};
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym};
use usher_bpf::Plain;

use crate::EntryPoint;
use crate::shared::{MAC_INTERFACE, MAC_NAME, MAC_NONE, MacDeclaration, is_module_name, text};
use crate::statements::{NoStatements, Statement};

/// Largest object file of a module, in bytes.
pub const MAX_MODULE_SIZE: usize = 1 << 20;

/// Prefix of the names of a module's programs.
pub(crate) const CHECK: &str = "check_";

/// The table of a module with settings: its only entry is the table of those in force.
pub(crate) const SETTINGS: &str = "settings";

/// The section with the declaration.
const DECLARATION: &str = "usher_mac_module";
/// The section with the statements by which the policy sets the settings.
const STATEMENTS: &str = "usher_mac_statements";
/// Sections with a check have the name of its entry point between these.
const CHECK_SECTION: (&str, &str) = ("freplace/mac_slot_", "_0");
/// The section with the types, without which no function is replaced.
const TYPES: &str = ".BTF";
/// The section with tables.
const TABLES: &str = ".maps";
/// The section of functions that checks call.
const FUNCTIONS: &str = ".text";
/// Sections that hold nothing for the kernel but types and the license.
const PASSIVE: [&str; 10] = [
    "",
    "license",
    TYPES,
    ".BTF.ext",
    ".comment",
    ".llvm_addrsig",
    ".note.GNU-stack",
    ".shstrtab",
    ".strtab",
    ".symtab",
];
/// Further such sections, by the beginnings of their names.
const PASSIVE_PREFIXES: [&str; 2] = [".debug_", ".rel"];

/// A reason that bytes are no module for this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAModule {
    /// More than [`MAX_MODULE_SIZE`] bytes.
    #[error("it has {0} bytes, and a module has at most {MAX_MODULE_SIZE}; compile it with -O2")]
    TooLarge(usize),
    /// Not an object file, or only a part of one.
    #[error("it is no object file, or not all of one ({0}); compile it again, and copy it whole")]
    NotAnObject(String),
    /// An object file for another kind of machine.
    #[error(
        "it is compiled for another machine than the kernel's BPF; compile it with clang -target bpf"
    )]
    OtherMachine,
    /// There is no declaration.
    #[error("it declares no module; its source needs MAC_POLICY(NAME); once, outside of functions")]
    NothingDeclared,
    /// A declaration that no version makes.
    #[error("its declaration cannot be read; it is made by MAC_POLICY(NAME) of usher_mac_policy.h")]
    UnreadableDeclaration,
    /// Another version's interface.
    #[error(
        "it is compiled for interface {0} of modules, and this version has interface \
         {MAC_INTERFACE}; compile it with the headers of this version"
    )]
    OtherInterface(u32),
    /// Not a name.
    #[error(
        "{0:?} is no name of a module: small letters, digits and `_`, a letter first, at most 31"
    )]
    NotAName(String),
    /// Elements of labels that this version does not have.
    #[error("its labels are of kind {0}, which this version does not have")]
    UnknownLabel(u32),
    /// No check.
    #[error("it has no check; write one with MAC_CHECK(ENTRY_POINT)")]
    NoCheck,
    /// A check of an entry point that this version does not have.
    #[error(
        "it has a check of {0}, which is no entry point of this version; docs/mac-entry-points.md \
         lists them"
    )]
    UnknownEntryPoint(String),
    /// A program that is no check.
    #[error(
        "it has the program {0}; a module has checks only, written with MAC_CHECK(ENTRY_POINT)"
    )]
    OtherProgram(String),
    /// Two checks of an entry point.
    #[error("it has two checks of {0}, and a module has at most one of each; join them")]
    TwoChecks(EntryPoint),
    /// A table of its own.
    #[error("it has the table {0}; a module has no tables of its own, so remove it")]
    OtherTable(String),
    /// Variables, or something that this version does not know.
    #[error(
        "it has the section {0}; a check keeps nothing between two calls, so constants are `const`, \
         and there are no other variables outside of functions"
    )]
    OtherSection(String),
    /// A function or variable that the file does not define.
    #[error(
        "it uses {0}, which it does not have; a module calls no functions of the kernel by name"
    )]
    External(String),
    /// No types.
    #[error("it has no type information (section .BTF); compile it with -g")]
    NoTypes,
    /// A module whose permissions are remembered, but depend on more than labels.
    #[error(
        "it decides by labels (.decides_by_labels = 1) and {0}, so what it permits cannot be remembered; \
         leave .decides_by_labels out"
    )]
    NotByLabels(&'static str),
    /// Statements that cannot be read.
    #[error("its statements cannot be read: {0}")]
    Statements(#[from] NoStatements),
    /// Settings that no statement sets.
    #[error(
        "it has settings (MAC_SETTINGS), which no statement of the policy sets; write MAC_STATEMENTS, or make \
         them constants"
    )]
    NoStatement,
    /// Statements without settings.
    #[error("it has statements (MAC_STATEMENTS) that set nothing; write MAC_SETTINGS before them")]
    NoSettings,
}

/// The declaration of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declaration {
    /// Its name: small letters, digits and `_`, a letter first, at most 31 bytes.
    pub name: String,
    /// The entry points of which it has checks, in the order of their numbers.
    pub entry_points: Vec<EntryPoint>,
    /// The kind of its elements in labels (`enum usher_mac_kind` of bpf/include/usher_mac_label.h); 0: it
    /// labels nothing.
    pub label: u32,
    /// Whether the module is not asked about processes without an element.
    pub exempts_without_element: bool,
    /// Whether the framework remembers what the module permits by two labels.
    pub decides_by_labels: bool,
    /// Whether it has a place for settings.
    pub has_settings: bool,
    /// The statements by which the policy sets the settings. A built-in module declares none: its statements
    /// belong to the language.
    pub statements: Vec<Statement>,
    /// The size of the settings that statements set, in bytes.
    pub(crate) settings_size: usize,
}

impl Declaration {
    /// Reads the object file of a module. Each part of it must be a check, be needed by checks, or mean
    /// nothing to the kernel.
    ///
    /// # Errors
    /// The first reason that this is no module for this version.
    pub fn read(bytes: &[u8]) -> Result<Self, NotAModule> {
        if bytes.len() > MAX_MODULE_SIZE {
            return Err(NotAModule::TooLarge(bytes.len()));
        }
        let elf = Elf::open(bytes)?;
        // First: another interface explains whatever else is strange.
        let mut declaration = elf.declared()?;
        for (index, section) in elf.sections() {
            declaration.add(&elf, index, &section?)?;
        }
        elf.require_nothing_external()?;
        if declaration.entry_points.is_empty() {
            return Err(NotAModule::NoCheck);
        }
        if elf.section(TYPES)?.is_none() {
            return Err(NotAModule::NoTypes);
        }
        declaration.require_labels()?;
        declaration.entry_points.sort_unstable();
        Ok(declaration)
    }

    /// Requires that a module whose permissions are remembered can decide by labels alone.
    fn require_labels(&self) -> Result<(), NotAModule> {
        let reason = match self {
            Self {
                label: MAC_NONE, ..
            } => "labels nothing",
            Self {
                exempts_without_element: false,
                ..
            } => "does not exempt processes without an element (.exempts_without_element = 1)",
            Self {
                has_settings: true, ..
            } => "has settings",
            _ => return Ok(()),
        };
        if self.decides_by_labels {
            Err(NotAModule::NotByLabels(reason))
        } else {
            Ok(())
        }
    }

    fn add(
        &mut self,
        elf: &Elf<'_>,
        index: usize,
        section: &Section<'_>,
    ) -> Result<(), NotAModule> {
        let name = section.name.as_str();
        if let Some(point) = checked_point(name) {
            let point = EntryPoint::named(point)
                .ok_or_else(|| NotAModule::UnknownEntryPoint(shown(point)))?;
            if self.entry_points.contains(&point) {
                return Err(NotAModule::TwoChecks(point));
            }
            self.entry_points.push(point);
            let check = format!("{CHECK}{point}");
            return elf.require_only(index, STT_FUNC, &check, NotAModule::OtherProgram);
        }
        if name == TABLES {
            self.has_settings = true;
            return elf.require_only(index, STT_OBJECT, SETTINGS, NotAModule::OtherTable);
        }
        let is_constant = name == ".rodata" || name.starts_with(".rodata.");
        match name {
            FUNCTIONS => Ok(()),
            _ if section.is_program => Err(NotAModule::OtherProgram(shown(name))),
            DECLARATION => Ok(()),
            STATEMENTS if self.statements.is_empty() => {
                (self.statements, self.settings_size) = Statement::read(section.bytes)?;
                Ok(())
            }
            _ if is_constant || section.is_passive() => Ok(()),
            _ => Err(NotAModule::OtherSection(shown(name))),
        }
    }
}

/// The entry point whose check a section has, by the section's name.
fn checked_point(section: &str) -> Option<&str> {
    let (before, after) = CHECK_SECTION;
    section.strip_prefix(before)?.strip_suffix(after)
}

/// A name from the file, for people: its beginning, with nothing that acts on a terminal.
fn shown(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_debug).collect()
}

fn broken(reason: impl Display) -> NotAModule {
    NotAModule::NotAnObject(reason.to_string())
}

type Header = FileHeader64<Endianness>;

/// An object file for BPF, of this machine's byte order.
struct Elf<'b> {
    bytes: &'b [u8],
    order: Endianness,
    table: SectionTable<'b, Header>,
    symbols: Vec<Symbol>,
}

struct Symbol {
    name: String,
    kind: u8,
    /// The number of the section that defines the symbol; 0 if it is defined elsewhere.
    section: usize,
}

struct Section<'b> {
    name: String,
    is_program: bool,
    bytes: &'b [u8],
}

impl Section<'_> {
    fn is_passive(&self) -> bool {
        let begins = |prefix: &&str| self.name.starts_with(*prefix);
        PASSIVE.contains(&self.name.as_str()) || PASSIVE_PREFIXES.iter().any(begins)
    }
}

impl<'b> Elf<'b> {
    fn open(bytes: &'b [u8]) -> Result<Self, NotAModule> {
        let kind = object::FileKind::parse(bytes).map_err(broken)?;
        if kind != object::FileKind::Elf64 {
            return Err(NotAModule::OtherMachine);
        }
        let header = Header::parse(bytes).map_err(broken)?;
        let order = header.endian().map_err(broken)?;
        if order != Endianness::default()
            || header.e_machine(order) != EM_BPF
            || header.e_type(order) != ET_REL
        {
            return Err(NotAModule::OtherMachine);
        }
        let table = header.sections(order, bytes).map_err(broken)?;
        let symbols = table.symbols(order, bytes, SHT_SYMTAB).map_err(broken)?;
        let symbols = symbols.iter().map(|symbol| {
            let name = symbols.symbol_name(order, symbol).map_err(broken)?;
            Ok(Symbol {
                name: String::from_utf8_lossy(name).into_owned(),
                kind: symbol.st_type(),
                section: usize::from(symbol.st_shndx(order)),
            })
        });
        let symbols = symbols.collect::<Result<_, NotAModule>>()?;
        Ok(Self {
            bytes,
            order,
            table,
            symbols,
        })
    }

    fn sections(&self) -> impl Iterator<Item = (usize, Result<Section<'b>, NotAModule>)> {
        self.table.iter().enumerate().map(|(index, header)| {
            let name = self.table.section_name(self.order, header);
            let section = name.and_then(|name| {
                Ok(Section {
                    name: String::from_utf8_lossy(name).into_owned(),
                    is_program: header.sh_flags(self.order) & u64::from(SHF_EXECINSTR) != 0,
                    bytes: header.data(self.order, self.bytes)?,
                })
            });
            (index, section.map_err(broken))
        })
    }

    /// The only section of this name.
    fn section(&self, name: &str) -> Result<Option<Section<'b>>, NotAModule> {
        let mut found = None;
        for (_, section) in self.sections() {
            let section = section?;
            if section.name == name && found.replace(section).is_some() {
                return Err(broken(format_args!("it has two sections {name}")));
            }
        }
        Ok(found)
    }

    /// Reads the declaration. The entry points and the settings stand elsewhere in the file.
    fn declared(&self) -> Result<Declaration, NotAModule> {
        let section = self.section(DECLARATION)?;
        let bytes = section.ok_or(NotAModule::NothingDeclared)?.bytes;
        let interface = bytes.first_chunk().map(|word| u32::from_ne_bytes(*word));
        match interface {
            None => return Err(NotAModule::UnreadableDeclaration),
            Some(MAC_INTERFACE) => {}
            Some(other) => return Err(NotAModule::OtherInterface(other)),
        }
        let declared = MacDeclaration::read(bytes).filter(|declared| {
            let sizes = [declared.size as usize, bytes.len()];
            let switches = [declared.exempts_without_element, declared.decides_by_labels];
            sizes == [size_of::<MacDeclaration>(); 2]
                && switches.iter().all(|switch| *switch <= 1)
                && declared.reserved == 0
        });
        let declared = declared.ok_or(NotAModule::UnreadableDeclaration)?;
        let name = text(&declared.name).ok_or(NotAModule::UnreadableDeclaration)?;
        if !is_module_name(&name) {
            return Err(NotAModule::NotAName(name));
        }
        if declared.label > MAC_NAME {
            return Err(NotAModule::UnknownLabel(declared.label));
        }
        Ok(Declaration {
            name,
            label: declared.label,
            exempts_without_element: declared.exempts_without_element == 1,
            decides_by_labels: declared.decides_by_labels == 1,
            entry_points: Vec::new(),
            has_settings: false,
            statements: Vec::new(),
            settings_size: 0,
        })
    }

    /// Requires that a section has one symbol of this kind, with this name.
    fn require_only(
        &self,
        section: usize,
        kind: u8,
        name: &str,
        otherwise: fn(String) -> NotAModule,
    ) -> Result<(), NotAModule> {
        let symbols = self.symbols.iter();
        let mut there = symbols.filter(|one| (one.section, one.kind) == (section, kind));
        let wrong = match (there.next(), there.next()) {
            (Some(only), None) if only.name == name => return Ok(()),
            (Some(first), Some(other)) if first.name == name => &other.name,
            (Some(first), _) => &first.name,
            (None, _) => "without a name",
        };
        Err(otherwise(shown(wrong)))
    }

    fn require_nothing_external(&self) -> Result<(), NotAModule> {
        let undefined = usize::from(SHN_UNDEF);
        let mut symbols = self.symbols.iter();
        let external = symbols.find(|one| one.section == undefined && !one.name.is_empty());
        external.map_or(Ok(()), |one| Err(NotAModule::External(shown(&one.name))))
    }
}
