//! Errors of this crate.

use usher_bpf::KernelError;
use usher_label::ValueMistake;

use crate::declaration::NotAModule;
use crate::shared::{
    MAC_DESTINATIONS, MAC_INTERFACES, MAC_MODULES, MAC_PORT_RULES, MAC_RANGES, MAC_RULES,
    MAC_SERVICES, MAC_SWITCHES,
};
use crate::te::TypeMistake;

/// This kernel cannot run the framework.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("mandatory access control does not run on this kernel: {0}")]
pub struct Unsupported(pub String);

/// The framework refuses, or the kernel does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// BPF, or another system call.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel lacks something.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A module of this name is loaded already.
    #[error("a module named {0} is loaded already; unload it first")]
    Loaded(String),
    /// No module of this name is loaded.
    #[error("no module named {0} is loaded; `usher mac list` shows those that are")]
    NotLoaded(String),
    /// All slots are taken.
    #[error(
        "{0} cannot be loaded: {MAC_MODULES} modules are loaded, which is the limit; unload one first"
    )]
    NoSlot(String),
    /// An object file is no module for this version.
    #[error("{name}: {reason}")]
    NotAModule {
        /// The name by which it was asked for.
        name: String,
        /// The reason.
        reason: NotAModule,
    },
    /// The kernel refuses the programs of a module.
    #[error(
        "the kernel refuses the module {name}: {error}; the journal has the verifier's reasons, with \
         the line of the source that each is about"
    )]
    Refused {
        /// The module.
        name: String,
        /// libbpf's error.
        error: KernelError,
    },
    /// The kernel does not ask LSM programs about new files.
    #[error(
        "new files on multilabel file systems get no label, and are refused until setfsmac(8) labels them: \
         the kernel asks about new files only where evm, selinux or smack is in force; boot with \
         lsm=...,evm (in force: {0})"
    )]
    NewFilesUnlabelled(String),
    /// The settings are those of another module, or the module has none.
    #[error("these are not settings of the module {0}")]
    OtherSettings(String),
    /// A name in settings whose number on this host was not passed with them.
    #[error("the settings name {0}, whose number is not known")]
    Unresolved(String),
    /// An interface whose packets modules are not asked about.
    #[error(
        "the packets of the interface {interface} cannot be asked about ({error}); remove programs that it has \
         at tcx, which `bpftool net` lists, or unload the module"
    )]
    Unattached {
        /// The interface.
        interface: String,
        /// The kernel's error.
        error: KernelError,
    },
    /// Too many switches of `ifoff`.
    #[error(
        "ifoff takes at most {MAC_SWITCHES} interfaces, and the policy names {0}; set `others` and \
         name only interfaces that differ"
    )]
    TooManySwitches(usize),
    /// A name that no interface has.
    #[error("`{0}` is no name of a network interface: it has no byte, or more than 15")]
    InterfaceName(String),
    /// Too many interfaces.
    #[error(
        "at most {MAC_INTERFACES} network interfaces can have labels, and the policy gives labels to {0}"
    )]
    TooManyInterfaces(usize),
    /// An element of an interface's label is no value of its module.
    #[error("interface {interface}: the module {module}: {mistake}")]
    Interface {
        /// The interface.
        interface: String,
        /// The module.
        module: String,
        /// The mistake.
        mistake: ValueMistake,
    },
    /// Too many rules.
    #[error(
        "bsdextended takes at most {MAC_RULES} rules, and the policy has {0}; write rules that \
         differ only in the numbers of users or groups as one rule with a range"
    )]
    TooManyRules(usize),
    /// Too many ranges in a condition.
    #[error("a condition has {0} ranges, and at most {MAC_RANGES} are possible")]
    TooManyRanges(usize),
    /// A device that the kernel's numbers cannot hold.
    #[error("{0}:{1} is not a device number")]
    Device(u32, u32),
    /// Too many rules of `portacl`.
    #[error(
        "portacl takes at most {MAC_PORT_RULES} rules, and the policy has {0}; permit ports to a \
         group in place of its members"
    )]
    TooManyPortRules(usize),
    /// Settings that `te` cannot hold.
    #[error("te: {0}")]
    Types(#[from] TypeMistake),
    /// Too many services.
    #[error(
        "the policy has {0} services, and ubns takes at most {MAC_SERVICES}; have fewer on this host, or \
         unload ubns"
    )]
    TooManyServices(usize),
    /// Too many destinations.
    #[error(
        "the services' `connect` have {0} ranges of addresses together, and ubns takes at most \
         {MAC_DESTINATIONS}; join neighbouring addresses to networks, or unload ubns"
    )]
    TooManyDestinations(usize),
    /// A service that the module cannot hold.
    #[error("service {service}: {what}")]
    Service {
        /// Its name.
        service: String,
        /// The mistake.
        what: ServiceMistake,
    },
}

/// A mistake in a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServiceMistake {
    /// No name, or too long a one.
    #[error("its name has no byte, or more than 63")]
    Name,
    /// No port.
    #[error("its port is 0")]
    Port,
    /// An account that is root's.
    #[error("its account is root's")]
    Root,
    /// A destination of two families, or that ends before it begins.
    #[error("a destination has addresses of two families, or ends before it begins")]
    Destination,
}
