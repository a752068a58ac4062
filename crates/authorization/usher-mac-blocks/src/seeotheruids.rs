//! The statements of the module `seeotheruids`: which processes reach those of other users, as FreeBSD's
//! mac_seeotheruids(4) has it.
//!
//! ```text
//! specificgid staff;
//! primarygroup yes;
//! suser_privileged no;
//! ```

use usher_language::{Fields, Kind, Occurrence, Origin, Shape, StatementRule};

use crate::account::{AccountId, NamedAccount};
use crate::words::{is_yes, yes_or_no};

/// The module's name.
pub const MODULE: &str = "seeotheruids";

const SPECIFICGID: &str = "specificgid";
const PRIMARYGROUP: &str = "primarygroup";
const SUSER_PRIVILEGED: &str = "suser_privileged";

/// The settings of the module. Default: FreeBSD's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeeOtherUids {
    /// The group whose members reach all processes, with its place in the text.
    pub specificgid: Option<(AccountId, Origin)>,
    /// Processes with the same real group reach each other.
    pub primarygroup: bool,
    /// A process with the capability by which the kernel permits an act may do it to all other processes.
    pub suser_privileged: bool,
}

impl Default for SeeOtherUids {
    fn default() -> Self {
        Self {
            specificgid: None,
            primarygroup: false,
            suser_privileged: true,
        }
    }
}

/// The statements of its block.
pub(crate) fn statements() -> Vec<StatementRule> {
    let group = Shape::One(Kind::Word("GROUP".to_owned()));
    [
        (
            SPECIFICGID,
            group,
            "the group whose members reach the processes of all users",
        ),
        (
            PRIMARYGROUP,
            yes_or_no(),
            "processes with the same real group reach each other",
        ),
        (
            SUSER_PRIVILEGED,
            yes_or_no(),
            "capabilities of root reach the processes of all users",
        ),
    ]
    .map(|(keyword, shape, about)| {
        StatementRule::new(keyword, Occurrence::AtMostOnce, shape, about)
    })
    .into()
}

/// The settings of a block; what has mistakes is left out.
pub(crate) fn settings(fields: &Fields<'_>) -> SeeOtherUids {
    let group = fields.one(SPECIFICGID).and_then(|field| {
        let item = field.items().next()?;
        Some((AccountId::read(field, item, "group")?, field.origin()))
    });
    let default = SeeOtherUids::default();
    SeeOtherUids {
        specificgid: group,
        primarygroup: is_yes(fields, PRIMARYGROUP).unwrap_or(default.primarygroup),
        suser_privileged: is_yes(fields, SUSER_PRIVILEGED).unwrap_or(default.suser_privileged),
    }
}

impl SeeOtherUids {
    /// The group of `specificgid`, if it is given by name.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = NamedAccount<'_>> {
        let group = self.specificgid.iter();
        group.filter_map(|(group, origin)| NamedAccount::of(group, true, origin))
    }

    /// The statements in their canonical form, without `;`.
    pub(crate) fn lines(&self) -> Vec<String> {
        let group = self.specificgid.iter();
        let group = group.map(|(group, _)| format!("{SPECIFICGID} {group}"));
        let primary = self.primarygroup.then(|| format!("{PRIMARYGROUP} yes"));
        let privileged = (!self.suser_privileged).then(|| format!("{SUSER_PRIVILEGED} no"));
        group.chain(primary).chain(privileged).collect()
    }

    /// Whether the module binds the service manager, which ends the processes of services and has root's
    /// group.
    pub fn binds_the_service_manager(&self) -> bool {
        let exempt = self.specificgid.as_ref().map(|(group, _)| group);
        !self.suser_privileged && !exempt.is_some_and(AccountId::is_root)
    }
}
