//! The dispatchers at their hooks, at the root of control groups, and at network interfaces.

use std::os::fd::AsFd;

use usher_bpf::{
    InterfacePlace, is_kept, is_kept_at_interfaces, keep, keep_at_egress, keep_at_interfaces,
    leave, leave_interfaces,
};

use super::Framework;
use crate::dispatchers::{AT_INTERFACES, EGRESS, at_interfaces, dispatcher, hooks};
use crate::{Error, cgroups};

impl Framework {
    /// Attaches a hook's dispatcher, unless it is attached already.
    pub(crate) fn attach(&self, hook: &str) -> Result<(), Error> {
        if let Some(place) = at_interfaces(hook) {
            return self.attach_at_interfaces(hook, place).map(drop);
        }
        let name = dispatcher(hook);
        if is_kept(&name, &self.pins)? {
            return Ok(());
        }
        let program = self.dispatchers[hook].as_fd();
        match hook {
            EGRESS => keep_at_egress(&name, program, cgroups::root()?.as_fd(), &self.pins)?,
            _ => keep(&name, program, &self.pins)?,
        }
        Ok(())
    }

    /// Attaches a dispatcher to the interfaces that do not have it. Returns whether links have come or gone.
    fn attach_at_interfaces(&self, hook: &str, place: InterfacePlace) -> Result<bool, Error> {
        let (name, program) = (dispatcher(hook), &self.dispatchers[hook]);
        let done = keep_at_interfaces(&name, program, place, &self.pins)?;
        match done.unattached.into_iter().next() {
            None => Ok(done.is_changed),
            Some(first) => Err(Error::Unattached {
                interface: first.interface,
                error: first.error,
            }),
        }
    }

    /// Detaches a hook's dispatcher.
    pub(super) fn detach(&self, hook: &str) -> Result<(), Error> {
        let name = dispatcher(hook);
        match at_interfaces(hook) {
            Some(_) => leave_interfaces(&name, &self.pins)?,
            None => drop(leave(&name, &self.pins)?),
        }
        Ok(())
    }

    fn is_attached(&self, hook: &str) -> Result<bool, Error> {
        let name = dispatcher(hook);
        Ok(match at_interfaces(hook) {
            Some(_) => is_kept_at_interfaces(&name, &self.pins)?,
            None => is_kept(&name, &self.pins)?,
        })
    }

    /// The hooks at which a dispatcher is attached.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn attached(&self) -> Result<Vec<&'static str>, Error> {
        let mut attached = Vec::new();
        for hook in hooks() {
            if self.is_attached(hook)? {
                attached.push(hook);
            }
        }
        Ok(attached)
    }

    /// Attaches the dispatchers to network interfaces that have come, if a module needs them there. To be
    /// called repeatedly. Returns whether links have come or gone; [`Framework::objects`] has the links.
    ///
    /// # Errors
    /// [`Error::Unattached`], or the kernel's error. Other interfaces have their programs then.
    pub fn follow_interfaces(&self) -> Result<bool, Error> {
        let mut done = Vec::new();
        for (hook, place) in AT_INTERFACES {
            if self.is_attached(hook)? {
                done.push(self.attach_at_interfaces(hook, place));
            }
        }
        let changes: Vec<bool> = done.into_iter().collect::<Result<_, _>>()?;
        Ok(changes.contains(&true))
    }
}
