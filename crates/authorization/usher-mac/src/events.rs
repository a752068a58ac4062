//! Events of modules: each refusal, and each process that was lowered, from the framework's ring.

use std::fmt;

use usher_bpf::{Counters, KernelError, Object, Pins, Plain, Ring};

use crate::elements::Elements;
use crate::shared::{
    MAC_BY_MODULE, MAC_CHANGES, MAC_IS_OLDER, MAC_IS_TRACED, MAC_NO_ROOM, MAC_SHARES_MEMORY,
    MacEvent, name_of,
};
use crate::{EntryPoint, Error};

/// The tables of events that outlive the process.
pub(crate) const TABLES: [&str; 3] = ["events", "lost_events", "lowered"];

/// The number of an element that is not known.
const UNKNOWN: u32 = u32::MAX;

/// The outcome of an access for one module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The module refused it, with this number of an error (errno(3)).
    Refused(i32),
    /// The module permits the access to a process with another element, which this process could not get.
    NotLowered(NotLowered),
    /// The process got another element.
    Lowered,
}

/// The reason that a process could not get another element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotLowered {
    /// Another process traces this one, or may answer its system calls; or this one traces another.
    IsTraced,
    /// The process has a shared mapping of a file or memory, and can write to it. Linux cannot end a mapping.
    SharesMemory,
    /// The process's program began before the module came into force, so its mappings are not known.
    IsOlder,
    /// The process's label changed again and again meanwhile.
    Changes,
    /// There was no room for the element, or the module wrote one of another kind.
    NoRoom,
}

impl fmt::Display for NotLowered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::IsTraced => {
                "another process traces it or may answer its system calls, or it traces one"
            }
            Self::SharesMemory => {
                "it has memory that it shares and can write, or may hold an io_uring of another process"
            }
            Self::IsOlder => "it runs since before the module was loaded",
            Self::Changes => "its label changed again and again meanwhile",
            Self::NoRoom => "there is no room for another element",
        })
    }
}

/// An element of an event, as the module's part of a label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Told {
    /// The event names no element, or one of a module that was unloaded.
    Nothing,
    /// The label was not known.
    Unknown,
    /// The element: `biba/high`.
    Element(String),
}

/// A file or directory that an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventFile {
    /// Major number of its file system's device.
    pub major: u32,
    /// Minor number of its file system's device.
    pub minor: u32,
    /// Its inode number on that file system.
    pub inode: u64,
    /// A name of it, which a process may have chosen; none if the kernel remembered none.
    pub name: Option<String>,
}

/// An event of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleEvent {
    /// The module's name.
    pub module: String,
    /// The entry point at which the module was asked.
    pub point: EntryPoint,
    /// The outcome.
    pub outcome: Outcome,
    /// The process, by its number in the initial namespace; none where no process acts.
    pub process: Option<u32>,
    /// The process's real uid.
    pub uid: u32,
    /// The process's name, which it may have chosen; none if another process caused the event.
    pub command: Option<String>,
    /// The module's element of the process before the event.
    pub subject: Told,
    /// The module's element of the object.
    pub object: Told,
    /// The element that the process has got.
    pub element: Told,
    /// The file that the request is about.
    pub file: Option<EventFile>,
}

/// The reader of events.
pub(crate) struct Events {
    ring: Ring<MacEvent>,
    lost: Counters<u64>,
    elements: Elements,
}

/// A text from the kernel, up to the zero that ends it.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0);
    let bytes = &bytes[..end.unwrap_or(bytes.len())];
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes).into_owned())
}

fn outcome(event: &MacEvent) -> Option<Outcome> {
    Some(Outcome::NotLowered(match event.reason {
        MAC_BY_MODULE if event.error == 0 => return Some(Outcome::Lowered),
        MAC_BY_MODULE => return Some(Outcome::Refused(event.error.try_into().ok()?)),
        MAC_IS_TRACED => NotLowered::IsTraced,
        MAC_SHARES_MEMORY => NotLowered::SharesMemory,
        MAC_IS_OLDER => NotLowered::IsOlder,
        MAC_CHANGES => NotLowered::Changes,
        MAC_NO_ROOM => NotLowered::NoRoom,
        _ => return None,
    }))
}

impl Events {
    pub(crate) fn of(object: &Object, pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            ring: object.ring("events", "read events", MacEvent::read)?,
            lost: object.counters("lost_events")?,
            elements: Elements::open(pins)?,
        })
    }

    /// Returns the events since the last call, up to about a thousand, and whether there are more.
    pub(crate) fn take(&self) -> Result<(Vec<ModuleEvent>, bool), Error> {
        let batch = self.ring.take()?;
        let mut events = Vec::new();
        for event in &batch.entries {
            // An event of a module that was unloaded is left out: only its numbers are known.
            events.extend(self.told(event)?);
        }
        Ok((events, batch.more))
    }

    fn told(&self, event: &MacEvent) -> Result<Option<ModuleEvent>, Error> {
        let module = self.elements.module(event.slot)?;
        let module = module.filter(|module| module.order == event.order && event.order != 0);
        let point = EntryPoint::all().nth(event.point as usize);
        let (Some(module), Some(point), Some(outcome)) = (module, point, outcome(event)) else {
            return Ok(None);
        };
        let file = EventFile {
            major: event.device >> 20,
            minor: event.device & ((1 << 20) - 1),
            inode: event.inode,
            name: text(&event.name),
        };
        Ok(Some(ModuleEvent {
            module: name_of(&module),
            point,
            outcome,
            process: (event.process != 0).then_some(event.process),
            uid: event.uid,
            command: text(&event.command),
            subject: self.element(event.subject)?,
            object: self.element(event.object)?,
            element: self.element(event.element)?,
            file: (event.inode != 0).then_some(file),
        }))
    }

    fn element(&self, number: u32) -> Result<Told, Error> {
        Ok(match number {
            0 => Told::Nothing,
            UNKNOWN => Told::Unknown,
            number => match self.elements.of(number) {
                // A module from a file may have written a bad element. The other events must still be told.
                Err(Error::Kernel(KernelError::UnreadableEntry(_))) => Told::Unknown,
                label => match label? {
                    label if label.is_empty() => Told::Nothing,
                    label => Told::Element(label.to_string()),
                },
            },
        })
    }

    /// Events that found no room, since the framework was made.
    pub(crate) fn lost(&self) -> Result<u64, Error> {
        Ok(self.lost.read_at(0)?)
    }
}
