//! The modules after FreeBSD's, compiled for user space, each compared with a model that is written from its
//! manual page.

#[path = "../shared/asked.rs"]
mod asked;
#[path = "../shared/compiled.rs"]
mod compiled;
mod portacl;
mod seeotheruids;

const EPERM: i32 = -libc::EPERM;
const ESRCH: i32 = -libc::ESRCH;
