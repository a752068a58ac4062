//! The part of libpam that this program needs. The declarations come from the crate libpam-sys.

use std::ffi::{CStr, CString, c_int, c_void};
use std::net::IpAddr;
use std::ptr;

use libpam_sys::{pam_conv, pam_handle, pam_message, pam_response};

/// Limit of the modules' messages together, in bytes; the rest is dropped.
const MOST_TEXT: usize = 512;

/// The terminal that modules see. There is none, but pam_time and pam_lastlog want a name.
const TERMINAL: &CStr = c"usher";

/// A PAM transaction of one account.
pub struct Transaction {
    handle: *mut pam_handle,
    /// The result of the last call, which pam_end(3) passes to the modules.
    status: c_int,
    /// The modules' messages. libpam holds a pointer to them until the transaction ends, so they
    /// stay in place and are reached only through this pointer meanwhile.
    messages: *mut Vec<u8>,
}

/// A failed call.
#[derive(Debug)]
pub struct PamError {
    /// The result (`PAM_*`).
    pub code: c_int,
    /// libpam's text for the result, and the modules' messages.
    pub text: String,
}

impl Transaction {
    /// Starts a transaction (pam_start(3)) for a service, which names the file below `/etc/pam.d`, and
    /// for a client at an address (PAM_RHOST; an address, as sshd's is with `UseDNS no`).
    ///
    /// PAM_TTY is `usher`, as sshd's is `ssh`. PAM_RUSER stays unset, as under sshd: the client's user
    /// has the account's name.
    ///
    /// # Errors
    /// When libpam cannot start it, for example without memory.
    pub fn start(service: &CStr, account: &CStr, client: IpAddr) -> Result<Self, PamError> {
        let messages = Box::into_raw(Box::<Vec<u8>>::default());
        let conversation = pam_conv {
            conv: listen,
            appdata_ptr: messages.cast::<c_void>(),
        };
        let mut transaction = Self {
            handle: ptr::null_mut(),
            status: 0,
            messages,
        };
        // SAFETY: Linux-PAM copies the names and the conversation, whose data lives until
        // `Transaction::drop` has ended the transaction.
        let code = unsafe {
            libpam_sys::pam_start(
                service.as_ptr(),
                account.as_ptr(),
                (&raw const conversation).cast_mut(),
                &raw mut transaction.handle,
            )
        };
        transaction.result(code)?;
        let host = CString::new(client.to_canonical().to_string()).map_err(|_| PamError {
            code: libpam_sys::PAM_SYSTEM_ERR,
            text: "the client's address has a zero byte".into(),
        })?;
        transaction.set(libpam_sys::PAM_RHOST, &host)?;
        transaction.set(libpam_sys::PAM_TTY, TERMINAL)?;
        Ok(transaction)
    }

    /// Sets an item that is a text (pam_set_item(3)).
    fn set(&mut self, item: c_int, text: &CStr) -> Result<(), PamError> {
        // SAFETY: the handle is that of a transaction that has been started and has not ended. libpam
        // copies the text.
        let code = unsafe { libpam_sys::pam_set_item(self.handle, item, text.as_ptr().cast()) };
        self.result(code)
    }

    /// Asks whether the account may be used now (pam_acct_mgmt(3)).
    ///
    /// # Errors
    /// When a module refuses, or cannot decide.
    pub fn account(&mut self) -> Result<(), PamError> {
        // SAFETY: the handle is that of a transaction that has been started and has not ended. Not
        // silent, because pam_nologin's message is the reason that an administrator looks for.
        let code = unsafe { libpam_sys::pam_acct_mgmt(self.handle, 0) };
        self.result(code)
    }

    /// Opens a session (pam_open_session(3)). Child processes inherit the modules' settings of this
    /// process.
    ///
    /// # Errors
    /// When a module refuses or fails.
    pub fn open_session(&mut self) -> Result<(), PamError> {
        // SAFETY: as in `account`.
        let code = unsafe { libpam_sys::pam_open_session(self.handle, 0) };
        self.result(code)
    }

    /// Closes the session (pam_close_session(3)).
    ///
    /// # Errors
    /// When a module fails.
    pub fn close_session(&mut self) -> Result<(), PamError> {
        // SAFETY: as in `account`.
        let code = unsafe { libpam_sys::pam_close_session(self.handle, 0) };
        self.result(code)
    }

    /// The environment variables that the modules have set, `NAME=VALUE` each (pam_getenvlist(3)).
    pub fn environment(&self) -> Vec<Vec<u8>> {
        // SAFETY: the handle is that of a transaction that has been started and has not ended.
        let list = unsafe { libpam_sys::pam_getenvlist(self.handle) };
        let mut entries = Vec::new();
        let mut place = list;
        // SAFETY: the list is null if there was no memory, or an array of texts that ends with
        // null. Array and texts belong to the caller, to be freed by free(3); each is freed once,
        // and not used afterwards.
        unsafe {
            while !place.is_null() && !(*place).is_null() {
                entries.push(CStr::from_ptr(*place).to_bytes().to_vec());
                libc::free((*place).cast());
                place = place.add(1);
            }
            libc::free(list.cast());
        }
        entries
    }

    /// The modules' messages so far, with blanks between them.
    pub fn messages(&self) -> String {
        // SAFETY: the pointer comes from Box::into_raw, and only `drop` frees it. libpam uses it
        // only during its calls, and none is under way.
        let messages = unsafe { &*self.messages };
        String::from_utf8_lossy(messages).trim().to_owned()
    }

    fn result(&mut self, code: c_int) -> Result<(), PamError> {
        self.status = code;
        if code == libpam_sys::PAM_SUCCESS {
            return Ok(());
        }
        // SAFETY: Linux-PAM does not use the handle; the answer is a constant text or null.
        let reason = unsafe { libpam_sys::pam_strerror(self.handle, code) };
        let mut text = if reason.is_null() {
            format!("PAM error {code}")
        } else {
            // SAFETY: the text is not null, ends with a zero and is never changed.
            unsafe { CStr::from_ptr(reason) }
                .to_string_lossy()
                .into_owned()
        };
        let messages = self.messages();
        if !messages.is_empty() {
            text.push_str(": ");
            text.push_str(&messages);
        }
        Err(PamError { code, text })
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle was started, and is not used after this.
            unsafe { libpam_sys::pam_end(self.handle, self.status) };
        }
        // SAFETY: the pointer comes from Box::into_raw, and libpam no longer has it.
        drop(unsafe { Box::from_raw(self.messages) });
    }
}

/// The conversation: keeps the modules' messages and answers no question, because no user is
/// present.
///
/// # Safety
/// For libpam only: `messages` are `count` pointers to messages, `data` is the pointer of
/// [`Transaction::messages`].
unsafe extern "C" fn listen(
    count: c_int,
    messages: *const *const pam_message,
    answers: *mut *mut pam_response,
    data: *mut c_void,
) -> c_int {
    let Ok(count) = usize::try_from(count) else {
        return libpam_sys::PAM_CONV_ERR;
    };
    // SAFETY: it is the pointer that the transaction was started with, and nothing else uses it
    // during the call.
    let kept = unsafe { &mut *data.cast::<Vec<u8>>() };
    for index in 0..count {
        // SAFETY: libpam passes `count` valid pointers; Linux-PAM's form is an array of pointers.
        let message = unsafe { &**messages.add(index) };
        if message.msg_style != libpam_sys::PAM_ERROR_MSG
            && message.msg_style != libpam_sys::PAM_TEXT_INFO
        {
            return libpam_sys::PAM_CONV_ERR;
        }
        if !message.msg.is_null() {
            // SAFETY: a message is a text that ends with a zero.
            let text = unsafe { CStr::from_ptr(message.msg) }.to_bytes();
            let room = MOST_TEXT.saturating_sub(kept.len() + 1);
            kept.extend(text.iter().take(room));
            kept.push(b' ');
        }
    }
    // The caller frees the answers with free(3), so they are libc's.
    // SAFETY: calloc may be called at any time.
    let empty = unsafe { libc::calloc(count.max(1), size_of::<pam_response>()) };
    if empty.is_null() {
        return libpam_sys::PAM_BUF_ERR;
    }
    // SAFETY: libpam passes a place for the pointer to the answers.
    unsafe { *answers = empty.cast::<pam_response>() };
    libpam_sys::PAM_SUCCESS
}
