//! Keeps unprotected packets from the ports of services that demand protection by IPsec
//! (bpf/authentication/protected). From kernel 6.6 on.
//!
//! Everything is pinned: demands stay in force while there is no keeper, and after its death.

use std::collections::BTreeMap;
use std::path::Path;

use parking_lot::Mutex;
use usher_bpf::{
    Code, Lack, NetfilterHook, NetfilterPlace, Object, Pins, Table, code, leave_netfilter,
    program_id,
};

use crate::KernelError;
pub use crate::shared::protected::{Demand, ProtectedCounters as Counters};

/// bpf/authentication/protected.
static CODE: Code = code!("usher_protected", "protected");

const PROGRAM: &str = "require";

/// Before all tables of the administrator.
const PLACE: NetfilterPlace = NetfilterPlace {
    hook: NetfilterHook::LocalIn,
    priorities: [-350, -349],
};

/// Tries whether this kernel accepts the program.
///
/// # Errors
/// The kernel's reason.
pub(crate) fn probe() -> Result<(), Lack> {
    CODE.probe_at_netfilter(&[(PROGRAM, PLACE)])
}

/// The ports of services that demand protection.
///
/// Dropping it leaves them in force.
#[derive(Debug)]
pub struct Protected {
    demands: Table<u32, Demand>,
    counters: usher_bpf::Counters<Counters>,
    object: Object,
    /// Whether this process has attached the program: it is attached only where there are demands.
    attached: Mutex<bool>,
    pins: Pins,
}

impl Protected {
    /// Loads the program. Takes up what an earlier keeper pinned in `pins`, a folder of a bpffs that
    /// is made if need be: its demands stay in force.
    ///
    /// # Errors
    /// The kernel's error, also where it knows no such programs; what was in force stays.
    pub fn open(pins: &Path) -> Result<Self, KernelError> {
        let pins = Pins::lock(pins)?;
        let object = CODE.open()?.pin(&pins, None)?.load()?;
        let protected = Self {
            demands: object.table("demands")?,
            counters: object.counters("counters")?,
            object,
            attached: Mutex::new(false),
            pins,
        };
        if !protected.demands.entries()?.is_empty() {
            protected.attach()?;
        }
        Ok(protected)
    }

    /// Demands protection at these ports as well. A port that has a demand gets one that includes both, so it
    /// is never without one. Returns whether it has attached the program, so that there are new links.
    ///
    /// # Errors
    /// The kernel's error; no demand has been lifted or weakened.
    pub fn add(&self, demands: &BTreeMap<u16, Demand>) -> Result<bool, KernelError> {
        let has_attached = !demands.is_empty() && self.attach()?;
        for (port, demand) in demands {
            let port = u32::from(*port);
            let former = self.demands.get(&port)?;
            self.demands.set(&port, &both(former, *demand))?;
        }
        Ok(has_attached)
    }

    /// Demands protection at these ports, and at no others, in the caller's network namespace. Adds
    /// first, then removes, so that a remaining port is never without its demand.
    ///
    /// # Errors
    /// The kernel's error; no demand has been removed unless all new ones are in force.
    pub fn apply(&self, demands: &BTreeMap<u16, Demand>) -> Result<(), KernelError> {
        if !demands.is_empty() {
            self.attach()?;
        }
        let wanted = demands.iter();
        let wanted = wanted.map(|(port, demand)| (u32::from(*port), *demand));
        self.demands.assign(&wanted.collect())?;
        let mut attached = self.attached.lock();
        if demands.is_empty() && *attached {
            leave_netfilter(PROGRAM, &self.pins)?;
            *attached = false;
        }
        Ok(())
    }

    /// Attaches the program unless this process has done so. Returns whether it had to.
    fn attach(&self) -> Result<bool, KernelError> {
        let mut attached = self.attached.lock();
        if *attached {
            return Ok(false);
        }
        self.object.keep_at_netfilter(PROGRAM, &PLACE, &self.pins)?;
        *attached = true;
        Ok(true)
    }

    /// Attaches the program again if there are demands and somebody has detached it. Returns whether it
    /// has attached it, so that there are new links.
    ///
    /// # Errors
    /// The kernel's error; the program may not be attached.
    pub fn mend(&self) -> Result<bool, KernelError> {
        let attached = self.attached.lock();
        Ok(*attached && self.object.mend_at_netfilter(PROGRAM, &PLACE, &self.pins)?)
    }

    /// The id of the program, which has no pin of its own.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn program(&self) -> Result<u32, KernelError> {
        program_id(&self.object.program(PROGRAM)?)
    }

    /// The program's counters.
    pub fn counters(&self) -> Result<Counters, KernelError> {
        self.counters.read()
    }
}

/// The demand that a packet meets only if it meets both of these.
fn both(former: Option<Demand>, demand: Demand) -> Demand {
    // Numbers at another place of the mark belong to an earlier version, whose SAs are gone.
    let former = former.filter(|former| former.shift == demand.shift);
    let classes = former.map_or(u32::MAX, |former| former.classes);
    Demand {
        classes: demand.classes & classes,
        ..demand
    }
}
