//! A filter at ingress of every interface.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::{TC_INGRESS, TcHook, TcHookBuilder};
use nix::net::if_::if_nameindex;

use crate::KernelError;
use crate::pins::program_id;
use crate::print::quietly;

/// A filter's place, which identifies it.
#[derive(Debug, Clone, Copy)]
pub struct Filter {
    /// The filter's preference: filters with lower ones come first, and other programs usually take 1.
    pub priority: u32,
    /// The filter's handle.
    pub handle: u32,
}

/// An interface to which the filter could not be attached, or from which it could not be removed.
#[derive(Debug)]
pub struct Unattached {
    /// The interface's name.
    pub interface: String,
    /// The reason.
    pub error: KernelError,
}

impl Filter {
    /// Attaches the program at ingress of every interface of the caller's network namespace, including
    /// loopback. Interfaces that have the program already are left alone; an earlier process's program is
    /// replaced. Call this repeatedly, because interfaces come and go. Returns the interfaces at which
    /// attaching failed; all others have the filter then.
    ///
    /// The filter stays when the process ends. Other filters stay in force; those after ours still see
    /// every packet.
    ///
    /// # Errors
    /// When the interfaces cannot be listed, or the program's id cannot be read.
    pub fn attach(self, program: &OwnedFd) -> Result<Vec<Unattached>, KernelError> {
        let id = program_id(program)?;
        let mut unattached = Vec::new();
        for (index, interface) in interfaces()? {
            let mut hook = self.hook(program.as_fd(), index);
            if quietly(|| hook.query()).is_ok_and(|found| found == id) {
                continue;
            }
            if let Err(error) = quietly(|| hook.create()).and_then(|mut hook| hook.attach()) {
                // An interface that has vanished meanwhile does not count.
                if exists(index)? {
                    unattached.push(Unattached {
                        interface,
                        error: KernelError::bpf("attach to an interface")(error),
                    });
                }
            }
        }
        Ok(unattached)
    }

    /// Removes the filter from every interface of the caller's network namespace, whether its program is
    /// loaded or not. The clsact qdiscs stay, even those made for the filter: an empty qdisc decides nothing,
    /// and other programs may rely on it. Returns the interfaces from which the filter was removed, and those
    /// where this failed.
    ///
    /// # Errors
    /// When the interfaces cannot be listed.
    pub fn detach(self) -> Result<(Vec<String>, Vec<Unattached>), KernelError> {
        // The hook needs a descriptor but does not use it: the place identifies the filter.
        let none = File::open("/dev/null").map_err(KernelError::system("open /dev/null"))?;
        let (mut detached, mut attached) = (Vec::new(), Vec::new());
        for (index, interface) in interfaces()? {
            let mut hook = self.hook(none.as_fd(), index);
            if quietly(|| hook.query()).is_err() {
                continue;
            }
            match hook.detach() {
                Ok(()) => detached.push(interface),
                // An interface that has vanished meanwhile does not count.
                Err(error) if exists(index)? => attached.push(Unattached {
                    interface,
                    error: KernelError::bpf("detach from an interface")(error),
                }),
                Err(_) => {}
            }
        }
        Ok((detached, attached))
    }

    fn hook(self, program: BorrowedFd<'_>, index: i32) -> TcHook {
        TcHookBuilder::new(program)
            .ifindex(index)
            .handle(self.handle)
            .priority(self.priority)
            .replace(true)
            .hook(TC_INGRESS)
    }
}

pub(crate) fn exists(index: i32) -> Result<bool, KernelError> {
    Ok(interfaces()?.iter().any(|(other, _)| *other == index))
}

/// Index and name of every interface of the thread's network namespace.
pub(crate) fn interfaces() -> Result<Vec<(i32, String)>, KernelError> {
    let list = if_nameindex()
        .map_err(io::Error::from)
        .map_err(KernelError::system("list the network interfaces"))?;
    let named = list.iter().filter_map(|interface| {
        // An index is a positive int in the kernel.
        let index = i32::try_from(interface.index()).ok()?;
        Some((index, interface.name().to_string_lossy().into_owned()))
    });
    Ok(named.collect())
}
