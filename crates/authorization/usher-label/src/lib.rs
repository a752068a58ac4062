//! MAC labels as text.
//!
//! A [`Label`] is a set of elements `name/value`, one for each policy module that labels the object:
//! `biba/high,mls/low` (maclabel(7) of FreeBSD). The same text stands in commands, in files of
//! configuration and in the attribute `security.bpf.mac` of a file; docs/PROTOCOL.md has the grammar.
//! An [`ElementList`] names the elements that a program asks for. [`Defaults`] is mac.conf(5),
//! [`LoginLabels`] mac.login(5), [`Specification`] a file of setfsmac(8).
//!
//! A module declares the kind of its values: an [`ElementKind`] reads a value as a [`TypedValue`], whose
//! text is canonical. Only the module knows what follows from it.
//!
//! No I/O and no clock: the caller reads the files.
//!
//! Room: touches nothing outside its arguments. The reader of attributes, the C library and the
//! commands for labels use it.
#![forbid(unsafe_code)]

mod bytes;
mod capability;
mod defaults;
mod label;
mod level;
mod limits;
mod login;
mod mistake;
mod posix;
mod specification;
mod value;
mod words;

pub use bytes::{ELEMENT_SIZE, InvalidElement};
pub use capability::CAPABILITIES;
pub use defaults::{ClassName, Defaults, InvalidClassName};
pub use label::{ElementList, Label, MissingElement, Wanted};
pub use level::{Compartments, Level, Range};
pub use limits::{
    MAXIMUM_ACCOUNT_NAME, MAXIMUM_CLASSES, MAXIMUM_ELEMENTS, MAXIMUM_LOGIN_GROUPS,
    MAXIMUM_LOGIN_USERS, MAXIMUM_NAME, MAXIMUM_PATTERN_MEMORY, MAXIMUM_SPECIFICATIONS,
    MAXIMUM_TEXT, MAXIMUM_VALUE,
};
pub use login::{LoginLabels, LoginLine, LoginSubject};
pub use mistake::{
    DefaultsMistake, LabelError, LabelMistake, LoginMistake, SpecificationMistake, ValueMistake,
};
pub use specification::{Entry, FileKind, Flavour, Match, Specification, SpecificationSet};
pub use value::{
    Auxiliary, ElementKind, ElementName, ElementValue, InvalidElementName, InvalidElementValue,
    InvalidNameValue, Levels, NameValue, TypedValue,
};
