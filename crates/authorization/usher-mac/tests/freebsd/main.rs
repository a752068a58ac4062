//! The modules after FreeBSD's, compiled for user space, each compared with a model that is written from its
//! manual page.

#[path = "../shared/asked.rs"]
mod asked;
#[path = "../shared/compiled.rs"]
mod compiled;
mod ifoff;
mod partition;
mod portacl;
mod seeotheruids;

const EACCES: i32 = -libc::EACCES;
const EPERM: i32 = -libc::EPERM;
const ESRCH: i32 = -libc::ESRCH;
