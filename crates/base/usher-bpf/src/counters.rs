//! Counters of programs, one copy per CPU.

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

use crate::table::result;
use crate::{KernelError, Plain};

/// Numbers that programs increment, with their names. `usher-bpf-build` generates them.
///
/// # Safety
/// Implementors consist of `u64` only, as many as there are names.
pub unsafe trait Counted: Plain + Default {
    /// The names, in the order of the numbers.
    const NAMES: &'static [&'static str];

    /// Names and numbers, for views.
    fn named(&self) -> Vec<(String, u64)> {
        let names = Self::NAMES.iter().map(ToString::to_string);
        names.zip(numbers(self)).collect()
    }
}

fn numbers<C: Counted>(counted: &C) -> impl Iterator<Item = u64> {
    let words = counted.bytes().as_chunks().0;
    words.iter().map(|word| u64::from_ne_bytes(*word))
}

// SAFETY: one number.
unsafe impl Counted for u64 {
    const NAMES: &'static [&'static str] = &["count"];
}

/// A per-CPU array of counters.
pub struct Counters<C> {
    map: OwnedFd,
    /// Read once, because a confined process cannot read it.
    cpus: usize,
    counted: PhantomData<fn() -> C>,
}

impl<C> fmt::Debug for Counters<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Counters").finish_non_exhaustive()
    }
}

impl<C: Counted> Counters<C> {
    pub(crate) fn new(map: OwnedFd) -> Result<Self, KernelError> {
        let cpus = libbpf_rs::num_possible_cpus();
        Ok(Self {
            map,
            cpus: cpus.map_err(KernelError::bpf("counting the processors"))?,
            counted: PhantomData,
        })
    }

    /// The counters at index 0 since the table was made, over all CPUs.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&self) -> Result<C, KernelError> {
        self.read_at(0)
    }

    /// The counters at an index of the table.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read_at(&self, place: u32) -> Result<C, KernelError> {
        const { assert!(size_of::<C>().is_multiple_of(8) && align_of::<C>() == 8) };
        let mut per_cpu = vec![MaybeUninit::<C>::uninit(); self.cpus];
        // SAFETY: room for one value for every possible CPU; values of a size divisible by eight are
        // written without gaps.
        let code = unsafe {
            libbpf_sys::bpf_map_lookup_elem(
                self.map.as_raw_fd(),
                std::ptr::from_ref(&place).cast(),
                per_cpu.as_mut_ptr().cast(),
            )
        };
        result(code).map_err(KernelError::system("reading counters"))?;
        let mut sum = vec![0_u64; C::NAMES.len()];
        for counted in per_cpu {
            // SAFETY: the kernel wrote all of them, and every bit pattern is a value (Plain).
            let counted = unsafe { counted.assume_init() };
            for (sum, number) in sum.iter_mut().zip(numbers(&counted)) {
                *sum = sum.wrapping_add(number);
            }
        }
        // SAFETY: as many numbers as the structure consists of (Counted).
        Ok(unsafe { sum.as_ptr().cast::<C>().read() })
    }
}
