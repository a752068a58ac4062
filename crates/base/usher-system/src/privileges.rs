//! Giving up privileges, and checking that they are gone.

use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid};
pub use rustix::thread::CapabilitySet as Capabilities;
use rustix::thread::CapabilitySets;

use crate::SystemError;

/// Becomes an account for good: groups, group, user (real, effective, saved), and with them all
/// capabilities, the bounding set included. To be called while the process has one thread.
///
/// # Errors
/// When the kernel refuses, or something is still there afterwards: the process must then end.
pub fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Result<(), SystemError> {
    become_user_keeping(uid, gid, groups, Capabilities::empty())
}

/// As [`become_user`], but keeps the capabilities `kept`.
///
/// # Errors
/// As [`become_user`].
pub fn become_user_keeping(
    uid: u32,
    gid: u32,
    groups: &[u32],
    kept: Capabilities,
) -> Result<(), SystemError> {
    let failed = SystemError::call("give up root");
    let change = || -> rustix::io::Result<()> {
        drop_bounding_set_except(kept)?;
        rustix::thread::set_keep_capabilities(!kept.is_empty())?;
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        limit_to(kept)
    };
    change().map_err(failed)?;
    let still_root = uid != 0
        && (rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_ok()
            || rustix::process::geteuid().as_raw() != uid
            || rustix::process::getegid().as_raw() != gid);
    if still_root {
        return Err(SystemError::StillPrivileged);
    }
    check_only(kept)
}

/// Stays the user it is and keeps these capabilities only, in all sets. To be called while the
/// process has one thread.
///
/// # Errors
/// As [`become_user`].
pub fn keep_only(kept: Capabilities) -> Result<(), SystemError> {
    keep_and_pass_on(kept, Capabilities::empty())
}

/// As [`keep_only`], but programs that the process executes as root may have `passed_on` as well: those of
/// them that are in the bounding set stay there.
///
/// # Errors
/// As [`become_user`].
pub fn keep_and_pass_on(kept: Capabilities, passed_on: Capabilities) -> Result<(), SystemError> {
    keep_bounded(kept, kept | passed_on)
}

/// Stays the user it is, keeps these capabilities, and passes none of them on to programs that it starts: the
/// bounding set is empty. To be called while the process has one thread.
///
/// # Errors
/// As [`become_user`].
pub fn keep_to_itself(kept: Capabilities) -> Result<(), SystemError> {
    keep_bounded(kept, Capabilities::empty())
}

fn keep_bounded(kept: Capabilities, bounding: Capabilities) -> Result<(), SystemError> {
    drop_bounding_set_except(bounding)
        .and_then(|()| limit_to(kept))
        .map_err(SystemError::call("give up capabilities"))?;
    check_only(kept)
}

fn drop_bounding_set_except(kept: Capabilities) -> rustix::io::Result<()> {
    for bit in 0..64 {
        let one = Capabilities::from_bits_retain(1 << bit);
        if kept.contains(one) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(one) {
            // This kernel knows no capability of this number.
            Err(rustix::io::Errno::INVAL) => {}
            other => other?,
        }
    }
    Ok(())
}

fn limit_to(kept: Capabilities) -> rustix::io::Result<()> {
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: Capabilities::empty(),
        },
    )?;
    rustix::thread::clear_ambient_capability_set()
}

fn check_only(kept: Capabilities) -> Result<(), SystemError> {
    let sets =
        rustix::thread::capabilities(None).map_err(SystemError::call("read capabilities"))?;
    if sets.permitted == kept && sets.effective == kept && sets.inheritable.is_empty() {
        Ok(())
    } else {
        Err(SystemError::StillPrivileged)
    }
}

/// No program started from here gains privileges by a set-user-ID bit or file capabilities.
pub fn no_new_privileges() -> Result<(), SystemError> {
    rustix::thread::set_no_new_privs(true).map_err(SystemError::call("set PR_SET_NO_NEW_PRIVS"))
}

/// No core dumps, and no ptrace by processes of the same user: there are keys in memory.
pub fn no_core_dumps() -> Result<(), SystemError> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(SystemError::call("clear PR_SET_DUMPABLE"))
}

/// Raises the limit of open descriptors as far as this process may.
pub fn raise_descriptor_limit() -> Result<(), SystemError> {
    let Rlimit { maximum, .. } = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )
    .map_err(SystemError::call("raise RLIMIT_NOFILE"))
}
