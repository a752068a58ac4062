//! Counters of programs, one copy per CPU.

use std::marker::PhantomData;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use zerocopy::IntoBytes;

use crate::{KernelError, Plain};

/// Numbers (`u64`) that programs increment, with their names. `usher-bpf-build` generates them.
pub trait Counted: Plain + Default {
    /// The names, in the order of the numbers.
    const NAMES: &'static [&'static str];

    /// Names and numbers, for views.
    fn named(&self) -> Vec<(String, u64)> {
        let names = Self::NAMES.iter().map(ToString::to_string);
        names.zip(counts(self.as_bytes())).collect()
    }
}

/// The counters, for views. Zeros if there are no programs, or if reading fails; a failure is
/// logged.
pub fn or_zeros<C: Counted>(counters: Option<Result<C, KernelError>>) -> C {
    counters.map_or_else(C::default, |read| {
        read.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot read the counters");
            C::default()
        })
    })
}

fn counts(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let words = bytes.as_chunks().0;
    words.iter().map(|word| u64::from_ne_bytes(*word))
}

impl Counted for u64 {
    const NAMES: &'static [&'static str] = &["count"];
}

/// A per-CPU array of counters.
#[derive(Debug)]
pub struct Counters<C> {
    map: MapHandle,
    counted: PhantomData<fn() -> C>,
}

impl<C: Counted> Counters<C> {
    pub(crate) fn new(map: MapHandle) -> Result<Self, KernelError> {
        // libbpf keeps the number of processors, which a confined process cannot read.
        libbpf_rs::num_possible_cpus().map_err(KernelError::bpf("count the processors"))?;
        Ok(Self {
            map,
            counted: PhantomData,
        })
    }

    /// The counters at index 0 since the table was made, over all CPUs.
    pub fn read(&self) -> Result<C, KernelError> {
        self.read_at(0)
    }

    /// The counters at an index of the table.
    ///
    /// # Errors
    /// The kernel's error; [`KernelError::MissingPart`] for an index beyond the table.
    pub fn read_at(&self, place: u32) -> Result<C, KernelError> {
        let copies = self
            .map
            .lookup_percpu(place.as_bytes(), MapFlags::ANY)
            .map_err(KernelError::bpf("read counters"))?
            .ok_or(KernelError::MissingPart("counters"))?;
        let mut sum = vec![0_u64; C::NAMES.len()];
        for copy in &copies {
            for (sum, number) in sum.iter_mut().zip(counts(copy)) {
                *sum = sum.wrapping_add(number);
            }
        }
        C::read(sum.as_bytes()).ok_or(KernelError::MissingPart("counters"))
    }

    /// Sets the counters at an index of the table to zero.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn reset_at(&self, place: u32) -> Result<(), KernelError> {
        let processors =
            libbpf_rs::num_possible_cpus().map_err(KernelError::bpf("count the processors"))?;
        let zeros = vec![C::zeroed().as_bytes().to_vec(); processors];
        self.map
            .update_percpu(place.as_bytes(), &zeros, MapFlags::ANY)
            .map_err(KernelError::bpf("reset counters"))
    }
}
