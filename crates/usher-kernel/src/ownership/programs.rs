//! Loading, adopting, attaching and pinning of bpf/ownership.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;
use libbpf_rs::{MapCore, Object, ObjectBuilder, OpenObject, libbpf_sys};

use super::OwnershipError;
use super::layout::{ANSWER, Question, VERSION};
use crate::KernelError;
use crate::admission::layout::Layout;
use crate::admission::programs::{
    clone, exists, file_error, lock, pinned_layout, print_through_tracing,
};
use crate::admission::table::Table;

/// The compiled bpf/ownership.
static OBJECTS: [(&str, &[u8]); 3] = [
    (
        "usher_fence",
        include_bytes!(concat!(env!("OUT_DIR"), "/fence.bpf.o")),
    ),
    (
        "usher_connection",
        include_bytes!(concat!(env!("OUT_DIR"), "/connection.bpf.o")),
    ),
    (
        "usher_protection",
        include_bytes!(concat!(env!("OUT_DIR"), "/protection.bpf.o")),
    ),
];

/// Hooks that kernels may lack: what passes them passes another one there, or does not exist.
const DISPENSABLE: [&str; 2] = ["file_ioctl_compat", "perf_event_open"];

const LINK: &str = "link_";
/// Of a link that is not in its place yet. BPF file systems take no dots in names.
const FRESH: &str = "fresh_";

/// The objects, attached and pinned.
pub(super) struct Programs {
    /// Held so that no second keeper works on the same pins.
    pub lock: File,
    objects: Vec<Object>,
}

impl Programs {
    pub(super) fn open(pins: &Path) -> Result<Self, OwnershipError> {
        print_through_tracing();
        let lock = lock(pins)?;
        check_layout(pins)?;
        let mut objects = Vec::new();
        for (name, bytes) in OBJECTS {
            let mut object = open_object(name, bytes)?;
            for mut map in object.maps_mut() {
                // Takes the map that is pinned there, or makes and pins it.
                let path = pins.join(map.name());
                map.set_pin_path(&path)
                    .map_err(KernelError::bpf("naming a pin"))?;
            }
            objects.push(
                object
                    .load()
                    .map_err(KernelError::bpf("loading the ownership programs"))?,
            );
        }
        let programs = Self { lock, objects };
        Table::<u32, Layout>::new("layout", programs.map("layout")?).set(
            &0,
            &Layout {
                version: VERSION,
                reserved: 0,
            },
        )?;
        programs.attach(pins)?;
        let reason = if !asked(Question::RollCall)? {
            "bpf is not in the list of LSMs in force"
        } else if !sees_pinned_pages()? {
            "pages that were pinned are marked otherwise than in the kernels that Usher knows"
        } else {
            return Ok(programs);
        };
        for name in pinned_links(pins)? {
            unpin(&pins.join(name))?;
        }
        Err(OwnershipError::NotSupported {
            reason: reason.into(),
        })
    }

    pub(super) fn map(&self, name: &'static str) -> Result<OwnedFd, KernelError> {
        let map = self
            .objects
            .iter()
            .flat_map(Object::maps)
            .find(|map| map.name() == name)
            .ok_or(KernelError::MissingPart(name))?;
        clone(&map)
    }

    /// Each fresh program is in force before the one whose place it takes is let go.
    fn attach(&self, pins: &Path) -> Result<(), KernelError> {
        let mut places = BTreeSet::new();
        for object in &self.objects {
            for program in object.progs_mut() {
                if !program.autoload() {
                    continue;
                }
                let name = program.name().to_string_lossy().into_owned();
                let fresh = pins.join(format!("{FRESH}{name}"));
                if exists(&fresh)? {
                    unpin(&fresh)?;
                }
                let place = format!("{LINK}{name}");
                let path = pins.join(&place);
                let mut link = program
                    .attach_lsm()
                    .map_err(KernelError::bpf("attaching an ownership program"))?;
                link.pin(&fresh)
                    .map_err(KernelError::bpf("pinning a link"))?;
                std::fs::rename(&fresh, &path).map_err(file_error("replacing", &path))?;
                places.insert(place);
            }
        }
        for former in pinned_links(pins)?.difference(&places) {
            unpin(&pins.join(former))?;
        }
        Ok(())
    }
}

/// Loads the programs and lets them go again; gives the hooks that this kernel lacks.
pub(crate) fn try_load() -> Result<Vec<&'static str>, OwnershipError> {
    for (name, bytes) in OBJECTS {
        open_object(name, bytes)?
            .load()
            .map_err(|error| OwnershipError::NotSupported {
                reason: error.to_string(),
            })?;
    }
    let kernel = kernel_types()?;
    Ok(DISPENSABLE
        .into_iter()
        .filter(|hook| !has_hook(&kernel, hook))
        .collect())
}

fn kernel_types() -> Result<Btf<'static>, OwnershipError> {
    Btf::from_vmlinux().map_err(|error| OwnershipError::NotSupported {
        reason: format!("no description of the kernel's types (/sys/kernel/btf/vmlinux): {error}"),
    })
}

fn has_hook(kernel: &Btf<'_>, hook: &str) -> bool {
    kernel
        .type_by_name::<Func<'_>>(&format!("bpf_lsm_{hook}"))
        .is_some()
}

/// Reads an object and leaves out what this kernel has no hook for.
fn open_object(name: &'static str, bytes: &[u8]) -> Result<OpenObject, OwnershipError> {
    let kernel = kernel_types()?;
    let mut object = ObjectBuilder::default()
        .name(name)
        .and_then(|builder| builder.open_memory(bytes))
        .map_err(KernelError::bpf("reading the ownership programs"))?;
    for mut program in object.progs_mut() {
        let section = program.section().to_string_lossy().into_owned();
        let hook = section.strip_prefix("lsm/").unwrap_or(&section);
        if has_hook(&kernel, hook) {
            continue;
        }
        if !DISPENSABLE.contains(&hook) {
            return Err(OwnershipError::NotSupported {
                reason: format!("it has no hook {hook}"),
            });
        }
        program.set_autoload(false);
    }
    Ok(object)
}

/// Asks the programs. Where bpf is not among the LSMs in force, they load and attach and are never
/// called: the answer to each question is no there.
pub(super) fn asked(question: Question) -> Result<bool, KernelError> {
    // SAFETY: takes a number and no pointer.
    let code = unsafe { libbpf_sys::bpf_link_get_fd_by_id(question as u32) };
    match -code {
        ANSWER => Ok(true),
        libc::ENOENT => Ok(false),
        errno => Err(KernelError::system("asking the programs for an answer")(
            io::Error::from_raw_os_error(errno),
        )),
    }
}

/// Whether the programs see that pages of a process were pinned, tried with a page of our own: the
/// number of that mark is not in the kernel's description of its types.
fn sees_pinned_pages() -> Result<bool, KernelError> {
    let (from, mut to) = ([1_u8], [0_u8]);
    let remote = libc::iovec {
        iov_base: from.as_ptr().cast_mut().cast(),
        iov_len: 1,
    };
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: reads one byte of this process and writes one, both of which live until it returns.
    // The kernel pins the page that it reads.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if read != 1 {
        return Err(KernelError::system("pinning a page")(
            io::Error::last_os_error(),
        ));
    }
    asked(Question::Pinned)
}

/// Refuses pins of another layout, before anything is changed.
fn check_layout(pins: &Path) -> Result<(), OwnershipError> {
    match pinned_layout(pins)? {
        None | Some(VERSION) => Ok(()),
        Some(found) => Err(OwnershipError::OtherLayout {
            pins: pins.to_path_buf(),
            found,
            expected: VERSION,
        }),
    }
}

fn unpin(path: &Path) -> Result<(), KernelError> {
    std::fs::remove_file(path).map_err(file_error("removing", path))
}

fn pinned_links(pins: &Path) -> Result<BTreeSet<String>, KernelError> {
    let failed = file_error("reading", pins);
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(pins).map_err(&failed)? {
        let name = entry.map_err(&failed)?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(LINK) {
            names.insert(name.into_owned());
        }
    }
    Ok(names)
}
