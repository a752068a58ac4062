//! A BPF hash map with typed keys and values.
//!
//! libbpf-rs's map operations are not used here: its errors do not carry errno, and its batched
//! iteration takes a batch that the kernel cut short at the end of a bucket for the last one, and
//! an error for the end.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::libbpf_sys;

use super::layout::Plain;
use crate::KernelError;

/// Entries asked for at once. More than any bucket of a table holds, or the kernel says ENOSPC;
/// then the batch is doubled.
const BATCH: usize = 1024;

#[derive(Debug)]
pub(crate) struct Table<K, V> {
    map: OwnedFd,
    name: &'static str,
    entries: PhantomData<fn(K) -> V>,
}

/// What happened to an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Insertion {
    Done,
    Exists,
    Full,
}

fn result(code: i32) -> io::Result<()> {
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
    /// `map` is the descriptor of a map whose keys have the size of K and values that of V, which
    /// libbpf checked when it loaded or adopted the map.
    pub(crate) fn new(name: &'static str, map: OwnedFd) -> Self {
        Self {
            map,
            name,
            entries: PhantomData,
        }
    }

    fn error(&self, what: &'static str, error: io::Error) -> KernelError {
        KernelError::file(what, self.name.as_ref())(error)
    }

    pub(crate) fn get(&self, key: &K) -> Result<Option<V>, KernelError> {
        let mut value = MaybeUninit::<V>::uninit();
        // SAFETY: key and value are as large as the map's keys and values.
        let code = unsafe {
            libbpf_sys::bpf_map_lookup_elem(
                self.map.as_raw_fd(),
                key.bytes().as_ptr().cast(),
                value.as_mut_ptr().cast(),
            )
        };
        match result(code) {
            // SAFETY: the kernel wrote the whole value, and every bit pattern is one (Plain).
            Ok(()) => Ok(Some(unsafe { value.assume_init() })),
            Err(error) if is(&error, libc::ENOENT) => Ok(None),
            Err(error) => Err(self.error("looking up in the table", error)),
        }
    }

    fn update(&self, key: &K, value: &V, flags: u32) -> io::Result<()> {
        // SAFETY: key and value are as large as the map's keys and values.
        result(unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.map.as_raw_fd(),
                key.bytes().as_ptr().cast(),
                value.bytes().as_ptr().cast(),
                u64::from(flags),
            )
        })
    }

    /// A new entry, never over another one.
    pub(crate) fn insert(&self, key: &K, value: &V) -> Result<Insertion, KernelError> {
        match self.update(key, value, libbpf_sys::BPF_NOEXIST) {
            Ok(()) => Ok(Insertion::Done),
            Err(error) if is(&error, libc::EEXIST) => Ok(Insertion::Exists),
            Err(error) if is(&error, libc::E2BIG) => Ok(Insertion::Full),
            Err(error) => Err(self.error("inserting into the table", error)),
        }
    }

    /// A new entry or the replacement of one.
    pub(crate) fn set(&self, key: &K, value: &V) -> Result<(), KernelError> {
        self.update(key, value, libbpf_sys::BPF_ANY)
            .map_err(|error| self.error("writing to the table", error))
    }

    /// A new entry or the replacement of one; tells when there is no room for a new one.
    pub(crate) fn put(&self, key: &K, value: &V) -> Result<Insertion, KernelError> {
        match self.update(key, value, libbpf_sys::BPF_ANY) {
            Ok(()) => Ok(Insertion::Done),
            Err(error) if is(&error, libc::E2BIG) => Ok(Insertion::Full),
            Err(error) => Err(self.error("writing to the table", error)),
        }
    }

    /// Replaces an entry that is there.
    pub(crate) fn replace(&self, key: &K, value: &V) -> Result<(), KernelError> {
        self.update(key, value, libbpf_sys::BPF_EXIST)
            .map_err(|error| self.error("replacing in the table", error))
    }

    /// Replaces an entry that is there, under its lock (struct bpf_spin_lock), which stays.
    pub(crate) fn replace_locked(&self, key: &K, value: &V) -> Result<(), KernelError> {
        self.update(key, value, libbpf_sys::BPF_EXIST | libbpf_sys::BPF_F_LOCK)
            .map_err(|error| self.error("replacing in the table", error))
    }

    /// False: there was none.
    pub(crate) fn remove(&self, key: &K) -> Result<bool, KernelError> {
        // SAFETY: the key is as large as the map's keys.
        let code = unsafe {
            libbpf_sys::bpf_map_delete_elem(self.map.as_raw_fd(), key.bytes().as_ptr().cast())
        };
        match result(code) {
            Ok(()) => Ok(true),
            Err(error) if is(&error, libc::ENOENT) => Ok(false),
            Err(error) => Err(self.error("deleting from the table", error)),
        }
    }

    /// All entries of a hash map. One that is inserted or deleted meanwhile may be there or not.
    pub(crate) fn entries(&self) -> Result<Vec<(K, V)>, KernelError> {
        let mut all = Vec::new();
        let mut batch = BATCH;
        let mut keys: Vec<MaybeUninit<K>> = vec![MaybeUninit::uninit(); batch];
        let mut values: Vec<MaybeUninit<V>> = vec![MaybeUninit::uninit(); batch];
        // Where the kernel goes on: the number of a bucket, for hash maps.
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
                    keys.resize(batch, MaybeUninit::uninit());
                    values.resize(batch, MaybeUninit::uninit());
                    continue;
                }
                Err(error) if is(&error, libc::EINTR) => continue,
                Err(error) => return Err(self.error("reading the table", error)),
            };
            for (key, value) in keys.iter().zip(&values).take(count as usize) {
                // SAFETY: the kernel wrote `count` keys and values.
                all.push(unsafe { (key.assume_init(), value.assume_init()) });
            }
            if last {
                return Ok(all);
            }
            position = Some(next);
        }
    }
}

/// The value of every CPU under `key` of a per-CPU map.
pub(crate) fn per_cpu<V: Plain>(map: BorrowedFd<'_>, key: u32) -> Result<Vec<V>, KernelError> {
    const OPERATION: &str = "reading the counters";
    const { assert!(size_of::<V>().is_multiple_of(8)) };
    let cpus = libbpf_rs::num_possible_cpus().map_err(KernelError::bpf(OPERATION))?;
    let mut values = Vec::<V>::with_capacity(cpus);
    // SAFETY: room for one value for every possible CPU; values of a size divisible by eight are
    // written without gaps.
    let code = unsafe {
        libbpf_sys::bpf_map_lookup_elem(
            map.as_raw_fd(),
            std::ptr::from_ref(&key).cast(),
            values.as_mut_ptr().cast(),
        )
    };
    result(code).map_err(KernelError::system(OPERATION))?;
    // SAFETY: the kernel wrote all of them, and every bit pattern is a value (Plain).
    unsafe { values.set_len(cpus) };
    Ok(values)
}

/// Runs a syscall program with `context` and gives what it returns.
pub(crate) fn run<C: Plain>(
    program: BorrowedFd<'_>,
    operation: &'static str,
    context: &mut C,
) -> Result<u32, KernelError> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: std::ptr::from_mut(context).cast(),
        ctx_size_in: size_of::<C>() as u32,
        ..Default::default()
    };
    // SAFETY: the context lives until the call returns and has the size said; a syscall program
    // writes nowhere else.
    let code = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    result(code).map_err(KernelError::system(operation))?;
    Ok(options.retval)
}
