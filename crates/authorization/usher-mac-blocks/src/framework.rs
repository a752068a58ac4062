//! The statements of the framework itself, which is no module: what holds for the labels of all modules.
//!
//! ```text
//! mac framework {
//!   multilabel "/srv", "/home";
//!   specification "/etc/usher/files.mac";
//!   interface "eth0" label "biba/high,mls/low";
//!   families vsock, packet;
//! }
//! ```

use std::collections::{BTreeMap, BTreeSet};

use usher_label::Label;
use usher_language::{
    Field, Fields, Found, Kind, Occurrence, Origin, Part, Quoted, Reporter, Shape, StatementRule,
    Unique, is_plain_path, joined,
};

use crate::limits::{MAXIMUM_INTERFACE_NAME, MAXIMUM_INTERFACES, MAXIMUM_MULTILABEL};
use crate::mistake::MacMistake;
use crate::words::choice;

/// The name of the framework's block. No module has it.
pub const FRAMEWORK_BLOCK: &str = "framework";

const MULTILABEL: &str = "multilabel";

const FAMILIES: &str = "families";

/// The families of sockets about which modules of levels do not decide, with the kernel's numbers.
const UNDECIDED: &[(&str, u32)] = &[
    ("alg", 38),
    ("appletalk", 5),
    ("atmpvc", 8),
    ("atmsvc", 20),
    ("ax25", 3),
    ("bluetooth", 31),
    ("caif", 37),
    ("can", 29),
    ("ib", 27),
    ("ieee802154", 36),
    ("isdn", 34),
    ("kcm", 41),
    ("key", 15),
    ("llc", 26),
    ("mctp", 45),
    ("mpls", 28),
    ("netrom", 6),
    ("nfc", 39),
    ("packet", 17),
    ("phonet", 35),
    ("pppox", 24),
    ("qipcrtr", 42),
    ("rds", 21),
    ("rose", 11),
    ("rxrpc", 33),
    ("smc", 43),
    ("tipc", 30),
    ("vsock", 40),
    ("x25", 9),
    ("xdp", 44),
];

const SPECIFICATION: &str = "specification";

/// The folder of specifications: only files of the configuration decide.
const CONFIGURATION: &str = "/etc/";

const INTERFACE: &str = "interface";
const LABEL: &str = "label";

/// The settings of the framework.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameworkSettings {
    /// Mount points of the file systems whose files have labels of their own, in their attributes.
    /// Attributes on other file systems are ignored.
    pub multilabel: BTreeSet<String>,
    /// The file of setfsmac(8) that has the labels of files, with its place in the text.
    pub specification: Option<(String, Origin)>,
    /// Labels of network interfaces, by name.
    pub interfaces: BTreeMap<String, Label>,
    /// Families of sockets, by name, that processes with a level may make although no module of levels decides
    /// about what they carry.
    pub families: BTreeSet<String>,
}

/// The statements of its block.
pub(crate) fn statements() -> Vec<StatementRule> {
    let text = |form: &str| Kind::Text(form.to_owned());
    let names: Vec<_> = UNDECIDED.iter().map(|(name, _)| *name).collect();
    let interface = vec![
        Part::Value(text("\"NAME\"")),
        Part::Word(LABEL.to_owned()),
        Part::Value(text("\"LABEL\"")),
    ];
    vec![
        StatementRule::new(
            MULTILABEL,
            Occurrence::AtMostOnce,
            Shape::List(text("\"/PATH\"")),
            "file systems whose files have labels of their own",
        ),
        StatementRule::new(
            SPECIFICATION,
            Occurrence::AtMostOnce,
            Shape::One(text("\"/etc/PATH\"")),
            "the file of setfsmac(8) that has the labels of files",
        ),
        StatementRule::new(
            INTERFACE,
            Occurrence::Any,
            Shape::Phrase(interface),
            "the label of a network interface, and of the packets that arrive by it",
        ),
        StatementRule::new(
            FAMILIES,
            Occurrence::AtMostOnce,
            Shape::List(choice(&names)),
            "families of sockets that processes with a level may make, unchecked",
        ),
    ]
}

/// The settings of a block; what has mistakes is left out.
pub(crate) fn settings(fields: &Fields<'_>, reporter: &Reporter<'_>) -> FrameworkSettings {
    FrameworkSettings {
        multilabel: file_systems(fields, reporter),
        specification: fields.one(SPECIFICATION).and_then(specification),
        interfaces: interfaces(fields, reporter),
        families: families(fields, reporter),
    }
}

fn families(fields: &Fields<'_>, reporter: &Reporter<'_>) -> BTreeSet<String> {
    let mut listed = Unique::default();
    for (name, item) in fields.all(FAMILIES).flat_map(Field::words) {
        listed.list(name.to_owned(), item, reporter);
    }
    listed.into_keys()
}

fn file_systems(fields: &Fields<'_>, reporter: &Reporter<'_>) -> BTreeSet<String> {
    let mut listed = Unique::default();
    for field in fields.all(MULTILABEL) {
        let hint = "a host has few file systems whose files need labels of their own";
        if field.has_too_many(MAXIMUM_MULTILABEL, hint) {
            continue;
        }
        for (path, item) in field.texts() {
            if path != "/" && !is_plain_path(path) {
                let found = Found(item.shown());
                let _: Option<()> = field.refuse(item, MacMistake::InvalidFileSystem { found });
                continue;
            }
            listed.list(path.to_owned(), item, reporter);
        }
    }
    listed.into_keys()
}

fn specification(field: &Field<'_>) -> Option<(String, Origin)> {
    let item = field.items().next()?;
    match item.text() {
        Some(path) if is_plain_path(path) && path.starts_with(CONFIGURATION) => {
            Some((path.to_owned(), field.origin()))
        }
        _ => {
            let found = Found(item.shown());
            field.refuse(item, MacMistake::InvalidSpecification { found })
        }
    }
}

fn interfaces(fields: &Fields<'_>, reporter: &Reporter<'_>) -> BTreeMap<String, Label> {
    let mut listed = Unique::default();
    let mut found = BTreeMap::new();
    if let Some(field) = fields.all(INTERFACE).nth(MAXIMUM_INTERFACES) {
        reporter.report(field.statement.location, MacMistake::TooManyInterfaces);
    }
    for field in fields.all(INTERFACE).take(MAXIMUM_INTERFACES) {
        let Some((name, label)) = interface(field, &mut listed, reporter) else {
            continue;
        };
        found.insert(name, label);
    }
    found
}

fn interface(
    field: &Field<'_>,
    listed: &mut Unique<String>,
    reporter: &Reporter<'_>,
) -> Option<(String, Label)> {
    let [Some(named), Some(labelled)] = field.parts()? else {
        return None;
    };
    let name = named.text()?;
    if !is_interface_name(name) {
        let found = Found(named.shown());
        return field.refuse(named, MacMistake::InvalidInterface { found });
    }
    listed.list(name.to_owned(), named, reporter)?;
    match labelled.text()?.parse::<Label>() {
        Ok(label) => match label.check_values() {
            Ok(()) => Some((name.to_owned(), label)),
            Err((element, mistake)) => {
                field.refuse(labelled, MacMistake::InvalidValue { element, mistake })
            }
        },
        Err(error) => {
            let (byte, mistake) = (error.span.offset + 1, error.mistake);
            field.refuse(labelled, MacMistake::InvalidLabel { byte, mistake })
        }
    }
}

/// Whether the kernel takes this as the name of an interface (dev_valid_name). Usher also refuses blanks and
/// invisible bytes.
pub(crate) fn is_interface_name(text: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_graphic() && !b"/:%".contains(&byte);
    (1..=MAXIMUM_INTERFACE_NAME).contains(&text.len())
        && text != "."
        && text != ".."
        && text.bytes().all(is_of_name)
}

impl FrameworkSettings {
    /// The kernel's numbers of the families.
    pub fn family_numbers(&self) -> BTreeSet<u32> {
        let named = UNDECIDED.iter();
        let named = named.filter(|(name, _)| self.families.contains(*name));
        named.map(|(_, number)| *number).collect()
    }

    /// The statements in their canonical form, without `;`.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.multilabel.is_empty() {
            let paths = self.multilabel.iter().map(|path| Quoted(path));
            lines.push(format!("{MULTILABEL} {}", joined(paths, ", ")));
        }
        if let Some((path, _)) = &self.specification {
            lines.push(format!("{SPECIFICATION} {}", Quoted(path)));
        }
        lines.extend(self.interfaces.iter().map(|(name, label)| {
            let (name, label) = (Quoted(name), label.to_string());
            format!("{INTERFACE} {name} {LABEL} {}", Quoted(&label))
        }));
        if !self.families.is_empty() {
            lines.push(format!("{FAMILIES} {}", joined(self.families.iter(), ", ")));
        }
        lines
    }
}
