//! Loaded programs and tables, and their attachment.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Iter, IterOpts, Link, Map, MapCore, MapHandle, Program, ProgramMut};

use crate::pins::{LAYOUT, Layout, unpin, unpin_if_there};
use crate::table::clone;
use crate::{Counted, Counters, KernelError, Objects, Pins, Plain, Ring, Table};

/// Prefix of a link that is not in its place yet. BPF file systems accept no dots in names.
const FRESH: &str = "fresh_";

/// Bytes read from an iterator at a time.
const ITERATED: usize = 64 * 1024;
/// Errors after which reading from an iterator continues.
const RETRIED: [io::ErrorKind; 2] = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];

/// An iterator that has begun. It runs only within [`Iteration::go_on`].
#[derive(Debug)]
pub struct Iteration {
    iterator: Iter,
    /// The beginning of a row whose rest has not been read.
    written: Vec<u8>,
    chunk: Vec<u8>,
}

impl Iteration {
    /// Continues for this long, and hands on each row that the iterator has written. The kernel visits up to
    /// a million objects at a time, so it may take a fraction of a second longer. Returns whether everything
    /// has been visited.
    ///
    /// # Errors
    /// The kernel's error; some rows have been handed on then.
    pub fn go_on<R: Plain>(
        &mut self,
        limit: Duration,
        mut take: impl FnMut(R),
    ) -> Result<bool, KernelError> {
        let begun = Instant::now();
        loop {
            match self.iterator.read(&mut self.chunk) {
                Ok(0) => return Ok(true),
                Ok(length) => self.written.extend_from_slice(&self.chunk[..length]),
                // EAGAIN: the iterator has visited a million objects and written nothing yet.
                Err(error) if RETRIED.contains(&error.kind()) => {}
                Err(error) => return Err(KernelError::system("read an iterator")(error)),
            }
            let whole = self.written.len() - self.written.len() % size_of::<R>();
            let rows = self.written[..whole].chunks_exact(size_of::<R>());
            rows.filter_map(R::read).for_each(&mut take);
            self.written.drain(..whole);
            if begun.elapsed() >= limit {
                return Ok(false);
            }
        }
    }
}

/// Loaded programs and tables. A drop releases those that are not attached, pinned or otherwise open.
#[derive(Debug)]
pub struct Object(pub(crate) libbpf_rs::Object);

impl Object {
    fn map(&self, name: &'static str) -> Result<Map<'_>, KernelError> {
        let map = self.0.maps().find(|map| map.name() == name);
        map.ok_or(KernelError::MissingPart(name))
    }

    /// The table of this name.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`] when there is no such table, or its keys or values have other sizes.
    pub fn table<K: Plain, V: Plain>(
        &self,
        name: &'static str,
    ) -> Result<Table<K, V>, KernelError> {
        Table::new(name, self.handle(name)?)
    }

    /// A table's descriptor.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`].
    pub fn descriptor(&self, table: &'static str) -> Result<OwnedFd, KernelError> {
        clone(&self.map(table)?)
    }

    /// A per-CPU array of counters.
    ///
    /// # Errors
    /// Like [`Object::table`].
    pub fn counters<C: Counted>(&self, name: &'static str) -> Result<Counters<C>, KernelError> {
        self.table::<u32, C>(name)?;
        Counters::new(self.handle(name)?)
    }

    /// A ring buffer; see [`Ring`]. `read` decodes an entry, or leaves it out.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`], or libbpf's error.
    pub fn ring<T: Send + 'static>(
        &self,
        name: &'static str,
        what: &'static str,
        read: fn(&[u8]) -> Option<T>,
    ) -> Result<Ring<T>, KernelError> {
        Ring::open(what, self.handle(name)?, read)
    }

    fn handle(&self, name: &'static str) -> Result<MapHandle, KernelError> {
        MapHandle::try_from(&self.map(name)?).map_err(KernelError::bpf("keep a table"))
    }

    pub(crate) fn find(&self, program: &'static str) -> Result<ProgramMut<'_>, KernelError> {
        let found = self.0.progs_mut().find(|found| found.name() == program);
        found.ok_or(KernelError::MissingPart(program))
    }

    /// A program's descriptor.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`].
    pub fn program(&self, name: &'static str) -> Result<OwnedFd, KernelError> {
        clone(&self.find(name)?)
    }

    /// All loaded programs, by their names.
    pub(crate) fn programs(&self) -> Result<Vec<(String, OwnedFd)>, KernelError> {
        let programs = self.0.progs().filter(Program::autoload);
        let programs = programs.map(|program| {
            Ok((
                program.name().to_string_lossy().into_owned(),
                clone(&program)?,
            ))
        });
        programs.collect()
    }

    /// The descriptor of a program whose name is not known beforehand.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`].
    pub fn program_named(&self, name: &str) -> Result<OwnedFd, KernelError> {
        let found = self.0.progs().find(|program| program.name() == name);
        clone(&found.ok_or(KernelError::MissingPart("a named program"))?)
    }

    /// Adds all programs and tables to `objects`, for the guard.
    pub fn collect(&self, objects: &mut Objects) -> Result<(), KernelError> {
        for map in self.0.maps() {
            objects.add_descriptor(&clone(&map)?)?;
        }
        for program in self.0.progs().filter(Program::autoload) {
            objects.add_descriptor(&clone(&program)?)?;
        }
        Ok(())
    }

    /// Runs an iterator over everything that it visits, and hands on each row that it has written.
    ///
    /// # Errors
    /// The kernel's error; some rows have been handed on then.
    pub fn iterate<R: Plain>(
        &self,
        program: &'static str,
        take: impl FnMut(R),
    ) -> Result<(), KernelError> {
        self.begin(program)?.go_on(Duration::MAX, take).map(drop)
    }

    /// Begins an iterator, to be run in parts.
    pub fn begin(&self, program: &'static str) -> Result<Iteration, KernelError> {
        let program = self.find(program)?;
        let link = program.attach_iter_with_opts(IterOpts::None);
        let link = link.map_err(KernelError::bpf("attach an iterator"))?;
        // The kernel keeps the program as long as the iterator runs.
        let iterator = Iter::new(&link).map_err(KernelError::bpf("begin an iterator"))?;
        Ok(Iteration {
            iterator,
            written: Vec::new(),
            chunk: vec![0; ITERATED],
        })
    }

    /// Attaches programs in order to a control group (the path of its folder), beside other
    /// parties' programs. They stay attached as long as the returned links are open.
    pub fn attach_to_cgroup(
        &self,
        programs: &[&'static str],
        cgroup: &Path,
    ) -> Result<Vec<OwnedFd>, KernelError> {
        let folder = File::open(cgroup).map_err(KernelError::file("open", cgroup))?;
        let links = programs.iter().map(|program| {
            let link = self.find(program)?.attach_cgroup(folder.as_raw_fd());
            clone(&link.map_err(KernelError::bpf("attach to the cgroup"))?)
        });
        links.collect()
    }

    /// Enters a control group (the path of its folder) in a table of control groups, at index 0.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`], or the kernel's error.
    pub fn enter_cgroup(&self, table: &'static str, cgroup: &Path) -> Result<(), KernelError> {
        let folder = File::open(cgroup).map_err(KernelError::file("open", cgroup))?;
        let descriptor = folder.as_raw_fd().unsigned_abs();
        self.table::<u32, u32>(table)?.set(&0, &descriptor)
    }

    /// Attaches a program to a control group for good: the link is pinned, and the next process adopts it. A
    /// link to another group that still exists stays there and is updated, so that the program continues to
    /// see that group.
    pub fn keep_at_cgroup(
        &self,
        program: &'static str,
        pins: &Pins,
        cgroup: &Path,
    ) -> Result<(), KernelError> {
        let folder = File::open(cgroup).map_err(KernelError::file("open", cgroup))?;
        let id = inode(&folder, cgroup)?;
        let mut attached = false;
        for pin in pins.links(&format!("{program}_"))? {
            let (mut former, info) = open_link(&pin)?;
            let LinkTypeInfo::Cgroup(info) = info else {
                return Err(KernelError::UnreadableEntry(program));
            };
            if self.update(&mut former, program)? {
                attached |= info.cgroup_id == id;
            } else {
                unpin(&pin)?;
            }
        }
        if attached {
            return Ok(());
        }
        self.find(program)?
            .attach_cgroup(folder.as_raw_fd())
            .map_err(KernelError::bpf("attach to the cgroup"))?
            .pin(pins.link(format_args!("{program}_{id}")))
            .map_err(KernelError::bpf("pin a link"))
    }

    /// Attaches a program to the caller's network namespace for good: the link is pinned, and the
    /// next process adopts it.
    ///
    /// # Errors
    /// [`KernelError::OtherNamespace`] when the link serves another namespace that still exists, or
    /// the kernel's error.
    pub fn keep_at_network(&self, program: &'static str, pins: &Pins) -> Result<(), KernelError> {
        // The thread's namespace, in which its sockets are made.
        let path = Path::new("/proc/thread-self/ns/net");
        let namespace = File::open(path).map_err(KernelError::file("open", path))?;
        let inode = inode(&namespace, path)?;
        let pin = pins.link(program);
        if crate::exists(&pin)? {
            let (mut link, info) = open_link(&pin)?;
            let LinkTypeInfo::NetNs(info) = info else {
                return Err(KernelError::UnreadableEntry(program));
            };
            // 0 if the namespace no longer exists.
            if info.ino != 0 && u64::from(info.ino) != inode {
                return Err(KernelError::OtherNamespace(pins.folder().into()));
            }
            if self.update(&mut link, program)? {
                return Ok(());
            }
            unpin(&pin)?;
        }
        self.find(program)?
            .attach_netns(namespace.as_raw_fd())
            .map_err(KernelError::bpf("attach to the network namespace"))?
            .pin(&pin)
            .map_err(KernelError::bpf("pin a link"))
    }

    /// Attaches the LSM programs of this object. They stay attached as long as the returned links are
    /// open.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn attach_at_hooks(&self) -> Result<Vec<OwnedFd>, KernelError> {
        let links = self.0.progs_mut().filter(|one| one.autoload());
        let links = links.map(|program| {
            let link = program.attach_lsm();
            clone(&link.map_err(KernelError::bpf("attach an LSM program"))?)
        });
        links.collect()
    }

    /// Attaches the LSM programs of this object for good, in place of the pinned ones with the same names.
    /// Each new program is in force before the one it replaces is released. Returns the pins.
    ///
    /// # Errors
    /// The kernel's error. The programs that were pinned before the error are in force.
    pub fn keep_at_hooks(&self, pins: &Pins) -> Result<Vec<PathBuf>, KernelError> {
        let mut places = Vec::new();
        for program in self.0.progs_mut().filter(|one| one.autoload()) {
            let name = program.name().to_string_lossy();
            let fresh = pins.folder().join(format!("{FRESH}{name}"));
            unpin_if_there(&fresh)?;
            let place = pins.link(name);
            program
                .attach_lsm()
                .map_err(KernelError::bpf("attach an LSM program"))?
                .pin(&fresh)
                .map_err(KernelError::bpf("pin a link"))?;
            fs::rename(&fresh, &place).map_err(KernelError::file("replace", &place))?;
            places.push(place);
        }
        Ok(places)
    }

    /// Replaces the program that the pinned link holds. Returns false if the link is dead (its
    /// cgroup or namespace no longer exists).
    fn update(&self, link: &mut Link, program: &'static str) -> Result<bool, KernelError> {
        let program = self.find(program)?;
        match link.update_prog(&program) {
            Ok(()) => Ok(true),
            Err(_) if is_dead(link)? => Ok(false),
            Err(error) => Err(KernelError::bpf("replace an attached program")(error)),
        }
    }
}

/// Attaches the LSM programs of these objects for good, in place of all that are pinned in this folder. Each
/// new program is in force before the one it replaces is released.
///
/// # Errors
/// The kernel's error. The programs that were pinned before the error are in force.
pub fn keep_for_all(objects: &[Object], pins: &Pins) -> Result<(), KernelError> {
    let mut places = BTreeSet::new();
    for object in objects {
        places.extend(object.keep_at_hooks(pins)?);
    }
    for former in pins.links("")? {
        if !places.contains(&former) {
            unpin(&former)?;
        }
    }
    Ok(())
}

/// Releases all programs that are attached for good in this folder.
pub fn let_go(pins: &Pins) -> Result<(), KernelError> {
    pins.links("")?.iter().try_for_each(|link| unpin(link))
}

/// The kernel's number of a control group, which is named by the path of its folder. No other group ever has
/// it.
///
/// # Errors
/// The kernel's error.
pub fn cgroup_number(cgroup: &Path) -> Result<u64, KernelError> {
    let folder = File::open(cgroup).map_err(KernelError::file("open", cgroup))?;
    inode(&folder, cgroup)
}

/// Runs a syscall program with `context` and returns its result.
pub fn run<C: Plain>(
    program: BorrowedFd<'_>,
    operation: &'static str,
    context: &mut C,
) -> Result<u32, KernelError> {
    usher_bpf_ffi::run(program, None, context).map_err(KernelError::system(operation))
}

/// Runs a program of traffic control once with a packet, which begins with its Ethernet header, and
/// with `mark` as the packet's mark. Returns the program's result; nothing is sent.
pub fn run_on_packet(
    program: BorrowedFd<'_>,
    operation: &'static str,
    packet: &[u8],
    mark: u32,
) -> Result<u32, KernelError> {
    // struct __sk_buff up to the mark: length, type, mark. The kernel takes the rest for zeros.
    let mut context = [0_u32, 0, mark];
    usher_bpf_ffi::run(program, Some(packet), &mut context).map_err(KernelError::system(operation))
}

fn inode(file: &File, path: &Path) -> Result<u64, KernelError> {
    let metadata = file.metadata();
    let failed = KernelError::file("read the properties of", path);
    Ok(metadata.map_err(failed)?.ino())
}

fn open_link(path: &Path) -> Result<(Link, LinkTypeInfo), KernelError> {
    let link = Link::open(path).map_err(KernelError::bpf("open a pinned link"))?;
    let info = info(&link)?;
    Ok((link, info))
}

fn info(link: &Link) -> Result<LinkTypeInfo, KernelError> {
    let info = link.info();
    Ok(info.map_err(KernelError::bpf("read a pinned link"))?.info)
}

/// Whether the cgroup or the namespace of a link no longer exists.
fn is_dead(link: &Link) -> Result<bool, KernelError> {
    Ok(match info(link)? {
        LinkTypeInfo::Cgroup(info) => info.cgroup_id == 0,
        LinkTypeInfo::NetNs(info) => info.ino == 0,
        _ => false,
    })
}

impl Pins {
    /// Writes the layout version of the tables that an object has pinned here.
    ///
    /// # Errors
    /// The kernel's error, or [`KernelError::MissingPart`].
    pub fn note_layout(&self, object: &Object, version: u32) -> Result<(), KernelError> {
        let layout = Layout {
            version,
            reserved: 0,
        };
        object.table::<u32, Layout>(LAYOUT)?.set(&0, &layout)
    }
}
