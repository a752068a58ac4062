//! Compiled programs, and their settings before loading.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use libbpf_rs::{MapCore, MapHandle, ObjectBuilder, OpenObject};
use usher_system::namespace;

use crate::pins::unpin_if_there;
use crate::{KernelError, Lack, Object, Pins, exists, print};

/// A compiled object of `bpf/`; see [`code!`](crate::code).
#[derive(Debug)]
pub struct Code {
    /// The object's name in the kernel's lists, up to 15 bytes.
    pub name: &'static str,
    /// The object file.
    pub bytes: &'static [u8],
}

/// The object compiled by the build script to `FILE.bpf.o`, and its name in the kernel's lists.
#[macro_export]
macro_rules! code {
    ($name:literal, $file:literal) => {
        $crate::Code {
            name: $name,
            bytes: include_bytes!(concat!(env!("OUT_DIR"), "/", $file, ".bpf.o")),
        }
    };
}

impl Code {
    /// Tries whether this kernel accepts the programs: loads and releases them.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn probe(&self) -> Result<(), Lack> {
        self.open()?.try_load()
    }

    /// Reads the programs without loading them.
    ///
    /// # Errors
    /// When the bytes are not an object.
    pub fn open(&self) -> Result<Opened, KernelError> {
        Opened::read(self.name, self.bytes)
    }
}

/// Programs and tables that are not loaded yet.
#[derive(Debug)]
pub struct Opened {
    pub(crate) open: OpenObject,
    limits: Vec<(&'static str, u32)>,
    /// Programs whose functions are replaced. They stay open until this object is loaded, because libbpf
    /// keeps only the numbers of their descriptors.
    pub(crate) replaced: Vec<OwnedFd>,
}

impl Opened {
    /// Reads the programs of an object file. The kernel's lists show the first 15 bytes of `name`.
    ///
    /// # Errors
    /// When the bytes are not an object.
    pub fn read(name: &str, bytes: &[u8]) -> Result<Self, KernelError> {
        print::through_tracing();
        let mut builder = ObjectBuilder::default();
        let named = builder.name(name);
        let open = named.and_then(|builder| builder.open_memory(bytes));
        Ok(Self {
            open: open.map_err(KernelError::bpf("read programs"))?,
            limits: Vec::new(),
            replaced: Vec::new(),
        })
    }

    /// Sets the sizes of these tables.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`] when there is no such table.
    pub fn limit(mut self, limits: &[(&'static str, u32)]) -> Result<Self, KernelError> {
        for &(table, entries) in limits {
            let mut map = self.open.maps_mut().find(|map| map.name() == table);
            let map = map.as_mut().ok_or(KernelError::MissingPart(table))?;
            map.set_max_entries(entries)
                .map_err(KernelError::bpf("size a table"))?;
        }
        self.limits.extend_from_slice(limits);
        Ok(self)
    }

    /// For all tables, or for those that `only` names: adopts a table that is pinned in the folder, and pins
    /// any other on loading.
    ///
    /// # Errors
    /// [`KernelError::OtherLimit`] when a pinned table has another limit than [`Self::limit`] has set.
    pub fn pin(mut self, pins: &Pins, only: Option<&[&str]>) -> Result<Self, KernelError> {
        for mut map in self.open.maps_mut() {
            if only.is_some_and(|only| !only.iter().any(|name| map.name() == *name)) {
                continue;
            }
            let path = pins.folder().join(map.name());
            let limit = self.limits.iter().find(|(table, _)| map.name() == *table);
            if let Some(&(table, asked)) = limit
                && exists(&path)?
            {
                let pinned = MapHandle::from_pinned_path(&path)
                    .map_err(KernelError::bpf("open a pinned table"))?;
                let found = pinned.max_entries();
                if found != asked {
                    let pins = pins.folder().into();
                    return Err(KernelError::OtherLimit {
                        pins,
                        table,
                        found,
                        asked,
                    });
                }
            }
            map.set_pin_path(&path)
                .map_err(KernelError::bpf("name a pin"))?;
        }
        Ok(self)
    }

    /// Shares these tables with another object.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`] when one of the objects has no such table.
    pub fn share(mut self, other: &Object, tables: &[&'static str]) -> Result<Self, KernelError> {
        for &table in tables {
            let mut map = self.open.maps_mut().find(|map| map.name() == table);
            let map = map.as_mut().ok_or(KernelError::MissingPart(table))?;
            map.reuse_fd(other.descriptor(table)?.as_fd())
                .map_err(KernelError::bpf("share a table"))?;
        }
        Ok(self)
    }

    /// Leaves out the programs for which `wanted` returns false. `wanted` gets the names of program and hook.
    ///
    /// # Errors
    /// The error of `wanted`.
    pub fn choose<E>(mut self, wanted: impl Fn(&str, &str) -> Result<bool, E>) -> Result<Self, E> {
        for mut program in self.open.progs_mut() {
            let (name, section) = (program.name().to_owned(), program.section().to_owned());
            let section = section.to_string_lossy();
            let hook = section.split_once('/').map_or(&*section, |(_, hook)| hook);
            program.set_autoload(wanted(&name.to_string_lossy(), hook)?);
        }
        Ok(self)
    }

    /// Detaches these programs from the hooks at which an earlier process has attached them for good
    /// ([`Object::keep_at_hooks`]).
    ///
    /// # Errors
    /// The kernel's error; some may stay attached.
    pub fn let_go_of_hooks(&mut self, pins: &Pins) -> Result<(), KernelError> {
        for program in self.open.progs_mut() {
            unpin_if_there(&pins.link(program.name().display()))?;
        }
        Ok(())
    }

    /// Sets `own_network`, the only constant of programs that serve one network namespace, to the caller's
    /// namespace.
    ///
    /// # Errors
    /// When the kernel does not report the namespace, or the programs have no such constant.
    pub fn in_own_network(self) -> Result<Self, KernelError> {
        self.set_constant("own_network", namespace::own_network()?)
    }

    /// Sets the only constant of these programs, `name`, before loading: the loaded programs lack the code
    /// that its value excludes.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`] when the programs have no constant, or one of another size.
    pub fn set_constant(mut self, name: &'static str, value: u64) -> Result<Self, KernelError> {
        let value = value.to_ne_bytes();
        let written = self.open.maps_mut().any(|mut map| {
            let constants = map.name().to_string_lossy().ends_with(".rodata");
            match map.initial_value_mut() {
                Some(place) if constants && place.len() == value.len() => {
                    place.copy_from_slice(&value);
                    true
                }
                _ => false,
            }
        });
        if written {
            Ok(self)
        } else {
            Err(KernelError::MissingPart(name))
        }
    }

    /// Loads and releases programs and tables.
    ///
    /// # Errors
    /// The reason why this kernel refuses them. libbpf prints nothing.
    pub fn try_load(self) -> Result<(), Lack> {
        step(|| print::quietly(|| self.open.load()))?;
        Ok(())
    }

    /// Loads programs and tables. Nothing is attached yet.
    ///
    /// # Errors
    /// The kernel's error. Objects that were pinned before the error stay pinned.
    pub fn load(self) -> Result<Object, KernelError> {
        let object = step(|| self.open.load());
        object
            .map(Object)
            .map_err(KernelError::bpf("load programs"))
    }
}

/// A step of loading. The kernel's verifier takes seconds for each object, and minutes on a busy machine, so a
/// daemon tells its service manager that it is at work, object by object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The next object is about to be loaded.
    Begins,
    /// The object is loaded, or refused.
    Ends,
}

static TELL: OnceLock<fn(Step)> = OnceLock::new();

/// Sets the function that is called at each step, in this process. A second call changes nothing.
pub fn tell_progress(tell: fn(Step)) {
    let _ = TELL.set(tell);
}

/// Loads one object.
pub(crate) fn step<T>(load: impl FnOnce() -> T) -> T {
    let tell = |step| {
        if let Some(tell) = TELL.get() {
            tell(step);
        }
    };
    tell(Step::Begins);
    let outcome = load();
    tell(Step::Ends);
    outcome
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    static TOLD: Mutex<Vec<Step>> = Mutex::new(Vec::new());

    #[test]
    fn each_object_has_a_beginning_and_an_end() {
        assert_eq!(step(|| 1), 1);
        assert_eq!(*TOLD.lock(), []);
        tell_progress(|step| TOLD.lock().push(step));
        for _ in 0..2 {
            step(|| assert_eq!(TOLD.lock().last(), Some(&Step::Begins)));
        }
        let both = [Step::Begins, Step::Ends];
        assert_eq!(*TOLD.lock(), [both, both].concat());
    }
}
