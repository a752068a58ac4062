//! Settings of the module `seeotheruids`, as it reads them.

use usher_mac_blocks::seeotheruids::SeeOtherUids;

use crate::shared::MacSeeotheruids;
use crate::{Error, Names};

pub(crate) fn encode(settings: &SeeOtherUids, names: &Names) -> Result<MacSeeotheruids, Error> {
    let group = settings.specificgid.as_ref();
    let group = group.map(|(group, _)| names.number(group, true));
    let group = group.transpose()?;
    Ok(MacSeeotheruids {
        primarygroup: settings.primarygroup.into(),
        suser_privileged: settings.suser_privileged.into(),
        has_group: group.is_some().into(),
        group: group.unwrap_or(0),
    })
}
