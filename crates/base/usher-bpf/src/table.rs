//! A BPF hash map with typed keys and values.
//!
//! It does not use libbpf-rs's map operations, whose errors do not carry errno. Their batched
//! iteration also mistakes a batch that the kernel cut short at the end of a bucket for the last
//! one, and the end for an error.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};

use libbpf_rs::{MapCore, MapHandle, MapType, libbpf_sys};

use crate::{KernelError, Plain};

/// Entries requested at once. If a bucket of the table holds more, the kernel returns ENOSPC and
/// the batch is doubled.
const BATCH: usize = 1024;

/// A table with typed keys and values.
pub struct Table<K, V> {
    map: OwnedFd,
    name: &'static str,
    entries: PhantomData<fn(K) -> V>,
}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Table").field(&self.name).finish()
    }
}

/// The result of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insertion {
    /// The entry is in the table.
    Done,
    /// There is another one under its key, which stays.
    Exists,
    /// The table has no room for it.
    Full,
}

pub(crate) fn result(code: i32) -> io::Result<()> {
    // libbpf 1.x returns the negative errno.
    if code < 0 {
        Err(io::Error::from_raw_os_error(-code))
    } else {
        Ok(())
    }
}

fn is(error: &io::Error, errno: i32) -> bool {
    error.raw_os_error() == Some(errno)
}

impl<K: Plain, V: Plain> Table<K, V> {
    pub(crate) fn new(name: &'static str, map: &impl MapCore) -> Result<Self, KernelError> {
        let sizes = (map.key_size() as usize, map.value_size() as usize);
        if sizes != (size_of::<K>(), size_of::<V>()) {
            return Err(KernelError::MissingPart(name));
        }
        Ok(Self {
            map: clone(map)?,
            name,
            entries: PhantomData,
        })
    }

    /// A table for longest-prefix matches that belongs to no object, so no other process changes
    /// it. The first four bytes of `K` are the length of the prefix in bits.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of_prefixes(name: &'static str, entries: u32) -> Result<Self, KernelError> {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            map_flags: libbpf_sys::BPF_F_NO_PREALLOC,
            ..Default::default()
        };
        let (key, value) = (size_of::<K>() as u32, size_of::<V>() as u32);
        let map = MapHandle::create(MapType::LpmTrie, Some(name), key, value, entries, &options)
            .map_err(KernelError::bpf("making a table"))?;
        Self::new(name, &map)
    }

    /// Makes the table read-only for system calls and returns its descriptor.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn freeze(self) -> Result<OwnedFd, KernelError> {
        // SAFETY: takes a descriptor that is open.
        result(unsafe { libbpf_sys::bpf_map_freeze(self.map.as_raw_fd()) })
            .map_err(|error| self.error("freezing the table", error))?;
        Ok(self.map)
    }

    fn error(&self, what: &'static str, error: io::Error) -> KernelError {
        KernelError::file(what, self.name.as_ref())(error)
    }

    /// The value under a key.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn get(&self, key: &K) -> Result<Option<V>, KernelError> {
        let mut value = V::zeroed();
        // SAFETY: key and value are as large as the map's keys and values.
        let code = unsafe {
            libbpf_sys::bpf_map_lookup_elem(
                self.map.as_raw_fd(),
                key.as_bytes().as_ptr().cast(),
                value.as_mut_bytes().as_mut_ptr().cast(),
            )
        };
        match result(code) {
            Ok(()) => Ok(Some(value)),
            Err(error) if is(&error, libc::ENOENT) => Ok(None),
            Err(error) => Err(self.error("looking up in the table", error)),
        }
    }

    fn update(&self, key: &K, value: &V, flags: u32) -> io::Result<()> {
        // SAFETY: key and value are as large as the map's keys and values.
        result(unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.map.as_raw_fd(),
                key.as_bytes().as_ptr().cast(),
                value.as_bytes().as_ptr().cast(),
                u64::from(flags),
            )
        })
    }

    /// Adds an entry, and never replaces one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn insert(&self, key: &K, value: &V) -> Result<Insertion, KernelError> {
        match self.update(key, value, libbpf_sys::BPF_NOEXIST) {
            Ok(()) => Ok(Insertion::Done),
            Err(error) if is(&error, libc::EEXIST) => Ok(Insertion::Exists),
            Err(error) if is(&error, libc::E2BIG) => Ok(Insertion::Full),
            Err(error) => Err(self.error("inserting into the table", error)),
        }
    }

    /// Adds an entry or replaces one.
    ///
    /// # Errors
    /// [`KernelError::Full`] when there is no room for a new one, or the kernel's error.
    pub fn set(&self, key: &K, value: &V) -> Result<(), KernelError> {
        match self.put(key, value)? {
            Insertion::Full => Err(KernelError::Full { table: self.name }),
            Insertion::Done | Insertion::Exists => Ok(()),
        }
    }

    /// Adds an entry or replaces one. Reports when there is no room for a new one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn put(&self, key: &K, value: &V) -> Result<Insertion, KernelError> {
        match self.update(key, value, libbpf_sys::BPF_ANY) {
            Ok(()) => Ok(Insertion::Done),
            Err(error) if is(&error, libc::E2BIG) => Ok(Insertion::Full),
            Err(error) => Err(self.error("writing to the table", error)),
        }
    }

    /// Replaces an existing entry.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn replace(&self, key: &K, value: &V) -> Result<(), KernelError> {
        self.update(key, value, libbpf_sys::BPF_EXIST)
            .map_err(|error| self.error("replacing in the table", error))
    }

    /// Replaces an existing entry under its lock (struct bpf_spin_lock), which stays.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn replace_locked(&self, key: &K, value: &V) -> Result<(), KernelError> {
        self.update(key, value, libbpf_sys::BPF_EXIST | libbpf_sys::BPF_F_LOCK)
            .map_err(|error| self.error("replacing in the table", error))
    }

    /// Removes an entry. Returns false if there was none.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove(&self, key: &K) -> Result<bool, KernelError> {
        // SAFETY: the key is as large as the map's keys.
        let code = unsafe {
            libbpf_sys::bpf_map_delete_elem(self.map.as_raw_fd(), key.as_bytes().as_ptr().cast())
        };
        match result(code) {
            Ok(()) => Ok(true),
            Err(error) if is(&error, libc::ENOENT) => Ok(false),
            Err(error) => Err(self.error("deleting from the table", error)),
        }
    }

    /// All entries of a hash map. One that is inserted or deleted meanwhile may or may not be among
    /// them.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn entries(&self) -> Result<Vec<(K, V)>, KernelError> {
        let mut all = Vec::new();
        let mut batch = BATCH;
        let (mut keys, mut values) = (vec![K::zeroed(); batch], vec![V::zeroed(); batch]);
        // The kernel's position: for hash maps, the number of a bucket.
        let mut position: Option<u32> = None;
        loop {
            let mut next = 0_u32;
            let mut count = u32::try_from(batch).unwrap_or(u32::MAX);
            let options = libbpf_sys::bpf_map_batch_opts {
                sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as libbpf_sys::size_t,
                ..Default::default()
            };
            // SAFETY: room for `count` keys and values; the positions are the 4 bytes that hash
            // maps use.
            let code = unsafe {
                libbpf_sys::bpf_map_lookup_batch(
                    self.map.as_raw_fd(),
                    position
                        .as_mut()
                        .map_or(std::ptr::null_mut(), |at| std::ptr::from_mut(at).cast()),
                    std::ptr::from_mut(&mut next).cast(),
                    keys.as_mut_ptr().cast(),
                    values.as_mut_ptr().cast(),
                    &mut count,
                    &options,
                )
            };
            let last = match result(code) {
                Ok(()) => false,
                Err(error) if is(&error, libc::ENOENT) => true,
                Err(error) if is(&error, libc::ENOSPC) => {
                    batch *= 2;
                    keys.resize(batch, K::zeroed());
                    values.resize(batch, V::zeroed());
                    continue;
                }
                Err(error) if is(&error, libc::EINTR) => continue,
                Err(error) => return Err(self.error("reading the table", error)),
            };
            let read = keys.iter().copied().zip(values.iter().copied());
            all.extend(read.take(count as usize));
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

    /// Gives exactly these keys this value: sets them first, then removes the others that have it.
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
        .map_err(KernelError::system("duplicating a descriptor"))
}
