//! The tables of labels, and the file systems whose files have labels of their own.

use std::collections::{BTreeMap, BTreeSet};

use usher_bpf::{Counters, KernelError, Object, Pins, Table};

use crate::devices::device_number;
use crate::in_force::InForce;
use crate::shared::{MAC_ELEMENTS_OF_USERS, MacLabel, MacNumbered};
use crate::{Error, dispatchers, followed};

/// The table whose only entry is the table of the labels of interfaces.
pub(crate) const INTERFACES: &str = "interfaces";

/// The tables of labels that outlive the process.
pub(crate) const TABLES: [&str; 16] = [
    "elements",
    "element_numbers",
    "element_counts",
    "last_element",
    "processes",
    "files",
    "sockets",
    "ipc_objects",
    "file_systems",
    "multilabel",
    "unknown_refusals",
    "scratch",
    "demotions",
    "remembered",
    INTERFACES,
    followed::TABLE,
];

/// The hooks whose dispatchers keep labels. They are attached while a module with labels is loaded.
pub(crate) const HOOKS: [&str; 26] = [
    "task_alloc",
    dispatchers::FORKED,
    "inode_init_security_anon",
    "bprm_check_security",
    "bprm_creds_from_file",
    "bprm_committed_creds",
    "setselfattr",
    "file_open",
    "file_receive",
    "path_link",
    "inode_setxattr",
    "inode_post_setxattr",
    "inode_removexattr",
    "inode_init_security",
    "d_instantiate",
    "socket_post_create",
    "mptcp_add_subflow",
    "unix_stream_connect",
    "msg_queue_alloc_security",
    "msg_queue_free_security",
    "sem_alloc_security",
    "sem_free_security",
    "shm_alloc_security",
    "shm_free_security",
    "sb_alloc_security",
    "sb_free_security",
];

/// Limit of the elements of one module, above which only processes with CAP_SYS_ADMIN or CAP_SETUID make new
/// ones.
pub const MAX_ELEMENTS_OF_USERS: usize = MAC_ELEMENTS_OF_USERS as usize;

/// The tables of labels.
pub(crate) struct Labels {
    elements: Table<u32, MacNumbered>,
    numbers: Table<MacNumbered, u32>,
    counts: Table<u32, u64>,
    /// Labels of objects by their addresses.
    by_address: [Table<u64, MacLabel>; 2],
    unknown_refusals: Counters<u64>,
}

impl Labels {
    pub(crate) fn of(object: &Object) -> Result<Self, KernelError> {
        Ok(Self {
            elements: object.table("elements")?,
            numbers: object.table("element_numbers")?,
            counts: object.table("element_counts")?,
            by_address: [object.table("ipc_objects")?, object.table("file_systems")?],
            unknown_refusals: object.counters("unknown_refusals")?,
        })
    }

    /// Removes the elements of a module that is no longer in force. Labels with their numbers stay, and count
    /// as labels without these elements.
    pub(crate) fn forget(&self, slot: u32) -> Result<(), KernelError> {
        for (number, element) in self.elements.entries()? {
            if element.slot == slot {
                self.numbers.remove(&element)?;
                self.elements.remove(&number)?;
            }
        }
        self.counts.set(&slot, &0)
    }

    /// Forgets the labels of System V IPC objects and file systems. Called when the programs that would remove a
    /// label with its object are no longer attached.
    pub(crate) fn forget_objects(&self) -> Result<(), KernelError> {
        let mut tables = self.by_address.iter();
        tables.try_for_each(|table| table.assign(&BTreeMap::new()))
    }

    /// Refusals of files whose label was not known.
    pub(crate) fn unknown_refusals(&self) -> Result<u64, KernelError> {
        self.unknown_refusals.read_at(0)
    }
}

/// The table of the devices of multilabel file systems.
const MULTILABEL: &str = "multilabel";

/// Sets the devices (major and minor numbers) whose files have labels of their own. Files on all other
/// devices have none.
///
/// # Errors
/// The kernel's error; some devices may be set then.
pub(crate) fn set_multilabel(
    pins: &Pins,
    in_force: &InForce,
    devices: &BTreeSet<(u32, u32)>,
) -> Result<(), Error> {
    let table = pins.required_table::<u32, u32>(MULTILABEL)?;
    let devices = devices.iter().map(|device| device_number(*device));
    let devices = devices.collect::<Result<Vec<_>, _>>()?;
    in_force.note_devices(devices.iter().copied())?;
    table.assign(&devices.iter().map(|device| (*device, 1)).collect())?;
    Ok(in_force.keep_devices(devices.into_iter())?)
}
