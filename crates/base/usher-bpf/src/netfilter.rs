//! Netfilter programs: where they are attached, for good or as long as a descriptor is open.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libbpf_rs::{
    Link, NF_INET_LOCAL_IN, NF_INET_POST_ROUTING, NFPROTO_IPV4, NFPROTO_IPV6, NetfilterOpts,
};

use usher_system::namespace::in_new_network;

use crate::pins::{self, unpin};
use crate::slots::{is_busy, when_free};
use crate::{Code, KernelError, Lack, Object, Pins};

/// Makes the kernel reassemble fragments before the program sees them (BPF_F_NETFILTER_IP_DEFRAG).
/// Kernel 6.6; the programs themselves load from 6.4 on.
const REASSEMBLED: u32 = 1;

const ATTACHING: &str = "attach a netfilter program";

/// Limit of the wait for a priority. Another party's program may have it for good.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The address families at whose packets a netfilter program is attached, by name.
const FAMILIES: [(&str, i32); 2] = [("ipv4", NFPROTO_IPV4), ("ipv6", NFPROTO_IPV6)];

/// Where packets meet a netfilter program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetfilterHook {
    /// Packets that are delivered to this host, after IPsec.
    LocalIn,
    /// Packets that leave, including forwarded ones: once before IPsec, and again as the packets that
    /// IPsec has made of them.
    PostRouting,
}

/// The place of a netfilter program among those of other parties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetfilterPlace {
    /// The hook.
    pub hook: NetfilterHook,
    /// Two priorities; a lower one runs earlier. A netfilter link cannot be updated, and two programs of a
    /// host cannot share a priority. So a new program takes the free priority before the former program
    /// leaves the other. Both are above -400, where the kernel reassembles fragments.
    pub priorities: [i32; 2],
}

impl NetfilterPlace {
    fn options(&self, protocol_family: i32, place: usize) -> NetfilterOpts {
        NetfilterOpts {
            protocol_family,
            hooknum: match self.hook {
                NetfilterHook::LocalIn => NF_INET_LOCAL_IN,
                NetfilterHook::PostRouting => NF_INET_POST_ROUTING,
            },
            priority: self.priorities[place],
            flags: match self.hook {
                NetfilterHook::LocalIn => REASSEMBLED,
                // After this hook the kernel fragments the packets that leave.
                NetfilterHook::PostRouting => 0,
            },
            ..NetfilterOpts::default()
        }
    }
}

impl Code {
    /// Tries whether this kernel accepts all programs, and attaches those of `programs` in a network
    /// namespace that ends with the attempt. Linux 6.4 and 6.5 load programs that they do not attach, because
    /// they reassemble no fragments for them.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn probe_at_netfilter(
        &self,
        programs: &[(&'static str, NetfilterPlace)],
    ) -> Result<(), Lack> {
        self.probe()?;
        let attach = || {
            let object = self.open()?.load()?;
            for (program, at) in programs {
                object.attach_at_netfilter(program, at)?;
            }
            Ok::<_, KernelError>(())
        };
        Ok(in_new_network(attach)??)
    }
}

impl Object {
    /// Attaches a netfilter program for good to the packets of IPv4 and IPv6 at a hook, in the caller's
    /// network namespace: the links are pinned, and keep the namespace alive. A program that an earlier
    /// process attached is in force until the new one is.
    ///
    /// # Errors
    /// The kernel's error; what was in force stays.
    pub fn keep_at_netfilter(
        &self,
        program: &'static str,
        at: &NetfilterPlace,
        pins: &Pins,
    ) -> Result<(), KernelError> {
        for (name, family) in FAMILIES {
            let pin = |place: usize| pin(pins, program, name, place);
            let place = usize::from(crate::exists(&pin(0))?);
            let (fresh, former) = (pin(place), pin(1 - place));
            // An earlier process ended between the steps below.
            if crate::exists(&fresh)? {
                detach(&fresh)?;
            }
            let link =
                attach_netfilter(self.program(program)?.as_fd(), &at.options(family, place))?;
            pins::pin(link.as_fd(), &fresh)?;
            if crate::exists(&former)? {
                detach(&former)?;
            }
        }
        Ok(())
    }

    /// Attaches a netfilter program again if somebody has detached it, or has removed its pins. Returns
    /// whether it was not attached for both families.
    ///
    /// A detached link keeps its pin, and the kernel does not report that it is detached. But two programs
    /// cannot have one priority, so a link is in force if its priority is taken.
    ///
    /// # Errors
    /// The kernel's error; the program may not be attached.
    pub fn mend_at_netfilter(
        &self,
        program: &'static str,
        at: &NetfilterPlace,
        pins: &Pins,
    ) -> Result<bool, KernelError> {
        let descriptor = self.program(program)?;
        for (name, family) in FAMILIES {
            let mut is_in_force = false;
            for place in [0, 1] {
                if crate::exists(&pin(pins, program, name, place))? {
                    is_in_force = is_taken(descriptor.as_fd(), &at.options(family, place))?;
                    break;
                }
            }
            if !is_in_force {
                self.keep_at_netfilter(program, at, pins)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Attaches a netfilter program like [`Object::keep_at_netfilter`], but without a pin: as long as
    /// the returned links are open.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn attach_at_netfilter(
        &self,
        program: &'static str,
        at: &NetfilterPlace,
    ) -> Result<Vec<OwnedFd>, KernelError> {
        let descriptor = self.program(program)?;
        let links = FAMILIES.into_iter();
        links
            .map(|(_, family)| attach_netfilter(descriptor.as_fd(), &at.options(family, 0)))
            .collect()
    }
}

/// Releases what [`Object::keep_at_netfilter`] has attached, also in an earlier process.
///
/// # Errors
/// The kernel's error; the rest is still attached.
pub fn leave_netfilter(program: &str, pins: &Pins) -> Result<(), KernelError> {
    let links = pins.links(&format!("{program}_ipv"))?;
    links.iter().try_for_each(|link| detach(link))
}

/// The path of the link of a family at one of the two priorities.
fn pin(pins: &Pins, program: &str, family: &str, place: usize) -> PathBuf {
    pins.link(format_args!("{program}_{family}_{place}"))
}

/// Whether a program has this priority at the hook.
fn is_taken(program: BorrowedFd<'_>, at: &NetfilterOpts) -> Result<bool, KernelError> {
    match attach_now(program, at) {
        // The attempt ends when this link is closed.
        Ok(_link) => Ok(false),
        Err(error) if is_busy(&error) => Ok(true),
        Err(error) => Err(KernelError::system(ATTACHING)(error)),
    }
}

fn attach_now(program: BorrowedFd<'_>, at: &NetfilterOpts) -> io::Result<OwnedFd> {
    usher_bpf_ffi::attach_to_netfilter(
        program,
        at.protocol_family.unsigned_abs(),
        at.hooknum.unsigned_abs(),
        at.priority,
        at.flags,
    )
}

fn attach_netfilter(program: BorrowedFd<'_>, at: &NetfilterOpts) -> Result<OwnedFd, KernelError> {
    let link = when_free(LONGEST_WAIT, || attach_now(program, at));
    link.map_err(KernelError::system(ATTACHING))
}

/// Removes a link's pin, and detaches the link at once. A link that only loses its pin ends a moment
/// later, and keeps its priority until then. The pin goes first: where there is a pin, its link is in
/// force, even if this process is killed between the two steps.
fn detach(pin: &Path) -> Result<(), KernelError> {
    let link = Link::open(pin).map_err(KernelError::bpf("open a pinned link"))?;
    unpin(pin)?;
    link.detach().map_err(KernelError::bpf("detach a program"))
}
