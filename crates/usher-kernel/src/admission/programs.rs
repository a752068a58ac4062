//! Loading, adopting, attaching and pinning of bpf/admission.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::Once;

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, PrintLevel};

use super::Limits;
use super::layout::{Layout, VERSION};
use super::table::Table;
use crate::{KernelError, attach};

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
    pub certificates: OwnedFd,
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
        attach::pinned(&object, "follow", pins, cgroup)?;
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
            certificates: map("certificates")?,
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
    KernelError::file(what, path)
}

/// Root meets EPERM at the pins for one reason only.
pub(crate) fn pins_error(what: &'static str, pins: &Path) -> impl Fn(io::Error) -> KernelError {
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
            ("certificates", limits.sessions),
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
        let (mut link, info) = attach::open_link(&pin)?;
        let LinkTypeInfo::NetNs(info) = info else {
            return Err(KernelError::UnreadableEntry {
                table: "link_choose_queue",
            });
        };
        // 0 when the namespace is gone.
        if info.ino != 0 && u64::from(info.ino) != inode {
            return Err(KernelError::OtherNamespace { pins: pins.into() });
        }
        if attach::update(&mut link, object, "choose_queue")? {
            return Ok(());
        }
        attach::unpin(&pin)?;
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
