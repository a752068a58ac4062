//! Makes data of `application` blocks: takes each value, resolves names, refuses duplicates and what
//! is beyond the limits. The tables ([`crate::dialect()`]) have been applied by [`Fields`] before.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;

use usher_base::HostName;
use usher_language::{
    AddressRange, Block, Declared, Field, Fields, Found, Item, Kind as ValueKind, Name, NameRule,
    Reporter, Tree, Unique, Value, declared, nearest,
};

use crate::class::{Kind, Level, Profile};
use crate::dialect::{APPLICATION, LOCAL_PORT, PROTECTION, REMOTE_PORT};
use crate::limits::{MAXIMUM_APPLICATIONS, MAXIMUM_ITEMS, MAXIMUM_NAMES, MAXIMUM_PROGRAMS};
use crate::mistake::ProtectionMistake;
use crate::model::{Application, Network, NetworkType, Peers, Protection, ProtectionItem};
use crate::program::{DAEMONS, ProgramName};

const BLOCK: NameRule = NameRule {
    noun: "block",
    rule: Name::RULE,
    any_is_reserved: false,
};

/// The `application` blocks of a text, in its order. `host` has the addresses of the hosts that the
/// text defines, and none for other names. The blocks are whole only if the reporter stays empty.
pub fn check_applications(
    tree: &Tree<'_>,
    host: impl Fn(&HostName) -> Option<Vec<IpAddr>>,
    reporter: &Reporter<'_>,
) -> Vec<Application> {
    let mut checker = Checker {
        host,
        reporter,
        programs: Unique::default(),
        program_count: 0,
        names: BTreeSet::new(),
    };
    let blocks = tree.blocks.iter();
    let blocks = blocks.filter(|block| block.rule.keyword == APPLICATION);
    let blocks = blocks.enumerate().map_while(|(number, block)| {
        if number < MAXIMUM_APPLICATIONS {
            return Some(checker.block(block));
        }
        let mistake = ProtectionMistake::TooMany {
            what: "`application` blocks",
            most: MAXIMUM_APPLICATIONS,
            remedy: "write programs with the same policy into one block",
        };
        reporter.refuse(block.location, mistake)
    });
    blocks.collect()
}

/// Remembers which programs have a policy, and which names are to be looked up.
struct Checker<'r, H> {
    host: H,
    reporter: &'r Reporter<'r>,
    programs: Unique<ProgramName>,
    program_count: usize,
    names: BTreeSet<HostName>,
}

impl<H: Fn(&HostName) -> Option<Vec<IpAddr>>> Checker<'_, H> {
    fn block(&mut self, block: &Block<'_>) -> Application {
        let names = block.names.iter();
        let programs = names.filter_map(|item| self.program(item)).collect();
        let (defined, protections) = protections(block, self.reporter);
        let fields = Fields::read(block, self.reporter);
        let networks = fields
            .all("network")
            .filter_map(|field| self.network(field, &defined));
        Application {
            programs,
            networks: networks.collect(),
            protections,
            origin: self.reporter.origin(block.location, block.head_end()),
        }
    }

    fn program(&mut self, item: &Item) -> Option<ProgramName> {
        ValueKind::Word(String::new()).read(item, self.reporter)?;
        let word = item.word()?;
        let found = Found::from(word);
        let Some(program) = ProgramName::parse(word) else {
            let mistake = ProtectionMistake::InvalidProgram { found };
            return self.reporter.refuse(item.location, mistake);
        };
        if program.file_name() == DAEMONS {
            let mistake = ProtectionMistake::OwnDaemons { found };
            return self.reporter.refuse(item.location, mistake);
        }
        let taken = |first| ProtectionMistake::DuplicateProgram { found, first };
        self.programs
            .take(program.clone(), item, self.reporter, taken)?;
        self.program_count += 1;
        if self.program_count > MAXIMUM_PROGRAMS {
            let mistake = ProtectionMistake::TooMany {
                what: "programs in `application` blocks",
                most: MAXIMUM_PROGRAMS,
                remedy: "remove programs that this host does not have",
            };
            return self.reporter.refuse(item.location, mistake);
        }
        Some(program)
    }

    /// `network ADDRESSES trusted;`, `untrusted;` or `protected NAME;`
    fn network(&mut self, field: &Field<'_>, defined: &BTreeSet<Name>) -> Option<Network> {
        let items = field.sequence()?;
        if let Some(found) = too_early(items) {
            let (found, form) = (Found::from(found), in_order(items, field));
            return field.refuse(&items[0], ProtectionMistake::WrongOrder { found, form });
        }
        let Some((range, rest)) = Peers::split(items) else {
            return field.missing();
        };
        let peers = Peers::read(range, |name| (self.host)(name).is_some(), field);
        let Some((network_type, rest)) = rest.split_first() else {
            return field.missing();
        };
        ValueKind::Choice(TYPES.map(str::to_owned).into()).read(network_type, field.reporter)?;
        let network_type = match (network_type.word()?, rest) {
            ("trusted", []) => NetworkType::Trusted,
            ("untrusted", []) => NetworkType::Untrusted,
            ("protected", []) => return field.missing(),
            ("protected", [name]) => NetworkType::Protected(protection(name, defined, field)?),
            ("protected", [_, excess, ..]) | (_, [excess, ..]) => return field.unexpected(excess),
            _ => return None,
        };
        let peers = peers?;
        Some(Network {
            addresses: self.addresses(&peers, &range[0])?,
            peers,
            network_type,
            origin: field.origin(),
        })
    }

    /// The addresses, as far as the policy itself knows them.
    fn addresses(&mut self, peers: &Peers, item: &Item) -> Option<Vec<AddressRange>> {
        let name = match peers {
            Peers::Range(range) => return Some(vec![*range]),
            Peers::Name(name) => name,
        };
        if let Some(addresses) = (self.host)(name) {
            return Some(addresses.into_iter().map(AddressRange::from).collect());
        }
        let is_new = self.names.insert(name.clone());
        if is_new && self.names.len() > MAXIMUM_NAMES {
            let mistake = ProtectionMistake::TooMany {
                what: "names to be looked up",
                most: MAXIMUM_NAMES,
                remedy: "write addresses or networks, or give the hosts `host` blocks",
            };
            return self.reporter.refuse(item.location, mistake);
        }
        Some(Vec::new())
    }
}

const TYPES: [&str; 3] = ["trusted", "untrusted", "protected"];

fn is_type(item: &Item) -> bool {
    TYPES.iter().any(|word| item.is_word(word))
}

/// The treatment with which a `network` begins, if it is not the name of a host.
fn too_early(items: &[Item]) -> Option<&str> {
    let (first, rest) = items.split_first()?;
    let is_name = rest.first().is_none_or(is_type);
    first.word().filter(|_| is_type(first) && !is_name)
}

/// A `network` that begins with its treatment, as it was meant.
fn in_order(items: &[Item], field: &Field<'_>) -> String {
    let words: Option<Vec<&str>> = items.iter().map(Item::word).collect();
    match words.as_deref() {
        Some(["protected", name, peers @ ..]) if !peers.is_empty() => {
            format!("`network {} protected {name};`", peers.join(" "))
        }
        Some([word @ ("trusted" | "untrusted"), peers @ ..]) => {
            format!("`network {} {word};`", peers.join(" "))
        }
        _ => field.rule.form(),
    }
}

/// The name of a protection that the block defines.
fn protection(item: &Item, defined: &BTreeSet<Name>, field: &Field<'_>) -> Option<Name> {
    item.word().or_else(|| field.expected_word(item))?;
    let found = field.name_of::<Name>(item, &BLOCK)?;
    if defined.contains(&found) {
        return Some(found);
    }
    let names = defined.iter().map(AsRef::as_ref);
    let nearest = if field.reporter.is_full() {
        None
    } else {
        nearest(found.as_ref(), names)
    };
    field.refuse(
        item,
        ProtectionMistake::UnknownProtection { found, nearest },
    )
}

/// The names of all `protection` blocks of an application, and the blocks.
fn protections(
    block: &Block<'_>,
    reporter: &Reporter<'_>,
) -> (BTreeSet<Name>, BTreeMap<Name, Protection>) {
    let declared = declared::<Name>(&block.blocks, PROTECTION, &BLOCK, reporter);
    let names = declared
        .iter()
        .filter_map(|block| block.name.clone())
        .collect();
    let protections = declared.into_iter().filter_map(|Declared { name, block }| {
        let fields = Fields::read(block, reporter);
        let items: Vec<ProtectionItem> = fields.all(LOCAL_PORT).filter_map(item).collect();
        let (name, found) = (name?, items.len());
        if found > MAXIMUM_ITEMS {
            let protection = name.clone();
            let mistake = ProtectionMistake::TooManyItems { protection, found };
            reporter.report(block.location, mistake);
        }
        let origin = reporter.origin(block.location, block.head_end());
        Some((name, Protection { items, origin }))
    });
    (names, protections.collect())
}

/// `localport=PORT remoteport=PORT encryption|authentication optional|mandatory;`, or with `strong`
/// or `ah` at the end.
fn item(field: &Field<'_>) -> Option<ProtectionItem> {
    let too_short = |missing| {
        let form = field.rule.form();
        let mistake = ProtectionMistake::ItemTooShort { missing, form };
        field.reporter.refuse(field.statement.last.after(), mistake)
    };
    let remote_port = "`remoteport=PORT`";
    let keyword = Item {
        value: Value::Word(field.statement.keyword.clone()),
        location: field.statement.location,
    };
    if field.statement.groups.is_empty() {
        return too_short(remote_port);
    }
    let items = field.sequence()?;
    if let Some(part) = std::iter::once(&keyword)
        .chain(items)
        .find(|item| is_divided(item))
    {
        let (found, form) = (Found(part.shown()), field.rule.form());
        return field.refuse(part, ProtectionMistake::BlankBesidePort { found, form });
    }
    let is_exchanged = |pair: &[Item]| {
        pair[0].word().and_then(Level::of_word).is_some()
            && pair[1].word().and_then(Kind::of_word).is_some()
    };
    if let Some(pair) = items.windows(2).find(|pair| is_exchanged(pair)) {
        let (found, form) = (Found(pair[0].shown()), field.rule.form());
        return field.refuse(&pair[0], ProtectionMistake::WrongOrder { found, form });
    }
    let (remote, kind, level, profile) = match items {
        [remote, kind, level] => (remote, kind, level, None),
        [remote, kind, level, profile] => (remote, kind, level, Some(profile)),
        [_, _, _, _, excess, ..] => return field.unexpected(excess),
        [first, ..] if first.word().is_none() => return field.expected_word(first),
        [first, ..] if !starts_with(first, REMOTE_PORT) => return too_short(remote_port),
        [_, kind] if kind.word().and_then(Kind::of_word).is_some() => {
            return too_short("`optional` or `mandatory`");
        }
        _ => return too_short("`encryption` or `authentication`"),
    };
    let local = port(&keyword, LOCAL_PORT, field);
    let remote = match remote.word() {
        Some(_) if starts_with(remote, REMOTE_PORT) => port(remote, REMOTE_PORT, field),
        _ => field.unexpected(remote),
    };
    Kind::kind().read(kind, field.reporter);
    Level::kind().read(level, field.reporter);
    let profile = match profile {
        None => Profile::Standard,
        Some(strong) if strong.is_word(Profile::Strong.word()) => Profile::Strong,
        Some(ah) if ah.is_word(Profile::Ah.word()) && kind.is_word(Kind::Encryption.word()) => {
            let found = Found::from(Profile::Ah.word());
            return field.refuse(ah, ProtectionMistake::EncryptionByAh { found });
        }
        Some(ah) if ah.is_word(Profile::Ah.word()) => Profile::Ah,
        Some(other) => return field.unexpected(other),
    };
    Some(ProtectionItem {
        local: local?,
        remote: remote?,
        kind: kind.word().and_then(Kind::of_word)?,
        level: level.word().and_then(Level::of_word)?,
        profile,
        origin: field.origin(),
    })
}

/// Whether a word is a part of `remoteport = PORT`.
fn is_divided(item: &Item) -> bool {
    item.word()
        .is_some_and(|word| word.starts_with('=') || word.ends_with('='))
}

fn starts_with(item: &Item, beginning: &str) -> bool {
    item.word().is_some_and(|word| word.starts_with(beginning))
}

/// `localport=PORT` or `localport=any`; none is `any`.
#[expect(clippy::option_option, reason = "wrong, any and one port are three")]
fn port(item: &Item, prefix: &str, field: &Field<'_>) -> Option<Option<NonZeroU16>> {
    let word = item.word()?;
    let found = word.strip_prefix(prefix).unwrap_or(word);
    if found == "any" {
        return Some(None);
    }
    let number = ValueKind::Port.number(found);
    let port = number.and_then(|port| u16::try_from(port).ok());
    match port.and_then(NonZeroU16::new) {
        Some(port) => Some(Some(port)),
        None => {
            let (found, form) = (Found::from(word), field.rule.form());
            field.refuse(item, ProtectionMistake::InvalidItemPort { found, form })
        }
    }
}
