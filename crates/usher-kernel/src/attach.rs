//! Attaching programs, to control groups above all. By links, beside which others' programs go on
//! running.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, Object};

use crate::KernelError;
use crate::admission::programs::{clone, file_error};

/// Attaches programs of an object to a control group (the path of its folder), one after the other.
/// They stay as long as what this gives is open.
pub(crate) fn to_cgroup(
    object: &Object,
    programs: &[&'static str],
    cgroup: &Path,
) -> Result<Vec<OwnedFd>, KernelError> {
    let folder = File::open(cgroup).map_err(file_error("opening", cgroup))?;
    let links = programs.iter().map(|program| {
        let link = link(object, program, &folder)?;
        clone(&link)
    });
    links.collect()
}

/// Attaches a program to a control group for good: the link is pinned, and taken up by who comes
/// next. A link to another group that lives stays, and is brought up to date: what was there while
/// an earlier keeper ran is still seen through it.
pub(crate) fn pinned(
    object: &Object,
    program: &'static str,
    pins: &Path,
    cgroup: &Path,
) -> Result<(), KernelError> {
    let prefix = format!("link_{program}_");
    let folder = File::open(cgroup).map_err(file_error("opening", cgroup))?;
    let id = folder
        .metadata()
        .map_err(file_error("reading the properties of", cgroup))?
        .ino();
    let mut attached = false;
    for pin in pins_of(pins, &prefix)? {
        let (mut former, info) = open_link(&pin)?;
        let LinkTypeInfo::Cgroup(info) = info else {
            return Err(KernelError::UnreadableEntry { table: program });
        };
        if update(&mut former, object, program)? {
            attached |= info.cgroup_id == id;
        } else {
            unpin(&pin)?;
        }
    }
    if attached {
        return Ok(());
    }
    link(object, program, &folder)?
        .pin(pins.join(format!("{prefix}{id}")))
        .map_err(KernelError::bpf("pinning a link"))
}

fn link(object: &Object, program: &'static str, folder: &File) -> Result<Link, KernelError> {
    let program = object
        .progs_mut()
        .find(|found| found.name() == program)
        .ok_or(KernelError::MissingPart(program))?;
    program
        .attach_cgroup(folder.as_raw_fd())
        .map_err(KernelError::bpf("attaching to the cgroup"))
}

/// Puts the fresh program in the place of the one that the pinned link holds. False: the link
/// serves nothing any more (its cgroup or namespace is gone).
pub(crate) fn update(
    link: &mut Link,
    object: &Object,
    program: &'static str,
) -> Result<bool, KernelError> {
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

pub(crate) fn open_link(path: &Path) -> Result<(Link, LinkTypeInfo), KernelError> {
    let link = Link::open(path).map_err(KernelError::bpf("opening a pinned link"))?;
    let info = link
        .info()
        .map_err(KernelError::bpf("reading a pinned link"))?
        .info;
    Ok((link, info))
}

pub(crate) fn unpin(path: &Path) -> Result<(), KernelError> {
    std::fs::remove_file(path).map_err(file_error("removing", path))
}

fn pins_of(pins: &Path, prefix: &str) -> Result<Vec<PathBuf>, KernelError> {
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

/// Sets `own_network`, the only constant of a program that holds for one network namespace, to the
/// caller's.
///
/// # Errors
/// When the kernel cannot say which that is, or the program has no such constant.
pub(crate) fn set_own_network(open: &mut libbpf_rs::OpenObject) -> Result<(), KernelError> {
    const MISSING: KernelError = KernelError::MissingPart("own_network");
    let own = usher_system::namespace::own_network()?.to_ne_bytes();
    let mut constants = open
        .maps_mut()
        .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
        .ok_or(MISSING)?;
    let constants = constants.initial_value_mut().ok_or(MISSING)?;
    if constants.len() != own.len() {
        return Err(MISSING);
    }
    constants.copy_from_slice(&own);
    Ok(())
}
