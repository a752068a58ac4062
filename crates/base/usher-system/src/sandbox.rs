//! Confinement of the daemons: files by Landlock, system calls by seccomp.
//! Both are set while the process has one thread, before the first untrusted byte.

use std::collections::BTreeMap;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, path_beneath_rules,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

pub use libc::{NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_XFRM};
pub use usher_system_ffi::landlock_version;

use crate::SystemError;

/// The degree to which the kernel confines file access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LandlockStatus {
    /// Completely.
    Full,
    /// In part: only what this kernel's Landlock supports.
    Partial,
    /// Not at all: this kernel has no Landlock, or it is not enabled.
    Absent,
}

/// An ability of a confined process besides using local sockets, reading files and receiving. The table of
/// roles lists the abilities of each. Sockets that a process has received or accepted need none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// Make TCP sockets.
    Tcp,
    /// Make datagram sockets of IPv4 and IPv6.
    Datagrams,
    /// Make netlink sockets of this protocol (netlink(7)), such as [`NETLINK_SOCK_DIAG`].
    Netlink(i32),
    /// Listen on sockets (listen(2)).
    Listen,
    /// Move bytes between descriptors (splice(2)).
    Splice,
    /// Make, write, rename and remove files, where Landlock permits it.
    WriteFiles,
    /// Use the entries of BPF maps, and run programs, that the process holds. It can load none.
    HeldBpf,
    /// Load BPF programs, attach them by links, pin them, and use their maps. The process cannot open by an
    /// id what others have loaded, and attaches nothing to tracepoints. Needs [`Ability::WriteFiles`] for
    /// pins.
    LoadBpf,
    /// As [`Ability::LoadBpf`], and attach LSM programs and replace functions of the process's own programs:
    /// the kernel returns the types of these by an id (CAP_SYS_ADMIN), and the call that attaches to either
    /// can also attach to tracepoints. The process sees the ids of the programs that network interfaces have.
    ReplaceBpf,
    /// Watch for new files (fanotify(7)), open files by their handles, and read and set extended attributes.
    LabelFiles,
    /// Read extended attributes, such as access control lists.
    ReadAttributes,
    /// Make files readable to everyone and writable by no one: the mode 0444 and no other.
    Show,
}

/// Whether this kernel can confine processes to files.
#[must_use]
pub fn confines_files() -> bool {
    landlock_version() > 0
}

/// Lets the process read below `read`, read and write below `write`, and touch no other file.
/// Missing paths are left out.
///
/// # Errors
/// When a kernel with Landlock refuses the rules.
pub fn landlock(read: &[&Path], write: &[&Path]) -> Result<LandlockStatus, SystemError> {
    let abi = ABI::V5;
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .create()?
        .add_rules(path_beneath_rules(read, AccessFs::from_read(abi)))?
        .add_rules(path_beneath_rules(write, AccessFs::from_all(abi)))?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => LandlockStatus::Full,
        RulesetStatus::PartiallyEnforced => LandlockStatus::Partial,
        RulesetStatus::NotEnforced => LandlockStatus::Absent,
    })
}

/// Lets the calling thread list directories below `list`, and open no file otherwise. Threads that it starts
/// later inherit this. Missing paths are left out.
///
/// # Errors
/// When a kernel with Landlock refuses the rules.
pub fn landlock_lists(list: &[&Path]) -> Result<(), SystemError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))?
        .create()?
        .add_rules(path_beneath_rules(list, AccessFs::ReadDir))?
        .restrict_self()?;
    Ok(())
}

/// Permits the system calls of an asynchronous program, local sockets, and these abilities. Everything
/// else fails with EPERM: new processes, execve, ptrace, mount, namespaces, io_uring and the rest.
///
/// # Errors
/// When the kernel refuses the filter.
pub fn seccomp(abilities: &[Ability]) -> Result<(), SystemError> {
    let apply = || -> Result<(), seccompiler::Error> {
        let architecture: TargetArch = std::env::consts::ARCH.try_into()?;
        let program: BpfProgram = SeccompFilter::new(
            rules(abilities)?,
            SeccompAction::Errno(libc::EPERM.unsigned_abs()),
            SeccompAction::Allow,
            architecture,
        )?
        .try_into()?;
        for filter in [no_clone3(architecture)?, program] {
            seccompiler::apply_filter_all_threads(&filter)?;
        }
        Ok(())
    };
    apply().map_err(SystemError::Seccomp)
}

/// The permitted system calls, each with rules of which one must hold; without rules all arguments are
/// permitted.
fn rules(
    abilities: &[Ability],
) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let mut calls = CALLS.to_vec();
    let mut limited = vec![(libc::SYS_clone, thread_rules()?)];
    let mut sockets = vec![SeccompRule::new(vec![equal(0, libc::AF_UNIX)?])?];
    for ability in abilities {
        match ability {
            Ability::Tcp => sockets.extend(internet_sockets(libc::SOCK_STREAM)?),
            Ability::Datagrams => {
                sockets.extend(internet_sockets(libc::SOCK_DGRAM)?);
                // The C library's resolver sends its queries for a name together.
                calls.push(libc::SYS_sendmmsg);
            }
            Ability::Netlink(protocol) => sockets.push(SeccompRule::new(vec![
                equal(0, libc::AF_NETLINK)?,
                equal(2, *protocol)?,
            ])?),
            Ability::Listen => calls.push(libc::SYS_listen),
            Ability::Splice => calls.push(libc::SYS_splice),
            Ability::LabelFiles => calls.extend(LABELLING),
            Ability::ReadAttributes => calls.extend(READING_ATTRIBUTES),
            Ability::Show => {
                let mode = vec![equal(2, 0o444)?];
                limited.push((libc::SYS_fchmodat, vec![SeccompRule::new(mode)?]));
            }
            Ability::WriteFiles => calls.extend(WRITING),
            Ability::HeldBpf => limited.push((libc::SYS_bpf, bpf_rules(USING_BPF)?)),
            Ability::LoadBpf | Ability::ReplaceBpf => {
                let replacing = match ability {
                    Ability::ReplaceBpf => REPLACING_BPF,
                    _ => &[],
                };
                let commands = [USING_BPF, LOADING_BPF, replacing].concat();
                limited.push((libc::SYS_bpf, bpf_rules(&commands)?));
                calls.extend(LOADING);
            }
        }
    }
    limited.push((libc::SYS_socket, sockets));
    let all = calls.into_iter().map(|call| (call, Vec::new()));
    Ok(all.chain(limited).collect())
}

/// The system call's argument of this number has this value.
fn equal(argument: u8, value: i32) -> Result<SeccompCondition, seccompiler::BackendError> {
    compare(argument, SeccompCmpOp::Eq, value)
}

fn compare(
    argument: u8,
    operator: SeccompCmpOp,
    value: i32,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    let value = value.unsigned_abs().into();
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

/// Sockets of this type of IPv4 and IPv6. The upper bits of a type are flags (socket(2)).
fn internet_sockets(kind: i32) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let families = [libc::AF_INET, libc::AF_INET6].into_iter();
    let rule = |family| {
        let kind = compare(1, SeccompCmpOp::MaskedEq(0xf), kind)?;
        SeccompRule::new(vec![equal(0, family)?, kind])
    };
    families.map(rule).collect()
}

/// clone3(2) takes its flags from memory, which a filter cannot read. ENOSYS makes the C library use
/// clone(2), which the other filter limits to threads.
fn no_clone3(architecture: TargetArch) -> Result<BpfProgram, seccompiler::BackendError> {
    SeccompFilter::new(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.unsigned_abs()),
        architecture,
    )?
    .try_into()
}

/// Flags of a thread, not of a process, and without a new namespace.
fn thread_rules() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    const NAMESPACES: i32 = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let mask = u64::from((NAMESPACES | libc::CLONE_THREAD).unsigned_abs());
    let thread = compare(0, SeccompCmpOp::MaskedEq(mask), libc::CLONE_THREAD)?;
    Ok(vec![SeccompRule::new(vec![thread])?])
}

/// bpf(2) with one of these commands.
fn bpf_rules(commands: &[i32]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let rules = commands.iter();
    rules
        .map(|command| SeccompRule::new(vec![equal(0, *command)?]))
        .collect()
}

/// Commands of bpf(2) that take descriptors which the process holds: BPF_MAP_LOOKUP_ELEM,
/// BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM and BPF_PROG_TEST_RUN.
const USING_BPF: &[i32] = &[1, 2, 3, 10];

/// Further commands of bpf(2), for replacing functions of programs.
const REPLACING_BPF: &[i32] = &[
    16, // BPF_PROG_QUERY: which programs an interface has
    17, // BPF_RAW_TRACEPOINT_OPEN
    19, // BPF_BTF_GET_FD_BY_ID
];

/// Commands of bpf(2) that make programs, maps, links and pins, and read what they are.
const LOADING_BPF: &[i32] = &[
    0,  // BPF_MAP_CREATE
    4,  // BPF_MAP_GET_NEXT_KEY
    5,  // BPF_PROG_LOAD
    6,  // BPF_OBJ_PIN
    7,  // BPF_OBJ_GET
    15, // BPF_OBJ_GET_INFO_BY_FD
    18, // BPF_BTF_LOAD
    22, // BPF_MAP_FREEZE
    24, // BPF_MAP_LOOKUP_BATCH
    28, // BPF_LINK_CREATE
    29, // BPF_LINK_UPDATE
    30, // BPF_LINK_GET_FD_BY_ID: questions to the guard; ids need CAP_SYS_ADMIN
    33, // BPF_ITER_CREATE
    34, // BPF_LINK_DETACH: former netfilter programs
    35, // BPF_PROG_BIND_MAP
];

/// Further system calls of libbpf, and for folders of pins.
const LOADING: &[i64] = &[libc::SYS_memfd_create, libc::SYS_statfs, libc::SYS_fstatfs];

/// The system calls for labels of files. A filter cannot tell which attribute is set.
const LABELLING: &[i64] = &[
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_open_by_handle_at,
    libc::SYS_openat2,
    libc::SYS_getxattr,
    libc::SYS_setxattr,
];

/// The system calls for extended attributes by path.
const READING_ATTRIBUTES: &[i64] = &[
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
];

/// The system calls for keeping files.
const WRITING: &[i64] = &[
    libc::SYS_pwrite64,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fchmod,
    libc::SYS_mkdirat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// The system calls of the C library, the allocator, threads, tokio, and of reading files and the account
/// data base. Found by running the daemons' tests under this filter.
const CALLS: &[i64] = &[
    // files
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    // memory
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // threads and time
    // clone is for threads only; for clone3 see no_clone3.
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_prlimit64,
    // prctl: thread names and, in newer C libraries, names of mappings; it raises no privilege.
    libc::SYS_prctl,
    // signals
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    // waiting and sockets (socket itself: see rules)
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_socketpair,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
];
