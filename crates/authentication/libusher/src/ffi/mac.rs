//! The calls of `include/usher_mac.h`.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use super::service::{Failure, invalid, opened, status_for_c};
use super::{fail, text_of};
use crate::mac::{
    ElementList, FileLabelError, Label, LabelError, LabelledFile, MAC_CONF, MissingElement,
    ProcessLabelError, ReadError, is_present, read_defaults,
};

/// The target of a `mac_t`.
pub struct Mac {
    /// The elements to get; `None` for a label that was made from text.
    wanted: Option<ElementList>,
    /// `None` until a label was got.
    label: Option<Label>,
}

impl From<LabelError> for Failure {
    fn from(error: LabelError) -> Self {
        invalid(format!("{error}; {}", error.remedy()))
    }
}

impl From<FileLabelError> for Failure {
    fn from(error: FileLabelError) -> Self {
        Self(error.to_string(), error.errno().raw_os_error())
    }
}

impl From<ProcessLabelError> for Failure {
    fn from(error: ProcessLabelError) -> Self {
        Self(error.to_string(), error.errno().raw_os_error())
    }
}

impl From<MissingElement> for Failure {
    fn from(error: MissingElement) -> Self {
        Self(error.to_string(), libc::ENODATA)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let errno = match &error {
            ReadError::Io(_, io) => io.raw_os_error().unwrap_or(libc::EIO),
            ReadError::Mistake(_) => libc::EINVAL,
        };
        Self(error.to_string(), errno)
    }
}

/// A path of C.
///
/// # Safety
/// `path` is null or points to a string that ends in a zero byte and outlives what is returned.
pub(super) unsafe fn path_of<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    if path.is_null() {
        return Err(invalid("the path is a null pointer"));
    }
    // SAFETY: not null, and a string by this function's contract.
    let path = unsafe { CStr::from_ptr(path) };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// Puts a new label where C wants it; on failure leaves a null pointer there.
///
/// # Safety
/// `place` is null or points to a `mac_t`.
unsafe fn hand_out_mac(place: *mut *mut Mac, made: Result<Mac, Failure>) -> c_int {
    if place.is_null() {
        return fail("there is no place for the label", libc::EINVAL);
    }
    let (label, result) = match made {
        Ok(made) => (Box::into_raw(Box::new(made)), Ok(0)),
        Err(failure) => (std::ptr::null_mut(), Err(failure)),
    };
    // SAFETY: not null, and a place for a pointer by this function's contract.
    unsafe { place.write(label) };
    status_for_c(result)
}

fn parse_label<T: FromStr<Err = LabelError>>(text: Result<&str, Failure>) -> Result<T, Failure> {
    Ok(text?.parse()?)
}

fn prepared(wanted: ElementList) -> Mac {
    Mac {
        wanted: Some(wanted),
        label: None,
    }
}

/// See mac_prepare(3).
///
/// # Safety
/// `mac` is null or points to a `mac_t`, `elements` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_prepare(mac: *mut *mut Mac, elements: *const c_char) -> c_int {
    // SAFETY: this function's contract.
    let elements = parse_label(unsafe { text_of(elements) });
    // SAFETY: this function's contract.
    unsafe { hand_out_mac(mac, elements.map(prepared)) }
}

/// See mac_prepare(3).
///
/// # Safety
/// `mac` is null or points to a `mac_t`, `class` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_prepare_type(mac: *mut *mut Mac, class: *const c_char) -> c_int {
    // SAFETY: this function's contract.
    let class = unsafe { text_of(class) };
    // SAFETY: this function's contract.
    unsafe { hand_out_mac(mac, class.and_then(defaults_of).map(prepared)) }
}

fn defaults_of(class: &str) -> Result<ElementList, Failure> {
    let defaults = read_defaults(Path::new(MAC_CONF))?;
    let elements = defaults.elements(class).cloned();
    elements.ok_or_else(|| {
        let text = format!("{MAC_CONF} has no line for the object class `{class}`");
        Failure(text, libc::ENOENT)
    })
}

/// See mac_from_text(3).
///
/// # Safety
/// `mac` is null or points to a `mac_t`, `text` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_from_text(mac: *mut *mut Mac, text: *const c_char) -> c_int {
    // SAFETY: this function's contract.
    let label = parse_label(unsafe { text_of(text) });
    let made = label.map(|label| Mac {
        wanted: None,
        label: Some(label),
    });
    // SAFETY: this function's contract.
    unsafe { hand_out_mac(mac, made) }
}

/// See mac_from_text(3).
///
/// # Safety
/// `mac` is null or a label of these calls, `text` is null or points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_to_text(mac: *const Mac, text: *mut *mut c_char) -> c_int {
    if text.is_null() {
        return fail("there is no place for the text", libc::EINVAL);
    }
    // SAFETY: this function's contract.
    let copied = unsafe { label_of(mac) }.and_then(|label| {
        let text = CString::new(label.to_string()).map_err(invalid)?;
        // SAFETY: a string that ends in a zero byte. The caller frees the copy with free(3).
        let copy = unsafe { libc::strdup(text.as_ptr()) };
        if copy.is_null() {
            return Err(Failure("there is no memory".to_owned(), libc::ENOMEM));
        }
        Ok(copy)
    });
    let (copy, result) = match copied {
        Ok(copy) => (copy, Ok(0)),
        Err(failure) => (std::ptr::null_mut(), Err(failure)),
    };
    // SAFETY: not null, and a place for a pointer by this function's contract.
    unsafe { text.write(copy) };
    status_for_c(result)
}

/// The label that a `mac_t` holds.
///
/// # Safety
/// `mac` is null or a label of these calls, which no other thread changes meanwhile.
pub(super) unsafe fn label_of<'a>(mac: *const Mac) -> Result<&'a Label, Failure> {
    // SAFETY: this function's contract.
    let mac = unsafe { mac.as_ref() }.ok_or_else(|| invalid("the label is a null pointer"))?;
    let label = mac.label.as_ref();
    label.ok_or_else(|| invalid("the label is prepared, but was not got yet"))
}

/// See mac_prepare(3).
///
/// # Safety
/// `mac` is null or a label of these calls, which is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_free(mac: *mut Mac) -> c_int {
    if !mac.is_null() {
        // SAFETY: made by `hand_out_mac` from a box, and freed only once by this function's contract.
        drop(unsafe { Box::from_raw(mac) });
    }
    0
}

/// Fills a prepared label with the elements that it wants.
///
/// # Safety
/// `mac` is null or a label of these calls, which no other thread uses meanwhile.
pub(super) unsafe fn fill(mac: *mut Mac, label: Result<Label, Failure>) -> c_int {
    // SAFETY: this function's contract.
    let mac = unsafe { mac.as_mut() };
    status_for_c(label.and_then(|label| {
        let mac = mac.ok_or_else(|| invalid("the label is a null pointer"))?;
        let wanted = mac.wanted.as_ref();
        let wanted =
            wanted.ok_or_else(|| invalid("the label was not prepared: see mac_prepare(3)"))?;
        mac.label = Some(label.select(wanted)?);
        Ok(0)
    }))
}

/// Gets the label of a file into a prepared one.
///
/// # Safety
/// As [`fill`].
unsafe fn get(file: Result<LabelledFile<'_>, Failure>, mac: *mut Mac) -> c_int {
    let label = file.and_then(|file| Ok(file.label()?.unwrap_or_default()));
    // SAFETY: this function's contract.
    unsafe { fill(mac, label) }
}

/// Sets the elements of a label on a file.
///
/// # Safety
/// `mac` is null or a label of these calls, which no other thread changes meanwhile.
unsafe fn set_file_label(file: Result<LabelledFile<'_>, Failure>, mac: *const Mac) -> c_int {
    // SAFETY: this function's contract.
    let label = unsafe { label_of(mac) };
    status_for_c(file.and_then(|file| {
        file.set(label?)?;
        Ok(0)
    }))
}

/// A file that C has open. Descriptors of O_PATH are refused with EBADF, as by fgetxattr(2).
fn open_file<'a>(descriptor: c_int) -> Result<LabelledFile<'a>, Failure> {
    let descriptor: BorrowedFd<'a> = opened(descriptor)?;
    Ok(LabelledFile::Open(descriptor))
}

/// See mac_get_file(3).
///
/// # Safety
/// `path` is null or a string; `mac` is null or a label of these calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_get_file(path: *const c_char, mac: *mut Mac) -> c_int {
    // SAFETY: this function's contract.
    unsafe { get(path_of(path).map(LabelledFile::Path), mac) }
}

/// See mac_get_file(3).
///
/// # Safety
/// As [`usher_mac_get_file`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_get_link(path: *const c_char, mac: *mut Mac) -> c_int {
    // SAFETY: this function's contract.
    unsafe { get(path_of(path).map(LabelledFile::Link), mac) }
}

/// See mac_get_file(3).
///
/// # Safety
/// `mac` is null or a label of these calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_get_fd(descriptor: c_int, mac: *mut Mac) -> c_int {
    // SAFETY: this function's contract.
    unsafe { get(open_file(descriptor), mac) }
}

/// See mac_set_file(3).
///
/// # Safety
/// As [`usher_mac_get_file`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_set_file(path: *const c_char, mac: *const Mac) -> c_int {
    // SAFETY: this function's contract.
    unsafe { set_file_label(path_of(path).map(LabelledFile::Path), mac) }
}

/// See mac_set_file(3).
///
/// # Safety
/// As [`usher_mac_get_file`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_set_link(path: *const c_char, mac: *const Mac) -> c_int {
    // SAFETY: this function's contract.
    unsafe { set_file_label(path_of(path).map(LabelledFile::Link), mac) }
}

/// See mac_set_file(3).
///
/// # Safety
/// `mac` is null or a label of these calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_set_fd(descriptor: c_int, mac: *const Mac) -> c_int {
    // SAFETY: this function's contract.
    unsafe { set_file_label(open_file(descriptor), mac) }
}

/// See mac_is_present(3).
///
/// # Safety
/// `module` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_is_present(module: *const c_char) -> c_int {
    let name = if module.is_null() {
        Ok(None)
    } else {
        // SAFETY: not null, and a string by this function's contract.
        let name = unsafe { text_of(module) };
        name.and_then(|name| name.parse().map(Some).map_err(invalid))
    };
    status_for_c(name.and_then(|name| Ok(c_int::from(is_present(name.as_ref())?))))
}
