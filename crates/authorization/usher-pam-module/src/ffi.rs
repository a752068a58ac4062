//! The entry points that libpam calls, and the part of libpam that they need. The declarations come from
//! the crate libpam-sys.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use libpam_sys::{PAM_IGNORE, PAM_SUCCESS, pam_handle};

/// The key of the note that the module is in the `auth` stack.
const IN_AUTH: &CStr = c"usher_in_auth";
/// The key of the process that has opened the session, where another one gets the label.
const OPENER: &CStr = c"usher_opener";
/// Exit status of a process that must not go on; sshd's own for a session that was not opened.
const REFUSED: c_int = 254;

/// A PAM transaction, during a call of libpam to the module.
pub(crate) struct Transaction {
    handle: *mut pam_handle,
}

impl Transaction {
    /// The name of the session's user.
    ///
    /// # Errors
    /// libpam has no name. The text is for people.
    pub(crate) fn user(&self) -> Result<String, String> {
        let mut name: *const c_char = ptr::null();
        // SAFETY: libpam has passed the handle for this call; it writes a pointer to a text of its own,
        // which stays until the transaction ends or the name is changed.
        let code = unsafe { libpam_sys::pam_get_user(self.handle, &raw mut name, ptr::null()) };
        if code != PAM_SUCCESS || name.is_null() {
            return Err(format!("PAM does not say who the user is (error {code})"));
        }
        // SAFETY: not null, ends with a zero, and is copied before libpam is called again.
        let name = unsafe { CStr::from_ptr(name) };
        let name = name.to_str().map(str::to_owned);
        name.map_err(|_| "the user's name is not UTF-8".to_owned())
    }

    /// Writes a line to the system's log, with the names of module and program before it.
    pub(crate) fn log(&self, text: &str) {
        let text: String = text.chars().filter(|one| *one != '\0').collect();
        let Ok(text) = CString::new(text) else {
            return;
        };
        // SAFETY: the handle as in `user`; the format takes one text, which ends with a zero.
        unsafe {
            libpam_sys::pam_syslog(self.handle, libc::LOG_ERR, c"%s".as_ptr(), text.as_ptr());
        }
    }

    /// Notes that the module is in the `auth` stack.
    ///
    /// # Errors
    /// There is no memory. The text is for people.
    pub(crate) fn note_auth(&self) -> Result<(), String> {
        self.keep(IN_AUTH, 1)
    }

    /// Whether [`Transaction::note_auth`] was called in this transaction.
    pub(crate) fn is_in_auth(&self) -> bool {
        self.kept(IN_AUTH).is_some()
    }

    /// Leaves the label to the process that sets its credentials later.
    ///
    /// # Errors
    /// There is no memory. The text is for people.
    pub(crate) fn leave_to_credentials(&self) -> Result<(), String> {
        self.keep(OPENER, std::process::id())
    }

    /// The process that has called [`Transaction::leave_to_credentials`] in this transaction.
    pub(crate) fn opener(&self) -> Option<u32> {
        self.kept(OPENER)
    }

    /// Keeps a number other than 0 in the transaction, and in its copies in child processes.
    fn keep(&self, key: &CStr, number: u32) -> Result<(), String> {
        let data = ptr::without_provenance_mut::<c_void>(number as usize);
        // SAFETY: the handle as in `user`. libpam copies the key; the data is a number that nobody takes
        // for an address, so nothing is freed with it.
        let code = unsafe { libpam_sys::pam_set_data(self.handle, key.as_ptr(), data, nothing) };
        match code {
            PAM_SUCCESS => Ok(()),
            code => Err(format!("PAM keeps no data (error {code})")),
        }
    }

    fn kept(&self, key: &CStr) -> Option<u32> {
        let mut data: *const c_void = ptr::null();
        // SAFETY: the handle as in `user`; libpam writes what `keep` has passed.
        let code = unsafe { libpam_sys::pam_get_data(self.handle, key.as_ptr(), &raw mut data) };
        let number = u32::try_from(data.addr()).ok();
        number.filter(|number| code == PAM_SUCCESS && *number != 0)
    }
}

/// Frees nothing: the kept data is a number.
extern "C" fn nothing(_: *mut pam_handle, _: *mut c_void, _: c_int) {}

/// Ends the calling process at once, without running any code of the program.
pub(crate) fn end_process() -> ! {
    // SAFETY: may be called at any time, and does not return.
    unsafe { libc::_exit(REFUSED) }
}

/// See pam_sm_open_session(3).
///
/// # Safety
/// For libpam only, which passes the handle of a transaction under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pam_sm_open_session(
    handle: *mut pam_handle,
    _: c_int,
    count: c_int,
    _: *mut *const c_char,
) -> c_int {
    let arguments = usize::try_from(count).unwrap_or(0);
    crate::open_session(&Transaction { handle }, arguments)
}

/// See pam_sm_close_session(3). A label is for good.
///
/// # Safety
/// As [`pam_sm_open_session`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pam_sm_close_session(
    _: *mut pam_handle,
    _: c_int,
    _: c_int,
    _: *mut *const c_char,
) -> c_int {
    PAM_SUCCESS
}

/// See pam_sm_setcred(3).
///
/// # Safety
/// As [`pam_sm_open_session`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pam_sm_setcred(
    handle: *mut pam_handle,
    flags: c_int,
    _: c_int,
    _: *mut *const c_char,
) -> c_int {
    crate::set_credentials(&Transaction { handle }, flags)
}

/// See pam_sm_authenticate(3). The module authenticates no one.
///
/// # Safety
/// As [`pam_sm_open_session`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pam_sm_authenticate(
    _: *mut pam_handle,
    _: c_int,
    _: c_int,
    _: *mut *const c_char,
) -> c_int {
    PAM_IGNORE
}
