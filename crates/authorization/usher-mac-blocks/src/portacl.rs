//! The statements of the module `portacl`: which users and groups bind which ports, as FreeBSD's
//! mac_portacl(4) has it.
//!
//! ```text
//! permit user www tcp 80;
//! permit group mail tcp 25;
//! port_high 1023;
//! suser_exempt no;
//! autoport_exempt no;
//! ```

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use usher_language::{
    Field, Fields, Kind, Occurrence, Origin, Part, Reporter, Shape, StatementRule, Unique,
};

use crate::account::{AccountId, NamedAccount};
use crate::limits::MAXIMUM_PERMITS;
use crate::mistake::MacMistake;
use crate::words::{choice, is_yes, yes_or_no};

/// The module's name.
pub const MODULE: &str = "portacl";

const PERMIT: &str = "permit";
const PORT_HIGH: &str = "port_high";
const SUSER_EXEMPT: &str = "suser_exempt";
const AUTOPORT_EXEMPT: &str = "autoport_exempt";

const GROUP: &str = "group";

/// The settings of the module. Default: FreeBSD's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAcl {
    /// The ports that users and groups bind, each with its place in the text.
    pub permits: BTreeMap<PortPermit, Origin>,
    /// The highest port that the module decides about.
    pub port_high: u16,
    /// Root binds every port.
    pub suser_exempt: bool,
    /// Everybody binds port 0, for which the kernel chooses one.
    pub autoport_exempt: bool,
}

impl Default for PortAcl {
    fn default() -> Self {
        Self {
            permits: BTreeMap::new(),
            port_high: 1023,
            suser_exempt: true,
            autoport_exempt: true,
        }
    }
}

/// A port that a user or group may bind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortPermit {
    /// The port; 0: one that the kernel chooses.
    pub port: u16,
    /// The protocol: UDP, or else TCP.
    pub is_udp: bool,
    /// The account is a group, or else a user.
    pub is_group: bool,
    /// The user or group.
    pub account: AccountId,
}

impl PortPermit {
    /// Whether the permit is for root, whom the kernel lets bind every port.
    pub fn is_of_root(&self) -> bool {
        !self.is_group && self.account.is_root()
    }
}

impl Display for PortPermit {
    /// The statement, without `;`.
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let noun = if self.is_group { GROUP } else { "user" };
        let protocol = if self.is_udp { "udp" } else { "tcp" };
        let (account, port) = (&self.account, self.port);
        write!(formatter, "{PERMIT} {noun} {account} {protocol} {port}")
    }
}

/// The statements of its block.
pub(crate) fn statements() -> Vec<StatementRule> {
    let port = || Kind::Number {
        least: 0,
        most: u16::MAX.into(),
    };
    let permit = vec![
        Part::Value(choice(&["user", GROUP])),
        Part::Value(Kind::Word("ACCOUNT".to_owned())),
        Part::Value(choice(&["tcp", "udp"])),
        Part::Value(port()),
    ];
    let once = Occurrence::AtMostOnce;
    vec![
        StatementRule::new(
            PERMIT,
            Occurrence::Any,
            Shape::Phrase(permit),
            "a port that a user or the members of a group may bind",
        ),
        StatementRule::new(
            PORT_HIGH,
            once,
            Shape::One(port()),
            "the last port that only those bind who are permitted it",
        ),
        StatementRule::new(SUSER_EXEMPT, once, yes_or_no(), "root binds every port"),
        StatementRule::new(
            AUTOPORT_EXEMPT,
            once,
            yes_or_no(),
            "everybody binds port 0, for which the kernel chooses one",
        ),
    ]
}

/// The settings of a block; what has mistakes is left out.
pub(crate) fn settings(fields: &Fields<'_>, reporter: &Reporter<'_>) -> PortAcl {
    if let Some(field) = fields.all(PERMIT).nth(MAXIMUM_PERMITS) {
        reporter.report(field.statement.location, MacMistake::TooManyPermits);
    }
    let mut listed = Unique::default();
    let permits = fields.all(PERMIT).take(MAXIMUM_PERMITS);
    let permits = permits.filter_map(|field| permit(field, &mut listed, reporter));
    let default = PortAcl::default();
    PortAcl {
        permits: permits.collect(),
        port_high: fields.number(PORT_HIGH).unwrap_or(default.port_high),
        suser_exempt: is_yes(fields, SUSER_EXEMPT).unwrap_or(default.suser_exempt),
        autoport_exempt: is_yes(fields, AUTOPORT_EXEMPT).unwrap_or(default.autoport_exempt),
    }
}

fn permit(
    field: &Field<'_>,
    listed: &mut Unique<PortPermit>,
    reporter: &Reporter<'_>,
) -> Option<(PortPermit, Origin)> {
    let [Some(noun), Some(account), Some(protocol), Some(_)] = field.parts()? else {
        return None;
    };
    let is_group = noun.is_word(GROUP);
    let permit = PortPermit {
        port: u16::try_from(field.number()?).ok()?,
        is_udp: protocol.is_word("udp"),
        is_group,
        account: AccountId::read(field, account, if is_group { GROUP } else { "user" })?,
    };
    let repeated = |first| MacMistake::RepeatedPermit { first };
    listed.take(permit.clone(), noun, reporter, repeated)?;
    Some((permit, field.origin()))
}

impl PortAcl {
    /// The users and groups that the permits name.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = NamedAccount<'_>> {
        let permits = self.permits.iter();
        permits.filter_map(|(permit, origin)| {
            NamedAccount::of(&permit.account, permit.is_group, origin)
        })
    }

    /// The statements in their canonical form, without `;`.
    pub(crate) fn lines(&self) -> Vec<String> {
        let default = Self::default();
        let mut lines: Vec<String> = self.permits.keys().map(ToString::to_string).collect();
        if self.port_high != default.port_high {
            lines.push(format!("{PORT_HIGH} {}", self.port_high));
        }
        for (keyword, is_exempt) in [
            (SUSER_EXEMPT, self.suser_exempt),
            (AUTOPORT_EXEMPT, self.autoport_exempt),
        ] {
            if !is_exempt {
                lines.push(format!("{keyword} no"));
            }
        }
        lines
    }

    /// The permits without effect: those of ports that the module leaves to every process.
    pub fn needless(&self) -> impl Iterator<Item = (&PortPermit, &Origin)> {
        self.permits
            .iter()
            .filter(|(permit, _)| self.leaves(permit.port))
    }

    /// The permits without which the module would refuse something.
    pub fn needed(&self) -> impl Iterator<Item = (&PortPermit, &Origin)> {
        self.permits
            .iter()
            .filter(|(permit, _)| !self.leaves(permit.port))
    }

    /// Whether the module leaves a port to every process.
    fn leaves(&self, port: u16) -> bool {
        match port {
            0 => self.autoport_exempt,
            port => port > self.port_high,
        }
    }
}
