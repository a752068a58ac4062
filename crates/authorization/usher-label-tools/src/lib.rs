//! The commands getfmac(8), setfmac(8) and setfsmac(8), as FreeBSD names them.
//!
//! They run as root over directories that users own and change meanwhile. Therefore a tree is walked by
//! descriptors ([`walk`]): each file is opened with O_PATH, and what was opened is what is looked at and
//! labelled; no symbolic link is followed on the way.
//!
//! Room: the labels of files below the paths that the administrator names, specification files, and
//! the file of `--checkpoint`.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod getfmac;
pub mod output;
pub mod setfmac;
pub mod setfsmac;
pub mod walk;
