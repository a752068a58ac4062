//! The netfilter programs that drop plaintext of protected services, even while the SPD lacks Usher's
//! entries (bpf/ipsec/services.bpf.c). From kernel 6.6 on.
//!
//! With pins, demands stay in force while no protector runs.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;

use usher_base::address_bytes;
use usher_bpf::{
    Code, KernelError, Lack, NetfilterHook, NetfilterPlace, Object, Objects, Pins, Table, code,
    leave_netfilter,
};
use usher_protection::{Class, Level, Tables};

use crate::error::IpsecError;
use crate::marks::MarkMask;
pub use crate::shared::IpsecServiceCounters as ServiceCounters;
use crate::shared::{IpsecDemand, IpsecService};

static CODE: Code = code!("usher_services", "services");

/// The programs and their places: after the packet filters of the administrator, and where packets
/// leave before addresses are translated (100).
const PROGRAMS: [(&str, NetfilterPlace); 2] = [
    (
        "departs",
        NetfilterPlace {
            hook: NetfilterHook::PostRouting,
            priorities: [90, 91],
        },
    ),
    (
        "enters",
        NetfilterPlace {
            hook: NetfilterHook::LocalIn,
            priorities: [-330, -329],
        },
    ),
];

/// Demands by service.
#[derive(Clone, Default)]
pub(crate) struct Demands(BTreeMap<IpsecService, IpsecDemand>);

impl fmt::Debug for Demands {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Demands of {} services", self.0.len())
    }
}

impl Demands {
    /// The demands of these tables.
    pub fn of(tables: &Tables, mask: MarkMask) -> Self {
        let mut demands = Self::default();
        for service in &tables.services {
            let classes = service.classes.iter().copied();
            demands.add([0; 16], service.port, classes, mask);
        }
        for destination in &tables.destinations {
            let address = address_bytes(destination.peer);
            demands.add(address, destination.port, [destination.class], mask);
        }
        demands
    }

    fn add(
        &mut self,
        address: [u8; 16],
        port: u16,
        classes: impl IntoIterator<Item = Class>,
        mask: MarkMask,
    ) {
        let port = port.into();
        let service = IpsecService { address, port };
        let classes = classes.into_iter();
        let demand = IpsecDemand {
            classes: classes.fold(0, |bits, class| bits | 1 << class.mark(Level::Mandatory)),
            shift: mask.shift(),
        };
        let former = self.0.get(&service).copied();
        self.0.insert(service, both(former, demand));
    }

    /// Returns whether there are no demands.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The programs, loaded.
pub(crate) struct Services {
    demands: Table<IpsecService, IpsecDemand>,
    counters: usher_bpf::Counters<ServiceCounters>,
    object: Object,
    /// Whether this process has attached the programs: they are attached only where there are
    /// demands.
    is_attached: bool,
    /// The links, if they are not pinned.
    links: Vec<OwnedFd>,
}

impl fmt::Debug for Services {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Services").finish_non_exhaustive()
    }
}

impl Services {
    /// Tries whether this kernel accepts the programs.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn probe() -> Result<(), Lack> {
        CODE.probe_at_netfilter(&PROGRAMS)
    }

    /// Loads the programs. Demands of an earlier process stay in force.
    ///
    /// # Errors
    /// The kernel's error, also if it does not have such programs; demands in force stay.
    pub fn open(pins: Option<&Pins>) -> Result<Self, KernelError> {
        let mut opened = CODE.open()?;
        if let Some(pins) = pins {
            opened = opened.pin(pins, None)?;
        }
        let object = opened.load()?;
        let mut services = Self {
            demands: object.table("services")?,
            counters: object.counters("service_counters")?,
            object,
            is_attached: false,
            links: Vec::new(),
        };
        if !services.demands.entries()?.is_empty() {
            services.attach(pins)?;
        }
        Ok(services)
    }

    /// Demands protection of these services as well. A service that has a demand gets one that
    /// combines both, so it is never without a demand.
    ///
    /// # Errors
    /// The kernel's error; no demand has been lifted or weakened.
    pub fn add(&mut self, demands: &Demands, pins: Option<&Pins>) -> Result<(), KernelError> {
        if !demands.is_empty() {
            self.attach(pins)?;
        }
        for (service, demand) in &demands.0 {
            let former = self.demands.get(service)?;
            self.demands.set(service, &both(former, *demand))?;
        }
        Ok(())
    }

    /// Lifts all other demands.
    ///
    /// # Errors
    /// The kernel's error; some are lifted then.
    pub fn retain(&mut self, demands: &Demands, pins: Option<&Pins>) -> Result<(), KernelError> {
        self.demands.assign(&demands.0)?;
        if demands.is_empty() && self.is_attached {
            if let Some(pins) = pins {
                for (program, _) in PROGRAMS {
                    leave_netfilter(program, pins)?;
                }
            }
            self.links.clear();
            self.is_attached = false;
        }
        Ok(())
    }

    fn attach(&mut self, pins: Option<&Pins>) -> Result<(), KernelError> {
        if self.is_attached {
            return Ok(());
        }
        for (program, place) in &PROGRAMS {
            match pins {
                Some(pins) => self.object.keep_at_netfilter(program, place, pins)?,
                None => {
                    let links = self.object.attach_at_netfilter(program, place)?;
                    self.links.extend(links);
                }
            }
        }
        self.is_attached = true;
        Ok(())
    }

    /// Attaches the programs again if somebody has detached them. Returns whether there are new links.
    ///
    /// # Errors
    /// The kernel's error; a program may not be attached.
    pub fn mend(&self, pins: Option<&Pins>) -> Result<bool, KernelError> {
        let mut is_mended = false;
        if let Some(pins) = pins.filter(|_| self.is_attached) {
            for (program, place) in &PROGRAMS {
                is_mended |= self.object.mend_at_netfilter(program, place, pins)?;
            }
        }
        Ok(is_mended)
    }

    /// Adds programs and tables, for the guard.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn collect(&self, objects: &mut Objects) -> Result<(), IpsecError> {
        Ok(self.object.collect(objects)?)
    }

    /// The events since the tables were made.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn counters(&self) -> Result<ServiceCounters, IpsecError> {
        Ok(self.counters.read()?)
    }
}

/// Combines two demands: only packets that meet both meet the result.
fn both(former: Option<IpsecDemand>, demand: IpsecDemand) -> IpsecDemand {
    // Class numbers at other bits of the mark belong to another mask, whose SAs are gone.
    let former = former.filter(|former| former.shift == demand.shift);
    let classes = former.map_or(u32::MAX, |former| former.classes);
    IpsecDemand {
        classes: demand.classes & classes,
        ..demand
    }
}
