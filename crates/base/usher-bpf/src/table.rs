//! A BPF hash map with typed keys and values.
//!
//! [`Table::entries`] reads batches itself, because libbpf-rs's iterator has two faults: it takes a batch
//! that the kernel has cut short at the end of a bucket for the last one, and the end of the table for an
//! error.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::{fmt, io};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, MapType, libbpf_sys};
use usher_bpf_ffi::Batch;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::KernelError;

/// Entries requested at once. If a bucket of the table holds more, the kernel returns ENOSPC and
/// the batch is doubled.
const BATCH: usize = 1024;

/// A table with typed keys and values.
pub struct Table<K, V> {
    map: MapHandle,
    name: &'static str,
    entries: PhantomData<fn(K) -> V>,
}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Table").field(&self.name).finish()
    }
}

/// A frozen array of one entry with these bytes: no process can change it. The array belongs to no object.
///
/// # Errors
/// The kernel's error.
pub fn frozen_bytes(name: &'static str, value: &[u8]) -> Result<OwnedFd, KernelError> {
    let failed = |what| {
        move |error| KernelError::Table {
            what,
            table: name,
            error,
        }
    };
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let key = 0_u32;
    let (key_size, size) = (size_of_val(&key) as u32, value.len() as u32);
    let map = MapHandle::create(MapType::Array, Some(name), key_size, size, 1, &options)
        .map_err(KernelError::bpf("make a table"))?;
    map.update(&key.to_ne_bytes(), value, MapFlags::ANY)
        .map_err(failed("write to the table"))?;
    map.freeze().map_err(failed("freeze the table"))?;
    clone(&map)
}

/// The result of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insertion {
    /// The entry is in the table.
    Done,
    /// The table has another entry under this key, which stays.
    Exists,
    /// The table has no room for the entry.
    Full,
}

fn is(error: &io::Error, errno: i32) -> bool {
    error.raw_os_error() == Some(errno)
}

impl<K: Plain, V: Plain> Table<K, V> {
    pub(crate) fn new(name: &'static str, map: MapHandle) -> Result<Self, KernelError> {
        let sizes = (map.key_size() as usize, map.value_size() as usize);
        if sizes != (size_of::<K>(), size_of::<V>()) {
            return Err(KernelError::MissingPart(name));
        }
        Ok(Self {
            map,
            name,
            entries: PhantomData,
        })
    }

    /// A table for longest-prefix matches that belongs to no object, so no other process changes
    /// it. The first four bytes of `K` are the length of the prefix in bits.
    pub fn of_prefixes(name: &'static str, entries: u32) -> Result<Self, KernelError> {
        Self::make(name, MapType::LpmTrie, entries)
    }

    /// An array of one entry that belongs to no object, so no other process changes it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of_one(name: &'static str) -> Result<Self, KernelError> {
        Self::make(name, MapType::Array, 1)
    }

    /// A hash table that belongs to no object, so no other process changes it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of_hash(name: &'static str, entries: u32) -> Result<Self, KernelError> {
        Self::make(name, MapType::Hash, entries)
    }

    /// Another handle of this table.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn try_clone(&self) -> Result<Self, KernelError> {
        let map = MapHandle::try_from(&self.map);
        Self::new(self.name, map.map_err(KernelError::bpf("open a table"))?)
    }

    fn make(name: &'static str, kind: MapType, entries: u32) -> Result<Self, KernelError> {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            map_flags: match kind {
                // The kernel requires this flag for tables of prefixes.
                MapType::LpmTrie => libbpf_sys::BPF_F_NO_PREALLOC,
                _ => 0,
            },
            ..Default::default()
        };
        let (key, value) = (size_of::<K>() as u32, size_of::<V>() as u32);
        let map = MapHandle::create(kind, Some(name), key, value, entries, &options)
            .map_err(KernelError::bpf("make a table"))?;
        Self::new(name, map)
    }

    /// Makes the table read-only for system calls and returns its descriptor.
    pub fn freeze(self) -> Result<OwnedFd, KernelError> {
        let frozen = self.map.freeze();
        frozen.map_err(|error| self.error("freeze the table", error))?;
        clone(&self.map)
    }

    fn error(&self, what: &'static str, error: libbpf_rs::Error) -> KernelError {
        KernelError::Table {
            what,
            table: self.name,
            error,
        }
    }

    /// The value under a key.
    pub fn get(&self, key: &K) -> Result<Option<V>, KernelError> {
        self.look_up(key, MapFlags::ANY)
    }

    /// The value under a key, read under its lock (struct bpf_spin_lock): never half of a change.
    ///
    /// # Errors
    /// The kernel's error; EINVAL when the values have no lock.
    pub fn get_locked(&self, key: &K) -> Result<Option<V>, KernelError> {
        self.look_up(key, MapFlags::LOCK)
    }

    /// Reads the value under a key into `value`, for values that no stack has room for. Returns false if
    /// there is none.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read_into(&self, key: &K, value: &mut V) -> Result<bool, KernelError> {
        self.look_up_into(key, value, MapFlags::ANY)
    }

    fn look_up(&self, key: &K, flags: MapFlags) -> Result<Option<V>, KernelError> {
        let mut value = V::zeroed();
        let found = self.look_up_into(key, &mut value, flags)?;
        Ok(found.then_some(value))
    }

    fn look_up_into(&self, key: &K, value: &mut V, flags: MapFlags) -> Result<bool, KernelError> {
        self.map
            .lookup_into(key.as_bytes(), value.as_mut_bytes(), flags)
            .map_err(|error| self.error("look up in the table", error))
    }

    fn update(&self, key: &K, value: &V, flags: MapFlags) -> libbpf_rs::Result<()> {
        self.map.update(key.as_bytes(), value.as_bytes(), flags)
    }

    /// Adds an entry, and never replaces one.
    pub fn insert(&self, key: &K, value: &V) -> Result<Insertion, KernelError> {
        match self.update(key, value, MapFlags::NO_EXIST) {
            Ok(()) => Ok(Insertion::Done),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Insertion::Exists),
            Err(error) if error.kind() == ErrorKind::TooBig => Ok(Insertion::Full),
            Err(error) => Err(self.error("insert into the table", error)),
        }
    }

    /// Adds an entry or replaces one.
    ///
    /// # Errors
    /// [`KernelError::Full`] when there is no room for a new one, or the kernel's error.
    pub fn set(&self, key: &K, value: &V) -> Result<(), KernelError> {
        match self.put(key, value)? {
            Insertion::Full => Err(KernelError::Full(self.name)),
            Insertion::Done | Insertion::Exists => Ok(()),
        }
    }

    /// Adds an entry or replaces one. Reports when there is no room for a new one.
    pub fn put(&self, key: &K, value: &V) -> Result<Insertion, KernelError> {
        match self.update(key, value, MapFlags::ANY) {
            Ok(()) => Ok(Insertion::Done),
            Err(error) if error.kind() == ErrorKind::TooBig => Ok(Insertion::Full),
            Err(error) => Err(self.error("write to the table", error)),
        }
    }

    /// Replaces an existing entry.
    pub fn replace(&self, key: &K, value: &V) -> Result<(), KernelError> {
        self.update(key, value, MapFlags::EXIST)
            .map_err(|error| self.error("replace in the table", error))
    }

    /// Replaces an existing entry under its lock (struct bpf_spin_lock), which stays.
    pub fn replace_locked(&self, key: &K, value: &V) -> Result<(), KernelError> {
        self.update(key, value, MapFlags::EXIST | MapFlags::LOCK)
            .map_err(|error| self.error("replace in the table", error))
    }

    /// Removes an entry. Returns false if there was none.
    pub fn remove(&self, key: &K) -> Result<bool, KernelError> {
        match self.map.delete(key.as_bytes()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.error("delete from the table", error)),
        }
    }

    /// All entries of a hash map. An entry that is inserted or deleted meanwhile may or may not be among
    /// them.
    pub fn entries(&self) -> Result<Vec<(K, V)>, KernelError> {
        let mut all = Vec::new();
        let mut room = BATCH;
        let (mut keys, mut values) = (vec![K::zeroed(); room], vec![V::zeroed(); room]);
        let mut position = None;
        loop {
            let read = usher_bpf_ffi::read_batch(&self.map, position, &mut keys, &mut values);
            let Batch {
                count,
                next,
                result,
            } = read;
            let last = match result {
                Ok(()) => false,
                Err(error) if is(&error, libc::ENOENT) => true,
                Err(error) if is(&error, libc::ENOSPC) => {
                    room *= 2;
                    keys.resize(room, K::zeroed());
                    values.resize(room, V::zeroed());
                    continue;
                }
                Err(error) if is(&error, libc::EINTR) => continue,
                Err(error) => return Err(self.error("read the table", error.into())),
            };
            let read = keys.iter().copied().zip(values.iter().copied());
            all.extend(read.take(count));
            if last {
                return Ok(all);
            }
            position = Some(next);
        }
    }
}

impl<K: Plain + Ord, V: Plain + PartialEq> Table<K, V> {
    /// Makes these entries the only ones: sets them first, then removes the others.
    ///
    /// # Errors
    /// [`KernelError::Full`], or the kernel's error.
    pub fn assign(&self, wanted: &BTreeMap<K, V>) -> Result<(), KernelError> {
        self.assign_among(wanted, |_| true)
    }

    /// Gives exactly these keys this value: sets them first, then removes other keys that have it.
    ///
    /// # Errors
    /// [`KernelError::Full`], or the kernel's error.
    pub fn assign_keys(
        &self,
        keys: impl IntoIterator<Item = K>,
        value: V,
    ) -> Result<(), KernelError> {
        let wanted = keys.into_iter().map(|key| (key, value));
        self.assign_among(&wanted.collect(), |other| *other == value)
    }

    fn assign_among(
        &self,
        wanted: &BTreeMap<K, V>,
        among: impl Fn(&V) -> bool,
    ) -> Result<(), KernelError> {
        for (key, value) in wanted {
            self.set(key, value)?;
        }
        for (key, value) in self.entries()? {
            if among(&value) && !wanted.contains_key(&key) {
                self.remove(&key)?;
            }
        }
        Ok(())
    }
}

pub(crate) fn clone(part: &impl std::os::fd::AsFd) -> Result<OwnedFd, KernelError> {
    part.as_fd()
        .try_clone_to_owned()
        .map_err(KernelError::system("duplicate a descriptor"))
}

/// A structure with the same bytes on both sides: no padding, and every bit pattern is a value. The
/// derives that `usher-bpf-build` generates make sure of both.
pub trait Plain: Copy + FromBytes + IntoBytes + Immutable {
    /// The structure at the beginning of these bytes; none if there are too few bytes.
    fn read(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(value, _)| value)
    }

    /// All zeros.
    #[must_use]
    fn zeroed() -> Self {
        Self::new_zeroed()
    }
}

impl<T: Copy + FromBytes + IntoBytes + Immutable> Plain for T {}
