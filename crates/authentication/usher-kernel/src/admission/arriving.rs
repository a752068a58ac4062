//! Reads tokens at netfilter's LOCAL_IN (bpf/authentication/admission/arriving.bpf.c), in place of the
//! filters at interfaces. From kernel 6.6 on.

use usher_bpf::{
    Code, Lack, NetfilterHook, NetfilterPlace, Object, Pins, code, leave_netfilter, program_id,
};

use super::FILTER;
use crate::KernelError;

/// bpf/authentication/admission/arriving.bpf.c.
static CODE: Code = code!("usher_arriving", "arriving");

const PROGRAM: &str = "check_token";

/// After the program that drops unprotected packets to services with `protection` (`protected.rs`),
/// and before all tables of the administrator.
const PLACE: NetfilterPlace = NetfilterPlace {
    hook: NetfilterHook::LocalIn,
    priorities: [-340, -339],
};

/// Tries whether this kernel accepts the program.
///
/// # Errors
/// The kernel's reason.
pub(crate) fn probe() -> Result<(), Lack> {
    CODE.probe_at_netfilter(&[(PROGRAM, PLACE)])
}

/// The program's tables whose sizes are set before loading.
const SIZED: [&str; 3] = ["admissions", "tokens", "outstanding"];

/// The program.
#[derive(Debug)]
pub(super) struct Arriving(Object);

impl Arriving {
    /// Loads and attaches the program, with the tables that `pins` has. Then removes the filters of an
    /// earlier keeper, so that tokens are read at every moment.
    ///
    /// # Errors
    /// The kernel's error; the program is then not attached.
    pub(super) fn open(pins: &Pins, sizes: &[(&'static str, u32)]) -> Result<Self, KernelError> {
        let opened = Self::replace(pins, sizes);
        if opened.is_err() {
            // A program that is attached for one family only, or by an earlier keeper, would read
            // tokens beside the filters.
            leave_netfilter(PROGRAM, pins)?;
        }
        opened
    }

    fn replace(pins: &Pins, sizes: &[(&'static str, u32)]) -> Result<Self, KernelError> {
        let sized = sizes.iter().filter(|(table, _)| SIZED.contains(table));
        let sized: Vec<_> = sized.copied().collect();
        let object = CODE.open()?.limit(&sized)?.pin(pins, None)?.load()?;
        object.keep_at_netfilter(PROGRAM, &PLACE, pins)?;
        let (_, mut left) = FILTER.detach()?;
        // A filter that could not be removed would read packets before IPsec.
        left.pop().map_or(Ok(Self(object)), |left| Err(left.error))
    }

    /// Attaches the program again if somebody has detached it.
    ///
    /// # Errors
    /// The kernel's error; the program is then not attached.
    pub(super) fn attach(&self, pins: &Pins) -> Result<(), KernelError> {
        if self.0.mend_at_netfilter(PROGRAM, &PLACE, pins)? {
            tracing::warn!("somebody has detached the program that reads tokens; it is put back");
        }
        Ok(())
    }

    /// The program's id.
    pub(super) fn program(&self) -> Result<u32, KernelError> {
        program_id(&self.0.program(PROGRAM)?)
    }
}
