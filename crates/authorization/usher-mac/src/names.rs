//! Names in settings, and what they mean on a host.

use std::collections::BTreeMap;

use usher_mac_blocks::AccountId;

use crate::Error;

/// The numbers on this host of the names in settings. Settings with any other name cannot be put in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Numbers of users, as the initial user namespace has them.
    pub users: BTreeMap<String, u32>,
    /// Numbers of groups.
    pub groups: BTreeMap<String, u32>,
    /// Devices of the file systems that are mounted at paths: major number, below 4,096, and minor number, below
    /// 1,048,576.
    pub devices: BTreeMap<String, (u32, u32)>,
    /// The network namespace that has the interfaces: the inode of `/proc/PID/ns/net`.
    pub network: u32,
}

impl Names {
    /// The number of a user, or else of a group.
    pub(crate) fn number(&self, account: &AccountId, is_group: bool) -> Result<u32, Error> {
        match account {
            AccountId::Number(number) => Ok(*number),
            AccountId::Name(name) => self.named(name, is_group),
        }
    }

    /// The number of the user, or else of the group, with this name.
    pub(crate) fn named(&self, name: &str, is_group: bool) -> Result<u32, Error> {
        let known = if is_group { &self.groups } else { &self.users };
        let number = known.get(name).copied();
        number.ok_or_else(|| Error::Unresolved(name.to_owned()))
    }

    pub(crate) fn device(&self, path: &str) -> Result<(u32, u32), Error> {
        let device = self.devices.get(path).copied();
        device.ok_or_else(|| Error::Unresolved(path.to_owned()))
    }
}
