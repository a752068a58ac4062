//! Loading, adopting, attaching and pinning of bpf/authentication/ownership.

use std::io;

use usher_bpf::guard::ask_guard;
use usher_bpf::{Code, Hooks, Lack, Object, Opened, Pins, code, keep_for_all, let_go};

use super::OwnershipError;
use crate::KernelError;
use crate::shared::guard::{PINNED_LINK, ROLL_CALL_LINK};
use crate::shared::ownership::OWNERSHIP_VERSION;

/// bpf/authentication/ownership and bpf/guard.
static CODE: [Code; 4] = [
    code!("usher_fence", "fence"),
    code!("usher_connection", "connection"),
    code!("usher_objects", "objects"),
    code!("usher_daemons", "daemons"),
];

/// Hooks that a kernel may lack: there, their calls pass another hook, or do not exist.
const DISPENSABLE: [&str; 2] = ["file_ioctl_compat", "perf_event_open"];

/// The objects of [`CODE`], attached and pinned.
pub(super) fn open_programs(pins: &Pins) -> Result<[Object; 4], OwnershipError> {
    pins.require_layout(OWNERSHIP_VERSION)?;
    let hooks = Hooks::of_kernel().map_err(not_supported)?;
    let load =
        |code: &Code| Ok::<_, OwnershipError>(opened(code, &hooks)?.pin(pins, None)?.load()?);
    let [fence, connection, objects, daemons] = &CODE;
    let loaded = [
        load(fence)?,
        load(connection)?,
        load(objects)?,
        load(daemons)?,
    ];
    pins.note_layout(&loaded[0], OWNERSHIP_VERSION)?;
    keep_for_all(&loaded, pins)?;
    let reason = if !ask_guard(ROLL_CALL_LINK)? {
        "bpf is not in the list of LSMs in force"
    } else if !sees_pinned_pages()? {
        "pages that were pinned are marked otherwise than in the kernels that Usher knows"
    } else {
        return Ok(loaded);
    };
    let_go(pins)?;
    Err(not_supported(reason))
}

fn not_supported(reason: impl ToString) -> OwnershipError {
    OwnershipError::NotSupported(Lack::new(reason.to_string()))
}

/// Loads the programs and releases them. Returns the hooks that this kernel lacks.
pub(crate) fn try_load() -> Result<Vec<&'static str>, OwnershipError> {
    let hooks = Hooks::of_kernel().map_err(not_supported)?;
    for code in &CODE {
        opened(code, &hooks)?.try_load().map_err(not_supported)?;
    }
    let missing = DISPENSABLE.into_iter().filter(|hook| !hooks.has(hook));
    Ok(missing.collect())
}

/// Reads an object and leaves out programs whose hook this kernel lacks.
fn opened(code: &Code, hooks: &Hooks) -> Result<Opened, OwnershipError> {
    code.open()?.choose(|_, hook| {
        let has = hooks.has(hook);
        if has || DISPENSABLE.contains(&hook) {
            Ok(has)
        } else {
            Err(not_supported(format!("it has no hook {hook}")))
        }
    })
}

/// Whether the programs see that pages of a process were pinned. It is tried with a page of this
/// process, because the kernel's description of its types lacks the number of that flag.
fn sees_pinned_pages() -> Result<bool, KernelError> {
    let (from, mut to) = ([1_u8], [0_u8]);
    let remote = libc::iovec {
        iov_base: from.as_ptr().cast_mut().cast(),
        iov_len: 1,
    };
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: reads one byte of this process and writes one, both of which live until the call
    // returns. The kernel pins the page that it reads.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if read != 1 {
        return Err(KernelError::system("pin a page")(io::Error::last_os_error()));
    }
    ask_guard(PINNED_LINK)
}

/// Tries to load the smallest LSM program.
pub(crate) fn load_lsm_program() -> Result<(), Lack> {
    static CODE: Code = code!("usher_probe", "probe");
    CODE.probe().map_err(|error| {
        Lack::new(format!(
            "this kernel refuses LSM programs ({error}), as it does in lockdown for confidentiality \
             or without BPF LSM"
        ))
    })
}
