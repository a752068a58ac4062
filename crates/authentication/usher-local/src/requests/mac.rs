//! The answers of the labeller.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// SHA-256 of a file's bytes, in hexadecimal digits, as [`MacView::specification`] has it.
pub fn digest_of(bytes: &[u8]) -> String {
    let digest = usher_base::sha256(&[bytes]);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The modules of mandatory access control.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MacView {
    /// The generation of the configuration in force.
    pub generation: u64,
    /// The modules in force, in the order of loading.
    pub modules: Vec<ModuleView>,
    /// The modules that can be loaded and are not: of this version, then from files.
    pub available: Vec<String>,
    /// The reasons that files are not modules which can be loaded, by the name in the file's name.
    pub unusable: BTreeMap<String, String>,
    /// The modules whose `mac` block waits until they are loaded.
    pub waiting: Vec<String>,
    /// The kernel's hooks to which a program is attached.
    pub hooks: Vec<String>,
    /// The reason that this kernel runs no modules; none: it does.
    pub unsupported: Option<String>,
    /// True if the guard keeps other processes from the loaded objects.
    pub is_guarded: bool,
    /// The file systems whose files have labels of their own.
    #[serde(default)]
    pub multilabel: Vec<MultilabelView>,
    /// SHA-256 of the specification in force, as its file was when it was read, in hexadecimal digits; none without one.
    #[serde(default)]
    pub specification: Option<String>,
    /// The network interfaces that the policy gives a label, by name.
    #[serde(default)]
    pub interfaces: Vec<InterfaceView>,
    /// The accesses to files of multilabel file systems that were refused because a label was not known.
    #[serde(default)]
    pub unknown_refusals: u64,
    /// Refusals and lowered processes that came faster than the labeller reads them: the journal lacks them.
    #[serde(default)]
    pub lost_events: u64,
    /// Troubles that keep the modules from deciding as the policy says, each for people.
    pub troubles: Vec<String>,
}

/// A file system whose files have labels of their own, in their attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MultilabelView {
    /// Its mount point.
    pub path: String,
    /// The labels of new files that were written since the labeller watches it.
    pub persisted: u64,
    /// The files without a label that were found, which are refused until they get one.
    pub unlabelled: u64,
    /// The labels that could not be written.
    pub failed: u64,
    /// How often so many files came at once that the labeller had to look at all of them.
    pub overflows: u64,
    /// True while it looks at all files.
    pub is_walking: bool,
    /// The reason of the last failure, or that the file system is not watched.
    pub trouble: Option<String>,
}

/// A network interface with a label in the policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceView {
    /// Its name; it may be there or not.
    pub name: String,
    /// The label in the policy.
    pub label: String,
    /// The label in force: its elements of modules in force; none: no element.
    pub in_force: Option<String>,
}

/// How a trouble begins that makes [`ModuleView::lacking`] incomplete.
pub const UNREADABLE_NOTES: &str = "te: what it has refused cannot be read";

/// A module in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleView {
    /// Its name.
    pub name: String,
    /// The file that it was loaded from; none: it is built in.
    pub file: Option<String>,
    /// True if that file is no longer what it was at `usher mac load`.
    pub has_changed: bool,
    /// Its place among the modules that the kernel can hold, from 0.
    pub slot: usize,
    /// The hooks at which it decides.
    pub hooks: Vec<String>,
    /// The accesses that it has refused since it was loaded, by hook; those above zero.
    pub refusals: BTreeMap<String, u64>,
    /// How often it has lowered a process since it was loaded.
    #[serde(default)]
    pub lowered: u64,
    /// Its settings in force, one string a statement, with the names of the policy.
    pub settings: Vec<String>,
    /// Of `te`: statements that permit what it has refused since its settings came into force, and what it would
    /// have refused to permissive domains.
    pub lacking: Vec<String>,
    /// Refusals that no such statement is about: of names that the policy does not declare, or more than are
    /// noted.
    pub unlearned: u64,
}

/// The refusals of modules since the labeller started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalsView {
    /// The kinds of refusals, those that came last first; of the oldest ones nothing is kept.
    pub refusals: Vec<RefusalView>,
    /// Refusals and lowered processes that came faster than the labeller reads them: the journal lacks them.
    pub lost_events: u64,
}

/// One kind of refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalView {
    /// The module.
    pub module: String,
    /// The entry point.
    pub entry_point: String,
    /// The module's element of the process; none if it has none, or the event does not say.
    pub subject: Option<String>,
    /// The module's element of the object, in the same way.
    pub object: Option<String>,
    /// How many there were.
    pub count: u64,
    /// The last one, for people. Names in it are whatever processes have chosen.
    pub last: String,
}
