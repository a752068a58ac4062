//! Settings of the module `seeotheruids`, by which processes do nothing to those of other users, as FreeBSD's
//! mac_seeotheruids(4) has it.

use crate::shared::MacSeeotheruids;

/// Which processes reach those of other users all the same. Default: FreeBSD's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisibilitySettings {
    /// Members of this group, by its number in the initial user namespace.
    pub specificgid: Option<u32>,
    /// Processes whose real group is the same.
    pub primarygroup: bool,
    /// Processes with the capability for it.
    pub suser_privileged: bool,
}

impl Default for VisibilitySettings {
    fn default() -> Self {
        Self {
            specificgid: None,
            primarygroup: false,
            suser_privileged: true,
        }
    }
}

/// Settings as the module reads them.
pub(crate) fn encode(settings: &VisibilitySettings) -> MacSeeotheruids {
    MacSeeotheruids {
        primarygroup: settings.primarygroup.into(),
        suser_privileged: settings.suser_privileged.into(),
        has_group: settings.specificgid.is_some().into(),
        group: settings.specificgid.unwrap_or(0),
    }
}
