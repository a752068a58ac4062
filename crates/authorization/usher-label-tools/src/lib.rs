//! The commands getfmac(8), setfmac(8), setfsmac(8), getpmac(8) and setpmac(8), as FreeBSD names them.
//!
//! The commands about files run as root over directories that users own and change meanwhile. Therefore a tree
//! is walked by descriptors ([`walk`]): each file is opened with O_PATH, and the opened file is looked at and
//! labelled; no symbolic link is followed on the way.
//!
//! Room: the labels of files below the paths that the administrator names, specification files,
//! the file of `--checkpoint`, and the labels of processes.
#![forbid(unsafe_code)]

pub mod checkpoint;
mod elements;
mod error;
pub mod getfmac;
pub mod getpmac;
pub mod output;
pub mod setfmac;
pub mod setfsmac;
pub mod setpmac;
pub mod walk;
