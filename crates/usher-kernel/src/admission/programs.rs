//! Loading, adopting, attaching and pinning of bpf/admission.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Once;

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapCore, MapHandle, Object, ObjectBuilder, PrintLevel};

use super::Limits;
use super::layout::{Layout, VERSION};
use super::table::Table;
use crate::KernelError;

/// The compiled bpf/admission.
pub(crate) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/admission.bpf.o"));

/// Magic number of a BPF file system (statfs(2)).
pub(crate) const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

/// The programs and maps, attached and pinned.
pub(super) struct Programs {
    /// Held so that no second keeper works on the same pins.
    pub lock: File,
    pub services: OwnedFd,
    pub listeners: OwnedFd,
    pub admissions: OwnedFd,
    pub sessions: OwnedFd,
    pub counters: OwnedFd,
    pub untracked: MapHandle,
    pub tokens: OwnedFd,
    pub client_addresses: OwnedFd,
    pub outstanding: OwnedFd,
    pub remove: OwnedFd,
    pub check_token: OwnedFd,
}

impl Programs {
    pub(super) fn open(pins: &Path, cgroup: &Path, limits: &Limits) -> Result<Self, KernelError> {
        print_through_tracing();
        let lock = lock(pins)?;
        check_layout(pins)?;
        let object = load(pins, limits)?;
        let map = |name: &'static str| -> Result<OwnedFd, KernelError> {
            clone(
                &object
                    .maps()
                    .find(|map| map.name() == name)
                    .ok_or(KernelError::MissingPart(name))?,
            )
        };
        let program = |name: &'static str| -> Result<OwnedFd, KernelError> {
            clone(
                &object
                    .progs()
                    .find(|program| program.name() == name)
                    .ok_or(KernelError::MissingPart(name))?,
            )
        };
        Table::<u32, Layout>::new("layout", map("layout")?).set(
            &0,
            &Layout {
                version: VERSION,
                reserved: 0,
            },
        )?;
        attach_namespace(&object, pins)?;
        attach_cgroup(&object, pins, cgroup)?;
        let untracked = object
            .maps()
            .find(|map| map.name() == "untracked")
            .ok_or(KernelError::MissingPart("untracked"))?;
        Ok(Self {
            lock,
            services: map("services")?,
            listeners: map("listeners")?,
            admissions: map("admissions")?,
            sessions: map("sessions")?,
            counters: map("counters")?,
            untracked: MapHandle::try_from(&untracked)
                .map_err(KernelError::bpf("keeping a table"))?,
            tokens: map("tokens")?,
            client_addresses: map("client_addresses")?,
            outstanding: map("outstanding")?,
            remove: program("remove")?,
            check_token: program("check_token")?,
        })
    }
}

pub(crate) fn file_error(what: &'static str, path: &Path) -> impl Fn(io::Error) -> KernelError {
    move |error| KernelError::File {
        what,
        path: path.into(),
        error,
    }
}

/// Root meets EPERM at the pins for one reason only.
fn pins_error(what: &'static str, pins: &Path) -> impl Fn(io::Error) -> KernelError {
    move |error| {
        if error.raw_os_error() == Some(libc::EPERM) && rustix::process::geteuid().is_root() {
            KernelError::Protected { pins: pins.into() }
        } else {
            file_error(what, pins)(error)
        }
    }
}

pub(crate) fn clone(part: &impl AsFd) -> Result<OwnedFd, KernelError> {
    part.as_fd()
        .try_clone_to_owned()
        .map_err(KernelError::system("duplicating a descriptor"))
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs what may fail without anything being wrong.
pub(super) fn quietly<T>(what: impl FnOnce() -> T) -> T {
    QUIET.set(true);
    let outcome = what();
    QUIET.set(false);
    outcome
}

/// libbpf prints to standard error otherwise; what it warns of are reasons of failures.
pub(crate) fn print_through_tracing() {
    static ONCE: Once = Once::new();
    fn print(level: PrintLevel, text: String) {
        match level {
            PrintLevel::Warn if !QUIET.get() => tracing::warn!("{}", text.trim_end()),
            PrintLevel::Warn | PrintLevel::Info | PrintLevel::Debug => {
                tracing::debug!("{}", text.trim_end())
            }
        }
    }
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Warn, print)));
    });
}

pub(crate) fn lock(pins: &Path) -> Result<File, KernelError> {
    let parent = pins.parent().unwrap_or(Path::new("/"));
    let kind = rustix::fs::statfs(parent)
        .map_err(|error| file_error("looking at", parent)(error.into()))?
        .f_type;
    // Its type differs between architectures; the magic number has 32 bits.
    if kind as u32 != BPF_FS_MAGIC {
        return Err(KernelError::NoBpfFileSystem(pins.into()));
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(pins)
        .map_err(pins_error("making", pins))?;
    let folder = File::open(pins).map_err(pins_error("opening", pins))?;
    match folder.try_lock() {
        Ok(()) => Ok(folder),
        Err(std::fs::TryLockError::WouldBlock) => Err(KernelError::InUse {
            pins: pins.to_path_buf(),
        }),
        Err(std::fs::TryLockError::Error(error)) => Err(file_error("locking", pins)(error)),
    }
}

/// The layout of what is pinned; none when nothing is, or an earlier keeper ended between making
/// the map and writing to it, before anything was attached.
pub(crate) fn pinned_layout(pins: &Path) -> Result<Option<u32>, KernelError> {
    let path = pins.join("layout");
    if !exists(&path)? {
        return Ok(None);
    }
    let map = MapHandle::from_pinned_path(&path)
        .map_err(KernelError::bpf("opening the pinned layout"))?;
    let found = Table::<u32, Layout>::new("layout", clone(&map)?).get(&0)?;
    Ok(found
        .map(|layout| layout.version)
        .filter(|&version| version != 0))
}

/// Refuses pins of another layout, before anything is changed.
fn check_layout(pins: &Path) -> Result<(), KernelError> {
    match pinned_layout(pins)? {
        None | Some(VERSION) => Ok(()),
        Some(found) => Err(KernelError::OtherLayout {
            pins: pins.to_path_buf(),
            found,
            expected: VERSION,
        }),
    }
}

pub(crate) fn exists(path: &Path) -> Result<bool, KernelError> {
    path.try_exists().map_err(file_error("looking for", path))
}

fn load(pins: &Path, limits: &Limits) -> Result<Object, KernelError> {
    let mut open = ObjectBuilder::default()
        .name("usher")
        .and_then(|builder| builder.open_memory(OBJECT))
        .map_err(KernelError::bpf("reading the programs"))?;
    for mut map in open.maps_mut() {
        let limited = [
            ("sessions", limits.sessions),
            ("admissions", limits.admissions),
            ("listeners", limits.listeners),
            ("tokens", limits.tokens),
            ("outstanding", limits.listeners),
        ]
        .into_iter()
        .find(|(name, _)| map.name() == *name);
        let path = pins.join(map.name());
        if let Some((table, asked)) = limited {
            map.set_max_entries(asked)
                .map_err(KernelError::bpf("sizing a table"))?;
            if exists(&path)? {
                let pinned = MapHandle::from_pinned_path(&path)
                    .map_err(KernelError::bpf("opening a pinned table"))?;
                if pinned.max_entries() != asked {
                    let found = pinned.max_entries();
                    return Err(KernelError::OtherLimit {
                        pins: pins.into(),
                        table,
                        found,
                        asked,
                    });
                }
            }
        }
        // Takes the map that is pinned there, or makes and pins it.
        map.set_pin_path(&path)
            .map_err(KernelError::bpf("naming a pin"))?;
    }
    open.load()
        .map_err(KernelError::bpf("loading the admission programs"))
}

/// Puts the fresh program in the place of the one that the pinned link holds. False: the link
/// serves nothing any more (its cgroup or namespace is gone).
fn update(link: &mut Link, object: &Object, program: &'static str) -> Result<bool, KernelError> {
    let program = object
        .progs()
        .find(|found| found.name() == program)
        .ok_or(KernelError::MissingPart(program))?;
    // SAFETY: two descriptors and no pointers but a null one.
    let code = unsafe {
        libbpf_rs::libbpf_sys::bpf_link_update(
            link.as_fd().as_raw_fd(),
            program.as_fd().as_raw_fd(),
            std::ptr::null(),
        )
    };
    match -code {
        0 => Ok(true),
        libc::ENOLINK => Ok(false),
        errno => Err(KernelError::system("replacing an attached program")(
            io::Error::from_raw_os_error(errno),
        )),
    }
}

fn open_link(path: &Path) -> Result<(Link, LinkTypeInfo), KernelError> {
    let link = Link::open(path).map_err(KernelError::bpf("opening a pinned link"))?;
    let info = link
        .info()
        .map_err(KernelError::bpf("reading a pinned link"))?
        .info;
    Ok((link, info))
}

fn unpin(path: &Path) -> Result<(), KernelError> {
    std::fs::remove_file(path).map_err(file_error("removing", path))
}

/// choose_queue, for the caller's network namespace.
fn attach_namespace(object: &Object, pins: &Path) -> Result<(), KernelError> {
    // The thread's, which is what its sockets are made in.
    let path = Path::new("/proc/thread-self/ns/net");
    let namespace = File::open(path).map_err(file_error("opening", path))?;
    let inode = namespace
        .metadata()
        .map_err(file_error("reading the properties of", path))?
        .ino();
    let pin = pins.join("link_choose_queue");
    if exists(&pin)? {
        let (mut link, info) = open_link(&pin)?;
        let LinkTypeInfo::NetNs(info) = info else {
            return Err(KernelError::UnreadableEntry {
                table: "link_follow",
            });
        };
        // 0 when the namespace is gone.
        if info.ino != 0 && u64::from(info.ino) != inode {
            return Err(KernelError::OtherNamespace { pins: pins.into() });
        }
        if update(&mut link, object, "choose_queue")? {
            return Ok(());
        }
        unpin(&pin)?;
    }
    let program = object
        .progs_mut()
        .find(|program| program.name() == "choose_queue")
        .ok_or(KernelError::MissingPart("choose_queue"))?;
    let mut link = program
        .attach_netns(namespace.as_raw_fd())
        .map_err(KernelError::bpf("attaching to the network namespace"))?;
    link.pin(&pin).map_err(KernelError::bpf("pinning a link"))
}

/// follow, for `cgroup`. A link to another cgroup that lives stays, and is brought up to date:
/// connections made while the keeper was there are followed through it.
fn attach_cgroup(object: &Object, pins: &Path, cgroup: &Path) -> Result<(), KernelError> {
    const PREFIX: &str = "link_follow_";
    let folder = File::open(cgroup).map_err(file_error("opening", cgroup))?;
    let id = folder
        .metadata()
        .map_err(file_error("reading the properties of", cgroup))?
        .ino();
    let mut attached = false;
    for pin in pinned(pins, PREFIX)? {
        let (mut link, info) = open_link(&pin)?;
        let LinkTypeInfo::Cgroup(info) = info else {
            return Err(KernelError::UnreadableEntry {
                table: "link_follow",
            });
        };
        if update(&mut link, object, "follow")? {
            attached |= info.cgroup_id == id;
        } else {
            unpin(&pin)?;
        }
    }
    if attached {
        return Ok(());
    }
    let program = object
        .progs_mut()
        .find(|program| program.name() == "follow")
        .ok_or(KernelError::MissingPart("follow"))?;
    let mut link = program
        .attach_cgroup(folder.as_raw_fd())
        .map_err(KernelError::bpf("attaching to the cgroup"))?;
    link.pin(pins.join(format!("{PREFIX}{id}")))
        .map_err(KernelError::bpf("pinning a link"))
}

fn pinned(pins: &Path, prefix: &str) -> Result<Vec<PathBuf>, KernelError> {
    let failed = file_error("reading", pins);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(pins).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}
